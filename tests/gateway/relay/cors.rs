//! CORS: which origins may send requests, and which headers browsers get.

use http::Method;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, get, request};
use crate::support::fixtures::{TestEnvironment, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const CORS_HEADERS: [&str; 5] = [
    ALLOW_ORIGIN,
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-allow-credentials",
];

async fn start_gateway(flags: &[&str]) -> (GatewayFixture, Backend) {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| {
        let mut response = json_response(200, "{}");
        for (name, value) in [(ALLOW_ORIGIN, "*"), ("vary", "Accept"), ("strict-transport-security", "max-age=1")] {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response
    })
    .await;
    (GatewayFixture::with_flags(environment, &[&backend], &[], flags), backend)
}

#[tokio::test(flavor = "multi_thread")]
async fn cors_allowed_origins_get_preflight_and_readable_errors() {
    let flags = [
        "--cors-allowed-origins=^https://example\\.com(:|$),//localhost(:|$)",
        "--authorization-always-allow-paths=/livez",
        "--authorization-mode=AlwaysDeny",
        "--strict-transport-security-directives=max-age=600,includeSubDomains",
    ];
    let (fixture, backend) = start_gateway(&flags).await;
    let anonymous = Client::http1(&fixture.environment, &fixture.gateway, None).await;
    let page = [("origin", "https://example.com")];

    // The browser asks first, and has no credentials then; nothing of it goes any further.
    let preflight = anonymous.send_and_read(request(Method::OPTIONS, THINGS, &page, "")).await;
    assert_eq!((preflight.status.as_u16(), preflight.body.len()), (204, 0));
    assert!(preflight.headers["access-control-allow-methods"].to_str().unwrap().contains("PATCH"));
    assert!(preflight.headers["access-control-allow-headers"].to_str().unwrap().contains("Authorization"));
    assert_eq!(preflight.headers["access-control-allow-credentials"], "true");

    for client in fixture.both_protocols().await {
        for (response, code, reason) in [
            (anonymous.send_and_read(get(THINGS, &page)).await, 401, "Unauthorized"),
            (client.send_and_read(get(THINGS, &page)).await, 403, "Forbidden"),
            (client.send_and_read(get("/apis//v1", &page)).await, 400, "BadRequest"),
        ] {
            response.assert_failure(code, reason);
            assert_eq!(response.headers[ALLOW_ORIGIN], "https://example.com");
            assert_eq!(response.headers["vary"], "Origin");
            assert_eq!(response.headers["strict-transport-security"], "max-age=600; includeSubDomains");
        }
        // Other origins get no CORS headers except Vary: Origin.
        for origins in [&[("origin", "https://example.com.evil.org")][..], &[("origin", "null")], &[]] {
            let response = client.send_and_read(get("/livez", origins)).await;
            assert_eq!((response.status.as_u16(), &response.headers["vary"]), (200, &"Origin".parse().unwrap()));
            assert!(CORS_HEADERS.iter().all(|name| !response.headers.contains_key(*name)), "{:?}", response.headers);
        }
    }
    let response =
        anonymous.send_and_read(request(Method::OPTIONS, THINGS, &[("origin", "https://evil.org")], "")).await;
    response.assert_failure(401, "Unauthorized");
    assert!(backend.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn cors_headers_of_backend_replaced() {
    let (with, _backend) = start_gateway(&["--cors-allowed-origins=^https://example\\.com$"]).await;
    let (without, _other) = start_gateway(&[]).await;
    for client in with.both_protocols().await {
        let response = client.send_and_read(get(THINGS, &[("origin", "https://example.com")])).await;
        let output_text: Vec<_> = response.headers.get_all(ALLOW_ORIGIN).iter().collect();
        assert_eq!(output_text, ["https://example.com"]);
        let vary: Vec<_> = response.headers.get_all("vary").iter().collect();
        assert_eq!(vary, ["Accept", "Origin"]);
        assert!(!response.headers.contains_key("strict-transport-security"));
    }
    for client in without.both_protocols().await {
        let response = client.send_and_read(get(THINGS, &[("origin", "https://example.com")])).await;
        assert!(CORS_HEADERS.iter().all(|name| !response.headers.contains_key(*name)), "{:?}", response.headers);
        assert_eq!(response.headers["vary"], "Accept");
    }
}

#[test]
fn cors_unanchored_origin_expression_refused() {
    let arguments = [
        "check",
        "gateway",
        "--cors-allowed-origins=example.com,^https://(",
        "--strict-transport-security-directives=max-age=soon",
    ];
    let output = run_narthex(&arguments.map(str::to_owned));
    assert_eq!(output.status.code(), Some(1));
    let output_text = String::from_utf8_lossy(&output.stderr);
    for words in ["example.com\" is not anchored at both ends", "^https://(", "max-age=soon"] {
        assert!(output_text.contains(words), "{words}: {output_text}");
    }
}
