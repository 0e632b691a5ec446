//! The Kubernetes task "Use a SOCKS5 Proxy to Access the Kubernetes API" with `narthex socks5` instead of `ssh -D`:
//! kubectl, curl and a gateway reach kube-apiserver through it.

use std::path::{Path, PathBuf};

use super::{KubectlTestFn, TestFn};
use serde_json::json;

use crate::environment::{
    Gateway, Konnectivity, KonnectivityMode, Kubectl, Process, RunningKubectl, TestEnvironment, curl, eventually,
    free_port, kubectl_run,
};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("socks5: kubectl with proxy-url", by_proxy_url),
    ("socks5: credentials and destinations", credentials_and_destinations),
    ("socks5: through Konnectivity, all four modes", through_konnectivity),
];

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("socks5: curl with --proxy", by_environment), ("socks5: gateway with proxy-url", gateway)];

/// A running `narthex socks5`.
pub(super) struct Socks5Proxy {
    pub(super) process: Process,
    pub(super) port: u16,
}

impl Socks5Proxy {
    pub(super) fn open(scratch: &Path, more: &[&str]) -> Socks5Proxy {
        let port = free_port();
        let listen = format!("--listen=127.0.0.1:{port}");
        let arguments = ["socks5", &listen, "--access-log=all"].into_iter().chain(more.iter().copied());
        let mut process = Process::start("socks5", Path::new(env!("CARGO_BIN_EXE_narthex")), arguments, scratch);
        let log = process.reader();
        process.wait_until(|| if log().contains("serving") { Ok(()) } else { Err(log()) });
        Socks5Proxy { process, port }
    }

    /// Waits for an access log line with all of `args`.
    fn recorded(&self, args: &[&str]) {
        eventually(&format!("an access log line with {args:?}"), || {
            let log = self.process.log();
            let found = log.lines().any(|line| args.iter().all(|word| line.contains(word)));
            if found { Ok(()) } else { Err(log) }
        });
    }
}

/// The admin's kubeconfig with the server's DNS name and a proxy-url.
fn kubeconfig(environment: &TestEnvironment, scratch: &Path, proxy_url: &str) -> PathBuf {
    let text = std::fs::read(&environment.cluster.admin_kubeconfig).unwrap();
    let mut document: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let cluster = &mut document["clusters"][0]["cluster"];
    cluster["server"] = format!("https://localhost:{}", environment.cluster.endpoint.port).into();
    cluster["proxy-url"] = proxy_url.into();
    let path = scratch.join(format!("{:08x}.kubeconfig", fastrand::u32(..)));
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

/// Runs kubectl; returns whether it succeeded, and its output.
fn kubectl(kubectl: &Kubectl, kubeconfig: &Path, home: &Path, args: &[&str]) -> (bool, String) {
    let mut command = kubectl.command(kubeconfig, home);
    command.args(args);
    let output = kubectl_run(command, "");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn by_proxy_url(environment: &TestEnvironment, program: &Kubectl) {
    let scratch = environment.scratch(&format!("socks5-{}", program.version));
    let target = format!("localhost:{}", environment.cluster.endpoint.port);
    let proxy = Socks5Proxy::open(&scratch, &[&format!("--allow-destinations={target}")]);
    let proxied = kubeconfig(environment, &scratch, &format!("socks5://127.0.0.1:{}", proxy.port));
    let direct = &environment.cluster.admin_kubeconfig;
    // Nothing that other tests change meanwhile.
    for args in [
        &["get", "--raw", "/version"][..],
        &["api-resources", "--api-group=apps"],
        &["get", "clusterroles", "view", "edit", "-o", "name"],
    ] {
        let (success, output) = kubectl(program, &proxied, &scratch, args);
        assert!(success, "{args:?}: {output}");
        assert_eq!(output, kubectl(program, direct, &scratch, args).1, "{args:?}");
    }
    // The proxy resolves the name, and no connection bypassed it.
    proxy.recorded(&[&format!("destination=\"{target}\""), "reply=succeeded"]);

    // A watch, with an object created and deleted.
    let namespace = format!("socks5-{:08x}", fastrand::u32(..));
    let mut command = program.command(&proxied, &scratch);
    command.args(["get", "namespaces", "-w", "-o", "name"]);
    let mut watch = RunningKubectl::start(command);
    let (success, output) = kubectl(program, &proxied, &scratch, &["create", "namespace", &namespace]);
    assert!(success, "{output}");
    watch.line_with(&namespace);
    assert!(watch.is_running());
    let (success, output) = kubectl(program, &proxied, &scratch, &["delete", "namespace", &namespace, "--wait=false"]);
    assert!(success, "{output}");

    // kubectl fails without the proxy.
    drop(proxy);
    let (success, output) = kubectl(program, &proxied, &scratch, &["get", "--raw", "/version"]);
    assert!(!success && output.contains(&format!("The connection to the server {target} was refused")), "{output}");
}

fn credentials_and_destinations(environment: &TestEnvironment, program: &Kubectl) {
    let scratch = environment.scratch(&format!("socks5-credentials-{}", program.version));
    let users = scratch.join("users");
    std::fs::write(&users, "al ice:p@ss:word\n").unwrap();
    let port = environment.cluster.endpoint.port;
    let credentials = format!("--credentials-file={}", users.display());
    let proxy = Socks5Proxy::open(&scratch, &[&credentials, &format!("--allow-destinations=localhost:{port}")]);
    let ask = |user_info: &str, change: &dyn Fn(&Path)| {
        let file = kubeconfig(environment, &scratch, &format!("socks5://{user_info}127.0.0.1:{}", proxy.port));
        change(&file);
        kubectl(program, &file, &scratch, &["get", "--raw", "/version"])
    };
    let as_it_is = |_: &Path| {};
    let (success, output) = ask("al%20ice:p%40ss%3Aword@", &as_it_is);
    assert!(success && output.contains("gitVersion"), "{output}");
    proxy.recorded(&["user=\"al ice\"", "reply=succeeded"]);
    // Error texts of Go's SOCKS client.
    let (success, output) = ask("al%20ice:wrong@", &as_it_is);
    assert!(!success && output.contains("username/password authentication failed"), "{output}");
    let (success, output) = ask("", &as_it_is);
    assert!(!success && output.contains("no acceptable authentication methods"), "{output}");
    let elsewhere = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap().replace("//localhost:", "//127.0.0.1:");
        std::fs::write(file, text).unwrap();
    };
    let (success, output) = ask("al%20ice:p%40ss%3Aword@", &elsewhere);
    assert!(!success && output.contains("connection not allowed by ruleset"), "{output}");
    proxy.recorded(&[&format!("destination=\"127.0.0.1:{port}\""), "reply=not_allowed"]);
}

fn through_konnectivity(environment: &TestEnvironment, program: &Kubectl) {
    let target = format!("localhost:{}", environment.cluster.endpoint.port);
    for mode in [
        KonnectivityMode::GrpcUnix,
        KonnectivityMode::GrpcTls,
        KonnectivityMode::ConnectUnix,
        KonnectivityMode::ConnectTls,
    ] {
        let scratch = environment.scratch(&format!("socks5-{mode:?}-{}", program.version));
        let mut konnectivity = Konnectivity::with_agent(&scratch, mode);
        let file = scratch.join("egress.json");
        std::fs::write(&file, selector(&konnectivity).to_string()).unwrap();
        let egress = format!("--egress-selector-config-file={}", file.display());
        let proxy = Socks5Proxy::open(&scratch, &[&egress, &format!("--allow-destinations={target}")]);
        let proxied = kubeconfig(environment, &scratch, &format!("socks5://127.0.0.1:{}", proxy.port));
        let direct = &environment.cluster.admin_kubeconfig;
        for args in [&["get", "--raw", "/version"][..], &["get", "clusterroles", "-o", "yaml"]] {
            let (success, output) = kubectl(program, &proxied, &scratch, args);
            assert!(success, "{mode:?} {args:?}: {output}");
            assert!(output == kubectl(program, direct, &scratch, args).1, "{mode:?} {args:?}");
        }
        // An open watch is a tunnel of the server.
        let mut command = program.command(&proxied, &scratch);
        command.args(["get", "namespaces", "-w", "-o", "name"]);
        let mut watch = RunningKubectl::start(command);
        watch.line_with("namespace/default");
        assert!(konnectivity.established() >= 1.0, "{mode:?}");
        let namespace = format!("tunnel-{:08x}", fastrand::u32(..));
        environment.cluster.create_namespace(&namespace);
        watch.line_with(&namespace);
        // No connection bypasses Konnectivity.
        konnectivity.agents.clear();
        konnectivity.wait_for_agents(0);
        let (success, output) = kubectl(program, &proxied, &scratch, &["get", "--raw", "/version"]);
        assert!(!success, "{mode:?}: {output}");
        proxy.recorded(&[&format!("destination=\"{target}\""), "reply=general_failure"]);
    }
}

/// An EgressSelectorConfiguration, or narthex's EgressConfiguration for the mode that kube-apiserver does not
/// support.
pub(super) fn selector(konnectivity: &Konnectivity) -> serde_json::Value {
    let tls = json!({
        "url": format!("https://127.0.0.1:{}", konnectivity.port),
        "tlsConfig": {
            "caBundle": konnectivity.frontend_authority,
            "clientCert": konnectivity.client.certificate,
            "clientKey": konnectivity.client.key,
        },
    });
    let (version, kind) = match konnectivity.mode {
        KonnectivityMode::GrpcTls => ("narthex.dev/v1alpha1", "EgressConfiguration"),
        _ => ("apiserver.k8s.io/v1beta1", "EgressSelectorConfiguration"),
    };
    let (protocol, transport) = match konnectivity.mode {
        KonnectivityMode::GrpcUnix => ("GRPC", json!({"uds": {"udsName": konnectivity.socket}})),
        KonnectivityMode::ConnectUnix => ("HTTPConnect", json!({"uds": {"udsName": konnectivity.socket}})),
        KonnectivityMode::GrpcTls => ("GRPC", json!({"tcp": tls})),
        KonnectivityMode::ConnectTls => ("HTTPConnect", json!({"tcp": tls})),
    };
    json!({
        "apiVersion": version,
        "kind": kind,
        "egressSelections": [{"name": "cluster", "connection": {"proxyProtocol": protocol, "transport": transport}}],
    })
}

fn by_environment(environment: &TestEnvironment) {
    let scratch = environment.scratch("socks5-curl");
    let proxy = Socks5Proxy::open(&scratch, &[]);
    let proxy_url = format!("socks5h://127.0.0.1:{}", proxy.port);
    let identity = Some(environment.cluster.admin());
    let (status, direct) = curl(&environment.cluster.endpoint, identity, "/api", &[]);
    // The flag has the effect of HTTPS_PROXY, limited to this curl.
    let (proxied, text) = curl(&environment.cluster.endpoint, identity, "/api", &["--proxy", &proxy_url]);
    assert_eq!((proxied, text), (status, direct));
    proxy.recorded(&["reply=succeeded"]);
    // A response of some megabytes.
    let (status, text) = curl(&environment.cluster.endpoint, identity, "/openapi/v2", &["--proxy", &proxy_url]);
    assert_eq!(status, 200);
    assert_eq!(text, curl(&environment.cluster.endpoint, identity, "/openapi/v2", &[]).1);
}

fn gateway(environment: &TestEnvironment) {
    let scratch = environment.scratch("socks5-gateway");
    let proxy = Socks5Proxy::open(&scratch, &[]);
    let file = kubeconfig(environment, &scratch, &format!("socks5://127.0.0.1:{}", proxy.port));
    let file = file.to_str().unwrap();
    // Ready means that the registry was read through the proxy.
    let gateway = Gateway::start_without_registry(
        &environment.cluster,
        &scratch,
        "through-socks5",
        &[("--kubeconfig", file), ("--leader-elect", "true")],
    );
    let response = gateway.endpoint.get(Some(environment.cluster.admin()), "/apis").unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    // A connection is logged when it closes.
    drop(gateway);
    proxy.recorded(&[&format!("destination=\"localhost:{}\"", environment.cluster.endpoint.port), "reply=succeeded"]);
}
