//! Starts traces of requests and queues their spans.

use std::sync::Arc;

use http::HeaderMap;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::sync::mpsc;

use super::configuration::TracingConfiguration;
use super::context::{SpanContext, TRACEPARENT, TRACESTATE};
use super::exporter::SpanExporter;
use super::sampler::TraceIdRatioSampler;
use crate::observe::metrics::{Metrics, SpanLoss};

/// Maximum number of queued spans (`DefaultMaxQueueSize` of OpenTelemetry's batch span processor).
const MAX_QUEUED_SPANS: usize = 2048;
/// Maximum length of a `tracestate` in a span; the header is not shortened.
const MAX_TRACE_STATE: usize = 512;

/// Decides which requests are traced, and queues spans; used by every thread.
pub struct Tracer {
    sampler: TraceIdRatioSampler,
    spans: mpsc::Sender<Span>,
    metrics: Arc<Metrics>,
}

/// The trace of a sampled request.
#[derive(Debug)]
pub(super) struct SampledTrace {
    /// Span of the request.
    pub(super) server: SpanContext,
    /// Client span of the request to the backend, which is in the request's `traceparent`.
    pub(super) client_span_id: u64,
    /// Parent of the request's span, if the caller's trace is continued.
    pub(super) parent_span_id: Option<u64>,
    /// The caller's span, if its trace is not continued.
    pub(super) link: Option<SpanContext>,
    /// `tracestate` of the parent or of the link.
    pub(super) trace_state: String,
}

impl Tracer {
    /// Creates a tracer and the exporter of its spans, which sends nothing before [`SpanExporter::run`].
    pub fn new(configuration: &TracingConfiguration, metrics: &Arc<Metrics>) -> (Arc<Tracer>, SpanExporter) {
        let (spans, queue) = mpsc::channel(MAX_QUEUED_SPANS);
        metrics.spans().enable();
        let sampler = TraceIdRatioSampler::per_million(configuration.sampling_rate_per_million);
        let tracer = Tracer { sampler, spans, metrics: metrics.clone() };
        (Arc::new(tracer), SpanExporter::new(queue, metrics))
    }

    /// Starts the trace of a request, and replaces the trace context in its `headers` with the one for the backend.
    /// Returns the trace if it is sampled.
    ///
    /// The trace of a trusted caller is continued and sampled as the caller says. Any other request begins a trace,
    /// which is linked to the caller's (`otelhttp.WithPublicEndpointFn`).
    pub(super) fn start(&self, headers: &mut HeaderMap, is_trusted: bool) -> Option<SampledTrace> {
        let remote = headers.get(TRACEPARENT).and_then(|value| SpanContext::parse(value.as_bytes()));
        let parent = remote.filter(|_| is_trusted);
        let trace_id = parent.map_or_else(|| fastrand::u128(1..), |parent| parent.trace_id);
        let sampled = parent.map_or_else(|| self.sampler.samples(trace_id), |parent| parent.sampled);
        let client_span_id = fastrand::u64(1..);
        let trace = sampled.then(|| SampledTrace {
            server: SpanContext { trace_id, span_id: fastrand::u64(1..), sampled },
            client_span_id,
            parent_span_id: parent.map(|parent| parent.span_id),
            link: remote.filter(|_| !is_trusted),
            trace_state: remote.map(|_| trace_state(headers)).unwrap_or_default(),
        });
        if parent.is_none() {
            headers.remove(TRACESTATE);
        }
        headers.insert(TRACEPARENT, SpanContext { trace_id, span_id: client_span_id, sampled }.to_header());
        trace
    }

    /// Queues a span; drops and counts it if the queue is full.
    pub(super) fn queue(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.metrics.spans().record_dropped(SpanLoss::QueueFull, 1);
        }
    }
}

/// The `tracestate` of the headers, or nothing if it is too long.
fn trace_state(headers: &HeaderMap) -> String {
    let lines: Vec<&str> = headers.get_all(TRACESTATE).iter().filter_map(|line| line.to_str().ok()).collect();
    let text = lines.join(",");
    if text.len() > MAX_TRACE_STATE { String::new() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::configuration::CollectorEndpoint;
    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    const REMOTE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

    fn tracer(rate: u32) -> (Arc<Tracer>, SpanExporter, Arc<Metrics>) {
        let metrics = Metrics::new();
        let endpoint = CollectorEndpoint::Tcp("localhost".to_owned(), 4317);
        let (tracer, exporter) =
            Tracer::new(&TracingConfiguration { endpoint, sampling_rate_per_million: rate }, &metrics);
        (tracer, exporter, metrics)
    }

    /// Starts a trace, and returns it with the context that the backend gets and its `tracestate`.
    fn start(rate: u32, traceparent: &str, is_trusted: bool) -> (Option<SampledTrace>, SpanContext, Option<String>) {
        let mut headers = HeaderMap::new();
        headers.append("accept", "text/plain".parse().unwrap());
        if !traceparent.is_empty() {
            headers.append(TRACEPARENT, traceparent.parse().unwrap());
            headers.append(TRACESTATE, "a=1".parse().unwrap());
            headers.append(TRACESTATE, "b=2".parse().unwrap());
        }
        let trace = tracer(rate).0.start(&mut headers, is_trusted);
        assert_eq!(headers.get_all(TRACEPARENT).iter().count(), 1);
        let sent = SpanContext::parse(headers[TRACEPARENT].as_bytes()).unwrap();
        let state = headers.get(TRACESTATE).map(|_| trace_state(&headers));
        (trace, sent, state)
    }

    #[test]
    fn trace_of_trusted_caller_is_continued_and_sampled_as_it_says() {
        let remote = SpanContext::parse(REMOTE.as_bytes()).unwrap();
        for rate in [0, 1_000_000] {
            let (trace, sent, state) = start(rate, REMOTE, true);
            let trace = trace.unwrap();
            assert_eq!((trace.server.trace_id, trace.parent_span_id), (remote.trace_id, Some(remote.span_id)));
            assert_eq!((trace.link, trace.trace_state.as_str()), (None, "a=1,b=2"));
            let expected = SpanContext { trace_id: remote.trace_id, span_id: trace.client_span_id, sampled: true };
            assert_eq!((sent, state.as_deref()), (expected, Some("a=1,b=2")));
            let (trace, sent, _) = start(rate, UNSAMPLED, true);
            assert!(trace.is_none() && !sent.sampled && sent.trace_id == remote.trace_id);
            assert_ne!(sent.span_id, remote.span_id);
        }
    }

    #[test]
    fn trace_of_other_caller_is_new_and_linked() {
        let remote = SpanContext::parse(REMOTE.as_bytes()).unwrap();
        let (trace, sent, state) = start(1_000_000, REMOTE, false);
        let trace = trace.unwrap();
        assert_ne!(trace.server.trace_id, remote.trace_id);
        assert_eq!((trace.parent_span_id, trace.link), (None, Some(remote)));
        assert_eq!((trace.trace_state.as_str(), state), ("a=1,b=2", None));
        assert_eq!((sent.trace_id, sent.span_id), (trace.server.trace_id, trace.client_span_id));
        // The caller cannot make the gateway sample.
        let (trace, sent, state) = start(0, REMOTE, false);
        assert!(trace.is_none() && !sent.sampled && sent.trace_id != remote.trace_id && state.is_none());
    }

    #[test]
    fn trace_without_valid_context_is_new_and_not_linked() {
        for traceparent in ["", "00-0-0-01"] {
            for is_trusted in [false, true] {
                let (trace, sent, state) = start(1_000_000, traceparent, is_trusted);
                let trace = trace.unwrap();
                assert_eq!((trace.parent_span_id, trace.link, state), (None, None, None));
                assert_eq!((trace.trace_state.as_str(), sent.sampled), ("", true));
                assert!(start(0, traceparent, is_trusted).0.is_none());
            }
        }
    }

    #[test]
    fn full_span_queue_drops_and_counts() {
        let (tracer, _exporter, metrics) = tracer(0);
        for _ in 0..MAX_QUEUED_SPANS + 3 {
            tracer.queue(Span::default());
        }
        let text = metrics.render(ExpositionFormat::Classic);
        assert!(text.contains("narthex_trace_spans_dropped_total{reason=\"queue_full\"} 3\n"), "{text}");
    }
}
