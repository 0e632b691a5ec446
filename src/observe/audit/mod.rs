//! Audit: `audit.k8s.io/v1` events, selected by a policy, to a log or a webhook.
//!
//! The request's thread only collects data ([`Audited`]). Events are serialized on the thread of each sink, behind a
//! [`Queue`] that is bounded and never blocks. kube-apiserver by default blocks a request until its event is written;
//! here events are dropped instead, counted and logged.

mod audited;
mod body;
mod event;
mod log;
mod losses;
mod policy;
mod queue;
mod rotate;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub(in crate::observe) use audited::Known;
pub use audited::{Audited, Begin};
pub(in crate::observe) use body::{Copy, Passed};
pub use log::{Format, LogSettings};
pub use policy::{Level, Policy, PolicyFile, Stage, Stages, Verdict};
pub use webhook::{Deliver, Webhook, WebhookSettings};

use super::metrics::{AuditLoss, Metrics};
use crate::process::{Problem, Published, Shares};
use event::Event;
use queue::Queue;

/// Maximum number of bytes of events queued for one sink or being delivered to it.
const MOST_WAITING: usize = 64 << 20;
/// Maximum number of bytes of events written or sent in one batch.
const BATCH_BYTES: usize = 8 << 20;

/// Settings of the audit.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `--audit-policy-file`.
    pub policy_file: PathBuf,
    /// `--audit-log-*`.
    pub log: Option<LogSettings>,
    /// `--audit-webhook-*`.
    pub webhook: Option<WebhookSettings>,
}

/// Evaluates the policy and queues events; used by every thread.
pub struct Auditor {
    policy: Published<Policy>,
    sinks: Vec<Sink>,
    metrics: Arc<Metrics>,
    held: Arc<Shares>,
}

struct Sink {
    name: &'static str,
    queue: Arc<Queue>,
}

/// Status of one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkReport {
    /// `log` or `webhook`.
    pub name: &'static str,
    /// Events not written or delivered yet.
    pub waiting: usize,
    /// Events dropped because the queue was full.
    pub dropped: u64,
}

/// Flushes the sinks at shutdown.
pub struct Ending {
    log: Option<log::Writer>,
    webhook: Option<Arc<watch::Sender<bool>>>,
    auditor: Arc<Auditor>,
}

impl Auditor {
    /// Starts the sinks. The thread of the log is started here; the returned [`Webhook`] starts with [`Webhook::run`],
    /// which must run until the process ends.
    ///
    /// # Errors
    /// The log file cannot be opened.
    pub fn start(
        settings: &Settings,
        policy: Published<Policy>,
        metrics: &Arc<Metrics>,
    ) -> Result<(Arc<Auditor>, Ending, Option<Webhook>), Problem> {
        let mut sinks = Vec::new();
        let log = settings.log.as_ref().map(|log| log::Writer::start(log, metrics)).transpose()?;
        if let Some(log) = &log {
            sinks.push(Sink { name: "log", queue: log.queue().clone() });
        }
        let webhook = settings.webhook.as_ref().map(|settings| Webhook::new(settings.clone(), metrics));
        if let Some(webhook) = &webhook {
            sinks.push(Sink { name: "webhook", queue: webhook.queue().clone() });
        }
        let auditor = Arc::new(Auditor { policy, sinks, metrics: metrics.clone(), held: Shares::new(body::MOST_HELD) });
        let ending = Ending { log, webhook: webhook.as_ref().map(Webhook::end), auditor: auditor.clone() };
        Ok((auditor, ending, webhook))
    }

    /// Current status of the sinks.
    pub fn report(&self) -> Vec<SinkReport> {
        let of =
            |sink: &Sink| SinkReport { name: sink.name, waiting: sink.queue.held(), dropped: sink.queue.dropped() };
        self.sinks.iter().map(of).collect()
    }

    fn emit(&self, event: Event) {
        self.metrics.audit().event();
        let event = Arc::new(event);
        for sink in &self.sinks {
            let lost = sink.queue.push(&event);
            if lost > 0 {
                self.metrics.audit().lost(AuditLoss::Buffered, lost);
            }
        }
    }
}

impl Ending {
    /// Writes and delivers queued events for at most `patience`. No further event may be emitted.
    pub fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        if let Some(webhook) = &self.webhook {
            webhook.send_replace(true);
        }
        if let Some(log) = &self.log {
            log.end(until);
        }
        let waits = |sink: &&Sink| sink.queue.held() > 0;
        while self.auditor.sinks.iter().any(|sink| waits(&sink)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        for sink in self.auditor.sinks.iter().filter(waits) {
            let events = sink.queue.held();
            tracing::error!(sink = sink.name, events, "audit events lost: not delivered before shutdown");
        }
    }
}
