//! Fetches a short document from a backend on behalf of a user.

use std::rc::Rc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};

use super::backend::Backend;
use super::exchange::{Again, Copy, describe, exchange};
use super::send::uri;
use super::signature::Origin;
use crate::egress::Sent;
use crate::message::Body;

/// Sends a GET of `path_and_query` to `backend` with the identity headers of `origin` and no client headers, and reads
/// the response, with a body of at most `most` bytes.
///
/// # Errors
/// Why there is no response, for the log.
pub async fn fetch(
    backend: &Rc<Backend>,
    path_and_query: PathAndQuery,
    origin: &Origin<'_>,
    most: usize,
) -> Result<(StatusCode, Bytes), String> {
    let uri = uri(backend.prefix(), path_and_query).map_err(|refusal| refusal.cause().to_owned())?;
    let copy = Copy { method: Method::GET, uri: uri.clone(), headers: HeaderMap::new(), origin };
    let mut request = Box::new(Request::new(Body::Empty));
    *request.headers_mut() = origin.sign(&copy.headers);
    *request.uri_mut() = uri;
    let exchanged = exchange(request, Some(&copy), None, Again::Unheard, false, backend, |_| ()).await;
    let (index, sent) = exchanged.map_err(|failure| {
        backend.failed(&failure);
        format!("{failure:?}")
    })?;
    // A failing health check is a response, and no evidence against the endpoint.
    backend.answered(index, StatusCode::OK);
    let Sent { response, mut lease, .. } = sent;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, most).collect().await.map_err(|error| describe(&*error))?;
    lease.finished();
    backend.served(index);
    Ok((parts.status, body.to_bytes()))
}
