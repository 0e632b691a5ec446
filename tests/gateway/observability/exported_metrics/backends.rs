//! Gateways with backends that fail, and with the registry of a cluster.

use bytes::Bytes;

use super::requests::metrics_with;
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::Client;
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::THINGS;
use crate::support::raw_backend::{self, H2Exchange};

/// An endpoint of two that is gone, an APIService whose only one is, a body of a response that has none, and a mistake in
/// the registry directory.
pub(super) async fn failing_backends() -> String {
    let environment = TestEnvironment::new();
    let good = Backend::start(&environment, BackendSettings::default(), |_| async { json_response(200, "{}") }).await;
    let gone = Backend::start(&environment, BackendSettings::default(), |_| async { json_response(200, "{}") }).await;
    environment.register_apiservice("things.example.com", "v1", &[&good, &gone]);
    environment.register_apiservice("gone.example.com", "v1", &[&gone]);
    gone.stop().await;
    let talkative = raw_backend::http2(&environment, |mut exchange: H2Exchange| async move {
        let _ = exchange.begin_response(204, &[]).send_data(Bytes::from_static(b"nothing"), true);
    })
    .await;
    let text = environment.apiservice_manifests("talkative.example.com", "v1", &[talkative.address], "");
    // Its certificate is that of things.
    let lines = text.lines().map(|line| match line.trim_start().starts_with("caBundle:") {
        true => "  insecureSkipTLSVerify: true\n".to_owned(),
        false => format!("{line}\n"),
    });
    environment.write_registry("talkative.yaml", &lines.collect::<String>());
    let gateway = environment.start_gateway(&[]);
    let client = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    for _ in 0..20 {
        assert_eq!(client.get(THINGS).await.status, 200);
        assert_eq!(client.get("/apis/gone.example.com/v1/namespaces/default/things").await.status, 503);
    }
    let path = "/apis/talkative.example.com/v1/namespaces/default/things";
    assert_eq!(client.get(path).await.status, 204);
    environment.write_registry("wrong.yaml", "kind: APIService\n");
    let families = [
        "aggregator_unavailable_apiservice_total",
        "narthex_backend_forbidden_bodies_total",
        "narthex_endpoint_ejected",
        "narthex_registry_errors",
    ];
    metrics_with(&gateway, &families).await
}

/// The registry of a kube-apiserver, of which one gateway is the leader.
pub(super) async fn cluster_registry() -> String {
    let environment = TestEnvironment::new();
    let cluster = FakeApiServer::start(&environment).await;
    let backend =
        Backend::start(&environment, BackendSettings::default(), |_| async { json_response(200, "{}") }).await;
    cluster.apply(&environment.apiservice_manifests("things.example.com", "v1", &[backend.address], ""));
    let gateway = environment.start_gateway(&[&FakeApiServer::kubeconfig_flag(&environment)]);
    metrics_with(&gateway, &["leader_election_master_status", "narthex_registry_source_up"]).await
}
