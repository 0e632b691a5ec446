//! Setup of tracing: the thread that exports spans, and its connection to the collector.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use super::otlp_client::OtlpClient;
use super::settings::EgressSettings;
use crate::commands::threads::spawn_thread;
use crate::observe::metrics::{CallHealth, CallKind, Metrics};
use crate::observe::trace::{ExportError, SpanSender, Tracer, TracingConfiguration};
use crate::process::Problem;

/// Exports the last spans at shutdown.
pub(super) struct TraceShutdown {
    end: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// Starts the exporter.
///
/// # Errors
/// The thread cannot be spawned.
pub(super) fn start_tracing(
    configuration: &TracingConfiguration,
    egress: EgressSettings,
    metrics: &Arc<Metrics>,
) -> Result<(Arc<Tracer>, TraceShutdown), Problem> {
    let (tracer, exporter) = Tracer::new(configuration, metrics);
    let (end, ended) = watch::channel(false);
    let health = metrics.calls().register(CallKind::TraceCollector, "");
    let endpoint = configuration.endpoint.clone();
    tracing::info!(%endpoint, sampling_rate_per_million = configuration.sampling_rate_per_million, "tracing enabled");
    let thread = spawn_thread("traces", async move || {
        let collector = TraceCollector { client: OtlpClient::new(endpoint, egress.dialer()), health };
        exporter.run(&collector, ended).await;
    })?;
    Ok((tracer, TraceShutdown { end, thread }))
}

impl TraceShutdown {
    /// Exports queued spans for at most `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        self.end.send_replace(true);
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !self.thread.is_finished() {
            tracing::warn!("spans lost: not exported before shutdown");
        }
    }
}

/// The collector, and the health of calls to it.
struct TraceCollector {
    client: OtlpClient,
    health: Arc<CallHealth>,
}

impl SpanSender for TraceCollector {
    async fn send(&self, request: Bytes) -> Result<u64, ExportError> {
        let began = Instant::now();
        let result = self.client.export(request).await;
        let outcome = match &result {
            Ok(_) => Ok(()),
            Err(error) => Err(error.message.as_str()),
        };
        self.health.record(self.client.endpoint(), outcome, began.elapsed());
        result
    }
}
