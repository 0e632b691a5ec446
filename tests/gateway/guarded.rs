//! Relay of the sidecar to its upstream server and back, and responses to clients when that server fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use narthex::tls::Request as CertificateRequest;
use tokio::sync::mpsc;

use crate::backend::{Answer, Backend, Settings, data, json, streamed};
use crate::client::{Client, RequestBody, admin, get, next, read, request};
use crate::plain::{Place, Plain, Said};
use crate::refused::retry_after_seconds;
use crate::reviewer::Reviewer;
use crate::sidecar::arguments;
use crate::world::{Gateway, Pair, World, eventually, narthex};

/// A sidecar in front of a server that allows everything to everybody it knows, and jane, whom it knows.
pub(crate) struct Guard {
    pub(crate) world: World,
    pub(crate) reviewer: Reviewer,
    pub(crate) sidecar: Gateway,
    pub(crate) jane: Pair,
}

impl Guard {
    /// `url` as `--upstream` has it.
    pub(crate) async fn before(world: World, url: &str, more: &[&str]) -> Guard {
        let reviewer = Reviewer::start(&world).await;
        let mut line = arguments(&world, &[], more);
        line.push(format!("--upstream={url}"));
        let sidecar = Gateway::start_as("sidecar", &line);
        let jane = world.user("jane", &["devs"]);
        Guard { world, reviewer, sidecar, jane }
    }

    pub(crate) async fn http1(&self) -> Client {
        Client::http1(&self.world, &self.sidecar, Some(&self.jane)).await
    }

    pub(crate) async fn http2(&self) -> Client {
        Client::http2(&self.world, &self.sidecar, Some(&self.jane)).await
    }

    pub(crate) async fn both(&self) -> [Client; 2] {
        [self.http1().await, self.http2().await]
    }
}

/// Says what it was sent, in the body and in a trailer.
async fn mirrored(request: Request<Incoming>) -> Answer {
    let body = request.into_body().collect().await.unwrap();
    let mut trailers = body.trailers().cloned().unwrap_or_default();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = [Ok(Frame::data(body.to_bytes())), Ok(Frame::trailers(trailers))];
    let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
    Response::builder().header("trailer", "grpc-status, x-checksum").body(body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_or_a_socket_of_either_protocol_is_relayed_to() {
    for h2c in [false, true] {
        for socket in [false, true] {
            let world = World::new();
            let place = if socket { Place::socket(&world) } else { Place::Port(0) };
            let server = match h2c {
                false => Plain::http1(place, mirrored).await,
                true => Plain::http2(place, mirrored).await,
            };
            let h2c = if h2c { "--upstream-force-h2c=true" } else { "--upstream-force-h2c=false" };
            let guard = Guard::before(world, &server.url(), &[h2c]).await;
            for client in guard.both().await {
                let said = client.ask(get("/a/b%20c?d=e", &[("x-remote-user", "root"), ("te", "trailers")])).await;
                assert_eq!(said.status, 200, "{}", said.text());
                let seen = server.last();
                assert_eq!((seen.uri.path(), seen.uri.query()), ("/a/b%20c", Some("d=e")));
                assert_eq!((seen.all("x-remote-user"), seen.all("te")), (vec!["jane".into()], vec!["trailers".into()]));
                let posted = client.ask(request(Method::POST, "/a", &[], "body")).await;
                assert_eq!((posted.status.as_u16(), posted.text().as_str()), (200, "body"));
            }
        }
    }
}

/// A body that the test writes.
fn written() -> (mpsc::UnboundedSender<Frame<Bytes>>, RequestBody) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx).map(|frame| frame.map(Ok)));
    (sender, BodyExt::boxed(StreamBody::new(frames)))
}

/// Sends back piece by piece what comes; what stood behind it, too.
async fn echoed(request: Request<Incoming>) -> Answer {
    let mut body = request.into_body();
    let (writer, mut answer) = streamed(200);
    tokio::spawn(async move {
        let mut last = HeaderMap::new();
        while let Some(Ok(frame)) = body.frame().await {
            match frame.into_data() {
                Ok(data) => {
                    let _ = writer.send(Ok(Frame::data(data)));
                }
                Err(frame) => last = frame.into_trailers().unwrap(),
            }
        }
        last.insert("grpc-status", HeaderValue::from_static("0"));
        last.insert("grpc-message", HeaderValue::from_static("done"));
        let _ = writer.send(Ok(Frame::trailers(last)));
    });
    answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_call_streams_both_ways_for_longer_than_requests_may_take() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let world = World::new();
    let server = Plain::http2(Place::socket(&world), echoed).await;
    let more = ["--upstream-force-h2c", "--upstream-timeout=300ms", "--request-timeout=300ms"];
    let guard = Guard::before(world, &server.url(), &more).await;
    let client = guard.http2().await;
    let (writer, body) = written();
    let call = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "1H")];
    let call = request(Method::POST, "/library.Books/Lend", &call, "").map(|_| body);
    let mut answer = client.send(call).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/grpc".parse().unwrap())
    );
    let seen = server.last();
    assert_eq!((seen.all("te"), seen.all("grpc-timeout")), (vec!["trailers".to_owned()], vec!["1H".to_owned()]));
    assert_eq!((seen.method.as_str(), seen.uri.path()), ("POST", "/library.Books/Lend"));
    let begun = Instant::now();
    while begun.elapsed() < 3 * TIMEOUT {
        writer.send(Frame::data("ping".into())).unwrap();
        assert_eq!(next(answer.body_mut()).await.unwrap().unwrap(), "ping");
        tokio::time::sleep(TIMEOUT / 10).await;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", HeaderValue::from_static("1"));
    trailers.insert("x-remote-user", HeaderValue::from_static("root"));
    writer.send(Frame::trailers(trailers)).unwrap();
    drop(writer);
    let trailers = answer.body_mut().collect().await.unwrap().trailers().cloned().unwrap();
    let got = |name: &str| trailers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!((got("grpc-status"), got("grpc-message"), got("x-checksum")), (Some("0"), Some("done"), Some("1")));
    assert_eq!(got("x-remote-user"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_an_https_upstream_are_renewed_without_a_loss() {
    let world = World::new();
    let server =
        Backend::start(&world, Settings { names: vec!["127.0.0.1"], all: true, ..Settings::default() }, async |_| {
            json(200, "{}")
        })
        .await;
    let guard = Arc::new(Guard::before(world, &format!("https://{}", server.address), &[]).await);
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let asking: Vec<_> = guard
        .both()
        .await
        .map(|client| {
            let (stop, asked) = (stop.clone(), asked.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let said = client.get("/books").await;
                    assert_eq!((said.status.as_u16(), said.whole), (200, true), "{}", said.text());
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .into();
    let world = &guard.world;
    for name in ["second", "third"] {
        // Another authority joins, and we are shown as somebody else.
        let (_, issued) = narthex::tls::Authority::new(name, SystemTime::now()).unwrap();
        let bundle = world.read("backend-ca.crt") + &issued.certificate;
        std::fs::write(world.path("next"), bundle).unwrap();
        std::fs::rename(world.path("next"), world.path("backend-ca.crt")).unwrap();
        let request = CertificateRequest::client(name, &[]);
        world.keep("front-proxy", &world.request_header.issue(&request, SystemTime::now()).unwrap());
        eventually("the new certificate to be shown", async || {
            server.seen().last().filter(|seen| seen.peer == name).map(drop)
        })
        .await;
        let before = asked.load(Ordering::Relaxed);
        eventually("more requests", async || (asked.load(Ordering::Relaxed) > before + 20).then_some(())).await;
    }
    stop.store(true, Ordering::Relaxed);
    for asking in asking {
        asking.await.unwrap();
    }
    // And an authority that did not sign it is told from one that did, in words its operator knows.
    let (_, other) = narthex::tls::Authority::new("other", SystemTime::now()).unwrap();
    std::fs::write(world.path("backend-ca.crt"), other.certificate).unwrap();
    let client = guard.http2().await;
    let status = eventually("the server to be believed no more", async || {
        let said = client.get("/books").await;
        (said.status != 200).then(|| said.refused(503, "ServiceUnavailable"))
    })
    .await;
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["reason"], "UnknownIssuer", "{status}");
    assert!(cause["message"].as_str().unwrap().contains("an authority of --upstream-ca-file"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_between_a_server_and_its_clients_goes_through() {
    let world = World::new();
    let server = Plain::http1(Place::Port(0), async |request: Request<Incoming>| {
        let answer = Response::builder().header("set-cookie", "a=1").header("strict-transport-security", "max-age=1");
        let answer = answer.header("access-control-allow-origin", "*").header("location", "/login");
        let status = if request.uri().path() == "/go" { 302 } else { 200 };
        answer.status(status).body(json(200, "{}").into_body()).unwrap()
    })
    .await;
    let guard = Guard::before(world, &server.url(), &[]).await;
    for client in guard.both().await {
        let cookie = [("cookie", "b=2"), ("authorization", "Basic dXNlcjpwYXNz"), ("x-forwarded-client-cert", "By=me")];
        let said = client.ask(get("/go", &cookie)).await;
        assert_eq!((said.status.as_u16(), &said.headers["location"]), (302, &"/login".parse().unwrap()));
        for name in ["set-cookie", "strict-transport-security", "access-control-allow-origin"] {
            assert!(said.headers.contains_key(name), "{name}: {:?}", said.headers);
        }
        let seen = server.last();
        assert_eq!((seen.all("cookie"), seen.all("x-forwarded-client-cert")), (vec!["b=2".to_owned()], vec![]));
        // What it understands by `timeout` is its own affair; so is a path that only begins as one of Kubernetes'.
        for path in ["/query?timeout=30", "/api/v1/query?timeout=30", "/apiary/v1/bees?timeout=soon"] {
            assert_eq!(client.get(path).await.status, 200, "{path}");
            assert_eq!(server.last().uri.to_string(), path);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_yet_is_missed_and_then_served() {
    for socket in [false, true] {
        let world = World::new();
        let place = if socket {
            Place::socket(&world)
        } else {
            Place::Port(std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
        };
        let guard = Guard::before(world, &place.url(), &[]).await;
        let client = guard.http1().await;
        for method in [Method::GET, Method::POST] {
            let said = client.ask(request(method, "/books", &[], "")).await;
            let status = said.refused(503, "ServiceUnavailable");
            assert!(status["message"].as_str().unwrap().contains("(upstream /: "), "{status}");
            assert!(
                !status.to_string().contains("aggregated") && !status.to_string().contains("APIService"),
                "{status}"
            );
            assert_eq!(retry_after_seconds(&said), Some(1));
        }
        let first = Plain::http1(place, async |_| json(200, "first")).await;
        eventually("the server", async || (client.get("/books").await.status == 200).then_some(())).await;
        // It ends, and comes again.
        let place = first.stop().await;
        client.get("/books").await.refused(503, "ServiceUnavailable");
        let _second = Plain::http1(place, async |_| json(200, "second")).await;
        let text = eventually("the server again", async || {
            let said = client.get("/books").await;
            (said.status == 200).then(|| said.text())
        })
        .await;
        assert_eq!(text, "second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn its_operator_reads_of_upstreams() {
    let world = World::new();
    let server = Plain::http1(Place::socket(&world), async |_| json(200, "{}")).await;
    let guard = Guard::before(world, &server.url(), &[]).await;
    assert_eq!(guard.http1().await.get("/books").await.status, 200);
    let address = guard.sidecar.admin.to_string();
    let told = eventually("the server to be found", async || {
        let output = narthex(&["status", "--admin-address", &address, "--output=wide"].map(str::to_owned));
        let told = String::from_utf8(output.stdout).unwrap();
        told.contains(" True ").then_some(told)
    })
    .await;
    let line = |head: &str| {
        told.lines().find(|line| line.starts_with(head)).unwrap_or_else(|| panic!("no {head} in\n{told}")).to_owned()
    };
    assert_eq!(line("PATH").split_whitespace().take(3).collect::<Vec<_>>(), ["PATH", "UPSTREAM", "AVAILABLE"]);
    assert!(line("/ ").contains(&server.url()), "{told}");
    let heads = |line: &str| line.split_whitespace().take(2).eq(["PATH", "ENDPOINT"]);
    assert!(told.lines().any(heads), "{told}");
    let page = admin(&guard.sidecar, get("/", &[("accept", "text/html")])).await.text();
    assert!(page.contains("<h2>Upstreams</h2>") && page.contains(&server.url()), "{page}");
    for text in [told, page] {
        assert!(!text.to_lowercase().contains("apiservice"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_an_answer_never_looks_whole() {
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let world = World::new();
        let server = Plain::raw(Place::socket(&world), move |mut said: Said| async move {
            if said.head().await.is_some() {
                said.say(head).await;
            }
        })
        .await;
        let guard = Guard::before(world, &server.url(), &[]).await;
        for client in guard.both().await {
            let said = client.get("/books").await;
            assert_eq!((said.status.as_u16(), said.text().as_str(), said.whole), (200, "half", false));
        }
    }
    let world = World::new();
    let (send, mut writers) = mpsc::unbounded_channel();
    let server = Plain::http2(Place::Port(0), move |_| {
        let (writer, answer) = streamed(200);
        writer.send(data("half")).unwrap();
        send.send(writer).unwrap();
        async { answer }
    })
    .await;
    let guard = Guard::before(world, &server.url(), &["--upstream-force-h2c"]).await;
    for client in guard.both().await {
        let mut answer = client.send(get("/books", &[])).await.unwrap();
        assert_eq!(next(answer.body_mut()).await.unwrap().unwrap(), "half");
        writers.recv().await.unwrap().send(Err(std::io::Error::other("broken"))).unwrap();
        let said = read(answer).await;
        assert_eq!((said.status.as_u16(), said.text().as_str(), said.whole), (200, "", false));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_has_the_time_of_its_path() {
    let world = World::new();
    let handler = async |request: Request<Incoming>| match request.uri().path() {
        "/slow" | "/apis/a.example.com/v1" | "/metrics/slow" => std::future::pending().await,
        _ => json(200, "{}"),
    };
    let (one, two) = (Plain::http1(Place::socket(&world), handler).await, Plain::http1(Place::Port(0), handler).await);
    let more = [format!("--upstream=/metrics={}", two.url()), "--upstream-timeout=/metrics=100ms".to_owned()];
    let more: Vec<&str> = more.iter().map(String::as_str).chain(["--upstream-timeout=400ms"]).collect();
    let guard = Guard::before(world, &one.url(), &more).await;
    for client in guard.both().await {
        for (path, name) in [("/slow", "/"), ("/apis/a.example.com/v1", "/"), ("/metrics/slow", "/metrics")] {
            for method in [Method::GET, Method::POST] {
                let said = client.ask(request(method.clone(), path, &[], "")).await;
                let status = said.refused(504, "Timeout");
                let cause = &status["details"]["causes"][0];
                assert_eq!(cause["message"], format!("upstream {name} did not answer in time"), "{status}");
                // Who repeats a POST must decide so.
                assert_eq!(retry_after_seconds(&said).is_some(), method == Method::GET);
            }
        }
        assert_eq!(client.get("/fast").await.status, 200);
    }
    assert_eq!(one.seen().iter().filter(|seen| seen.uri.path() == "/slow").count(), 4, "nothing is sent twice");
    assert_eq!(two.seen().len(), 4);
}

/// A server that answers the first request on each connection and does with the second what `then` says.
async fn fickle(world: &World, then: &'static str) -> (Plain, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let kept = heads.clone();
    let server = Plain::raw(Place::socket(world), move |mut said: Said| {
        let heads = kept.clone();
        async move {
            let Some(head) = said.head().await else { return };
            heads.lock().unwrap().push(head.lines().next().unwrap().to_owned());
            if head.starts_with("GET /die") {
                return;
            }
            said.say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
            if let Some(head) = said.head().await {
                heads.lock().unwrap().push(head.lines().next().unwrap().to_owned());
                said.say(then).await;
            }
        }
    })
    .await;
    (server, heads)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_is_not_sent_again() {
    let world = World::new();
    let (server, heads) = fickle(&world, "HTTP/1.1 2").await;
    let guard = Guard::before(world, &server.url(), &[]).await;
    let asked = |line: &str| heads.lock().unwrap().iter().filter(|head| head.starts_with(line)).count();
    // A client's connection stays with one worker, and so do the connections that it uses.
    let client = guard.http1().await;
    let broken = |said: crate::client::Read| {
        let status = said.refused(503, "ServiceUnavailable");
        assert_eq!(status["details"]["causes"][0]["reason"], "ConnectionBroken", "{status}");
    };
    // The first on its connection: no reason to think that its end was by chance.
    broken(client.get("/die").await);
    assert_eq!(asked("GET /die "), 1);
    // An answer had begun.
    assert_eq!(client.get("/").await.status, 200);
    let said = client.get("/begun").await;
    assert!(matches!(said.status.as_u16(), 502 | 503), "{said:?}");
    assert_eq!(asked("GET /begun "), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_being_closed_costs_no_get() {
    let world = World::new();
    let (server, heads) = fickle(&world, "").await;
    let guard = Guard::before(world, &server.url(), &[]).await;
    let asked = |line: &str| heads.lock().unwrap().iter().filter(|head| head.starts_with(line)).count();
    let client = guard.http1().await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        assert_eq!(client.get("/").await.status, 200);
        // As the server closes: sent once in vain, and again on a connection of its own.
        assert_eq!(client.ask(request(method.clone(), "/books", &[], "")).await.status, StatusCode::OK, "{method}");
        assert_eq!(asked(&format!("{method} /books ")), 2);
        // That one is kept in turn; a connection without a past is what the next round begins with.
        client.ask(request(Method::DELETE, "/use-up", &[], "")).await;
    }
    for (method, body) in [(Method::POST, "body"), (Method::POST, ""), (Method::DELETE, ""), (Method::GET, "body")] {
        assert_eq!(client.get("/").await.status, 200);
        let said = client.ask(request(method.clone(), "/once", &[], body)).await;
        let status = said.refused(503, "ServiceUnavailable");
        assert_eq!(status["details"]["causes"][0]["reason"], "ConnectionBroken", "{status}");
        assert_eq!(retry_after_seconds(&said), None, "{method}");
        assert_eq!(asked(&format!("{method} /once ")), 1);
        heads.lock().unwrap().clear();
    }
}
