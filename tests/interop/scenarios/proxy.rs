//! `kubectl proxy` and `narthex proxy` side by side in front of one kube-apiserver, and the Kubernetes task "Use an
//! HTTP Proxy to Access the Kubernetes API" with `narthex proxy`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use super::KubectlTestFn;
use crate::environment::{Kubectl, Process, RawResponse, TestEnvironment, eventually, free_port, kubectl_run};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("proxy: responses equal kubectl proxy's except intended differences", matches_kubectl_proxy),
    ("proxy: the Kubernetes task", documentation_task),
];

/// A running proxy.
pub(super) struct LocalProxy {
    pub(super) process: Process,
    pub(super) port: u16,
}

impl LocalProxy {
    pub(super) fn kubectl(kubectl: &Kubectl, kubeconfig: &Path, scratch: &Path, more: &[&str]) -> LocalProxy {
        LocalProxy::open("kubectl-proxy", &kubectl.program, kubeconfig, scratch, more)
    }

    pub(super) fn narthex(kubeconfig: &Path, scratch: &Path, more: &[&str]) -> LocalProxy {
        LocalProxy::open("narthex-proxy", Path::new(env!("CARGO_BIN_EXE_narthex")), kubeconfig, scratch, more)
    }

    /// Starts `kubectl proxy` with kubeconfigs from the environment.
    pub(super) fn kubectl_of(kubectl: &Kubectl, files: &str, scratch: &Path) -> LocalProxy {
        LocalProxy::start_listening("kubectl-proxy", &kubectl.program, &[&format!("KUBECONFIG={files}")], scratch, &[])
    }

    pub(super) fn narthex_of(files: &str, scratch: &Path) -> LocalProxy {
        let environment = format!("KUBECONFIG={files}");
        LocalProxy::start_listening(
            "narthex-proxy",
            Path::new(env!("CARGO_BIN_EXE_narthex")),
            &[&environment],
            scratch,
            &[],
        )
    }

    fn open(name: &str, program: &Path, kubeconfig: &Path, scratch: &Path, more: &[&str]) -> LocalProxy {
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let arguments: Vec<_> = [kubeconfig.as_str()].into_iter().chain(more.iter().copied()).collect();
        LocalProxy::start_listening(name, program, &[], scratch, &arguments)
    }

    fn start_listening(name: &str, program: &Path, environment: &[&str], scratch: &Path, more: &[&str]) -> LocalProxy {
        let port = free_port();
        let (program, listen) = (program.display().to_string(), format!("--port={port}"));
        let command = [program.as_str(), "proxy", &listen].into_iter().chain(more.iter().copied());
        let arguments = environment.iter().copied().chain(command);
        let mut process = Process::start(&format!("{name}-{port}"), Path::new("env"), arguments, scratch);
        let (log, line) = (process.reader(), format!("Starting to serve on 127.0.0.1:{port}\n"));
        process.wait_until(|| if log().contains(&line) { Ok(()) } else { Err(log()) });
        LocalProxy { process, port }
    }

    /// Sends a request on a new connection and returns the response.
    pub(super) fn ask(&self, request: &str) -> RawResponse {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let request = request.replace("PORT", &self.port.to_string());
        socket.write_all(request.as_bytes()).unwrap();
        let mut all = Vec::new();
        // A server that rejects a request may reset the connection after the response.
        let _ = socket.read_to_end(&mut all);
        RawResponse::read(&all, |name| {
            // Content and location headers. Not Date, Audit-Id, Content-Length (a body of unknown length is chunked)
            // and the like.
            matches!(
                name,
                "content-type"
                    | "location"
                    | "x-content-type-options"
                    | "last-modified"
                    | "accept-ranges"
                    | "content-range"
                    | "allow"
                    | "www-authenticate"
            )
        })
    }
}

/// A request line, further headers and, for an intended difference, narthex's status and the reason.
type Case = (&'static str, &'static str, Option<(u16, &'static str)>);

const LOCAL: &str = "Host: localhost:PORT\r\n";

fn compare(kubectl: &LocalProxy, narthex: &LocalProxy, cases: &[Case]) {
    let mut wrong = Vec::new();
    for (line, headers, difference) in cases {
        let host = if headers.contains("Host:") || headers.contains("NOHOST") { "" } else { LOCAL };
        let headers = headers.replace("NOHOST", "");
        let request = format!("{line} HTTP/1.1\r\n{host}Connection: close\r\nUser-Agent: story\r\n{headers}\r\n");
        let ask_both = || (kubectl.ask(&request).with_redirect_before_go_1_26(), narthex.ask(&request));
        let (mut kubectl_response, mut narthex_response) = ask_both();
        // Another test may have changed what the cluster serves in between.
        for _ in 0..3 {
            if difference.is_none() && kubectl_response != narthex_response {
                (kubectl_response, narthex_response) = ask_both();
            }
        }
        let as_meant = match difference {
            None => kubectl_response == narthex_response,
            Some((status, _)) => kubectl_response != narthex_response && narthex_response.status == *status,
        };
        if !as_meant {
            wrong.push(format!(
                "{line} {headers:?} {difference:?}\n   theirs: {kubectl_response:?}\n   ours:   {narthex_response:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn matches_kubectl_proxy(environment: &TestEnvironment, program: &Kubectl) {
    let scratch = environment.scratch(&format!("proxy-{}", program.version));
    let www = scratch.join("www");
    std::fs::create_dir_all(www.join("page")).unwrap();
    std::fs::create_dir_all(www.join("list/below")).unwrap();
    std::fs::write(www.join("page/index.html"), "<p>hello</p>\n").unwrap();
    std::fs::write(www.join("list/a&b <1>.json"), "{}").unwrap();
    std::fs::write(www.join("list/style.css"), "p {}").unwrap();
    std::fs::write(www.join("list/unknown"), "text").unwrap();
    let files = format!("--www={}", www.display());
    let kubeconfig = &environment.cluster.admin_kubeconfig;
    let both = |more: &[&str]| {
        (LocalProxy::kubectl(program, kubeconfig, &scratch, more), LocalProxy::narthex(kubeconfig, &scratch, more))
    };

    let (kubectl, narthex) = both(&[&files]);
    compare(
        &kubectl,
        &narthex,
        &[
            ("GET /version", "", None),
            ("GET /api", "", None),
            ("GET /", "", None),
            ("GET /?x=1", "", None),
            ("GET /nothing", "", None),
            ("GET /api/v1/namespaces/none/pods/none", "", None),
            ("GET /api/v1/namespaces/default/pods?limit=1&x=%2F;y", "", None),
            ("GET /api/v1/namespaces/kube-system", "Accept: application/yaml\r\n", None),
            ("HEAD /version", "", None),
            ("DELETE /version", "", None),
            ("POST /api/v1/namespaces", "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", None),
            ("GET /version", "Authorization: Bearer wrong\r\n", None),
            ("GET /version", "Host: localhost:9999\r\n", None),
            ("GET /version", "Host: localhost\r\n", None),
            ("GET /version", "Host: 127.0.0.1\r\n", None),
            ("GET /version", "Host: rebound.example\r\n", None),
            ("GET /version", "Host: LOCALHOST\r\n", None),
            ("GET /version", "Host: \r\n", None),
            ("GET http://localhost/version", "Host: rebound.example\r\n", None),
            ("GET http://rebound.example/version", "", None),
            ("GET /version", "NOHOST", None),
            ("GET /version", "Host: localhost\r\nHost: localhost\r\n", None),
            ("GET /%zz", "", None),
            ("GET //double//slash", "", None),
            ("GET /a/../b?c=d&e", "", None),
            ("GET /a/./b/", "", None),
            ("GET /..", "", None),
            ("POST /a//b", "", None),
            ("GET /a%2Fb", "", None),
            ("GET /a/..%2fb", "", None),
            ("GET /%2e%2e/version", "", None),
            ("GET /api/v1/namespaces/a/pods/b/exec", "", None),
            ("GET /api/v1/namespaces/a/pods/b/%65xec", "", None),
            ("POST /api/v1/namespaces/a/pods/b/attach?x", "", None),
            ("GET /api/v1/namespaces/a/pods/b/portforward", "", None),
            // Static files.
            ("GET /static", "", None),
            ("GET /static/", "", None),
            ("GET /static/page", "", None),
            ("GET /static/page?a=b", "", None),
            ("GET /static/page/", "", None),
            ("GET /static/page/index.html", "", None),
            ("HEAD /static/page/", "", None),
            ("GET /static/list/", "", None),
            ("GET /static/list/style.css", "", None),
            ("GET /static/list/style.css/", "", None),
            ("GET /static/list/unknown", "", None),
            ("GET /static/list/a&b%20%3C1%3E.json", "", None),
            ("GET /static/list/none", "", None),
            ("GET /static/%2e%2e/x", "", None),
            ("GET /static/list/unknown", "Range: bytes=1-2\r\n", None),
            ("GET /static/list/unknown", "Range: bytes=-1\r\n", None),
            ("GET /static/list/unknown", "Range: bytes=9-\r\n", None),
            ("GET /static/list/unknown", "Range: bytes=2-1\r\n", None),
            ("GET /static/list/unknown", "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n", None),
            ("GET /static/list/unknown", "If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n", None),
            ("GET /static/list/unknown", "If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT\r\n", None),
            // Intended differences.
            (
                "GET /version",
                "Host: [::1]:PORT\r\n",
                Some((200, "kubectl's default pattern misses this name by mistake")),
            ),
            ("GET /static/page/", "Host: rebound.example\r\n", Some((403, "the filter covers static files"))),
            ("GET /version", "Origin: http://evil.example\r\n", Some((403, "requests of other origins are rejected"))),
            (
                "GET /version",
                "Origin: http://localhost:3000\r\n",
                Some((403, "requests of other origins are rejected")),
            ),
            ("GET /version", "Sec-Fetch-Site: cross-site\r\n", Some((403, "requests of other origins are rejected"))),
            (
                "GET /static/list/unknown",
                "Range: bytes=0-0,2-2\r\n",
                Some((200, "several ranges are answered with the whole file")),
            ),
            ("GET /a%2Fb//c", "", Some((301, "kubectl escapes twice"))),
        ],
    );
    drop((kubectl, narthex));

    let filters =
        ["--api-prefix=/custom", "--accept-paths=^/api", "--reject-paths=secret", "--reject-methods=^(POST|PUT)$"];
    let (kubectl, narthex) = both(&filters);
    compare(
        &kubectl,
        &narthex,
        &[
            ("GET /custom", "", None),
            ("GET /custom?a", "", None),
            ("GET /custom/", "", None),
            ("GET /custom/api", "", None),
            ("GET /custom/version", "", None),
            ("GET /custom/api/v1/secrets", "", None),
            ("POST /custom/api", "", None),
            ("GET /api", "", None),
            ("GET /", "", None),
            ("GET /custom/../custom/api", "", None),
        ],
    );
    drop((kubectl, narthex));

    let (kubectl, narthex) = both(&["--api-prefix=/api/", "--disable-filter"]);
    compare(
        &kubectl,
        &narthex,
        &[
            ("GET /api/v1/namespaces/kube-system", "Host: any\r\n", None),
            ("GET /api", "", None),
            ("GET /apis", "", None),
            ("GET /api/v1/namespaces/a/pods/b/exec", "Origin: null\r\n", None),
        ],
    );
}

/// <https://kubernetes.io/docs/tasks/extend-kubernetes/http-proxy-access-api/>, with `narthex proxy` where it says
/// `kubectl proxy`, and another port where 8080 is somebody's already.
fn documentation_task(environment: &TestEnvironment, program: &Kubectl) {
    let scratch = environment.scratch(&format!("proxy-task-{}", program.version));
    // "Using kubectl to start a proxy server": kubectl proxy --port=8080
    let mut proxy = LocalProxy::narthex(&environment.cluster.admin_kubeconfig, &scratch, &[]);
    // "Exploring the Kubernetes API"
    let curl = |path: &str| {
        let output =
            Command::new("curl").args(["-sS", &format!("http://localhost:{}{path}", proxy.port)]).output().unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        let output: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        output
    };
    // "Get the API versions": curl http://localhost:8080/api/
    let versions = curl("/api/");
    assert_eq!((&versions["kind"], &versions["versions"]), (&"APIVersions".into(), &serde_json::json!(["v1"])));
    let server = versions["serverAddressByClientCIDRs"][0]["serverAddress"].as_str().unwrap();
    assert!(server.contains(':'), "{versions}");
    // "Get a list of pods": curl http://localhost:8080/api/v1/namespaces/default/pods
    let pods = curl("/api/v1/namespaces/default/pods");
    assert_eq!((&pods["kind"], &pods["apiVersion"]), (&"PodList".into(), &"v1".into()));
    assert!(pods["metadata"]["resourceVersion"].is_string() && pods["items"].is_array(), "{pods}");
    // kubectl through the same proxy, without credentials.
    let mut command = program.command(Path::new("/dev/null"), &scratch);
    command.args(["--server", &format!("http://127.0.0.1:{}", proxy.port), "get", "clusterroles", "-o", "name"]);
    let output = kubectl_run(command, "");
    assert!(String::from_utf8_lossy(&output.stdout).contains("clusterrole.rbac.authorization.k8s.io/cluster-admin"));
    proxy.process.signal(rustix::process::Signal::TERM);
    assert!(proxy.process.wait().success());
    eventually("the closed port", || match TcpStream::connect(("127.0.0.1", proxy.port)) {
        Ok(_) => Err("it is open".to_owned()),
        Err(_) => Ok(()),
    });
}
