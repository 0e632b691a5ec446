//! Audit and tracing of requests: from their files to what requests use, and the flush at shutdown.

use std::sync::Arc;
use std::time::Duration;

use super::audit_setup::AuditFiles;
use super::control::ControlTasks;
use super::settings::EgressSettings;
use super::trace_setup::{TraceShutdown, start_tracing};
use crate::observe::Auditor;
use crate::observe::audit::AuditShutdown;
use crate::observe::metrics::Metrics;
use crate::observe::trace::{Tracer, TracingConfiguration};
use crate::process::Problem;

/// Audit and tracing, as far as they are enabled.
pub(super) struct RequestObservers {
    pub(super) auditor: Option<Arc<Auditor>>,
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) shutdown: ObserverShutdown,
}

/// Flushes what audit and tracing have queued.
#[derive(Default)]
pub(super) struct ObserverShutdown {
    audit: Option<AuditShutdown>,
    traces: Option<TraceShutdown>,
}

impl RequestObservers {
    /// Starts the threads of both.
    ///
    /// # Errors
    /// The audit log cannot be opened, or a thread cannot be spawned.
    pub(super) fn start(
        audit: Option<AuditFiles>,
        tracing: Option<&TracingConfiguration>,
        egress: &EgressSettings,
        metrics: &Arc<Metrics>,
        tasks: &mut ControlTasks,
    ) -> Result<RequestObservers, Problem> {
        let audit = audit.map(|files| files.start(egress.clone(), metrics, tasks)).transpose()?;
        let (auditor, audit) = audit.unzip();
        let tracing = tracing.map(|file| start_tracing(file, egress.clone(), metrics)).transpose()?;
        let (tracer, traces) = tracing.unzip();
        Ok(RequestObservers { auditor, tracer, shutdown: ObserverShutdown { audit, traces } })
    }
}

impl ObserverShutdown {
    /// Writes and sends what is queued, for at most `patience` each. No request may run any more.
    pub(super) fn flush(&self, patience: Duration) {
        if let Some(audit) = &self.audit {
            audit.flush(patience);
        }
        if let Some(traces) = &self.traces {
            traces.flush(patience);
        }
    }
}
