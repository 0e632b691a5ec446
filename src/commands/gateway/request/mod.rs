//! The path of a request: parse, authenticate, authorize, limit, route, forward.

mod access;
mod destination;
mod forward;
mod health;
mod labels;
mod limits;
mod local;
mod not_found;
mod objects;
mod response;
mod reviews;
mod target;
mod timeouts;
mod watch_socket;

use std::convert::Infallible;
use std::rc::Rc;

use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, Response, StatusCode};

pub(super) use self::response::strip_body;

use kubeapi::RequestInfo;

use self::destination::{LocalDestination, RequestDestination};
use self::labels::{AUDIT_ID, audit_id};
use self::not_found::routing_refusal;
use self::response::{ResponseBody, add_warning, finish_response, record_response};
use self::target::{ParsedRequest, RequestTarget, client_error};
use super::worker::ClientConnection;
use crate::forward::send;
use crate::message::{Accept, Body, IncomingBody, MalformedRequest, Refusal, respond};
use crate::observe::access::AccessRecord;

/// Answers one request, with an error response if it is refused. `refusal` says that no control plane gets it.
///
/// The request is boxed: it passes through many futures, each of which would hold a copy, and moving such futures was a
/// seventh of all CPU.
pub(super) async fn handle(
    connection: Rc<ClientConnection>,
    request: Box<Request<IncomingBody>>,
    refusal: Option<Refusal>,
) -> Result<Response<Body>, Infallible> {
    let mut record = connection.worker.reports.begin(connection.remote, &request);
    let accept = Accept::from_headers(request.headers());
    let audit_id = audit_id(request.headers());
    record.set_audit_id(audit_id.clone());
    let is_head = request.method() == Method::HEAD;
    let cors = connection.worker.shared.responses.cors.as_ref();
    let origin = cors.and_then(|cors| cors.allowed_origin(request.headers()));
    // Malformed requests have no part that may be trusted.
    let malformed = request.extensions().get::<MalformedRequest>().map(MalformedRequest::refusal);
    let result = match malformed.or(refusal) {
        Some(refusal) => Err(refusal),
        None => process(&connection, request, &audit_id, &mut record).await,
    };
    let mut response = match result {
        Ok(response) => finish_response(response, record),
        Err(refusal) => refuse(&connection, &refusal, &accept, record),
    };
    response.headers_mut().insert(AUDIT_ID, audit_id);
    if let Some(cors) = cors {
        cors.add_headers(response.headers_mut(), origin);
    }
    // The header of an upgrade is that of its protocol.
    if connection.is_closing() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(if is_head { strip_body(response) } else { response })
}

/// Handles one request. Its response has no access record yet.
async fn process(
    connection: &Rc<ClientConnection>,
    mut request: Box<Request<IncomingBody>>,
    audit_id: &HeaderValue,
    record: &mut AccessRecord,
) -> Result<Response<ResponseBody>, Refusal> {
    // Parse. Authorization, routing and forwarding all use this one interpretation.
    let host = connection.requested_host(&request).map_err(client_error)?;
    let uri = std::mem::take(request.uri_mut());
    let target = RequestTarget::parse(connection, request.method(), host, &uri)?;
    let (parsed, info, destination) = find_destination(connection, &target, &request, audit_id, record)?;

    // Health checks and preflight requests need no authentication. All others are authenticated, authorized and limited
    // first. `access` is one variable, because the future would hold one for each destination.
    let access;
    match destination {
        RequestDestination::Health(checks) => {
            let response = health::respond(&parsed, info, checks, request.headers_mut(), record).await;
            Ok(response.map(ResponseBody::Local))
        }
        RequestDestination::Preflight => Ok(local::preflight_response().map(ResponseBody::Local)),
        RequestDestination::Backend(route) => {
            access = access::authorize(&parsed, info, request.headers_mut(), record).await?;
            let admission = limits::admit(&parsed, &access, false)?;
            let (backend, outbound) = forward::admit_to_backend(&parsed, &access, route, admission, request, record)?;
            let response = send(&access.permit, &backend, outbound, record).await?;
            let response = forward::add_gateway_headers(&parsed, route, response);
            Ok(add_warning(response, access.warning).map(ResponseBody::Forwarded))
        }
        RequestDestination::Local(destination) => {
            access = access::authorize(&parsed, info, request.headers_mut(), record).await?;
            let is_exempt = matches!(destination, LocalDestination::Delegation(_));
            let _admission = limits::admit(&parsed, &access, is_exempt)?;
            local::respond(&parsed, &access, destination, request, record).await
        }
        RequestDestination::Refused(error) => {
            access = access::authorize(&parsed, info, request.headers_mut(), record).await?;
            let _admission = limits::admit(&parsed, &access, false)?;
            Err(routing_refusal(parsed.shared, &access.permit, &error, request.headers()))
        }
    }
}

/// Parses the request, and decides where it goes by the attributes that are authorized.
///
/// Not inline in `process`: the attributes borrowed there would stay in its future, beside those that authorization owns.
fn find_destination<'r>(
    connection: &'r Rc<ClientConnection>,
    target: &'r RequestTarget<'r>,
    request: &Request<IncomingBody>,
    audit_id: &'r HeaderValue,
    record: &mut AccessRecord,
) -> Result<(ParsedRequest<'r>, RequestInfo<'r>, RequestDestination<'r>), Refusal> {
    let info = target.request_info()?;
    let parsed = ParsedRequest::new(connection, target, &info, request.headers(), audit_id);
    parsed.set_labels(&info, request.headers(), record);
    if let Err(refusal) = parsed.check_timeout_parameter() {
        parsed.start_audit(&info, None, request.headers(), record);
        return Err(refusal);
    }
    let destination = parsed.destination(&info, request.headers());
    Ok((parsed, info, destination))
}

/// The error response for a refused request.
fn refuse(
    connection: &ClientConnection,
    refusal: &Refusal,
    accept: &Accept,
    mut record: AccessRecord,
) -> Response<Body> {
    record.record_refusal(refusal);
    let status = refusal.status();
    if status.code == 500 && !connection.worker.reports.logs_refusals() {
        tracing::error!(cause = refusal.cause(), "request failed with an internal error: {}", status.message);
    }
    // An unauthenticated client does not keep its HTTP/2 connection, which it could flood (kube-apiserver's mitigation
    // of CVE-2023-44487, KEP-4000).
    if status.code == 401 {
        connection.send_goaway();
    }
    let response = respond(refusal, accept, connection.worker.shared.responses.error_format);
    record_response(record, &response);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, B, C, D, F: Future>(_: impl FnOnce(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// They are moved once for each request, and made by each.
    #[test]
    fn futures_of_a_request_stay_small() {
        let handle = future_size(|connection, request, refusal, ()| handle(connection, request, refusal));
        let sizes = [("handle", handle, 2_700), ("process", future_size(process), 2_500)];
        let larger: Vec<_> = sizes.iter().filter(|(_, size, bound)| size > bound).collect();
        assert!(larger.is_empty(), "future, bytes, bound: {larger:?}");
    }
}
