//! Fetches a short document from a backend on behalf of a user.

use std::rc::Rc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, StatusCode};

use super::backend::WorkerBackend;
use super::forwarded_headers::ForwardedHeaders;
use super::retry::{RequestReplay, RetryPlan, RetryScope, error_chain, send_with_retries};
use crate::egress::EndpointResponse;
use crate::message::{Body, DocumentError, read_document};

/// Sends a GET of `path_and_query` to `backend` with the identity headers of `forwarded_headers` and no client headers,
/// and reads the response, with a body of at most `max_body` bytes.
///
/// # Errors
/// Why there is no response, for the log.
pub async fn fetch(
    backend: &Rc<WorkerBackend>,
    path_and_query: PathAndQuery,
    forwarded_headers: &ForwardedHeaders<'_>,
    max_body: usize,
) -> Result<(StatusCode, Bytes), String> {
    let uri = backend.uri(path_and_query).map_err(|refusal| refusal.cause().to_owned())?;
    let mut request = Box::new(Request::new(Body::Empty));
    *request.headers_mut() = forwarded_headers.build(&HeaderMap::new());
    *request.uri_mut() = uri.clone();
    let replay = RequestReplay { method: Method::GET, uri, headers: HeaderMap::new(), forwarded_headers };
    let scope = RetryScope::StaleConnection;
    let plan = RetryPlan { scope, replay: Some(replay), source: None, is_long_running: false, renewal: None };
    let sent = send_with_retries(request, &plan, backend, |_| ()).await;
    let (index, sent) = sent.map_err(|failure| {
        backend.record_failure(&failure);
        format!("{failure:?}")
    })?;
    // A failing health check is a response, and no evidence against the endpoint.
    backend.record_response(index, StatusCode::OK);
    let EndpointResponse { response, mut guard, .. } = sent;
    let (parts, body) = response.into_parts();
    let body = read_document(&parts.headers, body, max_body).await.map_err(|error| match error {
        DocumentError::Broken(error) => error_chain(&*error),
        other => other.to_string(),
    })?;
    guard.finish();
    backend.record_success(index);
    Ok((parts.status, body))
}
