//! Upgrades: requests that turn their connection into a tunnel (SPDY/3.1, WebSocket).

use std::cell::Cell;
use std::time::{Duration, Instant};

use http::header::{CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;

use super::backend::WorkerBackend;
use super::copy_bidirectional::{TunnelBytes, copy_bidirectional};
use super::error_response::{bad_gateway_refusal, refusal_for, timeout_refusal, with_request_details};
use super::forwarded_headers::ForwardedHeaders;
use super::header_rewrite;
use super::load_balance::PickRequest;
use super::long_running::LongRunningResponses;
use super::response_body::{EndCondition, RelayedBody};
use super::retry::{ForwardError, error_chain};
use crate::availability::CircuitPermit;
use crate::egress::http::http1::Http1Connection;
use crate::egress::{self, ConnectionGuard, DialError, DialPhase, DialTiming};
use crate::kubeapi::{RequestInfo, Status};
use crate::listen::ConnectionHandle;
use crate::message::{Blame, Body, IncomingBody, Refusal};
use crate::observe::access::{AccessRecord, EndReason};
use crate::process::with_deadline;

/// How long the other side may be idle after a half-close before the tunnel ends.
const HALF_CLOSE_LINGER: Duration = Duration::from_secs(30);

/// Relays an upgrade over a dedicated HTTP/1.1 connection. Only a 101 opens a tunnel; a backend's error is passed on as
/// an ordinary response, and everything else is refused (CVE-2018-1002105).
///
/// # Errors
/// A [`Refusal`], with the record.
#[expect(clippy::too_many_arguments, reason = "the parts of one request, taken apart by its only caller")]
pub(super) async fn upgrade(
    backend: &WorkerBackend,
    mut request: Box<Request<IncomingBody>>,
    path_and_query: PathAndQuery,
    info: &RequestInfo<'_>,
    origin: ForwardedHeaders<'_>,
    protocol: &str,
    streams: &LongRunningResponses,
    connection: &ConnectionHandle,
    circuit_permit: Option<&CircuitPermit>,
    mut record: AccessRecord,
) -> Result<Response<Body>, (Refusal, AccessRecord)> {
    let name = &backend.api_service().name;
    let settings = &backend.api_service().settings;
    if !protocol.split(',').all(|token| settings.upgrade_protocols.allows(token.trim())) {
        return Err((protocol_not_allowed(name, info), record));
    }
    if request.version() != Version::HTTP_11 {
        let status = Status::bad_request("an upgrade needs HTTP/1.1");
        return Err((Refusal::new(Blame::Client, with_request_details(status, info)), record));
    }
    let client = hyper::upgrade::on(&mut *request);
    let (mut parts, _) = request.into_parts();
    let Ok(wanted) = HeaderValue::from_str(protocol) else {
        return Err((protocol_not_allowed(name, info), record));
    };
    header_rewrite::clean(&mut parts.headers, settings.owns_origin, &settings.allowed_request_headers);
    if settings.keeps_host {
        origin.set_host(&mut parts.headers);
    }
    parts.headers = origin.build(&parts.headers);
    // Exactly this value: a further proxy must find no other header named here.
    parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    parts.headers.insert(UPGRADE, wanted);
    // A request with an upgrade has no body; what follows the head belongs to the tunnel.
    parts.headers.remove(CONTENT_LENGTH);
    let mut outbound = Request::new(Body::Empty);
    *outbound.method_mut() = parts.method;
    *outbound.headers_mut() = parts.headers;
    *outbound.uri_mut() = match super::send::backend_uri(backend.prefix(), path_and_query) {
        Ok(uri) => uri,
        Err(refusal) => return Err((refusal, record)),
    };

    if let Some(circuit_permit) = circuit_permit {
        circuit_permit.mark_sent();
    }
    let (index, mut line, timing) = match open_connection(backend).await {
        Ok(opened) => opened,
        Err(failure) => {
            backend.record_failure(&failure);
            return Err((refusal_for(&failure, name, info, true), record));
        }
    };
    let member = backend.member(index);
    record.set_endpoint(&member.metrics);
    member.endpoint.set_origin_form(&mut outbound);
    // The tunnel may last for hours, but its response head is due like any other.
    let patience = settings.request_timeout;
    let patience = (!patience.is_zero()).then(|| Instant::now() + patience);
    let response = match with_deadline(patience, Box::pin(line.send(outbound))).await {
        Some(Ok(response)) => response,
        Some(Err(error)) => {
            let failure = match egress::unprocessed_error(&error) {
                Some(refused) => ForwardError::Unreachable(refused),
                None if egress::is_invalid_http(&error) => ForwardError::InvalidResponse(error_chain(&error)),
                None => ForwardError::Broken(error_chain(&error)),
            };
            if !matches!(failure, ForwardError::Unreachable(_)) {
                backend.record_no_response(index);
            }
            backend.record_failure(&failure);
            return Err((refusal_for(&failure, name, info, false), record));
        }
        None => return Err((timeout_refusal(name, info, false, backend.common_failure()), record)),
    };
    record.record_backend_headers(Some(super::send::connect_timing(&timing)));
    let status = response.status();
    if backend.record_response(index, status) {
        backend.record_success(index);
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let answered = response.headers().get(UPGRADE).cloned();
        let (parts, _) = response.into_parts();
        let Some(backend_side) = line.into_upgraded() else {
            let failure = ForwardError::Broken("the connection is still being read".to_owned());
            return Err((refusal_for(&failure, name, info, false), record));
        };
        let mut headers = parts.headers;
        backend.response_headers().apply(status, &mut headers);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Some(answered) = answered {
            headers.insert(UPGRADE, answered);
        }
        record.set_status(status.as_u16());
        let (place, tunnel) = (streams.register(), connection.upgrade());
        tokio::task::spawn_local(async move {
            let Ok(client) = client.await else { return };
            let counts = Cell::new(TunnelBytes::default());
            let end = tokio::select! {
                carried = copy_bidirectional(TokioIo::new(client), backend_side, HALF_CLOSE_LINGER, &counts) => {
                    if carried.is_ok() { EndReason::Complete } else { EndReason::BackendBroke }
                }
                () = place.stopped() => EndReason::Drained,
                () = tunnel.close_requested() => EndReason::Cut,
            };
            record.request_body_counter().set_bytes(counts.get().from_client);
            record.add_sent_bytes(counts.get().from_backend as usize);
            record.set_end(end);
        });
        let mut answer = Response::new(Body::Empty);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        return Ok(answer);
    }
    // A backend that owns its origin may respond otherwise, for example with a redirect.
    if status.as_u16() < 400 && !settings.owns_origin {
        let message = format!("invalid upgrade response: status code {}", status.as_u16());
        return Err((bad_gateway_refusal(name, info, "UpgradeRefused", &message), record));
    }
    let (mut parts, from) = response.into_parts();
    backend.response_headers().apply(status, &mut parts.headers);
    // Bytes that the client sent after its request were meant for the tunnel.
    parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    record.record_response_head(status.as_u16(), &parts.headers, None);
    let limit = EndCondition::Process(streams.register(), None);
    let headers = backend.response_headers().clone();
    let relayed = RelayedBody::new(from, ConnectionGuard::dedicated(line), record, headers, limit, [None, None], None);
    Ok(Response::from_parts(parts, Body::streaming(relayed)))
}

type UpgradeConnection = (usize, Http1Connection, DialTiming);

/// A connection to the first endpoint that takes one.
async fn open_connection(backend: &WorkerBackend) -> Result<UpgradeConnection, ForwardError> {
    let mut failed = Vec::new();
    let mut last = backend.common_failure();
    while let Some((index, endpoint)) =
        backend.pick(&failed, &[], PickRequest { is_safe: false, is_long_running: true })
    {
        match endpoint.open_dedicated().await {
            Ok((line, timing)) => return Ok((index, line, timing)),
            Err(error) => last = Some(error),
        }
        failed.push(index);
    }
    Err(ForwardError::Unreachable(last.unwrap_or_else(|| DialError {
        phase: DialPhase::Connect,
        reason: "NoEndpoints",
        cause: "no endpoint is usable".to_owned(),
    })))
}

fn protocol_not_allowed(name: &str, info: &RequestInfo<'_>) -> Refusal {
    let status = Status::forbidden(format!(
        "aggregated API {name} does not allow an upgrade to this protocol; the annotation narthex.dev/upgrade-protocols \
         of its APIService says which it allows"
    ));
    Refusal::new(Blame::Client, with_request_details(status, info))
}
