//! The trace of a request: started from its access record, finished with it.

use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;

use super::line::redacted_query;
use super::record::{AccessRecord, OpenRecord};
use crate::observe::EndReason;
use crate::observe::trace::{BackendSpanRecord, RequestTrace, SpanRecord, TraceInput, Tracer};

impl AccessRecord {
    /// Starts the trace of the request, if it is sampled, and sets the trace context in `headers` for the backend. Called
    /// once, after authentication.
    pub fn start_trace(&mut self, tracer: &Arc<Tracer>, input: &TraceInput<'_>, headers: &mut HeaderMap) {
        let open = self.open();
        open.trace = RequestTrace::start(tracer, input, &open.method, headers);
    }
}

impl OpenRecord {
    /// Queues the spans of the request, which ended at `now`.
    pub(super) fn finish_trace(&self, trace: RequestTrace, now: Instant) {
        let failure = match &self.refusal {
            Some(refusal) => Some((refusal.reason, &*refusal.cause)),
            None => match self.end {
                EndReason::BackendBroke | EndReason::Timeout | EndReason::Cut | EndReason::SlowClient => {
                    Some((self.end.as_str(), ""))
                }
                EndReason::Complete | EndReason::ClientGone | EndReason::Drained => None,
            },
        };
        let backend = self.service.as_ref().zip(self.admit_duration).map(|(service, admitted)| BackendSpanRecord {
            started_at: self.started_at + admitted,
            service: service.name(),
            endpoint: self.endpoint.as_ref().map(|endpoint| endpoint.address()),
            responded: self.refusal.is_none() && self.status > 0,
        });
        trace.finish(&SpanRecord {
            started_at: self.started_at,
            ended_at: now,
            client: self.client,
            method: &self.method,
            path: self.uri.path(),
            target: match self.uri.query() {
                Some(query) => format!("{}?{}", self.uri.path(), redacted_query(query)),
                None => self.uri.path().to_owned(),
            },
            version: self.version,
            control_plane: self.worker.control_plane().map(|name| &**name),
            agent: self.agent.as_ref(),
            audit_id: self.audit_id.as_ref(),
            status: self.status,
            received: self.request_body.as_ref().map_or(0, |body| body.bytes()),
            sent: self.sent,
            failure,
            backend,
        });
    }
}
