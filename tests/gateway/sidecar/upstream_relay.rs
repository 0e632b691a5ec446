//! Relay of the sidecar to its upstream server and back, and responses to clients when that server fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use narthex::tls::CertificateSpec as CertificateRequest;
use tokio::sync::mpsc;

use crate::sidecar::delegated_auth::sidecar_arguments;
use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, data_frame, json_response, streamed_response,
};
use crate::support::client::{Client, RequestBody, admin_request, get, next_chunk, read_response, request};
use crate::support::fake_review_server::FakeReviewServer;
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment, eventually, run_narthex};
use crate::support::plaintext_backend::{ListenAddress, PlaintextConnection, PlaintextServer};

/// A sidecar in front of a server, with all permissions for authenticated users, and user jane.
pub(crate) struct SidecarFixture {
    pub(crate) environment: TestEnvironment,
    pub(crate) reviewer: FakeReviewServer,
    pub(crate) sidecar: GatewayProcess,
    pub(crate) jane: CertKeyPair,
}

impl SidecarFixture {
    /// `url` as `--upstream` has it.
    pub(crate) async fn new(environment: TestEnvironment, url: &str, more: &[&str]) -> SidecarFixture {
        let reviewer = FakeReviewServer::start(&environment).await;
        let mut line = sidecar_arguments(&environment, &[], more);
        line.push(format!("--upstream={url}"));
        let sidecar = GatewayProcess::start_as("sidecar", &line);
        let jane = environment.issue_user("jane", &["devs"]);
        SidecarFixture { environment, reviewer, sidecar, jane }
    }

    pub(crate) async fn http1(&self) -> Client {
        Client::http1(&self.environment, &self.sidecar, Some(&self.jane)).await
    }

    pub(crate) async fn http2(&self) -> Client {
        Client::http2(&self.environment, &self.sidecar, Some(&self.jane)).await
    }

    pub(crate) async fn both_protocols(&self) -> [Client; 2] {
        [self.http1().await, self.http2().await]
    }
}

/// Says what it was sent, in the body and in a trailer.
async fn echo_whole_body(request: Request<Incoming>) -> BackendResponse {
    let body = request.into_body().collect().await.unwrap();
    let mut trailers = body.trailers().cloned().unwrap_or_default();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = [Ok(Frame::data(body.to_bytes())), Ok(Frame::trailers(trailers))];
    let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
    Response::builder().header("trailer", "grpc-status, x-checksum").body(body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_relays_to_port_and_unix_socket_over_http1_and_h2c() {
    for h2c in [false, true] {
        for socket in [false, true] {
            let environment = TestEnvironment::new();
            let place = if socket { ListenAddress::socket(&environment) } else { ListenAddress::Port(0) };
            let server = match h2c {
                false => PlaintextServer::http1(place, echo_whole_body).await,
                true => PlaintextServer::http2(place, echo_whole_body).await,
            };
            let h2c = if h2c { "--upstream-force-h2c=true" } else { "--upstream-force-h2c=false" };
            let fixture = SidecarFixture::new(environment, &server.url(), &[h2c]).await;
            for client in fixture.both_protocols().await {
                let reply =
                    client.send_and_read(get("/a/b%20c?d=e", &[("x-remote-user", "root"), ("te", "trailers")])).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                let seen = server.last_request();
                assert_eq!((seen.uri.path(), seen.uri.query()), ("/a/b%20c", Some("d=e")));
                assert_eq!(
                    (seen.header_values("x-remote-user"), seen.header_values("te")),
                    (vec!["jane".into()], vec!["trailers".into()])
                );
                let posted = client.send_and_read(request(Method::POST, "/a", &[], "body")).await;
                assert_eq!((posted.status.as_u16(), posted.text().as_str()), (200, "body"));
            }
        }
    }
}

/// A body that the test writes.
fn channel_body() -> (mpsc::UnboundedSender<Frame<Bytes>>, RequestBody) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let frames = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx).map(|frame| frame.map(Ok)));
    (sender, BodyExt::boxed(StreamBody::new(frames)))
}

/// Sends back piece by piece what comes; what stood behind it, too.
async fn echo_chunks(request: Request<Incoming>) -> BackendResponse {
    let mut body = request.into_body();
    let (writer, mut response) = streamed_response(200);
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
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_bidirectional_stream_not_limited_by_request_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(300);
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http2(ListenAddress::socket(&environment), echo_chunks).await;
    let more = ["--upstream-force-h2c", "--upstream-timeout=300ms", "--request-timeout=300ms"];
    let fixture = SidecarFixture::new(environment, &server.url(), &more).await;
    let client = fixture.http2().await;
    let (writer, body) = channel_body();
    let call = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "1H")];
    let call = request(Method::POST, "/library.Books/Lend", &call, "").map(|_| body);
    let mut response = client.send(call).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"application/grpc".parse().unwrap())
    );
    let seen = server.last_request();
    assert_eq!(
        (seen.header_values("te"), seen.header_values("grpc-timeout")),
        (vec!["trailers".to_owned()], vec!["1H".to_owned()])
    );
    assert_eq!((seen.method.as_str(), seen.uri.path()), ("POST", "/library.Books/Lend"));
    let started = Instant::now();
    while started.elapsed() < 3 * TIMEOUT {
        writer.send(Frame::data("ping".into())).unwrap();
        assert_eq!(next_chunk(response.body_mut()).await.unwrap().unwrap(), "ping");
        tokio::time::sleep(TIMEOUT / 10).await;
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-checksum", HeaderValue::from_static("1"));
    trailers.insert("x-remote-user", HeaderValue::from_static("root"));
    writer.send(Frame::trailers(trailers)).unwrap();
    drop(writer);
    let trailers = response.body_mut().collect().await.unwrap().trailers().cloned().unwrap();
    let got = |name: &str| trailers.get(name).map(|value| value.to_str().unwrap());
    assert_eq!((got("grpc-status"), got("grpc-message"), got("x-checksum")), (Some("0"), Some("done"), Some("1")));
    assert_eq!(got("x-remote-user"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_certificates_rotated_without_failed_requests() {
    let environment = TestEnvironment::new();
    let server = Backend::start(
        &environment,
        BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() },
        async |_| json_response(200, "{}"),
    )
    .await;
    let fixture = Arc::new(SidecarFixture::new(environment, &format!("https://{}", server.address), &[]).await);
    let (stop, recorded) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let pending_request: Vec<_> = fixture
        .both_protocols()
        .await
        .map(|client| {
            let (stop, recorded) = (stop.clone(), recorded.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.get("/books").await;
                    assert_eq!((reply.status.as_u16(), reply.is_complete), (200, true), "{}", reply.text());
                    recorded.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .into();
    let environment = &fixture.environment;
    for name in ["second", "third"] {
        // A CA is added, and the sidecar's client certificate changes.
        let (_, issued) = narthex::tls::Authority::new(name, SystemTime::now()).unwrap();
        let bundle = environment.read_file("backend-ca.crt") + &issued.certificate;
        std::fs::write(environment.path("next"), bundle).unwrap();
        std::fs::rename(environment.path("next"), environment.path("backend-ca.crt")).unwrap();
        let request = CertificateRequest::client(name, &[]);
        environment
            .write_pair("front-proxy", &environment.request_header_ca.issue(&request, SystemTime::now()).unwrap());
        eventually("the new certificate to be shown", async || {
            server.received().last().filter(|seen| seen.peer == name).map(drop)
        })
        .await;
        let before = recorded.load(Ordering::Relaxed);
        eventually("more requests", async || (recorded.load(Ordering::Relaxed) > before + 20).then_some(())).await;
    }
    stop.store(true, Ordering::Relaxed);
    for pending_request in pending_request {
        pending_request.await.unwrap();
    }
    // And an authority that did not sign it is told from one that did, in words its operator knows.
    let (_, other) = narthex::tls::Authority::new("other", SystemTime::now()).unwrap();
    std::fs::write(environment.path("backend-ca.crt"), other.certificate).unwrap();
    let client = fixture.http2().await;
    let status = eventually("the server to be believed no more", async || {
        let reply = client.get("/books").await;
        (reply.status != 200).then(|| reply.assert_failure(503, "ServiceUnavailable"))
    })
    .await;
    let cause = &status["details"]["causes"][0];
    assert_eq!(cause["reason"], "UnknownIssuer", "{status}");
    assert!(cause["message"].as_str().unwrap().contains("an authority of --upstream-ca-file"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_passes_redirects_cookies_and_own_headers_through() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::Port(0), async |request: Request<Incoming>| {
        let response = Response::builder().header("set-cookie", "a=1").header("strict-transport-security", "max-age=1");
        let response = response.header("access-control-allow-origin", "*").header("location", "/login");
        let status = if request.uri().path() == "/go" { 302 } else { 200 };
        response.status(status).body(json_response(200, "{}").into_body()).unwrap()
    })
    .await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    for client in fixture.both_protocols().await {
        let cookie = [("cookie", "b=2"), ("authorization", "Basic dXNlcjpwYXNz"), ("x-forwarded-client-cert", "By=me")];
        let reply = client.send_and_read(get("/go", &cookie)).await;
        assert_eq!((reply.status.as_u16(), &reply.headers["location"]), (302, &"/login".parse().unwrap()));
        for name in ["set-cookie", "strict-transport-security", "access-control-allow-origin"] {
            assert!(reply.headers.contains_key(name), "{name}: {:?}", reply.headers);
        }
        let seen = server.last_request();
        assert_eq!(
            (seen.header_values("cookie"), seen.header_values("x-forwarded-client-cert")),
            (vec!["b=2".to_owned()], vec![])
        );
        // What it understands by `timeout` is its own affair; so is a path that only begins as one of Kubernetes'.
        for path in ["/query?timeout=30", "/api/v1/query?timeout=30", "/apiary/v1/bees?timeout=soon"] {
            assert_eq!(client.get(path).await.status, 200, "{path}");
            assert_eq!(server.last_request().uri.to_string(), path);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_not_listening_returns_503_until_it_starts() {
    for socket in [false, true] {
        let environment = TestEnvironment::new();
        let place = if socket {
            ListenAddress::socket(&environment)
        } else {
            ListenAddress::Port(std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
        };
        let fixture = SidecarFixture::new(environment, &place.url(), &[]).await;
        let client = fixture.http1().await;
        for method in [Method::GET, Method::POST] {
            let reply = client.send_and_read(request(method, "/books", &[], "")).await;
            let status = reply.assert_failure(503, "ServiceUnavailable");
            assert!(status["message"].as_str().unwrap().contains("(upstream /: "), "{status}");
            assert!(
                !status.to_string().contains("aggregated") && !status.to_string().contains("APIService"),
                "{status}"
            );
            assert_eq!(retry_after_seconds(&reply), Some(1));
        }
        let first = PlaintextServer::http1(place, async |_| json_response(200, "first")).await;
        eventually("the server", async || (client.get("/books").await.status == 200).then_some(())).await;
        // It ends, and comes again.
        let place = first.stop().await;
        client.get("/books").await.assert_failure(503, "ServiceUnavailable");
        let _second = PlaintextServer::http1(place, async |_| json_response(200, "second")).await;
        let text = eventually("the server again", async || {
            let reply = client.get("/books").await;
            (reply.status == 200).then(|| reply.text())
        })
        .await;
        assert_eq!(text, "second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_status_and_page_list_upstreams_not_apiservices() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), async |_| json_response(200, "{}")).await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    assert_eq!(fixture.http1().await.get("/books").await.status, 200);
    let address = fixture.sidecar.admin.to_string();
    let message = eventually("the server to be found", async || {
        let output = run_narthex(&["status", "--admin-address", &address, "--output=wide"].map(str::to_owned));
        let message = String::from_utf8(output.stdout).unwrap();
        message.contains(" True ").then_some(message)
    })
    .await;
    let line = |head: &str| {
        message
            .lines()
            .find(|line| line.starts_with(head))
            .unwrap_or_else(|| panic!("no {head} in\n{message}"))
            .to_owned()
    };
    assert_eq!(line("PATH").split_whitespace().take(3).collect::<Vec<_>>(), ["PATH", "UPSTREAM", "AVAILABLE"]);
    assert!(line("/ ").contains(&server.url()), "{message}");
    let heads = |line: &str| line.split_whitespace().take(2).eq(["PATH", "ENDPOINT"]);
    assert!(message.lines().any(heads), "{message}");
    let page = admin_request(&fixture.sidecar, get("/", &[("accept", "text/html")])).await.text();
    assert!(page.contains(">Upstreams</h2>") && page.contains(&server.url()), "{page}");
    for text in [message, page] {
        assert!(!text.to_lowercase().contains("apiservice"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_upstream_response_is_never_complete() {
    for head in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ] {
        let environment = TestEnvironment::new();
        let server = PlaintextServer::start_raw(
            ListenAddress::socket(&environment),
            move |mut reply: PlaintextConnection| async move {
                if reply.next_head().await.is_some() {
                    reply.write(head).await;
                }
            },
        )
        .await;
        let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
        for client in fixture.both_protocols().await {
            let reply = client.get("/books").await;
            assert_eq!((reply.status.as_u16(), reply.text().as_str(), reply.is_complete), (200, "half", false));
        }
    }
    let environment = TestEnvironment::new();
    let (send, mut writers) = mpsc::unbounded_channel();
    let server = PlaintextServer::http2(ListenAddress::Port(0), move |_| {
        let (writer, response) = streamed_response(200);
        writer.send(data_frame("half")).unwrap();
        send.send(writer).unwrap();
        async { response }
    })
    .await;
    let fixture = SidecarFixture::new(environment, &server.url(), &["--upstream-force-h2c"]).await;
    for client in fixture.both_protocols().await {
        let mut response = client.send(get("/books", &[])).await.unwrap();
        assert_eq!(next_chunk(response.body_mut()).await.unwrap().unwrap(), "half");
        writers.recv().await.unwrap().send(Err(std::io::Error::other("broken"))).unwrap();
        let reply = read_response(response).await;
        assert_eq!((reply.status.as_u16(), reply.text().as_str(), reply.is_complete), (200, "", false));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_timeout_applies_per_path() {
    let environment = TestEnvironment::new();
    let handler = async |request: Request<Incoming>| match request.uri().path() {
        "/slow" | "/apis/a.example.com/v1" | "/metrics/slow" => std::future::pending().await,
        _ => json_response(200, "{}"),
    };
    let (one, two) = (
        PlaintextServer::http1(ListenAddress::socket(&environment), handler).await,
        PlaintextServer::http1(ListenAddress::Port(0), handler).await,
    );
    let more = [format!("--upstream=/metrics={}", two.url()), "--upstream-timeout=/metrics=100ms".to_owned()];
    let more: Vec<&str> = more.iter().map(String::as_str).chain(["--upstream-timeout=400ms"]).collect();
    let fixture = SidecarFixture::new(environment, &one.url(), &more).await;
    for client in fixture.both_protocols().await {
        for (path, name) in [("/slow", "/"), ("/apis/a.example.com/v1", "/"), ("/metrics/slow", "/metrics")] {
            for method in [Method::GET, Method::POST] {
                let reply = client.send_and_read(request(method.clone(), path, &[], "")).await;
                let status = reply.assert_failure(504, "Timeout");
                let cause = &status["details"]["causes"][0];
                assert_eq!(cause["message"], format!("upstream {name} did not answer in time"), "{status}");
                // A POST is not retried: the client must decide that.
                assert_eq!(retry_after_seconds(&reply).is_some(), method == Method::GET);
            }
        }
        assert_eq!(client.get("/fast").await.status, 200);
    }
    assert_eq!(one.received().iter().filter(|seen| seen.uri.path() == "/slow").count(), 4, "nothing is sent twice");
    assert_eq!(two.received().len(), 4);
}

/// A server that answers the first request on each connection and does with the second what `then` says.
async fn start_fickle_server(
    environment: &TestEnvironment,
    then: &'static str,
) -> (PlaintextServer, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let kept = heads.clone();
    let server =
        PlaintextServer::start_raw(ListenAddress::socket(environment), move |mut reply: PlaintextConnection| {
            let heads = kept.clone();
            async move {
                let Some(head) = reply.next_head().await else { return };
                heads.lock().unwrap().push(head.lines().next().unwrap().to_owned());
                if head.starts_with("GET /die") {
                    return;
                }
                reply.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                if let Some(head) = reply.next_head().await {
                    heads.lock().unwrap().push(head.lines().next().unwrap().to_owned());
                    reply.write(then).await;
                }
            }
        })
        .await;
    (server, heads)
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_not_sent_after_upstream_began_response() {
    let environment = TestEnvironment::new();
    let (server, heads) = start_fickle_server(&environment, "HTTP/1.1 2").await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    let recorded = |line: &str| heads.lock().unwrap().iter().filter(|head| head.starts_with(line)).count();
    // A client's connection stays with one worker, and so do the connections that it uses.
    let client = fixture.http1().await;
    let broken = |reply: crate::support::client::ClientResponse| {
        let status = reply.assert_failure(503, "ServiceUnavailable");
        assert_eq!(status["details"]["causes"][0]["reason"], "ConnectionBroken", "{status}");
    };
    // The first on its connection: no reason to think that its end was by chance.
    broken(client.get("/die").await);
    assert_eq!(recorded("GET /die "), 1);
    // An answer had begun.
    assert_eq!(client.get("/").await.status, 200);
    let reply = client.get("/begun").await;
    assert!(matches!(reply.status.as_u16(), 502 | 503), "{reply:?}");
    assert_eq!(recorded("GET /begun "), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_idempotent_request_when_idle_connection_was_closed() {
    let environment = TestEnvironment::new();
    let (server, heads) = start_fickle_server(&environment, "").await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    let recorded = |line: &str| heads.lock().unwrap().iter().filter(|head| head.starts_with(line)).count();
    let client = fixture.http1().await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        assert_eq!(client.get("/").await.status, 200);
        // As the server closes: sent once in vain, and again on a connection of its own.
        assert_eq!(
            client.send_and_read(request(method.clone(), "/books", &[], "")).await.status,
            StatusCode::OK,
            "{method}"
        );
        assert_eq!(recorded(&format!("{method} /books ")), 2);
        // That one is kept in turn; a connection without a past is what the next round begins with.
        client.send_and_read(request(Method::DELETE, "/use-up", &[], "")).await;
    }
    for (method, body) in [(Method::POST, "body"), (Method::POST, ""), (Method::DELETE, ""), (Method::GET, "body")] {
        assert_eq!(client.get("/").await.status, 200);
        let reply = client.send_and_read(request(method.clone(), "/once", &[], body)).await;
        let status = reply.assert_failure(503, "ServiceUnavailable");
        assert_eq!(status["details"]["causes"][0]["reason"], "ConnectionBroken", "{status}");
        assert_eq!(retry_after_seconds(&reply), None, "{method}");
        assert_eq!(recorded(&format!("{method} /once ")), 1);
        heads.lock().unwrap().clear();
    }
}

/// RFC 9113, 8.2.3: a server of HTTP/1.1 knows one line of cookies.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_joins_cookies_of_http2_clients() {
    let environment = TestEnvironment::new();
    let answer = async |_| json_response(200, "{}");
    let server = PlaintextServer::http1(ListenAddress::Port(0), answer).await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    let cookies = [("cookie", "session=1"), ("cookie", "theme=dark"), ("cookie", "a=b")];
    assert_eq!(fixture.http2().await.send_and_read(get("/app", &cookies)).await.status, 200);
    assert_eq!(server.last_request().header_values("cookie"), ["session=1; theme=dark; a=b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_keeps_escaped_slashes_if_told() {
    for (flag, arrives) in [
        ("--path-with-escaped-slashes-action=unescape-and-forward", "/repos/group/project?ref=a%2Fb"),
        ("--path-with-escaped-slashes-action=keep-unchanged", "/repos/group%2Fproject?ref=a%2Fb"),
    ] {
        let environment = TestEnvironment::new();
        let answer = async |_| json_response(200, "{}");
        let server = PlaintextServer::http1(ListenAddress::Port(0), answer).await;
        let fixture = SidecarFixture::new(environment, &server.url(), &[flag]).await;
        for client in fixture.both_protocols().await {
            assert_eq!(client.get("/repos/group%2Fproject?ref=a%2Fb").await.status, 200);
            assert_eq!(server.last_request().uri.path_and_query().unwrap().as_str(), arrives);
            assert_eq!(client.get("/repos/%2E%2E%2Fsecret").await.status, 400);
        }
    }
}
