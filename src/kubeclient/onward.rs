//! Requests that others make, sent on to the API server of a kubeconfig with its credentials.

use std::rc::Rc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body::Body as _;

use super::Kubeconfig;
use super::plugin::Granted;
use crate::egress::http1::Line;
use crate::egress::{DialError, Endpoint, Lease, SendError, Sent};
use crate::message::{Body, Received};

/// How many connections may turn out closed before a request is on its way.
const STALE: usize = 5;
/// How often what changes nothing is sent.
const ATTEMPTS: usize = 3;

/// Where such requests go, and as whom: what the kubeconfig said when this was made.
pub struct Onward {
    pub(super) kubeconfig: Rc<Kubeconfig>,
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) granted: Option<Rc<Granted>>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Undelivered {
    /// No connection could be opened.
    Unreachable(DialError),
    /// The connection broke before the head of the answer was there, or what came is no answer.
    Broken(String),
}

impl Onward {
    /// What stands before every path at the server; empty, or `/prefix`.
    pub fn prefix(&self) -> &str {
        &self.kubeconfig.prefix
    }

    /// The credentials of the kubeconfig that a header carries.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.kubeconfig.authorization.as_ref()
    }

    /// Whom the kubeconfig acts for, as headers.
    pub fn impersonation(&self) -> &[(HeaderName, HeaderValue)] {
        &self.kubeconfig.impersonation
    }

    /// Whether the credentials are for a while: if the server does not believe them, others may be had.
    pub fn has_lent_credentials(&self) -> bool {
        self.granted.is_some()
    }

    /// Sends a request, whose URI is in origin form, over the connections that all share. Keep the lease until the
    /// answer's body has ended, and tell it so.
    ///
    /// # Errors
    /// Why there is no answer. What changes nothing and has no body was tried again.
    pub async fn send(&self, mut request: Box<Request<Body>>) -> Result<(Response<Received>, Lease), Undelivered> {
        let copy = Copy::of(&request);
        let (mut stale, mut attempts) = (0, 0);
        loop {
            let undelivered = match self.endpoint.send(request).await {
                Ok(Sent { response, lease, .. }) => return Ok((response, lease)),
                Err(SendError::NotSent { request: same, error })
                    if error.reason == "ConnectionClosed" && stale < STALE =>
                {
                    stale += 1;
                    request = same;
                    continue;
                }
                Err(SendError::NotSent { error, .. }) => return Err(Undelivered::Unreachable(error)),
                Err(SendError::Refused(error)) => Undelivered::Broken(error.cause),
                Err(SendError::Nonsense(error) | SendError::Broken(error) | SendError::Unheard(error)) => {
                    Undelivered::Broken(error.to_string())
                }
            };
            attempts += 1;
            match &copy {
                Some(copy) if attempts < ATTEMPTS => request = copy.again(),
                _ => return Err(undelivered),
            }
        }
    }

    /// Sends a request over an HTTP/1.1 connection of its own, which its answer may turn into a tunnel.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn send_alone(&self, mut request: Box<Request<Body>>) -> Result<(Response<Received>, Line), Undelivered> {
        let (mut line, _) = self.endpoint.open_private().await.map_err(Undelivered::Unreachable)?;
        self.endpoint.in_origin_form(&mut request);
        let response = line.ask(*request).await.map_err(|error| Undelivered::Broken(error.to_string()))?;
        Ok((response, line))
    }
}

/// A request that may be sent a second time.
struct Copy {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Copy {
    fn of(request: &Request<Body>) -> Option<Copy> {
        let safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        (safe && request.body().is_end_stream()).then(|| Copy {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        })
    }

    fn again(&self) -> Box<Request<Body>> {
        let mut request = Box::new(Request::new(Body::Empty));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}
