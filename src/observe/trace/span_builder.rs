//! Builds OTLP spans with the names and attributes of `otelhttp`, which kube-apiserver uses: the server span of its
//! handler (`RequestTraceAttrs` in `internal/semconv/server.go`, `WithTracing`), the client span of its transport.

use std::time::{Instant, SystemTime};

use http::{Method, Version};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};

use super::attribute::{header, number, text, truncated};
use super::span_record::{BackendSpanRecord, SpanRecord, TracedRequest};
use crate::message::split_authority;
use crate::observe::metrics::Retry;

/// The span of the request.
pub(super) fn server_span(trace: &TracedRequest, record: &SpanRecord<'_>, now: SystemTime) -> Span {
    let sampled = &trace.sampled;
    let code = match record.status {
        500.. => StatusCode::Error,
        _ => StatusCode::Unset,
    };
    Span {
        trace_id: sampled.server.trace_id.to_be_bytes().into(),
        span_id: sampled.server.span_id.to_be_bytes().into(),
        trace_state: if sampled.parent_span_id.is_some() { sampled.trace_state.clone() } else { String::new() },
        parent_span_id: sampled.parent_span_id.map(|id| id.to_be_bytes().into()).unwrap_or_default(),
        flags: flags(sampled.parent_span_id.is_some()),
        name: trace.name.clone(),
        kind: SpanKind::Server.into(),
        start_time_unix_nano: nanos(record.started_at, record.ended_at, now),
        end_time_unix_nano: nanos(record.ended_at, record.ended_at, now),
        attributes: server_attributes(trace, record),
        links: sampled
            .link
            .iter()
            .map(|link| linked(link.trace_id, link.span_id, link.sampled, &sampled.trace_state))
            .collect(),
        status: Some(Status { code: code.into(), message: failure_message(record) }),
        ..Span::default()
    }
}

/// The client span of the request to the backend.
pub(super) fn client_span(
    trace: &TracedRequest,
    record: &SpanRecord<'_>,
    backend: &BackendSpanRecord<'_>,
    now: SystemTime,
) -> Span {
    let sampled = &trace.sampled;
    let mut attributes = vec![method_attribute(record.method), text("narthex.apiservice", backend.service)];
    if let Some(endpoint) = backend.endpoint {
        attributes.push(text("url.full", &format!("https://{endpoint}{}", record.target)));
        push_address(&mut attributes, "server.address", "server.port", endpoint);
    }
    let mut failed = record.failure.map(|(reason, _)| reason.to_owned());
    if backend.responded {
        attributes.push(number("http.response.status_code", record.status.into()));
        if record.status >= 400 {
            failed.get_or_insert_with(|| record.status.to_string());
        }
    }
    let code = if failed.is_some() { StatusCode::Error } else { StatusCode::Unset };
    attributes.extend(failed.map(|reason| text("error.type", &reason)));
    let event = |(at, reason): &(Instant, Retry)| Event {
        time_unix_nano: nanos(*at, record.ended_at, now),
        name: "retry".to_owned(),
        attributes: vec![text("reason", reason.as_str())],
        dropped_attributes_count: 0,
    };
    Span {
        trace_id: sampled.server.trace_id.to_be_bytes().into(),
        span_id: sampled.client_span_id.to_be_bytes().into(),
        trace_state: if sampled.parent_span_id.is_some() { sampled.trace_state.clone() } else { String::new() },
        parent_span_id: sampled.server.span_id.to_be_bytes().into(),
        flags: flags(false),
        name: format!("HTTP {}", record.method),
        kind: SpanKind::Client.into(),
        start_time_unix_nano: nanos(backend.started_at, record.ended_at, now),
        end_time_unix_nano: nanos(record.ended_at, record.ended_at, now),
        attributes,
        events: trace.retries.iter().map(event).collect(),
        status: Some(Status { code: code.into(), message: failure_message(record) }),
        ..Span::default()
    }
}

fn server_attributes(trace: &TracedRequest, record: &SpanRecord<'_>) -> Vec<KeyValue> {
    let peer = record.client.ip().to_canonical().to_string();
    let mut attributes = Vec::with_capacity(18);
    let host = trace.host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    push_address(&mut attributes, "server.address", "server.port", host);
    attributes.push(method_attribute(record.method));
    if !is_standard(record.method) {
        attributes.push(text("http.request.method_original", record.method.as_str()));
    }
    attributes.push(text("url.scheme", "https"));
    attributes.push(text("network.peer.address", &peer));
    attributes.push(number("network.peer.port", record.client.port().into()));
    if let Some(agent) = record.agent {
        attributes.push(header("user_agent.original", agent));
    }
    attributes.push(text("client.address", trace.forwarded_for.as_deref().unwrap_or(&peer)));
    attributes.push(text("url.path", record.path));
    let version = match record.version {
        Version::HTTP_2 => "2.0",
        Version::HTTP_11 => "1.1",
        _ => "1.0",
    };
    attributes.push(text("network.protocol.version", version));
    attributes.push(text("http.target", &record.target));
    if let Some(id) = record.audit_id {
        attributes.push(header("audit-id", id));
    }
    if let Some(name) = record.control_plane {
        attributes.push(text("narthex.control_plane", name));
    }
    // The body of a response to HEAD is counted in the record, but not sent.
    let sent = if *record.method == Method::HEAD { 0 } else { record.sent };
    for (key, bytes) in [("http.request.body.size", record.received), ("http.response.body.size", sent)] {
        if bytes > 0 {
            attributes.push(number(key, bytes));
        }
    }
    if record.status > 0 {
        attributes.push(number("http.response.status_code", record.status.into()));
    }
    attributes
}

/// Reason and cause of a failure.
fn failure_message(record: &SpanRecord<'_>) -> String {
    match record.failure {
        Some((reason, "")) => reason.to_owned(),
        Some((reason, cause)) => truncated(&format!("{reason}: {cause}")),
        None => String::new(),
    }
}

/// `HOST[:PORT]` as two attributes; the port of https is omitted, as in `otelhttp`.
fn push_address(attributes: &mut Vec<KeyValue>, address: &'static str, port: &'static str, authority: &str) {
    let (host, found) = split_authority(authority).unwrap_or((authority, None));
    attributes.push(text(address, host));
    if let Some(found) = found.filter(|found| *found != 443) {
        attributes.push(number(port, found.into()));
    }
}

fn method_attribute(method: &Method) -> KeyValue {
    text("http.request.method", if is_standard(method) { method.as_str() } else { "_OTHER" })
}

fn is_standard(method: &Method) -> bool {
    matches!(
        *method,
        Method::CONNECT
            | Method::DELETE
            | Method::GET
            | Method::HEAD
            | Method::OPTIONS
            | Method::PATCH
            | Method::POST
            | Method::PUT
            | Method::TRACE
    )
}

fn linked(trace_id: u128, span_id: u64, sampled: bool, trace_state: &str) -> Link {
    Link {
        trace_id: trace_id.to_be_bytes().into(),
        span_id: span_id.to_be_bytes().into(),
        trace_state: trace_state.to_owned(),
        flags: u32::from(sampled) | flags(true) & !1,
        ..Link::default()
    }
}

/// Flags of a sampled span whose parent is remote or not.
fn flags(is_remote: bool) -> u32 {
    let remote = if is_remote { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
    1 | SpanFlags::ContextHasIsRemoteMask as u32 | remote
}

/// The time of `at`, which is before `ended_at`, the instant of `now`.
fn nanos(at: Instant, ended_at: Instant, now: SystemTime) -> u64 {
    let time = now.checked_sub(ended_at.saturating_duration_since(at)).unwrap_or(SystemTime::UNIX_EPOCH);
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderValue;
    use opentelemetry_proto::tonic::common::v1::any_value::Value;

    use super::super::context::SpanContext;
    use super::super::tracer::SampledTrace;
    use super::*;

    fn request(retries: Vec<(Instant, Retry)>) -> TracedRequest {
        let sampled = SampledTrace {
            server: SpanContext { trace_id: 1, span_id: 2, sampled: true },
            client_span_id: 3,
            parent_span_id: None,
            link: None,
            trace_state: String::new(),
        };
        let host = Some(HeaderValue::from_static("[::1]:6443"));
        TracedRequest { sampled, name: "GET".to_owned(), host, forwarded_for: None, retries }
    }

    fn record<'r>(method: &'r Method, path: &'r str, started_at: Instant) -> SpanRecord<'r> {
        SpanRecord {
            started_at,
            ended_at: started_at + Duration::from_secs(2),
            client: "[::ffff:192.0.2.1]:4711".parse().unwrap(),
            method,
            path,
            target: path.to_owned(),
            version: Version::HTTP_11,
            control_plane: None,
            agent: None,
            audit_id: None,
            status: 200,
            received: 0,
            sent: 5,
            failure: None,
            backend: None,
        }
    }

    fn value(attributes: &[KeyValue], key: &str) -> Option<String> {
        let found = attributes.iter().find(|attribute| attribute.key == key)?;
        match found.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => Some(text.clone()),
            Value::IntValue(number) => Some(number.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn client_span_has_times_of_retries_and_the_failure() {
        let began = Instant::now();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let request = request(vec![(began + Duration::from_secs(1), Retry::Connect)]);
        let failed = SpanRecord {
            status: 503,
            failure: Some(("ServiceUnavailable", "connection refused")),
            ..record(&Method::GET, "/a", began)
        };
        let started_at = began + Duration::from_millis(500);
        let backend = BackendSpanRecord { started_at, service: "v1.example.com", endpoint: None, responded: false };
        let span = client_span(&request, &failed, &backend, now);
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (98_500_000_000, 100_000_000_000));
        let [retry] = &span.events[..] else { panic!("{span:?}") };
        assert_eq!((retry.name.as_str(), retry.time_unix_nano), ("retry", 99_000_000_000));
        assert_eq!(value(&retry.attributes, "reason").as_deref(), Some("connect"));
        assert_eq!(value(&span.attributes, "error.type").as_deref(), Some("ServiceUnavailable"));
        let status = span.status.unwrap();
        assert_eq!(
            (status.code(), status.message.as_str()),
            (StatusCode::Error, "ServiceUnavailable: connection refused")
        );
        for key in ["url.full", "server.address", "http.response.status_code"] {
            assert_eq!(value(&span.attributes, key), None, "{key}");
        }
    }

    #[test]
    fn server_span_addresses_methods_and_sizes() {
        let path = format!("/{}", "\u{fc}".repeat(5000));
        let odd = Method::from_bytes(b"BREW").unwrap();
        for (method, name, size) in [(&odd, "_OTHER", Some("5")), (&Method::HEAD, "HEAD", None)] {
            let span = server_span(&request(Vec::new()), &record(method, &path, Instant::now()), SystemTime::now());
            let of = |key| value(&span.attributes, key);
            assert_eq!((of("server.address").as_deref(), of("server.port").as_deref()), (Some("::1"), Some("6443")));
            assert_eq!(of("http.request.method").as_deref(), Some(name));
            assert_eq!(of("http.request.method_original").is_some(), name == "_OTHER");
            assert_eq!(of("http.response.body.size").as_deref(), size);
            assert_eq!(
                (of("client.address"), of("network.peer.port")),
                (Some("192.0.2.1".into()), Some("4711".into()))
            );
            assert!(of("url.path").unwrap().len() <= 1024);
        }
    }
}
