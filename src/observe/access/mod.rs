//! Access log: one record per request with user, verb, backend, duration of each phase, and how it ended.
//!
//! [`Worker::begin`] opens the record; dropping it closes it, however the request ends. In between, each stage of the
//! request path adds its data. Unless the record is written, that costs a few stores: nothing is formatted or copied.

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

/// Which records are written (`--access-log`). All records are counted in metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// No record.
    Off,
    /// Refused requests, 5xx responses, truncated responses, and requests over a second that are not long-running.
    #[default]
    Errors,
    /// Every record.
    All,
}

impl Mode {
    /// Whether the record of a request that `failed` or succeeded is written.
    fn writes(self, failed: bool) -> bool {
        match self {
            Mode::Off => false,
            Mode::Errors => failed,
            Mode::All => true,
        }
    }
}

/// Settings of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `--access-log`.
    pub mode: Mode,
    /// `--access-log-format`.
    pub form: Form,
}

/// Access log and metrics of one worker thread.
pub struct Worker {
    metrics: WorkerMetrics,
    sink: Sink,
    settings: Settings,
    /// Whether requests that end without a reason from now on were aborted by this process.
    cutting: Cell<bool>,
}

impl Worker {
    /// Creates the recorder of one worker thread.
    pub fn new(metrics: &Metrics, log: &AccessLog, settings: Settings) -> Rc<Worker> {
        Rc::new(Worker { metrics: WorkerMetrics::new(metrics), sink: log.sink(), settings, cutting: Cell::new(false) })
    }

    /// From now on, requests that end without a reason are recorded as [`End::Cut`] instead of [`End::ClientGone`]: the
    /// shutdown timeout has passed.
    pub fn cut(&self) {
        self.cutting.set(true);
    }

    /// Whether refused requests are written to the access log.
    pub fn writes_refusals(&self) -> bool {
        self.settings.mode != Mode::Off
    }

    /// Metrics of this worker.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }
}
