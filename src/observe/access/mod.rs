//! The one access record per request: who, what, where to, how long in each phase, how it ended.
//!
//! [`Worker::begin`] opens it and dropping it closes it, however the request ends; on the way every
//! stage says what it knows. Unless the record is written, that costs a few stores: nothing is
//! formatted, nothing copied.

mod fields;
mod line;
mod proxy;
mod receipt;
mod record;
mod refusals;
mod tunnel;
mod writer;

use std::cell::Cell;
use std::rc::Rc;

pub use line::Form;
pub use proxy::{ProxyAccessLog, ProxyRecord};
pub use receipt::Receipt;
pub use record::{AccessRecord, End, Opening};
pub use refusals::RefusedRequest;
pub use tunnel::{TunnelRecord, Tunnels};
pub use writer::AccessLog;

use super::metrics::{Metrics, WorkerMetrics};
use writer::Sink;

/// Which records are written (`--access-log`). All are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// None.
    Off,
    /// Refusals, 5xx, answers that broke off, and what took over a second and is not long-running.
    #[default]
    Errors,
    /// Every one.
    All,
}

impl Mode {
    /// Whether the record of something that `failed`, or did not, is written.
    fn writes(self, failed: bool) -> bool {
        match self {
            Mode::Off => false,
            Mode::Errors => failed,
            Mode::All => true,
        }
    }
}

/// What the operator asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `--access-log`.
    pub mode: Mode,
    /// `--access-log-format`.
    pub form: Form,
}

/// What one worker thread reports with; stays on it.
pub struct Worker {
    metrics: WorkerMetrics,
    sink: Sink,
    settings: Settings,
    /// Whether what ends without a word from now on was cut by us.
    cutting: Cell<bool>,
}

impl Worker {
    /// The reporter of one worker thread.
    pub fn new(metrics: &Metrics, log: &AccessLog, settings: Settings) -> Rc<Worker> {
        Rc::new(Worker { metrics: WorkerMetrics::new(metrics), sink: log.sink(), settings, cutting: Cell::new(false) })
    }

    /// From now on it is not the client who went away, it is us: the process ends and waits no longer.
    pub fn cut(&self) {
        self.cutting.set(true);
    }

    /// Whether a refused request gets a line of the access log.
    pub fn writes_refusals(&self) -> bool {
        self.settings.mode != Mode::Off
    }

    /// What this worker counts.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }
}
