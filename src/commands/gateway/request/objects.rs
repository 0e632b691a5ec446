//! Requests for objects of the embedded API server, and for those that the gateway generates.

use std::pin::pin;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kubeapi::Status;

use super::not_found::as_kube_apiserver;
use super::target::{ParsedRequest, client_error};
use super::timeouts::local_deadline;
use crate::authorize::{CreateAuthorization, Permit};
use crate::message::{Blame, Body, IncomingBody, Refusal};
use crate::observe::access::BodyCounter;
use crate::observe::audit::AuditAnnotations;
use crate::process::with_deadline;
use crate::resources::MAX_BODY_BYTES;
use crate::rest::ApiRequest;

/// The response to a request for objects.
///
/// # Errors
/// 413 for a body that is too large, 504 if the body or the store takes longer than the request may, and the errors of
/// the verb.
pub(super) async fn respond(
    parsed: &ParsedRequest<'_>,
    permit: &Permit<'_>,
    request: Request<IncomingBody>,
    counter: &BodyCounter,
    audit: &AuditAnnotations,
) -> Result<Response<Body>, Refusal> {
    let (api, notifier) = (&parsed.shared.api, &parsed.connection.worker.notifier);
    let (head, body) = request.into_parts();
    if head.method == Method::HEAD {
        // A kube-apiserver has no route for it.
        return Err(client_error(Status::method_not_allowed("the server does not allow HEAD of objects, only GET")));
    }
    // The verb of `/api/v1/watch/…` does not depend on the method, which a kube-apiserver has no route for.
    if permit.request().is_read_only() && head.method != Method::GET {
        let text = "the server does not allow this method on the requested resource";
        return Err(client_error(Status::method_not_allowed(text)));
    }
    let query = &parsed.target.query;
    let deadline = match parsed.is_long_running {
        true => None,
        false => local_deadline(query, api.settings().request_timeout).map_err(client_error)?,
    };
    let creation = CreateAuthorization::new(&parsed.shared.access.authorizer, permit);
    let responding = pin!(async {
        let reads_body = !permit.request().is_read_only();
        let body = if reads_body { read_body(body, counter).await? } else { Bytes::new() };
        let hand = parsed.shared.inflight.dealer.hand(&permit.user().name);
        let headers = &head.headers;
        let (info, creation) = (permit.request(), &creation);
        let call = ApiRequest { info, query, headers, body, creation, hand, deadline, audit };
        api.respond(&call, notifier).await.map_err(|failed| {
            if let Some(denial) = creation.take_denial() {
                return Refusal::from(denial).with_warnings(failed.warnings);
            }
            let blame = if failed.status.code >= 500 { Blame::Gateway } else { Blame::Client };
            let refusal = Refusal::new(blame, failed.status).with_warnings(failed.warnings);
            as_kube_apiserver(parsed.shared, permit.request(), refusal)
        })
    });
    // A write goes on in the store.
    with_deadline(deadline, responding).await.unwrap_or_else(|| {
        let status = Status::timeout("request did not complete within the allotted timeout");
        Err(Refusal::new(Blame::Gateway, status))
    })
}

/// The whole body.
async fn read_body(body: IncomingBody, counter: &BodyCounter) -> Result<Bytes, Refusal> {
    let read = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let body = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            client_error(Status::request_entity_too_large(format_args!("limit is {MAX_BODY_BYTES}")))
        } else {
            client_error(Status::bad_request("the request body is incomplete")).with_cause(error)
        }
    })?;
    let body = body.to_bytes();
    counter.record(&body);
    Ok(body)
}
