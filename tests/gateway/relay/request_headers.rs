//! Request headers at the backend: forwarding headers are the gateway's alone, identity claims of clients are removed.

use http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::sidecar::upstream_relay::SidecarFixture;
use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response};
use crate::support::client::{RequestBody, connect, get, request};
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::plaintext_backend::{ListenAddress, PlaintextServer};

async fn ok_response(_: Request<Incoming>) -> BackendResponse {
    json_response(200, "{}")
}

/// A server behind WSGI or CGI reads `X_Forwarded_Host` as `X-Forwarded-Host`.
#[tokio::test(flavor = "multi_thread")]
async fn forwarded_headers_with_underscores_removed() {
    const FORGED: [(&str, &str); 7] = [
        ("x_forwarded_host", "evil"),
        ("x_forwarded_for", "evil"),
        ("x_forwarded_proto", "evil"),
        ("x_forwarded_uri", "/evil"),
        ("x-forwarded_host", "evil"),
        ("x.forwarded.for", "evil"),
        ("audit_id", "evil"),
    ];
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), ok_response).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        assert_eq!(client.send_and_read(get(THINGS, &FORGED)).await.status, 200);
        let seen = backend.last_request();
        for (name, _) in FORGED {
            assert!(!seen.headers.contains_key(name), "{name}: {:?}", seen.headers);
        }
        assert_eq!(seen.header_values("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(seen.header_values("x-forwarded-host"), ["localhost"]);
        assert_eq!(seen.header_values("x-forwarded-proto"), ["https"]);
        // The chain of addresses that the client names itself still grows by one.
        assert_eq!(client.send_and_read(get(THINGS, &[("x-forwarded-for", "192.0.2.7")])).await.status, 200);
        assert_eq!(backend.last_request().header_values("x-forwarded-for"), ["192.0.2.7, 127.0.0.1"]);
    }
}

/// Headers by which reverse proxies forward identity and address of the client.
const IDENTITY_CLAIM_HEADERS: [&str; 20] = [
    "x-forwarded-user",
    "x_forwarded_user",
    "x-forwarded-email",
    "x-forwarded-groups",
    "x-forwarded-preferred-username",
    "x-forwarded-access-token",
    "x-auth-request-user",
    "remote-user",
    "remote_groups",
    "x-real-ip",
    "x_real_ip",
    "forwarded",
    "x-goog-authenticated-user-email",
    "x_goog_authenticated_user_id",
    "x-goog-iap-jwt-assertion",
    "x-amzn-oidc-identity",
    "x-ms-client-principal-name",
    "x_ms_client_principal",
    "x-ms-token-aad-access-token",
    "cf-access-authenticated-user-email",
];

#[tokio::test(flavor = "multi_thread")]
async fn proxy_claims_removed_unless_allowed() {
    let claims = IDENTITY_CLAIM_HEADERS.map(|name| (name, "evil"));
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), ok_response).await;
    let sidecar_fixture = SidecarFixture::new(environment, &server.url(), &["--ignore-paths=/open"]).await;
    for client in sidecar_fixture.both_protocols().await {
        for path in ["/books", "/open"] {
            assert_eq!(client.send_and_read(get(path, &claims)).await.status, 200);
            let seen = server.last_request();
            for name in IDENTITY_CLAIM_HEADERS {
                assert!(!seen.headers.contains_key(name), "{path} {name}: {:?}", seen.headers);
            }
        }
    }
    // An ingress in front that is trusted with these two.
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), ok_response).await;
    let sidecar_fixture =
        SidecarFixture::new(environment, &server.url(), &["--allow-request-headers=X-Real-IP,Forwarded"]).await;
    for client in sidecar_fixture.both_protocols().await {
        assert_eq!(client.send_and_read(get("/books", &claims)).await.status, 200);
        let seen = server.last_request();
        let arrived: Vec<_> =
            IDENTITY_CLAIM_HEADERS.into_iter().filter(|name| seen.headers.contains_key(*name)).collect();
        assert_eq!(arrived, ["x-real-ip", "forwarded"]);
    }
    // Aggregated API servers believe X-Remote-* alone; they are told none of these either.
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), ok_response).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    assert_eq!(fixture.http2().await.send_and_read(get(THINGS, &claims)).await.status, 200);
    let seen = backend.last_request();
    assert!(IDENTITY_CLAIM_HEADERS.into_iter().all(|name| !seen.headers.contains_key(name)), "{:?}", seen.headers);
}

#[test]
fn allow_request_headers_checked() {
    let environment = TestEnvironment::new();
    let check = |value: &str| {
        let mut line =
            ["check", "sidecar", "--upstream=http://127.0.0.1:1", "--kubeconfig=/nowhere"].map(str::to_owned).to_vec();
        line.push(format!("--data-dir={}", environment.path("data").display()));
        line.push(format!("--allow-request-headers={value}"));
        String::from_utf8(run_narthex(&line).stderr).unwrap()
    };
    assert!(!check("X-Real-Ip,remote-user").contains("allow-request-headers"));
    let output = check("X-Real-Ip,Accept");
    assert!(output.contains("--allow-request-headers: Accept is not stripped"), "{output}");
    let output = check("a b");
    assert!(output.contains("--allow-request-headers: \"a b\" is not a valid header name"), "{output}");
}

/// Everything that is no claim, and no name a rule reads, may stand behind a body.
#[tokio::test(flavor = "multi_thread")]
async fn request_trailers_cannot_repeat_authorized_headers() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), async |request: Request<Incoming>| {
        let body = request.into_body().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let mut names: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        json_response(200, &names.join(","))
    })
    .await;
    let rules = "authorization:\n  rewrites: {byHttpHeader: {name: X-Namespace}}\n  resourceAttributes: {resource: books, \
                 namespace: '{{ .Value }}'}\n";
    std::fs::write(environment.path("rules.yaml"), rules).unwrap();
    let flag = format!("--config-file={}", environment.path("rules.yaml").display());
    let sidecar_fixture = SidecarFixture::new(environment, &server.url(), &[&flag]).await;
    for client in sidecar_fixture.both_protocols().await {
        let mut behind = HeaderMap::new();
        for name in ["x-namespace", "x_namespace", "x-real-ip", "x-checksum"] {
            behind.insert(name, HeaderValue::from_static("evil"));
        }
        let names = "x-namespace, x_namespace, x-real-ip, x-checksum";
        let frames = [Ok(Frame::data("{}".into())), Ok(Frame::trailers(behind))];
        let body: RequestBody = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
        let headers = [("trailer", names), ("te", "trailers"), ("x-namespace", "shop")];
        let output = client.send_and_read(request(Method::POST, "/books", &headers, "").map(|_| body)).await;
        assert_eq!((output.status.as_u16(), output.text().as_str()), (200, "x-checksum"));
        assert_eq!(server.last_request().header_values("x-namespace"), ["shop"]);
    }
    let recorded = sidecar_fixture.reviewer.reviews("SubjectAccessReview");
    assert!(
        recorded.iter().all(|recorded| recorded["spec"]["resourceAttributes"]["namespace"] == "shop"),
        "{recorded:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn transfer_coding_other_than_chunked_refused() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), ok_response).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for coding in [
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    ] {
        let mut stream =
            connect(&fixture.environment, fixture.gateway.address, Some(&fixture.jane), &["http/1.1"]).await;
        let body = "3\r\nabc\r\n0\r\n\r\n";
        let text =
            format!("POST {THINGS} HTTP/1.1\r\nHost: localhost\r\n{coding}\r\n\r\n{body}GET {THINGS} HTTP/1.1\r\n\r\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut output = Vec::new();
        let _ = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut output)).await.expect("the end in time");
        let output = String::from_utf8_lossy(&output).into_owned();
        assert!(output.starts_with("HTTP/1.1 501 Not Implemented\r\n"), "{coding}: {output}");
        assert!(output.ends_with("Unsupported transfer encoding"), "{coding}: {output}");
        assert_eq!(output.matches("HTTP/1.1").count(), 1, "{coding}: {output}");
    }
    assert!(backend.received().is_empty());
}
