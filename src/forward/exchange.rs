//! One request, tried on one endpoint after another until an answer's head comes or nothing is left.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, Uri};

use crate::egress::{DialError, Endpoint, SendError, Sent};
use crate::message::Body;
use crate::observe::metrics::Retry;

/// Attempts for one request, over all endpoints.
const ATTEMPTS: usize = 3;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No endpoint could be asked.
    NoEndpoint,
    /// Nothing was begun anywhere: trying again is safe for any request.
    Unreachable(DialError),
    /// The backend refused to begin (REFUSED_STREAM), and the request could not be repeated.
    Refused,
    /// The request was sent and no answer came; it may have been carried out.
    Broken(String),
}

/// Sends `request` to the endpoint that `pick` chooses and, as long as that is safe, to another; says
/// which it was.
///
/// `pick` gets the endpoints that failed so far. A request may be repeated if it provably was not begun; if
/// `safe` (GET, HEAD, OPTIONS without a body) also when its connection broke.
///
/// # Errors
/// The last [`Failure`].
pub(super) async fn exchange<'e>(
    request: Request<Body>,
    safe: bool,
    retry: bool,
    pick: impl Fn(&[usize]) -> Option<(usize, &'e Rc<Endpoint>)>,
    mut retried: impl FnMut(Retry),
) -> Result<(usize, Sent), Failure> {
    let mut failed = Vec::new();
    let mut last = Failure::NoEndpoint;
    let copy = (safe && retry).then(|| Copy::of(&request));
    let mut next = Some(request);
    let mut why = None;
    for _ in 0..ATTEMPTS {
        let Some((index, endpoint)) = pick(&failed) else { break };
        let Some(request) = next.take() else { break };
        if let Some(why) = why.take() {
            retried(why);
        }
        match endpoint.send(request).await {
            Ok(sent) => return Ok((index, sent)),
            Err(SendError::NotSent { request, error }) => {
                next = retry.then_some(*request);
                // A connection that just closed says nothing against its endpoint; a failed dial does.
                if error.reason == "ConnectionClosed" {
                    why = Some(Retry::StaleConnection);
                } else {
                    why = Some(Retry::Connect);
                    failed.push(index);
                }
                last = Failure::Unreachable(error);
            }
            Err(SendError::Refused(_)) => {
                next = copy.as_ref().map(Copy::again);
                why = Some(Retry::RefusedStream);
                last = Failure::Refused;
            }
            Err(SendError::Broken(error)) => {
                next = copy.as_ref().map(Copy::again);
                why = Some(Retry::BrokenConnection);
                last = Failure::Broken(describe(&error));
            }
        }
    }
    Err(last)
}

/// Enough of a request without a body to send it once more.
struct Copy {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Copy {
    fn of(request: &Request<Body>) -> Copy {
        Copy { method: request.method().clone(), uri: request.uri().clone(), headers: request.headers().clone() }
    }

    fn again(&self) -> Request<Body> {
        let mut request = Request::new(Body::Empty);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
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

/// Waits for `exchange`, as long as `limit` allows; `None` when the time ran out.
pub(super) async fn within<T>(limit: Option<Duration>, exchange: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(exchange.await),
        Some(limit) => tokio::time::timeout(limit, exchange).await.ok(),
    }
}
