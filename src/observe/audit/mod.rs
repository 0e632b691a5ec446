//! Audit: `audit.k8s.io/v1` events, selected by a policy, to a log or a webhook.
//!
//! The request's thread only collects data ([`AuditContext`]). Events are serialized on the thread of each sink, behind
//! a [`AuditQueue`] that is bounded and never blocks. kube-apiserver by default blocks a request until its event is
//! written; here events are dropped instead, counted and logged.

mod annotations;
mod audit_context;
mod body;
mod event;
mod fair_queue;
mod log;
mod policy;
mod queue;
mod rotate;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use super::metrics::AuditLevel;
pub use annotations::{AuditAnnotation, AuditAnnotations};
pub(in crate::observe) use audit_context::RecordInfo;
pub use audit_context::{AuditContext, AuditInput};
pub(in crate::observe) use body::{BodyCapture, CapturedBody};
pub use log::{AuditLogFormat, AuditLogSettings};
pub use policy::{AuditPolicy, AuditPolicyFile, AuditStage, AuditStages, RequestAuditConfig};
pub use webhook::{AuditEventSender, AuditWebhookSettings, WebhookSink};

use super::metrics::{AuditLoss, Metrics};
use crate::process::{FairBudget, Problem, Published};
use event::AuditEvent;
use queue::AuditQueue;

/// Maximum number of bytes of events queued for one sink or being delivered to it.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// Maximum number of bytes of events written or sent in one batch.
const MAX_BATCH_BYTES: usize = 8 << 20;

/// Settings of the audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Value of `--audit-policy-file`.
    pub policy_file: PathBuf,
    /// Value of `--audit-log-*`.
    pub log: Option<AuditLogSettings>,
    /// Value of `--audit-webhook-*`.
    pub webhook: Option<AuditWebhookSettings>,
}

/// Evaluates the policy and queues events; used by every thread.
pub struct Auditor {
    policy: Published<AuditPolicy>,
    sinks: Vec<EventSink>,
    metrics: Arc<Metrics>,
    budget: Arc<FairBudget>,
}

struct EventSink {
    name: &'static str,
    queue: Arc<AuditQueue>,
}

/// Status of one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSinkStatus {
    /// `log` or `webhook`.
    pub name: &'static str,
    /// Events not written or delivered yet.
    pub waiting: usize,
    /// Events dropped because the queue was full.
    pub dropped: u64,
}

/// Flushes the sinks at shutdown.
pub struct AuditShutdown {
    log: Option<log::AuditLogWriter>,
    webhook: Option<Arc<watch::Sender<bool>>>,
    auditor: Arc<Auditor>,
}

impl Auditor {
    /// Starts the sinks. The thread of the log is started here; the returned [`WebhookSink`] starts with
    /// [`WebhookSink::run`], which must run until the process ends.
    ///
    /// # Errors
    /// The log file cannot be opened.
    pub fn start(
        settings: &Settings,
        policy: Published<AuditPolicy>,
        metrics: &Arc<Metrics>,
    ) -> Result<(Arc<Auditor>, AuditShutdown, Option<WebhookSink>), Problem> {
        let mut sinks = Vec::new();
        let log = settings.log.as_ref().map(|log| log::AuditLogWriter::start(log, metrics)).transpose()?;
        if let Some(log) = &log {
            sinks.push(EventSink { name: "log", queue: log.queue().clone() });
        }
        let webhook = settings.webhook.as_ref().map(|settings| WebhookSink::new(settings.clone(), metrics));
        if let Some(webhook) = &webhook {
            sinks.push(EventSink { name: "webhook", queue: webhook.queue().clone() });
        }
        let auditor = Arc::new(Auditor {
            policy,
            sinks,
            metrics: metrics.clone(),
            budget: FairBudget::new(body::MAX_CAPTURED_BYTES),
        });
        let ending =
            AuditShutdown { log, webhook: webhook.as_ref().map(WebhookSink::end_signal), auditor: auditor.clone() };
        Ok((auditor, ending, webhook))
    }

    /// Current status of the sinks.
    pub fn sink_status(&self) -> Vec<AuditSinkStatus> {
        let of = |sink: &EventSink| AuditSinkStatus {
            name: sink.name,
            waiting: sink.queue.pending(),
            dropped: sink.queue.dropped(),
        };
        self.sinks.iter().map(of).collect()
    }

    fn emit(&self, event: AuditEvent) {
        self.metrics.audit().record_event();
        let event = Arc::new(event);
        for sink in &self.sinks {
            let lost = sink.queue.push(&event);
            if lost > 0 {
                self.metrics.audit().record_lost(AuditLoss::Buffered, lost);
            }
        }
    }
}

impl AuditShutdown {
    /// Writes and delivers queued events for at most `patience`. No further event may be emitted.
    pub fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        if let Some(webhook) = &self.webhook {
            webhook.send_replace(true);
        }
        if let Some(log) = &self.log {
            log.finish(until);
        }
        let waits = |sink: &&EventSink| sink.queue.pending() > 0;
        while self.auditor.sinks.iter().any(|sink| waits(&sink)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        for sink in self.auditor.sinks.iter().filter(waits) {
            let events = sink.queue.pending();
            tracing::error!(sink = sink.name, events, "audit events lost: not delivered before shutdown");
        }
    }
}
