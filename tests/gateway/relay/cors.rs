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
    let world = TestEnvironment::new();
    let backend = Backend::start(&world, BackendSettings::default(), async |_| {
        let mut answer = json_response(200, "{}");
        for (name, value) in [(ALLOW_ORIGIN, "*"), ("vary", "Accept"), ("strict-transport-security", "max-age=1")] {
            answer.headers_mut().append(name, value.parse().unwrap());
        }
        answer
    })
    .await;
    (GatewayFixture::with_flags(world, &[&backend], &[], flags), backend)
}

#[tokio::test(flavor = "multi_thread")]
async fn cors_allowed_origins_get_preflight_and_readable_errors() {
    let flags = [
        "--cors-allowed-origins=^https://example\\.com(:|$),//localhost(:|$)",
        "--authorization-always-allow-paths=/livez",
        "--authorization-mode=AlwaysDeny",
        "--strict-transport-security-directives=max-age=600,includeSubDomains",
    ];
    let (scene, backend) = start_gateway(&flags).await;
    let nobody = Client::http1(&scene.world, &scene.gateway, None).await;
    let page = [("origin", "https://example.com")];

    // The browser asks first, and has no credentials then; nothing of it goes any further.
    let preflight = nobody.send_and_read(request(Method::OPTIONS, THINGS, &page, "")).await;
    assert_eq!((preflight.status.as_u16(), preflight.body.len()), (204, 0));
    assert!(preflight.headers["access-control-allow-methods"].to_str().unwrap().contains("PATCH"));
    assert!(preflight.headers["access-control-allow-headers"].to_str().unwrap().contains("Authorization"));
    assert_eq!(preflight.headers["access-control-allow-credentials"], "true");

    for client in scene.both_protocols().await {
        for (answer, code, reason) in [
            (nobody.send_and_read(get(THINGS, &page)).await, 401, "Unauthorized"),
            (client.send_and_read(get(THINGS, &page)).await, 403, "Forbidden"),
            (client.send_and_read(get("/apis//v1", &page)).await, 400, "BadRequest"),
        ] {
            answer.assert_failure(code, reason);
            assert_eq!(answer.headers[ALLOW_ORIGIN], "https://example.com");
            assert_eq!(answer.headers["vary"], "Origin");
            assert_eq!(answer.headers["strict-transport-security"], "max-age=600; includeSubDomains");
        }
        // Others learn nothing, and are told that somebody else may have.
        for origins in [&[("origin", "https://example.com.evil.org")][..], &[("origin", "null")], &[]] {
            let answer = client.send_and_read(get("/livez", origins)).await;
            assert_eq!((answer.status.as_u16(), &answer.headers["vary"]), (200, &"Origin".parse().unwrap()));
            assert!(CORS_HEADERS.iter().all(|name| !answer.headers.contains_key(*name)), "{:?}", answer.headers);
        }
    }
    let answer = nobody.send_and_read(request(Method::OPTIONS, THINGS, &[("origin", "https://evil.org")], "")).await;
    answer.assert_failure(401, "Unauthorized");
    assert!(backend.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn cors_headers_of_backend_replaced() {
    let (with, _backend) = start_gateway(&["--cors-allowed-origins=^https://example\\.com$"]).await;
    let (without, _other) = start_gateway(&[]).await;
    for client in with.both_protocols().await {
        let answer = client.send_and_read(get(THINGS, &[("origin", "https://example.com")])).await;
        let said: Vec<_> = answer.headers.get_all(ALLOW_ORIGIN).iter().collect();
        assert_eq!(said, ["https://example.com"]);
        let vary: Vec<_> = answer.headers.get_all("vary").iter().collect();
        assert_eq!(vary, ["Accept", "Origin"]);
        assert!(!answer.headers.contains_key("strict-transport-security"));
    }
    for client in without.both_protocols().await {
        let answer = client.send_and_read(get(THINGS, &[("origin", "https://example.com")])).await;
        assert!(CORS_HEADERS.iter().all(|name| !answer.headers.contains_key(*name)), "{:?}", answer.headers);
        assert_eq!(answer.headers["vary"], "Accept");
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
    let said = String::from_utf8_lossy(&output.stderr);
    for words in ["example.com\" is not anchored at both ends", "^https://(", "max-age=soon"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
