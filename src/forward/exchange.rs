//! One request, tried on one endpoint after another until an answer's head comes or nothing is left.

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

/// How often one request may be sent. Dials that fail do not count: each takes its endpoint out.
const ATTEMPTS: usize = 3;
/// How many connections may turn out closed before a request is on its way: a backend that ends closes all of
/// its connections at once.
const STALE: usize = 10;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No endpoint could be asked.
    NoEndpoint,
    /// Nothing was begun anywhere: trying again is safe for any request.
    Unreachable(DialError),
    /// What came back is no answer; the request may have been carried out.
    Nonsense(String),
    /// The request was sent and no answer came; it may have been carried out.
    Broken(String),
    /// The same, and the endpoint answers nothing else either.
    NoResponse(NoResponse),
}

/// What may be sent a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Nothing.
    Never,
    /// What provably was not begun.
    Unbegun,
    /// Also a GET, HEAD or OPTIONS without a body that met the end of a connection kept from an earlier request.
    Unheard,
    /// Also what may have been begun: a GET, HEAD or OPTIONS without a body.
    Always,
}

/// Sends `request`, whose body is that of `source` and which `copy` can make once more, to an endpoint of `backend`
/// and, as far as `again` and, for what was begun, the budget allow, to another; says which it was. Whether its answer goes on for long,
/// `lasts` says.
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
    // What may go on for long is not sent again for a moment's silence.
    let repeatable = !lasts && matches!(again, Again::Always | Again::Unheard);
    let (mut failed, mut doubtful) = (Vec::new(), Vec::new());
    let mut last = Failure::NoEndpoint;
    // What may have been begun is begun again within the budget; what was not costs its backend nothing.
    let repeat = || copy.and_then(|copy| copy.again(source));
    let begin_again = || {
        let may = again == Again::Always && backend.budget().take(Instant::now());
        if may { repeat() } else { None }
    };
    // One whose body the client broke off says nothing about who was to read it.
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
            // Boxed: the other way, and every request, would pay for its size.
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
                // A connection that just closed says nothing against its endpoint; a failed dial does.
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
            // Its server had most likely closed the connection when it came (Go's `http.Transport` has it so, too).
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

/// Enough of a request to send it once more. Ours are most of the headers a backend gets: kept are the client's,
/// and ours are put on anew.
pub(super) struct Copy<'o> {
    pub(super) method: Method,
    pub(super) uri: Uri,
    /// The client's, clean.
    pub(super) headers: HeaderMap,
    pub(super) origin: &'o Origin<'o>,
}

impl Copy<'_> {
    /// None when too much of the body was sent to be kept.
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

/// An error and what it comes from, for the log.
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
