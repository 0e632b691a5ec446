//! Sends a request with retries: to one endpoint after another until a response head arrives or retries are used up.

use std::rc::Rc;
use std::time::Instant;

use http::{HeaderMap, Method, Request, Uri};

use super::backend::WorkerBackend;
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

/// Why a request got no response.
#[derive(Debug)]
pub(super) enum ForwardError {
    /// No usable endpoint.
    NoEndpoint,
    /// No endpoint processed the request: any request can be retried.
    Unreachable(DialError),
    /// The response is not valid HTTP; the request may have been processed.
    InvalidResponse(String),
    /// The request was sent and got no response; it may have been processed.
    Broken(String),
    /// As [`ForwardError::Broken`], and the endpoint is unresponsive.
    NoResponse(NoResponse),
}

/// Which requests may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryScope {
    /// None.
    Never,
    /// Requests that provably were not processed.
    NotProcessed,
    /// Also a GET, HEAD or OPTIONS without a body that met a stale connection.
    StaleConnection,
    /// Also a GET, HEAD or OPTIONS without a body that may have been processed.
    Always,
}

/// Sends `request` to an endpoint of `backend`, and retries on others as far as `again` and, for requests that may have
/// been processed, the retry budget allow. `copy` recreates the request with the body of `source`; `lasts` says that it
/// is long-running. Returns the index of the member that responded.
///
/// # Errors
/// The last [`ForwardError`].
pub(super) async fn send_with_retries(
    request: Box<Request<Body>>,
    copy: Option<&RequestReplay<'_>>,
    source: Option<&Rc<RequestBodySource>>,
    again: RetryScope,
    lasts: bool,
    backend: &WorkerBackend,
    mut retried: impl FnMut(Retry),
) -> Result<(usize, EndpointResponse), ForwardError> {
    backend.retry_budget().deposit();
    let errand = PickRequest { is_safe: again == RetryScope::Always, is_long_running: lasts };
    // A long-running request is not retried for a short silence.
    let repeatable = !lasts && matches!(again, RetryScope::Always | RetryScope::StaleConnection);
    let (mut failed, mut doubtful) = (Vec::new(), Vec::new());
    let mut last = ForwardError::NoEndpoint;
    // Retries of requests that may have been processed are budgeted; the others cost the backend nothing.
    let repeat = || copy.and_then(|copy| copy.to_request(source));
    let begin_again = || {
        let may = again == RetryScope::Always && backend.retry_budget().withdraw(Instant::now());
        if may { repeat() } else { None }
    };
    // If the client broke its body off, the endpoint is not at fault.
    let broke = |index| {
        if source.is_none_or(|source| source.fault().is_none()) {
            backend.record_no_response(index);
        }
    };
    let mut next = Some(request);
    let mut why = None;
    let (mut attempts, mut stale) = (0, 0);
    while attempts < MAX_ATTEMPTS && stale < MAX_STALE_CONNECTIONS {
        let Some(request) = next.take() else { break };
        let Some((index, endpoint)) = backend.pick(&failed, &doubtful, errand) else { break };
        if let Some(why) = why.take() {
            retried(why);
        }
        let answered = match endpoint.ready_slot() {
            Some(room) => endpoint.send_on(room, request, repeatable).await,
            // Boxed: the common case would pay for its size.
            None => Box::pin(endpoint.send_with(request, repeatable)).await,
        };
        match answered {
            Ok(sent) => {
                if let Some(source) = source {
                    source.disable_replay();
                }
                return Ok((index, sent));
            }
            Err(SendError::NotSent { request, error }) => {
                next = (again != RetryScope::Never).then_some(request);
                // A closed connection says nothing about its endpoint; a failed dial does.
                if error.reason == "ConnectionClosed" && error.phase == DialPhase::Http {
                    why = Some(Retry::StaleConnection);
                    stale += 1;
                } else {
                    why = Some(Retry::Connect);
                    failed.push(index);
                }
                last = ForwardError::Unreachable(error);
            }
            Err(SendError::Refused(error)) => {
                attempts += 1;
                next = repeat();
                why = Some(Retry::RefusedStream);
                doubtful.push(index);
                last = ForwardError::Unreachable(error);
            }
            Err(SendError::InvalidResponse(error)) => {
                attempts += 1;
                broke(index);
                next = begin_again();
                why = Some(Retry::BrokenConnection);
                doubtful.push(index);
                last = ForwardError::InvalidResponse(error_chain(&*error));
            }
            // The server was most likely closing the connection already; Go's `http.Transport` retries, too.
            Err(SendError::StaleConnection(error)) if again == RetryScope::StaleConnection => {
                stale += 1;
                next = repeat();
                why = Some(Retry::StaleConnection);
                last = ForwardError::Broken(error_chain(&*error));
            }
            Err(SendError::Broken(error) | SendError::StaleConnection(error)) => {
                attempts += 1;
                broke(index);
                next = begin_again();
                why = Some(Retry::BrokenConnection);
                last = match error.downcast::<NoResponse>() {
                    Ok(error) => {
                        failed.push(index);
                        ForwardError::NoResponse(*error)
                    }
                    Err(error) => {
                        doubtful.push(index);
                        ForwardError::Broken(error_chain(&*error))
                    }
                };
            }
        }
    }
    Err(last)
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

impl RequestReplay<'_> {
    /// The request; `None` if its body can no longer be replayed.
    fn to_request(&self, source: Option<&Rc<RequestBodySource>>) -> Option<Box<Request<Body>>> {
        let mut request = Request::new(match source {
            None => Body::Empty,
            Some(source) => source.next_attempt()?,
        });
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.forwarded_headers.build(&self.headers);
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
