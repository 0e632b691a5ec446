//! Traces: spans of requests at a collector, and the trace context that backends get.

use std::collections::BTreeMap;
use std::fs;

use http::Request;
use hyper::body::Incoming;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;

use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response};
use crate::support::client::{Client, get, metric_value};
use crate::support::fake_collector::{FakeCollector, ReceivedSpan, hex};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED_CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

async fn answer(request: Request<Incoming>) -> BackendResponse {
    if request.uri().path().ends_with("/broken") { json_response(500, "{}") } else { json_response(200, "{}") }
}

/// A gateway that samples `rate` of a million requests.
async fn start(collector: &str, rate: u32) -> (Backend, GatewayFixture) {
    let environment = TestEnvironment::new();
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {collector}\n\
         samplingRatePerMillion: {rate}\n"
    );
    let path = environment.path("tracing.yaml");
    fs::write(&path, text).unwrap();
    let backend = Backend::start(&environment, BackendSettings::default(), answer).await;
    let flag = format!("--tracing-config-file={}", path.display());
    let fixture = GatewayFixture::with_flags(environment, &[&backend], &[], &[&flag, "--access-log=all"]);
    (backend, fixture)
}

/// Ends the gateway, which exports the last spans.
async fn stop(mut fixture: GatewayFixture) {
    fixture.gateway.signal("TERM");
    assert!(fixture.gateway.wait_for_exit().await.success());
}

/// The client and the server span of one request.
fn client_and_server(spans: &[ReceivedSpan]) -> (&ReceivedSpan, &ReceivedSpan) {
    let of = |kind: SpanKind| {
        let found: Vec<_> = spans.iter().filter(|one| one.span.kind() == kind).collect();
        assert_eq!(found.len(), 1, "{spans:#?}");
        found[0]
    };
    (of(SpanKind::Client), of(SpanKind::Server))
}

fn is_subset(found: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        assert_eq!(found.get(*key).map(String::as_str), Some(*value), "{key} of {found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_relayed_request_has_server_and_client_span() {
    let collector = FakeCollector::start().await;
    let (backend, fixture) = start(&collector.address.to_string(), 1_000_000).await;
    let headers = [
        ("user-agent", "kubectl/v1.36.3"),
        ("traceparent", CALLER),
        ("tracestate", "vendor=1"),
        ("baggage", "key=value"),
        ("audit-id", "one"),
        ("x-forwarded-for", "198.51.100.7, 10.0.0.1"),
    ];
    let path = format!("{THINGS}/one?fieldManager=x&token=s3cret");
    assert_eq!(fixture.http2().await.send_and_read(get(&path, &headers)).await.status, 200);
    let (received, endpoint) = (backend.last_request(), backend.address);
    let log = fixture.gateway.wait_for_log(&[" access ", "/one?"]).await;
    stop(fixture).await;
    let spans = collector.wait_for_spans(2).await;
    let (client, server) = client_and_server(&spans);

    // A new trace, linked to the caller's; the backend continues it at the client span.
    assert_ne!(hex(&server.span.trace_id), TRACE);
    assert!(server.span.parent_span_id.is_empty() && server.span.trace_state.is_empty());
    let [link] = &server.span.links[..] else { panic!("{server:#?}") };
    assert_eq!(
        (hex(&link.trace_id), hex(&link.span_id), link.trace_state.as_str()),
        (TRACE.into(), PARENT.into(), "vendor=1")
    );
    assert_eq!((&client.span.trace_id, &client.span.parent_span_id), (&server.span.trace_id, &server.span.span_id));
    assert!(client.span.links.is_empty());
    assert_eq!(received.header_values("traceparent"), [client.traceparent()]);
    assert_eq!(
        (received.header_values("tracestate"), received.header_values("baggage")),
        (vec![], vec!["key=value".to_owned()])
    );
    assert!(log.contains(&format!(" trace={} ", hex(&server.span.trace_id))), "{log}");

    // Names and attributes of kube-apiserver's spans.
    let name = "GET /apis/things.example.com/v1/namespaces/{:namespace}/things/{:name}";
    assert_eq!((server.span.name.as_str(), client.span.name.as_str()), (name, "HTTP GET"));
    let target = format!("{THINGS}/one?fieldManager=x&token=***");
    let mut found = server.attributes.clone();
    assert!(found.remove("network.peer.port").unwrap().parse::<u16>().unwrap() > 0);
    let expected = [
        ("audit-id", "one"),
        ("client.address", "198.51.100.7"),
        ("http.request.method", "GET"),
        ("http.response.body.size", "2"),
        ("http.response.status_code", "200"),
        ("http.target", &target),
        ("network.peer.address", "127.0.0.1"),
        ("network.protocol.version", "2.0"),
        ("server.address", "localhost"),
        ("url.path", &format!("{THINGS}/one")),
        ("url.scheme", "https"),
        ("user_agent.original", "kubectl/v1.36.3"),
    ];
    assert_eq!(found, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let expected = [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("narthex.apiservice", "v1.things.example.com"),
        ("server.address", &endpoint.ip().to_string()),
        ("server.port", &endpoint.port().to_string()),
        ("url.full", &format!("https://{endpoint}{target}")),
    ];
    assert_eq!(client.attributes, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    for one in [client, server] {
        assert_eq!(one.span.status.as_ref().unwrap().code(), StatusCode::Unset);
        assert_eq!(one.resource["service.name"], "narthex");
        assert!(["service.instance.id", "service.version"].iter().all(|key| !one.resource[*key].is_empty()));
    }
    assert!(server.span.start_time_unix_nano <= client.span.start_time_unix_nano);
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_privileged_caller_is_continued() {
    let collector = FakeCollector::start().await;
    for group in ["system:masters", "system:monitoring"] {
        // Not sampled but for what callers want.
        let (backend, fixture) = start(&collector.address.to_string(), 0).await;
        let user = fixture.environment.issue_user("prometheus", &[group]);
        let client = Client::http1(&fixture.environment, &fixture.gateway, Some(&user)).await;
        for caller in [UNSAMPLED_CALLER, CALLER] {
            let headers = [("traceparent", caller), ("tracestate", "vendor=1")];
            assert_eq!(client.send_and_read(get(THINGS, &headers)).await.status, 200);
        }
        let received = backend.received();
        let [.., unsampled, sampled] = &received[..] else { panic!("{received:?}") };
        let before = collector.spans().len();
        stop(fixture).await;
        let spans = collector.wait_for_spans(before + 2).await;
        let (client, server) = client_and_server(&spans[before..]);
        assert_eq!((hex(&server.span.trace_id), hex(&server.span.parent_span_id)), (TRACE.into(), PARENT.into()));
        assert_eq!((server.span.trace_state.as_str(), server.span.links.len()), ("vendor=1", 0));
        assert_eq!(sampled.header_values("traceparent"), [client.traceparent()]);
        assert_eq!(sampled.header_values("tracestate"), ["vendor=1"]);
        let passed = &unsampled.header_values("traceparent")[0];
        assert!(passed.starts_with(&format!("00-{TRACE}-")) && passed.ends_with("-00"), "{passed}");
        assert!(!passed.contains(PARENT), "{passed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_unsampled_request_is_not_exported() {
    let collector = FakeCollector::start().await;
    let (backend, fixture) = start(&collector.address.to_string(), 0).await;
    for client in fixture.both_protocols().await {
        assert_eq!(
            client.send_and_read(get(THINGS, &[("traceparent", CALLER), ("tracestate", "a=b")])).await.status,
            200
        );
        let received = backend.last_request();
        let [passed] = &received.header_values("traceparent")[..] else { panic!("{received:?}") };
        assert!(passed.len() == CALLER.len() && passed.ends_with("-00") && !passed.contains(TRACE), "{passed}");
        assert!(received.header_values("tracestate").is_empty());
    }
    assert_eq!(metric_value(&fixture.gateway, "narthex_trace_spans_exported_total").await, Some(0.0));
    stop(fixture).await;
    assert!(collector.spans().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_headers_pass_when_tracing_is_off() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), answer).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let headers = [("traceparent", CALLER), ("tracestate", "vendor=1"), ("baggage", "key=value")];
    assert_eq!(fixture.http1().await.send_and_read(get(THINGS, &headers)).await.status, 200);
    let received = backend.last_request();
    for (name, value) in headers {
        assert_eq!(received.header_values(name), [value], "{name}");
    }
    assert_eq!(metric_value(&fixture.gateway, "narthex_trace_spans_exported_total").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_of_failed_requests_has_status() {
    let collector = FakeCollector::start().await;
    let (backend, fixture) = start(&format!("dns:///localhost:{}", collector.address.port()), 1_000_000).await;
    let jane = fixture.http1().await;
    let read_spans = async |from: usize, count: usize| {
        let spans = collector.wait_for_spans(from + count).await;
        spans[from..].to_vec()
    };
    // An error of the backend is one of both spans.
    assert_eq!(jane.send_and_read(get(&format!("{THINGS}/broken"), &[])).await.status, 500);
    let spans = read_spans(0, 2).await;
    let (client, server) = client_and_server(&spans);
    for one in [client, server] {
        assert_eq!(one.span.status.as_ref().unwrap().code(), StatusCode::Error);
        is_subset(&one.attributes, &[("http.response.status_code", "500")]);
    }
    is_subset(&client.attributes, &[("error.type", "500")]);
    // What the gateway answers itself has no client span; without authentication there is no span at all.
    let nobody = Client::http1(&fixture.environment, &fixture.gateway, None).await;
    assert_eq!(nobody.send_and_read(get(THINGS, &[])).await.status, 401);
    assert_eq!(jane.send_and_read(get("/nowhere", &[])).await.status, 404);
    let spans = read_spans(2, 1).await;
    assert_eq!((spans[0].span.kind(), spans[0].span.name.as_str()), (SpanKind::Server, "GET"));
    assert_eq!(spans[0].span.status.as_ref().unwrap().code(), StatusCode::Unset);
    // Without a response of the backend the client span has the reason.
    backend.stop().await;
    assert_eq!(jane.send_and_read(get(THINGS, &[])).await.status, 503);
    let spans = read_spans(3, 2).await;
    let (client, server) = client_and_server(&spans);
    is_subset(&server.attributes, &[("http.response.status_code", "503")]);
    assert!(!client.attributes.contains_key("http.response.status_code"), "{client:#?}");
    assert_eq!(client.span.status.as_ref().unwrap().code(), StatusCode::Error);
    assert!(client.attributes.contains_key("error.type") && !client.span.status.as_ref().unwrap().message.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_collector_holds_up_no_request() {
    // An address at which nothing listens yet.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (_backend, fixture) = start(&silent.to_string(), 1_000_000).await;
    let client = fixture.http1().await;
    for _ in 0..20 {
        assert_eq!(client.send_and_read(get(THINGS, &[])).await.status, 200);
    }
    fixture.gateway.wait_for_log(&["remote calls fail", "trace collector", &silent.to_string()]).await;
    // Once it is there, it gets what was queued.
    let collector = FakeCollector::start_at(silent).await;
    collector.wait_for_spans(40).await;
    eventually("spans are counted", async || {
        (metric_value(&fixture.gateway, "narthex_trace_spans_exported_total").await == Some(40.0)).then_some(())
    })
    .await;
    let failures = fixture.gateway.log_lines().iter().filter(|line| line.contains("remote calls fail")).count();
    assert_eq!(failures, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_collector_holds_up_neither_requests_nor_shutdown() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (_backend, fixture) = start(&silent.local_addr().unwrap().to_string(), 1_000_000).await;
    for client in fixture.both_protocols().await {
        assert_eq!(client.send_and_read(get(THINGS, &[])).await.status, 200);
    }
    stop(fixture).await;
}
