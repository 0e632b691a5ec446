//! Sends a request with retries: to one endpoint after another until a response head arrives or retries are used up.

use std::rc::Rc;
use std::time::Instant;

use http::{HeaderMap, Method, Request, Uri};

use super::backend::Backend;
use super::choice::Errand;
use super::signature::Origin;
use super::upload::Source;
use crate::egress::{DialError, DialPhase, NoResponse, SendError, Sent};
use crate::message::Body;
use crate::observe::metrics::Retry;

/// Limit of attempts. Failed dials do not count: each ejects its endpoint.
const ATTEMPTS: usize = 3;
/// Limit of stale connections met by one request: a backend that shuts down closes all its connections at once.
const STALE: usize = 10;

/// Why a request got no response.
#[derive(Debug)]
pub(super) enum Failure {
    /// No usable endpoint.
    NoEndpoint,
    /// No endpoint processed the request: any request can be retried.
    Unreachable(DialError),
    /// The response is not valid HTTP; the request may have been processed.
    Nonsense(String),
    /// The request was sent and got no response; it may have been processed.
    Broken(String),
    /// As [`Failure::Broken`], and the endpoint is unresponsive.
    NoResponse(NoResponse),
}

/// Which requests may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// None.
    Never,
    /// Requests that provably were not processed.
    Unbegun,
    /// Also a GET, HEAD or OPTIONS without a body that met a stale connection.
    Unheard,
    /// Also a GET, HEAD or OPTIONS without a body that may have been processed.
    Always,
}

/// Sends `request` to an endpoint of `backend`, and retries on others as far as `again` and, for requests that may have
/// been processed, the retry budget allow. `copy` recreates the request with the body of `source`; `lasts` says that it
/// is long-running. Returns the index of the member that responded.
///
/// # Errors
/// The last [`Failure`].
pub(super) async fn exchange(
    request: Box<Request<Body>>,
    copy: Option<&Copy<'_>>,
    source: Option<&Rc<Source>>,
    again: Again,
    lasts: bool,
    backend: &Backend,
    mut retried: impl FnMut(Retry),
) -> Result<(usize, Sent), Failure> {
    backend.budget().put_in();
    let errand = Errand { safe: again == Again::Always, lasts };
    // A long-running request is not retried for a short silence.
    let repeatable = !lasts && matches!(again, Again::Always | Again::Unheard);
    let (mut failed, mut doubtful) = (Vec::new(), Vec::new());
    let mut last = Failure::NoEndpoint;
    // Retries of requests that may have been processed are budgeted; the others cost the backend nothing.
    let repeat = || copy.and_then(|copy| copy.again(source));
    let begin_again = || {
        let may = again == Again::Always && backend.budget().take(Instant::now());
        if may { repeat() } else { None }
    };
    // If the client broke its body off, the endpoint is not at fault.
    let broke = |index| {
        if source.is_none_or(|source| source.fault().is_none()) {
            backend.broke(index);
        }
    };
    let mut next = Some(request);
    let mut why = None;
    let (mut attempts, mut stale) = (0, 0);
    while attempts < ATTEMPTS && stale < STALE {
        let Some(request) = next.take() else { break };
        let Some((index, endpoint)) = backend.pick(&failed, &doubtful, errand) else { break };
        if let Some(why) = why.take() {
            retried(why);
        }
        let answered = match endpoint.room() {
            Some(room) => endpoint.send_at(room, request, repeatable).await,
            // Boxed: the common case would pay for its size.
            None => Box::pin(endpoint.send_with(request, repeatable)).await,
        };
        match answered {
            Ok(sent) => {
                if let Some(source) = source {
                    source.forget();
                }
                return Ok((index, sent));
            }
            Err(SendError::NotSent { request, error }) => {
                next = (again != Again::Never).then_some(request);
                // A closed connection says nothing about its endpoint; a failed dial does.
                if error.reason == "ConnectionClosed" && error.phase == DialPhase::Http {
                    why = Some(Retry::StaleConnection);
                    stale += 1;
                } else {
                    why = Some(Retry::Connect);
                    failed.push(index);
                }
                last = Failure::Unreachable(error);
            }
            Err(SendError::Refused(error)) => {
                attempts += 1;
                next = repeat();
                why = Some(Retry::RefusedStream);
                doubtful.push(index);
                last = Failure::Unreachable(error);
            }
            Err(SendError::Nonsense(error)) => {
                attempts += 1;
                broke(index);
                next = begin_again();
                why = Some(Retry::BrokenConnection);
                doubtful.push(index);
                last = Failure::Nonsense(describe(&*error));
            }
            // The server was most likely closing the connection already; Go's `http.Transport` retries, too.
            Err(SendError::Unheard(error)) if again == Again::Unheard => {
                stale += 1;
                next = repeat();
                why = Some(Retry::StaleConnection);
                last = Failure::Broken(describe(&*error));
            }
            Err(SendError::Broken(error) | SendError::Unheard(error)) => {
                attempts += 1;
                broke(index);
                next = begin_again();
                why = Some(Retry::BrokenConnection);
                last = match error.downcast::<NoResponse>() {
                    Ok(error) => {
                        failed.push(index);
                        Failure::NoResponse(*error)
                    }
                    Err(error) => {
                        doubtful.push(index);
                        Failure::Broken(describe(&*error))
                    }
                };
            }
        }
    }
    Err(last)
}

/// What is needed to recreate a request for a retry. Most headers of a request are the gateway's: only the client's are
/// kept, and the gateway's are added again.
pub(super) struct Copy<'o> {
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// The client's headers, already stripped.
    pub(super) headers: HeaderMap,
    pub(super) origin: &'o Origin<'o>,
}

impl Copy<'_> {
    /// The request; `None` if its body can no longer be replayed.
    fn again(&self, source: Option<&Rc<Source>>) -> Option<Box<Request<Body>>> {
        let mut request = Request::new(match source {
            None => Body::Empty,
            Some(source) => source.body()?,
        });
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.origin.sign(&self.headers);
        Some(Box::new(request))
    }
}

/// An error with its sources, for the log.
pub(super) fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
