//! Duplicate query parameters: only the authorized value is forwarded.

use http::Request;
use hyper::body::Incoming;

use crate::sidecar::upstream_relay::SidecarFixture;
use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response};
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::plaintext_backend::{ListenAddress, PlaintextServer};

async fn ok_response(_: Request<Incoming>) -> BackendResponse {
    json_response(200, "{}")
}

const CASES: [(&str, &str); 10] = [
    ("watch=0&watch=1", "watch=0"),
    ("w%61tch=0&watch=1&limit=5", "w%61tch=0&limit=5"),
    ("watch=0&w%61tch=1&wat%63h=1", "watch=0"),
    (
        "fieldSelector=metadata.name%3Da&pretty=1&fieldSelector=metadata.name%3Db&labelSelector=x&labelSelector=y",
        "fieldSelector=metadata.name%3Da&pretty=1&labelSelector=x",
    ),
    (
        "limit=5&limit=500&timeoutSeconds=1&timeoutSeconds=999&timeout=9s&timeout=99s",
        "limit=5&timeoutSeconds=1&timeout=9s",
    ),
    // Parameters without meaning for authorization may repeat.
    ("command=a&command=b&container=c&tty=0&tty=1", "command=a&command=b&container=c&tty=0&tty=1"),
    ("a&&a&=b&=c", "a&&a&=b&=c"),
    // Once is as it came.
    ("watch=0&limit=5&fieldSelector=a%3Db", "watch=0&limit=5&fieldSelector=a%3Db"),
    ("watch=0&a=1;watch=1", "watch=0"),
    ("Watch=1&watch=0", "Watch=1&watch=0"),
];

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_query_parameters_reduced_to_authorized_value() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), ok_response).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for (sent, arrived) in CASES {
            assert_eq!(client.get(&format!("{THINGS}?{sent}")).await.status, 200, "{sent}");
            assert_eq!(backend.last_request().uri.query(), Some(arrived), "{sent}");
        }
    }
}

/// A sidecar judges Kubernetes requests in the same way, and queries of others not at all.
#[tokio::test(flavor = "multi_thread")]
async fn duplicate_query_parameters_of_other_requests_kept() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), ok_response).await;
    let sidecar_fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    let client = sidecar_fixture.http2().await;
    for (sent, arrived) in [
        ("/apis/a.example.com/v1/books?watch=0&watch=1", "watch=0"),
        ("/books?watch=0&watch=1&timeout=1&timeout=2", "watch=0&watch=1&timeout=1&timeout=2"),
    ] {
        assert_eq!(client.get(sent).await.status, 200, "{sent}");
        assert_eq!(server.last_request().uri.query(), Some(arrived), "{sent}");
    }
}

/// `WithRequestDeadline` of a kube-apiserver stands before authentication, CORS and the health checks.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_timeout_is_400_on_every_path() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), ok_response).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for path in ["/healthz", "/version", "/apis", "/metrics", "/openapi/v2", "/nowhere", THINGS] {
            let status = client.get(&format!("{path}?timeout=invalid")).await.assert_failure(400, "BadRequest");
            let message = r#"invalid timeout specified in the request URL - time: invalid duration "invalid""#;
            assert_eq!(status["message"], message, "{path}");
        }
        assert_eq!(client.get("/version?timeout=5s").await.status, 200);
        // A long-running request has no timeout.
        assert_eq!(client.get(&format!("{THINGS}?watch=1&timeout=invalid")).await.status, 200);
    }
    assert_eq!(backend.received().iter().filter(|request| request.uri.path() == THINGS).count(), 2);
}
