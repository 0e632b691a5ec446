//! One request, tried on one endpoint after another until an answer's head comes or nothing is left.

use std::future::Future;
use std::time::Duration;

use http::{HeaderMap, Method, Request, Uri};

use crate::egress::{DialError, Endpoint, SendError, Sent, Timing};
use crate::message::Body;

/// Attempts for one request, over all endpoints.
const ATTEMPTS: usize = 3;

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// Nothing was begun anywhere: trying again is safe for any request.
    Unreachable(DialError),
    /// The backend refused to begin (REFUSED_STREAM), and the request could not be repeated.
    Refused,
    /// The request was sent and no answer came; it may have been carried out.
    Broken(String),
}

/// What trying one request took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tries {
    /// Attempts after the first, each with its reason told to the observer.
    pub retries: u32,
    /// Opening a connection, when this request waited for one.
    pub dial: Timing,
}

/// Why an attempt was followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryReason {
    /// No connection could be opened.
    Unreachable,
    /// The connection closed before the request went out.
    NotSent,
    /// The backend said it did not begin.
    Refused,
    /// The connection broke after the request went out (only for what is safe to repeat).
    Broken,
}

/// Sends `request` to the endpoint that `pick` chooses and, as long as that is safe, to another.
///
/// `pick` gets the endpoints tried so far that failed, and gives the index of the next one.
/// A request may be repeated if it provably was not begun; if `safe` (GET, HEAD, OPTIONS without a body)
/// also when its connection broke.
///
/// # Errors
/// The last [`Failure`].
pub(super) async fn exchange<'e>(
    request: Request<Body>,
    safe: bool,
    retry: bool,
    tries: &mut Tries,
    mut pick: impl FnMut(&[usize]) -> Option<(usize, &'e std::rc::Rc<Endpoint>)>,
    mut retried: impl FnMut(RetryReason),
) -> Result<(usize, Sent), Failure> {
    let mut failed = Vec::new();
    let copy = (safe && retry).then(|| Copy::of(&request));
    let mut request = Some(request);
    let mut last = None;
    for attempt in 0..ATTEMPTS {
        let Some((index, endpoint)) = pick(&failed) else { break };
        let Some(sending) = request.take() else { break };
        let (error, reason) = match endpoint.send(sending).await {
            Ok(sent) => {
                tries.dial = sent.timing;
                return Ok((index, sent));
            }
            Err(SendError::NotSent { request: back, error }) => {
                request = Some(*back);
                let reason = if error.reason == "ConnectionClosed" { RetryReason::NotSent } else { RetryReason::Unreachable };
                (Failure::Unreachable(error), reason)
            }
            Err(SendError::Refused(_)) => {
                request = copy.as_ref().map(Copy::again);
                (Failure::Refused, RetryReason::Refused)
            }
            Err(SendError::Broken(error)) => {
                request = copy.as_ref().map(Copy::again);
                (Failure::Broken(describe(&error)), RetryReason::Broken)
            }
        };
        last = Some(error);
        // A closed connection says nothing against the endpoint; a failed dial does.
        if reason == RetryReason::Unreachable {
            failed.push(index);
        }
        if !retry || request.is_none() {
            break;
        }
        if attempt + 1 < ATTEMPTS {
            tries.retries += 1;
            retried(reason);
        }
    }
    Err(last.unwrap_or_else(|| {
        let cause = "no endpoint is usable".to_owned();
        Failure::Unreachable(DialError { phase: crate::egress::DialPhase::Connect, reason: "NoEndpoints", cause })
    }))
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

/// Waits for `exchange`, `within` at the most.
///
/// # Errors
/// `None` when the time ran out.
pub(super) async fn within<T>(limit: Option<Duration>, exchange: impl Future<Output = T>) -> Option<T> {
    match limit {
        None => Some(exchange.await),
        Some(limit) => tokio::time::timeout(limit, exchange).await.ok(),
    }
}
