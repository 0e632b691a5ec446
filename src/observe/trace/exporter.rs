//! Exports queued spans in batches, like OpenTelemetry's batch span processor with the OTLP exporter.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::attribute::text;
use crate::observe::metrics::{Metrics, SpanLoss};

/// Maximum number of spans in one call (`DefaultMaxExportBatchSize`).
const MAX_BATCH: usize = 512;
/// How long a span waits for its batch to fill (`DefaultScheduleDelay`).
const BATCH_DELAY: Duration = Duration::from_secs(5);
/// How long a batch is retried (`DefaultExportTimeout`).
const RETRY_LIMIT: Duration = Duration::from_secs(30);
/// Delay before the first retry; doubled each time.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay before a retry.
const MAX_BACKOFF: Duration = Duration::from_secs(8);

/// Why a batch was not exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportError {
    /// The reason, for the log.
    pub message: String,
    /// Whether the same call may succeed later.
    pub is_retryable: bool,
}

/// Transport to the collector.
pub trait SpanSender {
    /// Makes one call of `TraceService/Export` with an encoded `ExportTraceServiceRequest`. Returns the number of spans
    /// that the collector rejected.
    ///
    /// # Errors
    /// Why the call failed.
    fn send(&self, request: Bytes) -> impl Future<Output = Result<u64, ExportError>>;
}

/// The exporter of a [`Tracer`](super::Tracer).
pub struct SpanExporter {
    queue: mpsc::Receiver<Span>,
    resource: Resource,
    metrics: Arc<Metrics>,
}

impl SpanExporter {
    pub(super) fn new(queue: mpsc::Receiver<Span>, metrics: &Arc<Metrics>) -> SpanExporter {
        let instance = uuid::Uuid::new_v4().to_string();
        let attributes = vec![
            text("service.name", "narthex"),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", &instance),
        ];
        SpanExporter { queue, resource: Resource { attributes, ..Resource::default() }, metrics: metrics.clone() }
    }

    /// Exports spans until `end` is true; then sends what is queued, without delays and retries.
    pub async fn run(mut self, sender: &impl SpanSender, mut end: watch::Receiver<bool>) {
        let mut batch = Vec::new();
        loop {
            self.fill(&mut batch, &mut end).await;
            if batch.is_empty() {
                return;
            }
            let spans = std::mem::take(&mut batch);
            self.export(sender, spans, &mut end).await;
        }
    }

    /// Waits for spans, and fills the batch. It stays empty at the end.
    async fn fill(&mut self, batch: &mut Vec<Span>, end: &mut watch::Receiver<bool>) {
        let mut until = None;
        while batch.len() < MAX_BATCH {
            let left = MAX_BATCH - batch.len();
            let has_ended = *end.borrow();
            if has_ended {
                match self.queue.try_recv() {
                    Ok(span) => batch.push(span),
                    Err(_) => return,
                }
                continue;
            }
            let delay = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                received = self.queue.recv_many(batch, left) => {
                    if received == 0 {
                        return;
                    }
                    until.get_or_insert_with(|| Instant::now() + BATCH_DELAY);
                }
                () = delay => return,
                changed = end.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Sends a batch, with retries; drops and counts its spans after the last one.
    async fn export(&self, sender: &impl SpanSender, spans: Vec<Span>, end: &mut watch::Receiver<bool>) {
        let count = spans.len() as u64;
        let request = Bytes::from(self.request(spans).encode_to_vec());
        let (give_up, mut backoff) = (Instant::now() + RETRY_LIMIT, INITIAL_BACKOFF);
        loop {
            let error = match sender.send(request.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    self.metrics.spans().record_exported(count - rejected);
                    self.metrics.spans().record_dropped(SpanLoss::Rejected, rejected);
                    return;
                }
                Err(error) => error,
            };
            tracing::debug!(error = error.message, "spans not exported");
            let has_ended = *end.borrow();
            if !error.is_retryable || has_ended || Instant::now() + backoff > give_up {
                self.metrics.spans().record_dropped(SpanLoss::ExportFailed, count);
                return;
            }
            tokio::select! {
                () = sleep(backoff) => {}
                ended = end.wait_for(|ended| *ended) => {
                    if ended.is_err() {
                        return;
                    }
                }
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: "narthex".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: String::new() }];
        let resource = Some(self.resource.clone());
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans { resource, scope_spans, schema_url: String::new() }],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;
    use crate::observe::metrics::ExpositionFormat;

    /// A collector that answers by a script, then accepts everything.
    #[derive(Default)]
    struct ScriptedCollector {
        replies: RefCell<VecDeque<Result<u64, ExportError>>>,
        /// Time and number of spans of each call.
        calls: RefCell<Vec<(Instant, usize)>>,
    }

    impl SpanSender for ScriptedCollector {
        async fn send(&self, request: Bytes) -> Result<u64, ExportError> {
            let request = ExportTraceServiceRequest::decode(request).unwrap();
            let spans = request.resource_spans[0].scope_spans[0].spans.len();
            self.calls.borrow_mut().push((Instant::now(), spans));
            self.replies.borrow_mut().pop_front().unwrap_or(Ok(0))
        }
    }

    fn failure(is_retryable: bool) -> Result<u64, ExportError> {
        Err(ExportError { message: "no".to_owned(), is_retryable })
    }

    struct ExporterFixture {
        spans: mpsc::Sender<Span>,
        end: watch::Sender<bool>,
        metrics: Arc<Metrics>,
        collector: ScriptedCollector,
        began: Instant,
    }

    impl ExporterFixture {
        /// The delays after the start and the number of spans of the calls.
        fn calls(&self) -> Vec<(u64, usize)> {
            let calls = self.collector.calls.borrow();
            calls.iter().map(|(at, spans)| ((*at - self.began).as_secs(), *spans)).collect()
        }

        fn counted(&self, line: &str) -> bool {
            self.metrics.render(ExpositionFormat::Classic).lines().any(|found| found == line)
        }

        async fn queue(&self, count: usize) {
            for _ in 0..count {
                self.spans.send(Span::default()).await.unwrap();
            }
        }
    }

    /// Runs `story` beside an exporter, in paused time; the exporter must end after it.
    async fn with_exporter(replies: Vec<Result<u64, ExportError>>, story: impl AsyncFnOnce(&ExporterFixture)) {
        let metrics = Metrics::new();
        metrics.spans().enable();
        let (spans, queue) = mpsc::channel(2048);
        let (end, ended) = watch::channel(false);
        let collector = ScriptedCollector { replies: RefCell::new(replies.into()), ..ScriptedCollector::default() };
        let exporter = SpanExporter::new(queue, &metrics);
        let fixture = ExporterFixture { spans, end, metrics, collector, began: Instant::now() };
        let run = exporter.run(&fixture.collector, ended);
        tokio::join!(run, async {
            story(&fixture).await;
            fixture.end.send_replace(true);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn spans_are_sent_when_the_batch_is_full_or_old() {
        with_exporter(Vec::new(), async |fixture| {
            fixture.queue(1).await;
            sleep(Duration::from_secs(3)).await;
            fixture.queue(1).await;
            sleep(Duration::from_secs(3)).await;
            assert_eq!(fixture.calls(), [(5, 2)]);
            fixture.queue(MAX_BATCH + 1).await;
            sleep(Duration::from_secs(1)).await;
            assert_eq!(fixture.calls(), [(5, 2), (6, MAX_BATCH)]);
            sleep(Duration::from_secs(9)).await;
            assert_eq!(fixture.calls()[2..], [(11, 1)]);
            assert!(fixture.counted("narthex_trace_spans_exported_total 515"));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn failed_batch_is_retried_and_then_dropped() {
        with_exporter(vec![failure(true); 20], async |fixture| {
            fixture.queue(3).await;
            sleep(Duration::from_secs(36)).await;
            assert_eq!(fixture.calls(), [5, 6, 8, 12, 20, 28].map(|second| (second, 3)));
            assert!(fixture.counted("narthex_trace_spans_dropped_total{reason=\"export_failed\"} 3"));
            assert!(fixture.counted("narthex_trace_spans_exported_total 0"));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn refused_and_rejected_spans_are_not_retried() {
        with_exporter(vec![failure(false), Ok(2)], async |fixture| {
            for _ in 0..2 {
                fixture.queue(3).await;
                sleep(Duration::from_secs(10)).await;
            }
            assert_eq!(fixture.calls(), [(5, 3), (15, 3)]);
            assert!(fixture.counted("narthex_trace_spans_dropped_total{reason=\"export_failed\"} 3"));
            assert!(fixture.counted("narthex_trace_spans_dropped_total{reason=\"rejected\"} 2"));
            assert!(fixture.counted("narthex_trace_spans_exported_total 1"));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn queued_spans_are_sent_once_at_shutdown() {
        with_exporter(vec![failure(true), failure(true)], async |fixture| {
            fixture.queue(MAX_BATCH).await;
            sleep(Duration::from_millis(500)).await;
            fixture.queue(2).await;
            fixture.end.send_replace(true);
            sleep(Duration::from_millis(100)).await;
            // The first batch is retried once; the last one is sent without waiting.
            assert_eq!(fixture.calls(), [(0, MAX_BATCH), (0, MAX_BATCH), (0, 2)]);
            assert!(fixture.counted("narthex_trace_spans_exported_total 2"));
        })
        .await;
    }
}
