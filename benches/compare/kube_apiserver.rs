//! A real kube-apiserver with etcd, whose aggregation layer relays to the backend.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fixtures::{BenchEnvironment, ChildProcess, Proxy, free_port, interop_peer, post};

/// Whether both programs are there. `tests/interop/peers/build kubernetes etcd` builds them.
pub(crate) fn is_built() -> bool {
    interop_peer("kube-apiserver").is_some() && interop_peer("etcd").is_some()
}

/// Starts etcd and kube-apiserver with the bench's APIService.
pub(crate) fn start(environment: &BenchEnvironment) -> Proxy {
    let proxy = start_control_plane(environment);
    // An address of the loopback interface is refused in an EndpointSlice, a name is not.
    let service = json!({"kind": "Service", "metadata": {"name": "bench"}, "spec": {
        "type": "ExternalName", "externalName": "localhost", "ports": [{"port": environment.backend_port()}],
    }});
    create(environment, &proxy, "/api/v1/namespaces/bench/services", &service);
    create(environment, &proxy, "/apis/apiregistration.k8s.io/v1/apiservices", &api_service(environment));
    proxy.wait_for_first_response(environment);
    // What a start does in the background passes before anything is measured.
    std::thread::sleep(Duration::from_secs(5));
    proxy
}

/// Starts etcd and kube-apiserver on the core of the proxies, with a namespace `bench`. Everyone is allowed everything,
/// as with the other programs.
pub(crate) fn start_control_plane(environment: &BenchEnvironment) -> Proxy {
    start_control_plane_with(environment, "AlwaysAllow")
}

/// As [`start_control_plane`], with this `--authorization-mode`.
pub(crate) fn start_control_plane_with(environment: &BenchEnvironment, authorization_mode: &str) -> Proxy {
    let (etcd, etcd_url) = start_etcd(environment);
    let port = free_port();
    let log = environment.directory().join("kube-apiserver.log");
    let file = |name: &str| environment.directory().join(name).display().to_string();
    let flags = [
        ("etcd-servers", etcd_url),
        ("secure-port", port.to_string()),
        ("bind-address", "127.0.0.1".to_owned()),
        ("advertise-address", "127.0.0.1".to_owned()),
        ("service-cluster-ip-range", "10.0.0.0/24".to_owned()),
        ("tls-cert-file", file("server.crt")),
        ("tls-private-key-file", file("server.key")),
        ("token-auth-file", file("tokens.csv")),
        ("authorization-mode", authorization_mode.to_owned()),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("service-account-key-file", file("server.crt")),
        ("service-account-signing-key-file", file("server.key")),
        ("requestheader-client-ca-file", file("ca.crt")),
        ("requestheader-allowed-names", "front-proxy".to_owned()),
        ("requestheader-username-headers", "X-Remote-User".to_owned()),
        ("requestheader-group-headers", "X-Remote-Group".to_owned()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ("proxy-client-cert-file", file("front-proxy.crt")),
        ("proxy-client-key-file", file("front-proxy.key")),
        ("disable-admission-plugins", "ServiceAccount".to_owned()),
        // Priority and fairness would queue the load.
        ("enable-priority-and-fairness", "false".to_owned()),
        ("max-requests-inflight", "0".to_owned()),
        ("cert-dir", file("kube-apiserver")),
    ];
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(interop_peer("kube-apiserver").expect("kube-apiserver is built"));
    command.args(flags.map(|(flag, value)| format!("--{flag}={value}")));
    let output = std::fs::File::create(&log).expect("a log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
    let process = ChildProcess::spawn(&mut command);
    let proxy = Proxy::new(process, port, log).beside(etcd);
    create(environment, &proxy, "/api/v1/namespaces", &json!({"kind": "Namespace", "metadata": {"name": "bench"}}));
    proxy
}

fn start_etcd(environment: &BenchEnvironment) -> (ChildProcess, String) {
    let [client, peers] = [(); 2].map(|()| format!("http://127.0.0.1:{}", free_port()));
    let data = tempfile::tempdir_in(environment.directory()).expect("a folder").keep();
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(interop_peer("etcd").expect("etcd is built")).args([
        format!("--data-dir={}", data.display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        "--log-level=error".to_owned(),
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    (ChildProcess::spawn(&mut command), client)
}

fn api_service(environment: &BenchEnvironment) -> Value {
    json!({"kind": "APIService", "metadata": {"name": "v1.bench.narthex.dev"}, "spec": {
        "group": "bench.narthex.dev", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
        "caBundle": environment.authority_base64(),
        "service": {"namespace": "bench", "name": "bench", "port": environment.backend_port()},
    }})
}

/// Creates an object as soon as the server is ready for it.
pub(crate) fn create(environment: &BenchEnvironment, proxy: &Proxy, path: &str, object: &Value) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let response = post(environment.directory(), proxy.port, path, &environment.admin_token, object);
        match response {
            Some(text) if text.starts_with("HTTP/1.1 201") => return,
            other => assert!(Instant::now() < end, "{path}: {other:?}\n{}", proxy.log()),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
