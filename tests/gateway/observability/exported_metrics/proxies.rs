//! A SOCKS5 proxy; and a gateway whose backends are behind a Konnectivity server and agent, which publish and count Leases.

use std::fs;
use std::process::Command;

use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::requests::metrics_with;
use crate::konnectivity::fixture::{
    KonnectivityProcess, ServerProcess, agent_arguments, free_port, issue_agent, issue_server,
};
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::Client;
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};
use crate::support::gateway_fixture::THINGS;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// A destination that is refused, and a client of another protocol.
pub(super) async fn socks5() -> String {
    let arguments = ["--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--log-format=json"];
    let proxy = GatewayProcess::start_as("socks5", &arguments.map(str::to_owned));
    let mut client = TcpStream::connect(proxy.address).await.unwrap();
    client.write_all(&[5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, 0, 1]).await.unwrap();
    client.read_to_end(&mut Vec::new()).await.unwrap();
    let mut client = TcpStream::connect(proxy.address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = client.read_to_end(&mut Vec::new()).await;
    let families = ["narthex_socks5_replies_total", "narthex_socks5_unanswered_total", "narthex_socks5_bytes_total"];
    metrics_with(&proxy, &families).await
}

/// What `narthex konnectivity-agent` serves at its health port.
async fn agent_metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Waits until all of these families are in a text.
async fn wait_for(families: &[&str], text: impl AsyncFn() -> String) -> String {
    eventually(&format!("{families:?}"), async || {
        let text = text().await;
        families.iter().all(|family| text.contains(&format!("# TYPE {family} "))).then_some(text)
    })
    .await
}

/// A kubeconfig for the embedded API server, and a Lease there of a server that is gone.
async fn prepare_leases(api: &EmbeddedApiFixture) -> String {
    let environment = &api.environment;
    let admin = narthex::tls::CertificateSpec::client("admin", &["system:masters"]);
    environment.write_pair("admin", &environment.client_ca.issue(&admin, std::time::SystemTime::now()).unwrap());
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "c", "cluster": {
            "server": format!("https://{}", api.gateway.address), "certificate-authority": "serving-ca.crt",
        }}],
        "users": [{"name": "u", "user": {"client-certificate": "admin.crt", "client-key": "admin.key"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    });
    fs::write(environment.path("leases.kubeconfig"), document.to_string()).unwrap();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "konnectivity-proxy-server-gone", "labels": {"k8s-app": "konnectivity-server"}},
        // Without times it is expired; with times, only if it is not renewed for as long as it is observed.
        "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 1},
    });
    assert_eq!(send_json(&api.http1().await, Method::POST, LEASES, &lease).await.status, 201);
    format!("--kubeconfig={}", environment.path("leases.kubeconfig").display())
}

/// A gateway with a backend, and an address without one, behind the server at the socket.
async fn relay(environment: &TestEnvironment, server: &ServerProcess) -> String {
    let backend = Backend::start(environment, BackendSettings::default(), |_| async { json_response(200, "{}") }).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gone = Backend::start(environment, BackendSettings::default(), |_| async { json_response(200, "{}") }).await;
    environment.register_apiservice("gone.example.com", "v1", &[&gone]);
    gone.stop().await;
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  \
         connection: {{proxyProtocol: GRPC, transport: {{uds: {{udsName: {}}}}}}}\n",
        server.socket.display()
    );
    let file = environment.path("selector.yaml");
    fs::write(&file, text).unwrap();
    let gateway = environment.start_gateway(&[&format!("--egress-selector-config-file={}", file.display())]);
    let client = Client::http2(environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    eventually("the backend", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert_eq!(client.get("/apis/gone.example.com/v1/namespaces/default/things").await.status, 503);
    metrics_with(&gateway, &["narthex_egress_stuck_tunnels", "apiserver_egress_dialer_dial_failure_count"]).await
}

/// The metrics of gateway, server and agent.
pub(super) async fn konnectivity() -> Vec<String> {
    let api = EmbeddedApiFixture::start(&[]);
    let environment = &api.environment;
    environment.write_pair("konnectivity", &issue_server(&environment.serving_ca));
    environment.write_pair("agent", &issue_agent(&environment.client_ca));
    let kubeconfig = prepare_leases(&api).await;
    let flags = ["--enable-lease-controller", &kubeconfig];
    let server = ServerProcess::start_at(environment, "server", "grpc", ("127.0.0.1", free_port()), &flags).await;
    let mut arguments = agent_arguments(environment, "agent", "127.0.0.1", server.agent_port);
    arguments.extend(["--count-server-leases".to_owned(), kubeconfig]);
    let port = arguments.iter().find_map(|flag| flag.strip_prefix("--health-server-port=")).unwrap().parse().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(&arguments);
    let _agent = KonnectivityProcess::spawn(command);
    server.wait_for_agents(1).await;
    let other = TestEnvironment::new();
    let mut texts = vec![relay(&other, &server).await];
    let families = [
        "konnectivity_network_proxy_server_lease_delete_total",
        "konnectivity_network_proxy_server_culled_leases_count",
        "konnectivity_network_proxy_server_dial_failure_count",
    ];
    texts.push(wait_for(&families, async || server.metrics()).await);
    drop(server);
    let families = [
        "konnectivity_network_proxy_agent_server_connection_failure_count",
        "konnectivity_network_proxy_agent_endpoint_dial_failure_total",
        "konnectivity_network_proxy_agent_lease_watches_total",
    ];
    texts.push(wait_for(&families, async || agent_metrics(port).await).await);
    texts
}
