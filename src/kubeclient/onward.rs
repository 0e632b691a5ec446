//! Passes requests of clients on to the API server of a kubeconfig, with its credentials.

use std::rc::Rc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body::Body as _;

use super::Kubeconfig;
use super::plugin::Granted;
use crate::egress::http1::Line;
use crate::egress::{DialError, Endpoint, Lease, SendError, Sent};
use crate::message::{Body, Received};

/// Maximum number of pooled connections that may turn out closed before a request is sent.
const STALE: usize = 5;
/// Maximum attempts of a safe request.
const ATTEMPTS: usize = 3;

/// An API server and credentials, a snapshot of the kubeconfig.
pub struct Onward {
    pub(super) kubeconfig: Rc<Kubeconfig>,
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) granted: Option<Rc<Granted>>,
}

/// Error of a request without a response.
#[derive(Debug)]
pub enum Undelivered {
    /// No connection could be opened.
    Unreachable(DialError),
    /// The connection broke before the response head, or the response is invalid.
    Broken(String),
}

impl Onward {
    /// Path prefix of the server; empty, or `/prefix`.
    pub fn prefix(&self) -> &str {
        &self.kubeconfig.prefix
    }

    /// The value of the header `Authorization`, if the kubeconfig has one.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.kubeconfig.authorization.as_ref()
    }

    /// The impersonation headers of the kubeconfig.
    pub fn impersonation(&self) -> &[(HeaderName, HeaderValue)] {
        &self.kubeconfig.impersonation
    }

    /// Whether a plugin issued the credentials: after a 401, new ones may be requested.
    pub fn has_lent_credentials(&self) -> bool {
        self.granted.is_some()
    }

    /// Sends a request with a URI in origin form over a pooled connection. Keep the lease until the response body has
    /// ended, then mark it finished.
    ///
    /// # Errors
    /// [`Undelivered`]. A safe request without a body was retried.
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

    /// Sends a request over a new HTTP/1.1 connection, which the response may upgrade.
    ///
    /// # Errors
    /// [`Undelivered`].
    pub async fn send_alone(&self, mut request: Box<Request<Body>>) -> Result<(Response<Received>, Line), Undelivered> {
        let (mut line, _) = self.endpoint.open_private().await.map_err(Undelivered::Unreachable)?;
        self.endpoint.in_origin_form(&mut request);
        let response = line.ask(*request).await.map_err(|error| Undelivered::Broken(error.to_string()))?;
        Ok((response, line))
    }
}

/// Copy of a request that may be retried.
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
