//! Requests for objects of the embedded API server.

use http::{Request, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::target::{ParsedRequest, client_error};
use crate::authorize::Permit;
use crate::kubeapi::Status;
use crate::message::{Blame, Body, IncomingBody, Refusal};
use crate::observe::access::BodyCounter;
use crate::rest::{ApiRequest, ApiServer, MAX_BODY_BYTES};
use crate::watch_cache::Notifier;

/// Timeout for the body of a request to arrive.
const BODY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(34);

/// The response to a request for stored objects.
///
/// # Errors
/// 413 for a body that is too large, 408 for one that does not arrive, and the errors of the verb.
pub(super) async fn respond(
    parsed: &ParsedRequest<'_>,
    permit: &Permit<'_>,
    (api, notifier): (&ApiServer, &Notifier),
    request: Request<IncomingBody>,
    counter: &BodyCounter,
) -> Result<Response<Body>, Refusal> {
    let (head, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY_BYTES).collect()).await;
    let read = read.map_err(|_| client_error(Status::request_timeout("the body did not arrive in time")))?;
    let body = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            client_error(Status::request_entity_too_large(format_args!("limit is {MAX_BODY_BYTES}")))
        } else {
            client_error(Status::bad_request("the request body is incomplete")).with_cause(error)
        }
    })?;
    let body = body.to_bytes();
    counter.record(&body);
    let call = ApiRequest { info: permit.request(), query: &parsed.target.query, headers: &head.headers, body };
    api.respond(&call, notifier).await.map_err(|status| {
        let blame = if status.code >= 500 { Blame::Gateway } else { Blame::Client };
        Refusal::new(blame, status)
    })
}
