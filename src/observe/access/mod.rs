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
use std::sync::Arc;

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
    sink: Rc<LineSink>,
    settings: Settings,
    /// The control plane of the requests, if they are one's.
    control_plane: Option<Arc<str>>,
    /// Whether requests that end without a reason from now on were aborted by this process.
    is_cutting: Cell<bool>,
}

impl WorkerRecorder {
    /// Creates the recorder of one worker thread.
    pub fn new(metrics: &Metrics, log: &AccessLog, settings: Settings) -> Rc<WorkerRecorder> {
        Rc::new(WorkerRecorder {
            metrics: WorkerMetrics::new(metrics),
            sink: Rc::new(log.sink()),
            settings,
            control_plane: None,
            is_cutting: Cell::new(false),
        })
    }

    /// Creates the recorder of the requests of the control plane `name` on the same thread, with metrics of its own.
    pub fn for_control_plane(&self, metrics: &Metrics, name: &Arc<str>) -> Rc<WorkerRecorder> {
        Rc::new(WorkerRecorder {
            metrics: WorkerMetrics::new(metrics),
            sink: self.sink.clone(),
            settings: self.settings,
            control_plane: Some(name.clone()),
            is_cutting: Cell::new(false),
        })
    }

    /// The control plane of the requests, if they are one's.
    pub fn control_plane(&self) -> Option<&Arc<str>> {
        self.control_plane.as_ref()
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
