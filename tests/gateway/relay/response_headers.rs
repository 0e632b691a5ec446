//! Response headers, trailers and bodies: which of them reach clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};

use crate::sidecar::upstream_relay::SidecarFixture;
use crate::support::backend::{Backend, BackendResponse, BackendSettings, data_frame, streamed_response};
use crate::support::client::{Client, get, metric_value, next_chunk, request};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::plaintext_backend::{ListenAddress, PlaintextServer};
use crate::support::raw_backend;

/// Names that act on the origin, or on a proxy in front.
const FORBIDDEN: [&str; 20] = [
    "access-control-allow-origin",
    "alt-svc",
    "clear-site-data",
    "nel",
    "origin-agent-cluster",
    "origin-trial",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "set-cookie",
    "set-login",
    "strict-transport-security",
    "use-as-dictionary",
    "www-authenticate",
    "x-accel-redirect",
    "x-sendfile",
    "cross-origin-opener-policy",
    "timing-allow-origin",
    "surrogate-control",
    "accept-ch",
];
/// Names that may stand in headers only, and there are ours.
const GATEWAY_HEADERS: [&str; 2] = ["audit-id", "x-content-type-options"];
const HARMLESS: [&str; 2] = ["x-checksum", "grpc-status"];

/// Says all of them, in headers and behind the body.
async fn respond_with_all_headers(_: Request<Incoming>) -> BackendResponse {
    let mut trailers = HeaderMap::new();
    for name in FORBIDDEN.iter().chain(&GATEWAY_HEADERS).chain(&HARMLESS) {
        trailers.insert(*name, HeaderValue::from_static("evil"));
    }
    let announced = trailers.keys().map(http::HeaderName::as_str).collect::<Vec<_>>().join(", ");
    let headers = trailers.clone();
    let frames = [Ok(Frame::data(Bytes::from_static(b"{}"))), Ok(Frame::trailers(trailers))];
    let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
    let mut response = Response::builder().header("trailer", announced).body(body).unwrap();
    response.headers_mut().extend(headers);
    response
}

/// Which of `names` are in the headers, and which in the trailers, of what `client` gets.
async fn received_names(client: &Client, path: &str, names: &[&'static str]) -> [Vec<&'static str>; 2] {
    let response = client.send(get(path, &[("te", "trailers")])).await.unwrap();
    assert_eq!(response.status(), 200);
    let headers = response.headers().clone();
    let trailers = response.into_body().collect().await.unwrap().trailers().cloned().unwrap_or_default();
    [headers, trailers]
        .map(|map| names.iter().copied().filter(|name| map.get_all(*name).iter().any(|it| it == "evil")).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_trailers_of_shared_origin_removed_unless_allowed() {
    let names = [&FORBIDDEN[..], &GATEWAY_HEADERS, &HARMLESS].concat();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, respond_with_all_headers).await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for client in fixture.both_protocols().await {
            assert_eq!(received_names(&client, THINGS, &names).await, [HARMLESS.to_vec(), HARMLESS.to_vec()]);
        }
    }
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), respond_with_all_headers).await;
    let fixture =
        GatewayFixture::new(environment, &[&backend], &[("allow-response-headers", "Service-Worker-Allowed, NEL")]);
    for client in fixture.both_protocols().await {
        let expected = vec!["nel", "service-worker-allowed", "x-checksum", "grpc-status"];
        assert_eq!(received_names(&client, THINGS, &names).await, [expected.clone(), expected]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_own_origin_pass_through_sidecar() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http2(ListenAddress::socket(&environment), respond_with_all_headers).await;
    let sidecar_fixture = SidecarFixture::new(environment, &server.url(), &["--upstream-force-h2c"]).await;
    for client in sidecar_fixture.both_protocols().await {
        let [headers, trailers] = received_names(&client, "/books", &[&FORBIDDEN[..], &GATEWAY_HEADERS].concat()).await;
        assert_eq!(headers, [&FORBIDDEN[..], &["x-content-type-options"]].concat());
        let behind: Vec<_> = FORBIDDEN.into_iter().filter(|name| *name != "set-cookie").collect();
        assert_eq!(trailers, behind);
    }
}

/// Over HTTP/2 the end of a body is no matter of its head: DATA may follow whatever the status says.
#[tokio::test(flavor = "multi_thread")]
async fn response_body_of_bodiless_status_dropped() {
    let environment = TestEnvironment::new();
    let resets = Arc::new(AtomicUsize::new(0));
    let reset = resets.clone();
    let backend = raw_backend::http2(&environment, move |mut stream| {
        let resets = reset.clone();
        async move {
            let query = stream.request.uri().query().unwrap_or_default().to_owned();
            let (status, body) = query.split_once(',').unwrap();
            let length = body.len().to_string();
            let headers: &[(&str, &str)] = if body.is_empty() { &[] } else { &[("content-length", &length)] };
            let mut response = stream.begin_response(status.parse().unwrap(), headers);
            let _ = response.send_data(Bytes::from(body.to_owned()), body.is_empty());
            if std::future::poll_fn(|cx| response.poll_reset(cx)).await.is_ok() {
                resets.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    const COUNTED: &str = "narthex_backend_forbidden_bodies_total{apiservice=\"v1.things.example.com\"}";
    for client in fixture.both_protocols().await {
        for status in [204, 304] {
            for body in ["", "hello"] {
                let reply = client.get(&format!("{THINGS}?{status},{body}")).await;
                assert_eq!((reply.status.as_u16(), reply.text().as_str(), reply.is_complete), (status, "", true));
                assert!(status == 304 || !reply.headers.contains_key("content-length"), "{body}: {:?}", reply.headers);
            }
        }
    }
    for client in fixture.both_protocols().await {
        let reply = client.send_and_read(request(Method::HEAD, &format!("{THINGS}?200,hello"), &[], "")).await;
        assert_eq!((reply.status.as_u16(), reply.text().as_str(), reply.is_complete), (200, "", true));
        assert_eq!(reply.headers["content-length"], "5");
    }
    eventually("six resets", async || (resets.load(Ordering::SeqCst) == 6).then_some(())).await;
    eventually("six counted", async || (metric_value(&fixture.gateway, COUNTED).await == Some(6.0)).then_some(()))
        .await;
}

/// Without this a client chooses by a header that no limit is for it.
#[tokio::test(flavor = "multi_thread")]
async fn event_stream_request_headers_do_not_lift_limits() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), async |_: Request<Incoming>| {
        std::future::pending().await
    })
    .await;
    let sidecar_fixture = SidecarFixture::new(
        environment,
        &server.url(),
        &["--upstream-timeout=300ms", "--upstream-long-running=/calls/*"],
    )
    .await;
    let headers = [("accept", "text/event-stream"), ("content-type", "application/grpc")];
    for client in sidecar_fixture.both_protocols().await {
        client.send_and_read(request(Method::POST, "/books", &headers, "{}")).await.assert_failure(504, "Timeout");
    }
    let client = sidecar_fixture.http2().await;
    let unbounded = client.send(request(Method::POST, "/calls/books", &[], "{}"));
    assert!(tokio::time::timeout(Duration::from_secs(2), unbounded).await.is_err(), "it has no limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn event_stream_responses_exempt_from_timeout_and_inflight_limit() {
    let environment = TestEnvironment::new();
    let (send, mut writers) = tokio::sync::mpsc::unbounded_channel();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), move |request: Request<Incoming>| {
        let (writer, mut response) = streamed_response(200);
        let kind = if request.uri().path() == "/events" { "text/event-stream; charset=utf-8" } else { "text/plain" };
        response.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        send.send(writer).unwrap();
        async { response }
    })
    .await;
    let sidecar_fixture =
        SidecarFixture::new(environment, &server.url(), &["--upstream-timeout=3s", "--max-requests-inflight=1"]).await;
    let client = sidecar_fixture.http2().await;
    let mut events = client.send(get("/events", &[])).await.unwrap();
    let writer = writers.recv().await.unwrap();
    // Its place is free again; another's is taken until its end.
    let text = client.send(get("/text", &[])).await.unwrap();
    assert_eq!(text.status(), 200);
    client.get("/more").await.assert_failure(429, "TooManyRequests");
    // The text is cut when its time is over, and the events go on.
    assert!(text.into_body().collect().await.is_err());
    writer.send(data_frame("data: one\n\n")).unwrap();
    assert_eq!(next_chunk(events.body_mut()).await.unwrap().unwrap(), "data: one\n\n");
    let long = "apiserver_longrunning_requests";
    assert!(
        crate::support::client::admin_request(&sidecar_fixture.sidecar, get("/metrics", &[]))
            .await
            .text()
            .contains(long)
    );
}
