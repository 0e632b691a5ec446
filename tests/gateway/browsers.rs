//! CORS: which origins may send requests, and which headers browsers get.

use http::Method;

use crate::backend::{Backend, Settings, json};
use crate::client::{Client, get, request};
use crate::scene::{Scene, THINGS};
use crate::world::{World, narthex};

const ORIGIN: &str = "access-control-allow-origin";
const ALL: [&str; 5] = [
    ORIGIN,
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-allow-credentials",
];

async fn scene(flags: &[&str]) -> (Scene, Backend) {
    let world = World::new();
    let backend = Backend::start(&world, Settings::default(), async |_| {
        let mut answer = json(200, "{}");
        for (name, value) in [(ORIGIN, "*"), ("vary", "Accept"), ("strict-transport-security", "max-age=1")] {
            answer.headers_mut().append(name, value.parse().unwrap());
        }
        answer
    })
    .await;
    (Scene::with(world, &[&backend], &[], flags), backend)
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_allowed_origins_may_ask_and_read_refusals() {
    let flags = [
        "--cors-allowed-origins=^https://example\\.com(:|$),//localhost(:|$)",
        "--authorization-always-allow-paths=/livez",
        "--authorization-mode=AlwaysDeny",
        "--strict-transport-security-directives=max-age=600,includeSubDomains",
    ];
    let (scene, backend) = scene(&flags).await;
    let nobody = Client::http1(&scene.world, &scene.gateway, None).await;
    let page = [("origin", "https://example.com")];

    // The browser asks first, and has no credentials then; nothing of it goes any further.
    let preflight = nobody.ask(request(Method::OPTIONS, THINGS, &page, "")).await;
    assert_eq!((preflight.status.as_u16(), preflight.body.len()), (204, 0));
    assert!(preflight.headers["access-control-allow-methods"].to_str().unwrap().contains("PATCH"));
    assert!(preflight.headers["access-control-allow-headers"].to_str().unwrap().contains("Authorization"));
    assert_eq!(preflight.headers["access-control-allow-credentials"], "true");

    for client in scene.both().await {
        for (answer, code, reason) in [
            (nobody.ask(get(THINGS, &page)).await, 401, "Unauthorized"),
            (client.ask(get(THINGS, &page)).await, 403, "Forbidden"),
            (client.ask(get("/apis//v1", &page)).await, 400, "BadRequest"),
        ] {
            answer.refused(code, reason);
            assert_eq!(answer.headers[ORIGIN], "https://example.com");
            assert_eq!(answer.headers["vary"], "Origin");
            assert_eq!(answer.headers["strict-transport-security"], "max-age=600; includeSubDomains");
        }
        // Others learn nothing, and are told that somebody else may have.
        for origins in [&[("origin", "https://example.com.evil.org")][..], &[("origin", "null")], &[]] {
            let answer = client.ask(get("/livez", origins)).await;
            assert_eq!((answer.status.as_u16(), &answer.headers["vary"]), (200, &"Origin".parse().unwrap()));
            assert!(ALL.iter().all(|name| !answer.headers.contains_key(*name)), "{:?}", answer.headers);
        }
    }
    let answer = nobody.ask(request(Method::OPTIONS, THINGS, &[("origin", "https://evil.org")], "")).await;
    answer.refused(401, "Unauthorized");
    assert!(backend.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_backend_says_to_browsers_is_not_passed_on() {
    let (with, _backend) = scene(&["--cors-allowed-origins=^https://example\\.com$"]).await;
    let (without, _other) = scene(&[]).await;
    for client in with.both().await {
        let answer = client.ask(get(THINGS, &[("origin", "https://example.com")])).await;
        let said: Vec<_> = answer.headers.get_all(ORIGIN).iter().collect();
        assert_eq!(said, ["https://example.com"]);
        let vary: Vec<_> = answer.headers.get_all("vary").iter().collect();
        assert_eq!(vary, ["Accept", "Origin"]);
        assert!(!answer.headers.contains_key("strict-transport-security"));
    }
    for client in without.both().await {
        let answer = client.ask(get(THINGS, &[("origin", "https://example.com")])).await;
        assert!(ALL.iter().all(|name| !answer.headers.contains_key(*name)), "{:?}", answer.headers);
        assert_eq!(answer.headers["vary"], "Accept");
    }
}

#[test]
fn an_expression_that_lets_in_more_than_it_says_is_refused() {
    let arguments = [
        "check",
        "gateway",
        "--cors-allowed-origins=example.com,^https://(",
        "--strict-transport-security-directives=max-age=soon",
    ];
    let output = narthex(&arguments.map(str::to_owned));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    for words in ["example.com\" is not anchored at both ends", "^https://(", "max-age=soon"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}
