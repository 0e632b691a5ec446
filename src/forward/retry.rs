//! Sends a request with retries: to one endpoint after another until a response head arrives or retries are used up.

use std::rc::Rc;
use std::time::Instant;

use http::{HeaderMap, Method, Request, Uri};

use super::backend::{BackendRenewal, WorkerBackend};
use super::error_response::ForwardError;
use super::forwarded_headers::ForwardedHeaders;
use super::load_balance::PickRequest;
use super::request_body::RequestBodySource;
use crate::egress::{DialError, DialPhase, EndpointResponse, NoResponse, SendError};
use crate::message::Body;
use crate::observe::metrics::Retry;

/// Limit of attempts. Failed dials do not count: each ejects its endpoint.
const MAX_ATTEMPTS: usize = 3;
/// Limit of stale connections met by one request: a backend that shuts down closes all its connections at once.
const MAX_STALE_CONNECTIONS: usize = 10;

/// Which requests may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryScope {
    /// No request is retried.
    Never,
    /// Requests that provably were not processed are retried.
    NotProcessed,
    /// In addition, a GET, HEAD or OPTIONS without a body that met a stale connection is retried.
    StaleConnection,
    /// In addition, a GET, HEAD or OPTIONS without a body that may have been processed is retried.
    Always,
}

impl RetryScope {
    fn includes_stale_connections(self) -> bool {
        matches!(self, RetryScope::StaleConnection | RetryScope::Always)
    }
}

/// How a request is retried.
pub(super) struct RetryPlan<'o> {
    pub(super) scope: RetryScope,
    /// Recreates the request; `None` if it must not be retried.
    pub(super) replay: Option<RequestReplay<'o>>,
    /// Source of its body; `None` without a body.
    pub(super) source: Option<Rc<RequestBodySource>>,
    pub(super) is_long_running: bool,
    /// Renewal of the backend for retries; `None` to keep it.
    pub(super) renewal: Option<BackendRenewal<'o>>,
}

/// What is needed to recreate a request for a retry. Most headers of a request are the gateway's: only the client's are
/// kept, and the gateway's are added again.
pub(super) struct RequestReplay<'o> {
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// The client's headers, already stripped.
    pub(super) headers: HeaderMap,
    pub(super) forwarded_headers: &'o ForwardedHeaders<'o>,
}

/// The failed attempts of one request.
struct FailedAttempts {
    /// Members that get no further attempt.
    failed: Vec<usize>,
    /// Members that get one only if no other is left.
    doubtful: Vec<usize>,
    /// Those of both whose TLS handshake failed, perhaps because of the client certificate.
    refusing: Vec<usize>,
    /// Number of attempts that a limit applies to.
    count: usize,
    stale_connections: usize,
    /// Why the next attempt is a retry.
    retry_reason: Option<Retry>,
    last: ForwardError,
}

/// Sends `request` to an endpoint of `backend`, and retries on others as far as `plan` and, for requests that may have
/// been processed, the retry budget allow. Returns the index of the member that responded.
///
/// # Errors
/// The last [`ForwardError`].
pub(super) async fn send_with_retries(
    request: Box<Request<Body>>,
    plan: &RetryPlan<'_>,
    backend: &Rc<WorkerBackend>,
    mut retried: impl FnMut(Retry),
) -> Result<(usize, EndpointResponse), ForwardError> {
    backend.retry_budget().deposit();
    let pick = PickRequest { is_safe: plan.scope == RetryScope::Always, is_long_running: plan.is_long_running };
    // A long-running request is not retried for a short silence.
    let is_repeatable = !plan.is_long_running && plan.scope.includes_stale_connections();
    let mut attempts = FailedAttempts::default();
    let mut next = Some(request);
    while !attempts.limit_reached() {
        let Some(request) = next.take() else { break };
        let is_retry = attempts.retry_reason.is_some();
        if is_retry && plan.renewal.as_ref().is_some_and(|renewal| renewal.renew(backend)) {
            attempts.forget_refusals();
        }
        let backend = plan.backend(backend);
        let Some((index, endpoint)) = backend.pick(&attempts.failed, &attempts.doubtful, pick) else { break };
        if let Some(reason) = attempts.retry_reason.take() {
            retried(reason);
        }
        let sent = match endpoint.ready_slot() {
            Some(slot) => endpoint.send_on_ready_connection(slot, request, is_repeatable).await,
            // Boxed: the common case would pay for its size.
            None => Box::pin(endpoint.send_on_any_connection(request, is_repeatable)).await,
        };
        match sent {
            Ok(sent) => {
                if let Some(source) = &plan.source {
                    source.disable_replay();
                }
                return Ok((index, sent));
            }
            Err(error) => next = attempts.record(error, index, plan, backend),
        }
    }
    Err(attempts.last)
}

impl Default for FailedAttempts {
    fn default() -> FailedAttempts {
        FailedAttempts {
            failed: Vec::new(),
            doubtful: Vec::new(),
            refusing: Vec::new(),
            count: 0,
            stale_connections: 0,
            retry_reason: None,
            last: ForwardError::NoEndpoint,
        }
    }
}

impl FailedAttempts {
    fn limit_reached(&self) -> bool {
        self.count >= MAX_ATTEMPTS || self.stale_connections >= MAX_STALE_CONNECTIONS
    }

    /// Members that refused the previous certificate may accept the current one.
    fn forget_refusals(&mut self) {
        let refusing = std::mem::take(&mut self.refusing);
        self.failed.retain(|index| !refusing.contains(index));
        self.doubtful.retain(|index| !refusing.contains(index));
    }

    fn record_refusal(&mut self, index: usize, error: &DialError) {
        // Under TLS 1.3 the alert comes after the handshake. Not every server sends one that names the certificate.
        let failed_handshake =
            error.phase == DialPhase::Handshake && !matches!(error.reason, "ConnectTimeout" | "Timeout");
        if failed_handshake || error.reason == "ClientCertificateRefused" {
            self.refusing.push(index);
        }
    }

    /// Records that the attempt at member `index` failed. Returns the request of the next attempt, if there may be one.
    fn record(
        &mut self,
        error: SendError,
        index: usize,
        plan: &RetryPlan<'_>,
        backend: &WorkerBackend,
    ) -> Option<Box<Request<Body>>> {
        match error {
            SendError::NotSent { request, error } => {
                // A closed connection says nothing about its endpoint; a failed dial does.
                if error.reason == "ConnectionClosed" && error.phase == DialPhase::Http {
                    self.retry_reason = Some(Retry::StaleConnection);
                    self.stale_connections += 1;
                } else {
                    self.retry_reason = Some(Retry::Connect);
                    self.failed.push(index);
                    self.record_refusal(index, &error);
                }
                self.last = ForwardError::Unreachable(error);
                (plan.scope != RetryScope::Never).then_some(request)
            }
            SendError::Refused(error) => {
                self.count += 1;
                self.doubtful.push(index);
                self.record_refusal(index, &error);
                self.retry_reason = Some(Retry::RefusedStream);
                self.last = ForwardError::Unreachable(error);
                plan.recreate()
            }
            // The server was most likely closing the connection already; Go's `http.Transport` retries, too.
            SendError::StaleConnection(error) if plan.scope.includes_stale_connections() => {
                self.stale_connections += 1;
                self.retry_reason = Some(Retry::StaleConnection);
                self.last = ForwardError::Broken(error_chain(&*error));
                plan.recreate()
            }
            SendError::InvalidResponse(error) => {
                self.doubtful.push(index);
                self.record_sent(ForwardError::InvalidResponse(error_chain(&*error)), index, plan, backend)
            }
            SendError::Broken(error) | SendError::StaleConnection(error) => {
                let error = match error.downcast::<NoResponse>() {
                    Ok(error) => {
                        self.failed.push(index);
                        ForwardError::NoResponse(*error)
                    }
                    Err(error) => {
                        self.doubtful.push(index);
                        ForwardError::Broken(error_chain(&*error))
                    }
                };
                self.record_sent(error, index, plan, backend)
            }
        }
    }

    /// Records the failure of a request that may have been processed. Its retry takes from the retry budget; the other
    /// retries cost the backend nothing.
    fn record_sent(
        &mut self,
        error: ForwardError,
        index: usize,
        plan: &RetryPlan<'_>,
        backend: &WorkerBackend,
    ) -> Option<Box<Request<Body>>> {
        self.count += 1;
        self.retry_reason = Some(Retry::BrokenConnection);
        self.last = error;
        // If the client broke its body off, the endpoint is not at fault.
        if plan.source.as_ref().is_none_or(|source| source.fault().is_none()) {
            backend.record_no_response(index);
        }
        let may = plan.scope == RetryScope::Always && backend.retry_budget().withdraw(Instant::now());
        if may { plan.recreate() } else { None }
    }
}

impl RetryPlan<'_> {
    /// The backend of the last attempt, where the first one was at `first`.
    pub(super) fn backend<'b>(&'b self, first: &'b Rc<WorkerBackend>) -> &'b Rc<WorkerBackend> {
        self.renewal.as_ref().and_then(BackendRenewal::renewed).unwrap_or(first)
    }

    /// The request once more; `None` if it must not be retried or its body can no longer be replayed.
    fn recreate(&self) -> Option<Box<Request<Body>>> {
        let replay = self.replay.as_ref()?;
        let mut request = Request::new(match &self.source {
            None => Body::Empty,
            Some(source) => source.next_attempt()?,
        });
        *request.method_mut() = replay.method.clone();
        *request.uri_mut() = replay.uri.clone();
        *request.headers_mut() = replay.forwarded_headers.build(&replay.headers);
        Some(Box::new(request))
    }
}

/// An error with its sources, for the log.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_forgets_only_refusals_of_previous_certificate() {
        let error = |phase, reason| DialError { phase, reason, cause: String::new() };
        let mut attempts =
            FailedAttempts { failed: vec![0, 1, 2, 3, 6], doubtful: vec![4, 5], ..FailedAttempts::default() };
        attempts.record_refusal(0, &error(DialPhase::Connect, "ConnectTimeout"));
        attempts.record_refusal(1, &error(DialPhase::Handshake, "ConnectTimeout"));
        attempts.record_refusal(2, &error(DialPhase::Handshake, "ClientCertificateRefused"));
        attempts.record_refusal(3, &error(DialPhase::Handshake, "HandshakeFailed"));
        attempts.record_refusal(4, &error(DialPhase::Http, "StreamRefused"));
        attempts.record_refusal(5, &error(DialPhase::Handshake, "ClientCertificateRefused"));
        attempts.record_refusal(6, &error(DialPhase::Http, "ClientCertificateRefused"));
        attempts.forget_refusals();
        assert_eq!((attempts.failed, attempts.doubtful), (vec![0, 1], vec![4]));
    }
}
