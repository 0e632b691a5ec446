//! The path of a request: parse, authenticate, authorize, limit, route, forward.

mod access;
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

use self::labels::{AUDIT_ID, audit_id};
use self::response::{ResponseBody, add_warning, finish_response, record_response};
use self::target::{ParsedRequest, RequestTarget, client_error};
use self::watch_socket::WatchSocket;
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
    let info = target.request_info()?;
    let parsed = ParsedRequest::new(connection, &target, &info, request.headers(), audit_id);
    parsed.set_labels(&info, request.headers(), record);
    if let Err(refusal) = parsed.check_timeout_parameter() {
        parsed.start_audit(&info, None, request.headers(), false, record);
        return Err(refusal);
    }

    // Serve what needs no authentication: health checks, with those of the delegate if the caller may see them.
    let delegate_checks = match health::includes_delegate_checks(&parsed) {
        true => Box::pin(health::delegate_checks(&parsed, &info, request.headers_mut())).await,
        false => String::new(),
    };
    if let Some(response) = health::response(&parsed, &delegate_checks) {
        parsed.start_audit(&info, None, request.headers(), false, record);
        return Ok(response.map(ResponseBody::Local));
    }
    if let Some(response) = local::cors_preflight_response(&parsed, request.headers()) {
        return Ok(response.map(ResponseBody::Local));
    }
    local::check_shutdown(&parsed)?;

    // Authenticate, impersonate, authorize.
    let access = access::authorize(&parsed, info, request.headers_mut(), record).await?;

    // Limit requests in flight.
    let delegation = local::delegation_request(&parsed, access.permit.request());
    let admission = limits::admit(&parsed, &access.permit, delegation.is_some())?;
    connection.send_goaway_by_chance(access.is_anonymous);

    // Route, and forward or answer locally.
    let Some(route) = local::find_route(&parsed, access.permit.request())? else {
        let socket = WatchSocket::accept(&parsed, access.permit.request(), &mut request)?;
        let response = local::respond(&parsed, &access.permit, delegation, request, record).await?;
        let response = add_warning(response, access.warning);
        return Ok(match socket {
            Some(socket) => socket.respond(response, &connection.handle),
            None => response.map(ResponseBody::Local),
        });
    };
    let (backend, outbound) = forward::admit_to_backend(&parsed, &access, route, admission, request, record)?;
    let response = send(&access.permit, &backend, outbound, record).await?;
    let response = forward::add_gateway_headers(&parsed, route, response);
    Ok(add_warning(response, access.warning).map(ResponseBody::Forwarded))
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
