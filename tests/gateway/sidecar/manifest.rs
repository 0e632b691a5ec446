//! The manifest in `deploy/sidecar`: which ports and paths of the pod are reachable, and with which credentials.

use serde_json::json;

use crate::sidecar::delegated_auth::TINA;
use crate::sidecar::in_memory_cert::free_port;
use crate::support::backend::json_response as response;
use crate::support::client::{Client, get};
use crate::support::fake_review_server::FakeReviewServer;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};
use crate::support::plaintext_backend::{ListenAddress, PlaintextServer};

const DEPLOYMENT: &str = include_str!("../../../deploy/sidecar/deployment.yaml");

/// The sidecar's arguments, with what is this machine's in place of what is a pod's.
fn arguments(environment: &TestEnvironment, socket: &str, admin: u16) -> Vec<String> {
    let lines = DEPLOYMENT.lines().map(str::trim_start).filter_map(|line| line.strip_prefix("- --"));
    let file = |name: &str| environment.path(name).display().to_string();
    let expected = lines.map(|line| {
        format!("--{line}")
            .replace("/run/library/library.sock", socket)
            .replace("0.0.0.0:8443", "127.0.0.1:0")
            .replace("/etc/serving/tls.crt", &file("serving.crt"))
            .replace("/etc/serving/tls.key", &file("serving.key"))
            .replace("127.0.0.1:6480", &format!("127.0.0.1:{admin}"))
    });
    // What a pod's own service account would be.
    let actual = [
        format!("--kubeconfig={}", file("reviewer.kubeconfig")),
        format!("--client-ca-file={}", file("client-ca.crt")),
        "--authentication-skip-lookup".to_owned(),
        format!("--admin-address=127.0.0.1:{admin}"),
        "--log-format=json".to_owned(),
    ];
    expected.chain(actual).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_manifest_serves_unauthenticated_health_only() {
    assert!(!DEPLOYMENT.contains("admin-address"), "the operator's listener stays where it is: on loopback");
    let probes = DEPLOYMENT.matches("port: https, scheme: HTTPS}").count();
    assert_eq!((probes, DEPLOYMENT.matches("containerPort").count()), (2, 1), "all ways in are the sidecar's own");

    let environment = TestEnvironment::new();
    let library = PlaintextServer::http1(ListenAddress::socket(&environment), |_| async { response(200, "{}") }).await;
    let reviewer = FakeReviewServer::start(&environment).await;
    let socket = library.url().replace("unix:", "");
    let sidecar = GatewayProcess::start_as("sidecar", &arguments(&environment, &socket, free_port()));
    let client = Client::http1(&environment, &sidecar, None).await;
    // The kubelet has no credentials.
    for path in ["/livez", "/readyz"] {
        eventually("health", async || (client.send_and_read(get(path, &[])).await.status == 200).then_some(())).await;
    }
    for path in ["/metrics", "/status.json", "/log-level", "/debug/connections", "/"] {
        Client::http1(&environment, &sidecar, None)
            .await
            .send_and_read(get(path, &[]))
            .await
            .assert_failure(401, "Unauthorized");
    }
    // Prometheus has RBAC permission to read this path.
    let client = Client::http1(&environment, &sidecar, None).await;
    let metrics = client.send_and_read(get("/metrics", &[TINA])).await;
    assert!(metrics.status == 200 && metrics.text().contains("\napiserver_request_total{"), "{}", metrics.text());
    let recorded = reviewer.reviews("SubjectAccessReview").pop().unwrap();
    assert_eq!(recorded["spec"]["nonResourceAttributes"], json!({"path": "/metrics", "verb": "get"}));
    // All else of the same names is the library's.
    for path in ["/status.json", "/log-level", "/debug/connections"] {
        assert_eq!(client.send_and_read(get(path, &[TINA])).await.text(), "{}");
        assert_eq!(library.last_request().uri.path(), path);
    }
}
