//! The authorized request is the routed and forwarded one: paths, queries and methods, byte by byte.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, connect, get};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment};
use crate::support::raw_h2_client::{END_STREAM, RawH2Client, StreamOutcome, header_block, headers_frames};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";
const GREETINGS: &str = "/apis/greetings.example.com/v1/greetings";

/// A gateway with two APIs of two backends behind it.
struct PathFixture {
    environment: TestEnvironment,
    things: Backend,
    greetings: Backend,
    gateway: GatewayProcess,
    jane: CertKeyPair,
}

impl PathFixture {
    async fn new(more: &[&str]) -> PathFixture {
        let environment = TestEnvironment::new();
        let backend = |name: &'static str| {
            let settings = BackendSettings { names: vec![name], ..BackendSettings::default() };
            Backend::start(&environment, settings, async |_| json_response(200, "{}"))
        };
        let (things, greetings) = (backend("things-v1.things.svc").await, backend("greetings-v1.greetings.svc").await);
        environment.register_apiservice("things.example.com", "v1", &[&things]);
        environment.register_apiservice("greetings.example.com", "v1", &[&greetings]);
        let gateway = environment.start_gateway(more);
        let jane = environment.issue_user("jane", &[]);
        PathFixture { things, greetings, gateway, jane, environment }
    }

    /// Asks over HTTP/1.1 for exactly this target; the status.
    async fn http1(&self, pair: Option<&CertKeyPair>, method: &str, target: &[u8]) -> u16 {
        let mut stream = connect(&self.environment, self.gateway.address, pair, &["http/1.1"]).await;
        let request = [method.as_bytes(), b" ", target, b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"];
        stream.write_all(&request.concat()).await.unwrap();
        let mut response = Vec::new();
        let reading = async {
            let _ = stream.read_to_end(&mut response).await;
        };
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("an answer in time");
        let response = String::from_utf8_lossy(&response).into_owned();
        response.strip_prefix("HTTP/1.1 ").map_or(0, |rest| rest[..3].parse().unwrap())
    }

    /// The same over HTTP/2; 0 for a stream or connection that was reset.
    async fn http2(&self, pair: Option<&CertKeyPair>, method: &str, target: &str) -> u16 {
        let mut frames = RawH2Client::open(&self.environment, &self.gateway, pair, &[]).await;
        let lines = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", target)];
        assert!(frames.send(&headers_frames(1, END_STREAM, &header_block(&lines))).await);
        match frames.stream_outcome(1).await {
            StreamOutcome::Status(status) => status,
            _ => 0,
        }
    }

    /// What arrived so far: at things, at greetings.
    fn received_counts(&self) -> (usize, usize) {
        (self.things.received().len(), self.greetings.received().len())
    }

    /// Asserts that `target` arrives at things as `expected`, over both protocols.
    async fn assert_arrives(&self, target: &str, expected: &str) {
        let before = self.received_counts();
        assert_eq!(self.http1(Some(&self.jane), "GET", target.as_bytes()).await, 200, "{target}");
        assert_eq!(self.things.last_request().uri.path_and_query().unwrap().as_str(), expected, "{target}");
        assert_eq!(self.http2(Some(&self.jane), "GET", target).await, 200, "{target}");
        assert_eq!(self.things.last_request().uri.path_and_query().unwrap().as_str(), expected, "{target}");
        assert_eq!(self.received_counts(), (before.0 + 2, before.1), "{target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn path_and_query_forwarded_unchanged() {
    let exchange = PathFixture::new(&[]).await;
    for rest in [
        "",
        "/",
        "/one",
        "/one/",
        "/one/status",
        "/a%20b",
        "/a%2Bb+c",
        "/gr%C3%BC%C3%9Fe",
        "/a;b=c",
        "/a:b@c!$&'()*,~_-",
        "/%41%7e",
        "/...",
        "/.a",
        "/a.",
        "/a%3Fb",
        "/a%23b",
        "/a%25b",
        "/a%252Fb",
        "/a%5Cb",
        "?limit=500",
        "?watch=0&x=%26%3D%3F",
        "?a=b&&c&=d&e=",
        "?a=b?c=/../d",
        "?fieldSelector=metadata.name%3Done",
        "?x=a+b%20c",
    ] {
        let target = format!("{THINGS}{rest}");
        exchange.assert_arrives(&target, &target).await;
        assert_eq!(
            exchange.things.last_request().header_values("x-forwarded-uri"),
            [target.split('?').next().unwrap()]
        );
    }
    for target in ["/apis/things.example.com/v1", "/apis/things.example.com/v1/", "/apis/things.example.com/v1/things"]
    {
        exchange.assert_arrives(target, target).await;
    }
    assert_eq!(exchange.http1(Some(&exchange.jane), "GET", GREETINGS.as_bytes()).await, 200);
    assert_eq!(exchange.greetings.last_request().uri.path(), GREETINGS);
    // Unusual spellings of unambiguous paths.
    for target in ["/%61pis/things.example.com/v1/things", "/apis/things%2Eexample.com/%761/things"] {
        let (before, _) = exchange.received_counts();
        assert_eq!(exchange.http1(Some(&exchange.jane), "GET", target.as_bytes()).await, 200, "{target}");
        let arrived = exchange.things.last_request().uri.path().to_owned();
        let decoded = percent_encoding::percent_decode_str(&arrived).decode_utf8().unwrap().into_owned();
        assert_eq!(
            (decoded.as_str(), exchange.received_counts().0),
            ("/apis/things.example.com/v1/things", before + 1)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn path_ambiguous_refused_with_400() {
    let exchange = PathFixture::new(&[]).await;
    let below = [
        "/a%2Fb",
        "/a%2fb",
        "/%2F",
        "/.",
        "/..",
        "/./one",
        "/../one",
        "/%2e",
        "/%2E%2e",
        "/.%2e/one",
        "/%2e%2e%2f%2e%2e",
        "//",
        "//one",
        "/one//status",
        "/a%00",
        "/a%0d%0aX-Remote-User:%20admin",
        "/a%7f",
        "/a%zz",
        "/a%",
        "/a%2",
        "/a%C3%28",
        "/%c0%ae%c0%ae/one",
        "/%ff",
    ];
    let mut targets: Vec<String> = below.iter().map(|rest| format!("{THINGS}{rest}")).collect();
    targets.extend(
        [
            "//apis/things.example.com/v1/things",
            "/apis//things.example.com/v1/things",
            "/apis/things.example.com//v1/things",
            "/apis/things.example.com/v1//things",
            "/apis/things.example.com/v1/../v1/things",
            "/apis/things.example.com/v1/../../greetings.example.com/v1/greetings",
            "/apis/things.example.com%2Fv1/things",
            "/apis%2Fthings.example.com/v1/things",
            "/apis/./things.example.com/v1/things",
            "/livez/../apis/things.example.com/v1/things",
            "/openapi/v3/../../apis/things.example.com/v1/things",
            "/openapi/v3/%2e%2e/%2e%2e/apis/things.example.com/v1/things",
            "/nowhere/..%2fapis/things.example.com/v1/things",
            "/.",
            "/..",
        ]
        .map(str::to_owned),
    );
    for target in &targets {
        assert_eq!(exchange.http1(Some(&exchange.jane), "GET", target.as_bytes()).await, 400, "{target}");
        assert_eq!(exchange.http2(Some(&exchange.jane), "GET", target).await, 400, "{target}");
        // The same for unauthenticated clients.
        let status = exchange.http1(None, "GET", target.as_bytes()).await;
        assert!(matches!(status, 400 | 401), "{target}: {status}");
    }
    // Bytes that are not even text: refused, or escaped, never anything else.
    for target in [&b"/apis/things.example.com/v1/\xff"[..], b"/apis/things.example.com/v1/\xc3\xbc"] {
        let status = exchange.http1(Some(&exchange.jane), "GET", target).await;
        assert!(matches!(status, 200 | 400), "{status}");
    }
    let seen = exchange.things.received();
    assert!(seen.iter().all(|seen| seen.uri.path() == "/apis/things.example.com/v1/%C3%BC"), "{seen:?}");
    assert!(exchange.greetings.received().is_empty());
}

/// What stands behind a `proxy` subresource is another server's path.
#[tokio::test(flavor = "multi_thread")]
async fn path_below_proxy_subresource_forwarded_unchanged() {
    let exchange = PathFixture::new(&[]).await;
    for rest in [
        "",
        "/",
        "//",
        "/a//b",
        "/./a/../b",
        "/%2e%2e/%2F/a%2fb",
        "/../../../../../../greetings.example.com/v1/greetings",
        "/a;b?c=d",
        "/http:%2F%2Fevil.example.com/",
        "/%00%0a",
    ] {
        let target = format!("{THINGS}/one/proxy{rest}");
        exchange.assert_arrives(&target, &target).await;
    }
    // Not a subresource: an object or a namespace of that name.
    for target in
        [format!("{THINGS}/proxy/../one"), "/apis/things.example.com/v1/namespaces/proxy/../things".to_owned()]
    {
        assert_eq!(exchange.http1(Some(&exchange.jane), "GET", target.as_bytes()).await, 400, "{target}");
    }
}

/// Pairs that Go's parser drops: a backend must not see what was not authorized.
#[tokio::test(flavor = "multi_thread")]
async fn query_pairs_dropped_by_go_removed() {
    let exchange = PathFixture::new(&[]).await;
    for (recorded, expected) in [
        ("?a=1;watch=true", ""),
        ("?a=1&b=2;c=3&d=4", "?a=1&d=4"),
        ("?a=%zz&b=2", "?b=2"),
        ("?a=%", ""),
        ("?;", ""),
        ("?watch=true;&limit=1", "?limit=1"),
    ] {
        exchange.assert_arrives(&format!("{THINGS}{recorded}"), &format!("{THINGS}{expected}")).await;
        // A document of the backend's goes there by another way.
        let target = format!("/openapi/v3/apis/things.example.com/v1{recorded}");
        crate::support::fixtures::eventually("the document to be known", async || {
            (exchange.http1(Some(&exchange.jane), "GET", target.as_bytes()).await == 200).then_some(())
        })
        .await;
        let arrived = exchange.things.last_request().uri.to_string();
        assert!(arrived.ends_with(&format!("/openapi/v3/apis/things.example.com/v1{expected}")), "{target}: {arrived}");
    }
    // A request has no fragment: what looks like one is part of the value, as for Go.
    assert_eq!(exchange.http1(Some(&exchange.jane), "GET", format!("{THINGS}?a=b#c").as_bytes()).await, 200);
    assert_eq!(exchange.things.last_request().uri.query(), Some("a=b%23c"));
}

/// Health is open to all; nothing that only looks like it.
#[tokio::test(flavor = "multi_thread")]
async fn path_lookalikes_of_health_require_authentication() {
    let exchange = PathFixture::new(&["--authorization-mode=AlwaysDeny"]).await;
    for target in [
        THINGS.to_owned(),
        format!("{THINGS}?/version"),
        format!("{THINGS};/version"),
        format!("{THINGS}/version"),
        format!("/livez{THINGS}"),
        format!("/livez/..{THINGS}"),
        format!("/livez/%2e%2e{THINGS}"),
        format!("/livez/..%2f{}", &THINGS[1..]),
        format!("//livez/..{THINGS}"),
        format!("/livez;/..{THINGS}"),
        format!("/%6civez/../{THINGS}"),
        format!("https://localhost/livez{THINGS}"),
        format!("https://localhost{THINGS}"),
        "/version".to_owned(),
        "/".to_owned(),
    ] {
        let status = exchange.http1(Some(&exchange.jane), "GET", target.as_bytes()).await;
        assert!(matches!(status, 400 | 403) || target.contains("/livez/apis") && status == 404, "{target}: {status}");
    }
    assert_eq!(exchange.http1(None, "GET", b"/livez").await, 200);
    for target in ["/livez/../version", "/livez%2f..%2fversion", "/livezx", "/livez/nothing", "/livez;x", "/LIVEZ"] {
        let status = exchange.http1(None, "GET", target.as_bytes()).await;
        assert!(matches!(status, 400 | 401 | 404), "{target}: {status}");
    }
    assert_eq!(exchange.received_counts(), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_forwarded_unchanged() {
    let exchange = PathFixture::new(&[]).await;
    for method in ["GET", "HEAD", "OPTIONS", "DELETE", "PROPFIND", "get", "X-ODD"] {
        assert_eq!(exchange.http1(Some(&exchange.jane), method, THINGS.as_bytes()).await, 200, "{method}");
        assert_eq!(exchange.things.last_request().method.as_str(), method);
        assert_eq!(exchange.http2(Some(&exchange.jane), method, THINGS).await, 200, "{method}");
        assert_eq!(exchange.things.last_request().method.as_str(), method);
    }
    // An answer to HEAD is a header, which says how long the body would be.
    for (path, length) in [(THINGS, "2"), ("/version", ""), ("/nowhere", ""), ("/apis", ""), ("/livez", "2")] {
        let head = |client: Client| async move {
            client.send_and_read(crate::support::client::request(http::Method::HEAD, path, &[], "")).await
        };
        for response in [
            head(Client::http1(&exchange.environment, &exchange.gateway, Some(&exchange.jane)).await).await,
            head(Client::http2(&exchange.environment, &exchange.gateway, Some(&exchange.jane)).await).await,
        ] {
            assert!(response.is_complete && response.body.is_empty(), "{path}");
            let message = response.headers["content-length"].to_str().unwrap();
            assert!(message == length || length.is_empty() && message != "0", "{path}: {message}");
        }
    }
    // Our own paths.
    for (method, target, status) in [
        ("HEAD", "/version", 200),
        ("HEAD", "/apis", 200),
        ("HEAD", "/livez", 200),
        ("POST", "/version", 405),
        ("DELETE", "/apis", 405),
        ("OPTIONS", "/metrics", 405),
        ("PUT", "/nowhere", 404),
        ("GET", "/apis/", 200),
        ("GET", "/apis/nothing.example.com/v1/things", 404),
    ] {
        assert_eq!(exchange.http1(Some(&exchange.jane), method, target.as_bytes()).await, status, "{method} {target}");
        assert_eq!(exchange.http2(Some(&exchange.jane), method, target).await, status, "{method} {target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_id_of_client_kept_if_valid() {
    let exchange = PathFixture::new(&[]).await;
    let made = |id: &str| uuid::Uuid::parse_str(id).is_ok_and(|id| id.get_version_num() == 4);
    let clients = [
        Client::http1(&exchange.environment, &exchange.gateway, Some(&exchange.jane)).await,
        Client::http2(&exchange.environment, &exchange.gateway, Some(&exchange.jane)).await,
    ];
    for client in clients {
        for (upstream, kept) in [
            (&["0a1b-2c.3d_4e"][..], true),
            (&["first", "second"], true),
            (&[], false),
            (&[""], false),
            (&["with space"], false),
            (&["a,b"], false),
            (&["<script>"], false),
            (&[&*"x".repeat(65)], false),
        ] {
            let lines: Vec<(&str, &str)> = upstream.iter().map(|id| ("audit-id", *id)).collect();
            for path in [THINGS, "/nowhere"] {
                let response = client.send_and_read(get(path, &lines)).await;
                let ids: Vec<_> = response.headers.get_all("audit-id").iter().map(|id| id.to_str().unwrap()).collect();
                assert_eq!(ids.len(), 1, "{upstream:?}");
                assert!(if kept { ids[0] == upstream[0] } else { made(ids[0]) }, "{upstream:?}: {ids:?}");
                if path == THINGS {
                    assert_eq!(exchange.things.last_request().header_values("audit-id"), ids);
                }
            }
        }
    }
}
