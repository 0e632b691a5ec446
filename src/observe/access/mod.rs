//! Access log: one record per request with user, verb, backend, duration of each phase, and how it ended.
//!
//! [`WorkerRecorder::begin`] opens the record; dropping it closes it, however the request ends. In between, each stage
//! of the request path adds its data. Unless the record is written, that costs a few stores: nothing is formatted or
//! copied.

mod fields;
mod line;
mod proxy;
mod record;
mod refusals;
mod trace;
mod tunnel;
mod writer;

use std::cell::Cell;
use std::rc::Rc;

pub use super::end_reason::EndReason;
pub use line::AccessLogFormat;
pub use proxy::{ProxyAccessLog, ProxyRecord};
pub use record::{AccessRecord, BodyCounter, ConnectTimings};
pub use refusals::RefusedRequest;
pub use tunnel::{TunnelAccessLog, TunnelRecord};
pub use writer::AccessLog;

use super::metrics::{Metrics, WorkerMetrics};
use writer::LineSink;

/// Selection of the access records that are written (`--access-log`). All records are counted in metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogMode {
    /// No record is written.
    Off,
    /// Refused requests, 5xx responses, truncated responses, and requests over a second that are not long-running.
    #[default]
    Errors,
    /// Every record is written.
    All,
}

impl AccessLogMode {
    /// Whether the record of a request that `failed` or succeeded is written.
    fn should_write(self, failed: bool) -> bool {
        match self {
            AccessLogMode::Off => false,
            AccessLogMode::Errors => failed,
            AccessLogMode::All => true,
        }
    }
}

/// Settings of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Value of `--access-log`.
    pub mode: AccessLogMode,
    /// Value of `--access-log-format`.
    pub form: AccessLogFormat,
}

/// Access log and metrics of one worker thread.
pub struct WorkerRecorder {
    metrics: WorkerMetrics,
    sink: LineSink,
    settings: Settings,
    /// Whether requests that end without a reason from now on were aborted by this process.
    is_cutting: Cell<bool>,
}

impl WorkerRecorder {
    /// Creates the recorder of one worker thread.
    pub fn new(metrics: &Metrics, log: &AccessLog, settings: Settings) -> Rc<WorkerRecorder> {
        Rc::new(WorkerRecorder {
            metrics: WorkerMetrics::new(metrics),
            sink: log.sink(),
            settings,
            is_cutting: Cell::new(false),
        })
    }

    /// From now on, requests that end without a reason are recorded as [`EndReason::Cut`] instead of
    /// [`EndReason::ClientGone`]: the shutdown timeout has passed.
    pub fn start_cutting(&self) {
        self.is_cutting.set(true);
    }

    /// Whether refused requests are written to the access log.
    pub fn logs_refusals(&self) -> bool {
        self.settings.mode != AccessLogMode::Off
    }

    /// Metrics of this worker.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }
}
