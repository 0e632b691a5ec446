//! Gateways whose clients cause all metrics of requests: authentication, authorization, impersonation, audit, limits.

use std::fs;

use http::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::authz::authorization_config::{rbac_entry, webhook_entry, write_configuration};
use crate::observability::audit::AuditWebhook;
use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, streamed_response};
use crate::support::client::{Client, admin_request, get, next_chunk};
use crate::support::fake_collector::FakeCollector;
use crate::support::fake_review_server::{FakeReviewServer, access_review_reply, failure_reply};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};
use crate::support::gateway_fixture::THINGS;

pub(super) async fn metrics_of(gateway: &GatewayProcess) -> String {
    admin_request(gateway, get("/metrics", &[])).await.text()
}

/// Waits until all of these families are exported, and returns the text.
pub(super) async fn metrics_with(gateway: &GatewayProcess, families: &[&str]) -> String {
    eventually(&format!("{families:?}"), async || {
        let text = metrics_of(gateway).await;
        families.iter().all(|family| text.contains(&format!("# TYPE {family} "))).then_some(text)
    })
    .await
}

/// A backend whose `…/stall` never answers; its watches have one event.
async fn start_backend(environment: &TestEnvironment) -> Backend {
    Backend::start(environment, BackendSettings::default(), |request: Request<Incoming>| async move {
        if request.uri().path().ends_with("/stall") {
            std::future::pending::<()>().await;
        }
        if request.uri().query() == Some("watch=1") {
            let (writer, response) = streamed_response(200);
            writer.send(data_frame("{\"type\":\"ADDED\",\"object\":{}}\n")).unwrap();
            tokio::spawn(async move { writer.closed().await });
            return response;
        }
        json_response(200, "{}")
    })
    .await
}

/// TokenReviews, SubjectAccessReviews, impersonation, audit, traces, watches, and requests that are refused.
pub(super) async fn relay_and_authentication() -> String {
    let environment = TestEnvironment::new();
    let backend = start_backend(&environment).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let (_reviewer, collector) = (FakeReviewServer::start(&environment).await, FakeCollector::start().await);
    let tracing = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {}\n\
         samplingRatePerMillion: 1000000\n",
        collector.address
    );
    fs::write(environment.path("tracing.yaml"), tracing).unwrap();
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n";
    fs::write(environment.path("audit.yaml"), policy).unwrap();
    // It takes no event, so that the queue overflows.
    let sink = AuditWebhook::listen(&environment, &[0; 100]).await;
    let file = |name: &str| environment.path(name).display().to_string();
    let flags = [
        format!("--authentication-kubeconfig={}", file("reviewer.kubeconfig")),
        format!("--authorization-kubeconfig={}", file("reviewer.kubeconfig")),
        "--authentication-skip-lookup".to_owned(),
        "--authorization-mode=Webhook".to_owned(),
        format!("--audit-policy-file={}", file("audit.yaml")),
        format!("--audit-webhook-config-file={}", file("sink.kubeconfig")),
        "--audit-webhook-batch-max-size=2".to_owned(),
        "--audit-webhook-batch-buffer-size=4".to_owned(),
        format!("--tracing-config-file={}", file("tracing.yaml")),
        "--max-requests-inflight=2".to_owned(),
        "--request-timeout=2s".to_owned(),
        "--access-log=all".to_owned(),
    ];
    let gateway = environment.start_gateway(&flags.each_ref().map(String::as_str));
    let jane = environment.issue_user("jane", &["devs"]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    let token = Client::http1(&environment, &gateway, None).await;
    let bearer = [("authorization", "Bearer good")];
    assert_eq!(token.send_and_read(get(THINGS, &bearer)).await.status, 200);
    assert_eq!(client.send_and_read(get(THINGS, &[("impersonate-user", "bob")])).await.status, 200);
    let mut watch = client.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap().into_body();
    next_chunk(&mut watch).await.unwrap().unwrap();
    for _ in 0..20 {
        assert_eq!(client.get(THINGS).await.status, 200);
    }
    // Beyond the limit some are refused; the others end by their timeout.
    let stalled: Vec<_> = (0..20)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { client.get(&format!("{THINGS}/{number}/stall")).await.status.as_u16() })
        })
        .collect();
    let mut codes = Vec::new();
    for request in stalled {
        codes.push(request.await.unwrap());
    }
    assert!(codes.contains(&429) && codes.contains(&504), "{codes:?}");
    // A client without TLS.
    let socket = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut { socket }, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let text = metrics_with(
        &gateway,
        &["apiserver_audit_error_total", "narthex_trace_spans_exported_total", "apiserver_longrunning_requests"],
    )
    .await;
    drop((watch, sink));
    text
}

/// `--authorization-config` with conditions that match, exclude and fail, a webhook that fails, and a reload.
pub(super) async fn webhook_chain() -> String {
    let environment = TestEnvironment::new();
    let backend = start_backend(&environment).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let (good, failing) = (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
    good.set_behavior(|_| access_review_reply(json!({"allowed": true})));
    failing.set_behavior(|_| failure_reply(403, "Forbidden"));
    let conditions = |expression: &str| json!({"matchConditions": [{"expression": expression}]});
    let authorizers: Vec<Value> = vec![
        webhook_entry(
            "failing",
            &failing.write_kubeconfig(&environment, "failing", "/f"),
            &conditions("request.user == 'jane'"),
        ),
        webhook_entry(
            "broken",
            &good.write_kubeconfig(&environment, "broken", "/b"),
            &conditions("request.extra['nothing'][0] == 'x'"),
        ),
        webhook_entry(
            "excluded",
            &good.write_kubeconfig(&environment, "excluded", "/e"),
            &conditions("request.user == 'x'"),
        ),
        rbac_entry(),
        webhook_entry(
            "good",
            &good.write_kubeconfig(&environment, "good", "/g"),
            &conditions("request.user == 'jane'"),
        ),
    ];
    let (file, policy) = (environment.path("authorization.yaml"), environment.path("policy.yaml"));
    write_configuration(&file, &authorizers);
    fs::write(&policy, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/standalone/policy.yaml"))).unwrap();
    let flags = [
        format!("--authorization-config={}", file.display()),
        format!("--authorization-policy-file={}", policy.display()),
    ];
    let gateway = environment.start_gateway(&flags.each_ref().map(String::as_str));
    let client = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    write_configuration(&file, &authorizers[2..]);
    metrics_with(&gateway, &["apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds"]).await
}
