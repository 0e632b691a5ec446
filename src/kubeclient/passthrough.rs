//! Passes requests of clients on to the API server of a kubeconfig, with its credentials.

use std::rc::Rc;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body::Body as _;

use super::Kubeconfig;
use super::plugin::PluginCredentials;
use crate::egress::http::http1::Http1Connection;
use crate::egress::{ConnectionGuard, DialError, Endpoint, EndpointResponse, SendError};
use crate::message::{Body, IncomingBody};

/// Maximum attempts of a safe request.
const MAX_ATTEMPTS: usize = 3;

/// An API server and credentials, a snapshot of the kubeconfig.
pub struct Passthrough {
    pub(super) kubeconfig: Rc<Kubeconfig>,
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) credentials: Option<Rc<PluginCredentials>>,
}

/// Error of a request without a response.
#[derive(Debug)]
pub enum PassthroughError {
    /// No connection could be opened.
    Unreachable(DialError),
    /// The connection broke before the response head, or the response is invalid.
    Broken(String),
}

impl Passthrough {
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
    pub fn has_temporary_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// Sends a request with a URI in origin form over a pooled connection. Keep the lease until the response body has
    /// ended, then mark it finished.
    ///
    /// # Errors
    /// [`PassthroughError`]. A safe request without a body was retried.
    pub async fn send(
        &self,
        mut request: Box<Request<Body>>,
    ) -> Result<(Response<IncomingBody>, ConnectionGuard), PassthroughError> {
        let copy = ReplayableRequest::new(&request);
        let mut attempts = 0;
        loop {
            let undelivered = match self.endpoint.send(request).await {
                Ok(EndpointResponse { response, guard: lease, .. }) => return Ok((response, lease)),
                Err(SendError::NotSent { error, .. }) => return Err(PassthroughError::Unreachable(error)),
                Err(SendError::Refused(error)) => PassthroughError::Broken(error.cause),
                Err(
                    SendError::InvalidResponse(error) | SendError::Broken(error) | SendError::StaleConnection(error),
                ) => PassthroughError::Broken(error.to_string()),
            };
            attempts += 1;
            match &copy {
                Some(copy) if attempts < MAX_ATTEMPTS => request = copy.to_request(),
                _ => return Err(undelivered),
            }
        }
    }

    /// Sends a request over a new HTTP/1.1 connection, which the response may upgrade.
    ///
    /// # Errors
    /// [`PassthroughError`].
    pub async fn send_on_new_connection(
        &self,
        mut request: Box<Request<Body>>,
    ) -> Result<(Response<IncomingBody>, Http1Connection), PassthroughError> {
        let (mut line, _) = self.endpoint.open_dedicated().await.map_err(PassthroughError::Unreachable)?;
        self.endpoint.set_origin_form(&mut request);
        let response = line.send(*request).await.map_err(|error| PassthroughError::Broken(error.to_string()))?;
        Ok((response, line))
    }
}

/// Copy of a request that may be retried.
struct ReplayableRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl ReplayableRequest {
    fn new(request: &Request<Body>) -> Option<ReplayableRequest> {
        let safe = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        (safe && request.body().is_end_stream()).then(|| ReplayableRequest {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
        })
    }

    fn to_request(&self) -> Box<Request<Body>> {
        let mut request = Box::new(Request::new(Body::Empty));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}
