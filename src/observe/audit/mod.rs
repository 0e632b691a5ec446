//! Who did what, for those who have to know later: `audit.k8s.io/v1` events by a policy, to a log or a webhook.
//!
//! On its own thread a request only puts together what is at hand ([`Audited`]); JSON is made of it on the thread of
//! each sink, behind a [`Queue`] that is bounded and never waits. kube-apiserver, whose log is written
//! before a request goes on unless told otherwise, can wait; here events are dropped instead, counted, and the log
//! says so.

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

/// The most bytes of events that wait for one sink, or are on their way to it.
const MOST_WAITING: usize = 64 << 20;
/// The most bytes of events that are written or sent at once.
const BATCH_BYTES: usize = 8 << 20;

/// What the operator asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `--audit-policy-file`.
    pub policy_file: PathBuf,
    /// `--audit-log-path` and its siblings.
    pub log: Option<LogSettings>,
    /// `--audit-webhook-config-file` and its siblings.
    pub webhook: Option<WebhookSettings>,
}

/// Judges requests and takes their events, on every thread.
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

/// What one sink has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkReport {
    /// `log` or `webhook`.
    pub name: &'static str,
    /// Events that are not written or delivered yet.
    pub waiting: usize,
    /// Events for which there was no room.
    pub dropped: u64,
}

/// Writes what is left when the process ends.
pub struct Ending {
    log: Option<log::Writer>,
    webhook: Option<Arc<watch::Sender<bool>>>,
    auditor: Arc<Auditor>,
}

impl Auditor {
    /// Starts the sinks: the log's thread at once, the webhook with [`Webhook::run`], which is given back and must run
    /// until the process ends.
    ///
    /// # Errors
    /// When the log file cannot be opened.
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

    /// What the sinks have to do now.
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
    /// Has what waits written and delivered, for at most so long. Nothing may come any more.
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
            tracing::error!(sink = sink.name, events, "audit events are lost: they were not taken before the end");
        }
    }
}
