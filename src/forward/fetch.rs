//! Fetches a short document from a backend on behalf of a user.

use std::rc::Rc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};

use super::backend::WorkerBackend;
use super::forwarded_headers::ForwardedHeaders;
use super::retry::{RequestReplay, RetryScope, error_chain, send_with_retries};
use super::send::backend_uri;
use crate::egress::EndpointResponse;
use crate::message::Body;

/// Sends a GET of `path_and_query` to `backend` with the identity headers of `origin` and no client headers, and reads
/// the response, with a body of at most `most` bytes.
///
/// # Errors
/// Why there is no response, for the log.
pub async fn fetch(
    backend: &Rc<WorkerBackend>,
    path_and_query: PathAndQuery,
    origin: &ForwardedHeaders<'_>,
    most: usize,
) -> Result<(StatusCode, Bytes), String> {
    let uri = backend_uri(backend.prefix(), path_and_query).map_err(|refusal| refusal.cause().to_owned())?;
    let copy =
        RequestReplay { method: Method::GET, uri: uri.clone(), headers: HeaderMap::new(), forwarded_headers: origin };
    let mut request = Box::new(Request::new(Body::Empty));
    *request.headers_mut() = origin.build(&copy.headers);
    *request.uri_mut() = uri;
    let exchanged =
        send_with_retries(request, Some(&copy), None, RetryScope::StaleConnection, false, backend, |_| ()).await;
    let (index, sent) = exchanged.map_err(|failure| {
        backend.record_failure(&failure);
        format!("{failure:?}")
    })?;
    // A failing health check is a response, and no evidence against the endpoint.
    backend.record_response(index, StatusCode::OK);
    let EndpointResponse { response, guard: mut lease, .. } = sent;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, most).collect().await.map_err(|error| error_chain(&*error))?;
    lease.finish();
    backend.record_success(index);
    Ok((parts.status, body.to_bytes()))
}
