//! Upgrades: requests that turn their connection into a tunnel (SPDY/3.1, WebSocket).

use std::cell::Cell;
use std::time::{Duration, Instant};

use http::header::{CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kubeapi::{RequestInfo, Status};
use tokio::io::{AsyncRead, AsyncWrite};

use super::backend::WorkerBackend;
use super::copy_bidirectional::{TunnelBytes, copy_bidirectional};
use super::error_response::{ForwardError, bad_gateway_refusal, refusal_for, timeout_refusal, with_request_details};
use super::forwarded_headers::ForwardedHeaders;
use super::header_rewrite;
use super::load_balance::PickRequest;
use super::long_running_responses::LongRunningSlot;
use super::outbound_request::{OutboundRequest, ResponseOptions};
use super::response_body::{EndCondition, ForwardedBody, ResponseBodySource};
use super::retry::error_chain;
use crate::egress::http::http1::Http1Connection;
use crate::egress::{self, ConnectionGuard, DialError, DialPhase, DialTiming};
use crate::listen::UpgradedConnection;
use crate::message::{Blame, Body, IncomingBody, Refusal};
use crate::observe::access::{AccessRecord, EndReason};
use crate::process::with_deadline;

/// How long the other side may be idle after a half-close before the tunnel ends.
const HALF_CLOSE_LINGER: Duration = Duration::from_secs(30);

/// Relays an upgrade over a dedicated HTTP/1.1 connection. Only a 101 opens a tunnel; a backend's error is passed on as
/// an ordinary response, and everything else is refused (CVE-2018-1002105).
///
/// # Errors
/// A [`Refusal`] if there is no response to pass on.
pub(super) async fn upgrade(
    backend: &WorkerBackend,
    mut outbound: OutboundRequest<'_>,
    info: &RequestInfo<'_>,
    protocol: &str,
    record: &mut AccessRecord,
) -> Result<Response<ForwardedBody>, Refusal> {
    let name = &backend.api_service().name;
    check_upgrade(backend, &outbound.request, protocol, info)?;
    let client = hyper::upgrade::on(&mut *outbound.request);
    let forwarded_headers = &outbound.forwarded_headers;
    let mut request = upgrade_request(backend, *outbound.request, forwarded_headers, protocol, info)?;
    *request.uri_mut() = backend.uri(outbound.path_and_query)?;
    if let Some(circuit_permit) = &outbound.circuit_permit {
        circuit_permit.mark_sent();
    }
    let (index, mut connection, timing) = open_connection(backend).await.map_err(|failure| {
        backend.record_failure(&failure);
        refusal_for(&failure, name, info, true)
    })?;
    let member = backend.member(index);
    record.set_endpoint(&member.metrics);
    member.endpoint.set_origin_form(&mut request);
    let response = exchange_heads(backend, index, &mut connection, request, info).await?;
    record.record_backend_headers(Some(timing.into()));
    if backend.record_response(index, response.status()) {
        backend.record_success(index);
    }
    let ResponseOptions { streams, connection: client_connection, .. } = outbound.response_options;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return relay_response(backend, connection, response, streams.register(), info, record);
    }
    let response = upgrade_response(backend, response);
    let Some(backend_side) = connection.into_upgraded() else {
        let failure = ForwardError::Broken("the connection is still being read".to_owned());
        return Err(refusal_for(&failure, name, info, false));
    };
    record.set_status(response.status().as_u16());
    let (slot, connection) = (streams.register(), client_connection.upgrade());
    Ok(response.map(|()| {
        ForwardedBody::tunnel(move |record| {
            tokio::task::spawn_local(run_tunnel(client, backend_side, slot, connection, record));
        })
    }))
}

/// Rejects protocols that the APIService does not allow, and upgrades over other versions than HTTP/1.1.
fn check_upgrade(
    backend: &WorkerBackend,
    request: &Request<IncomingBody>,
    protocol: &str,
    info: &RequestInfo<'_>,
) -> Result<(), Refusal> {
    let allowed = &backend.api_service().settings.upgrade_protocols;
    if !protocol.split(',').all(|token| allowed.allows(token.trim())) {
        return Err(protocol_not_allowed(&backend.api_service().name, info));
    }
    if request.version() != Version::HTTP_11 {
        let status = Status::bad_request("an upgrade needs HTTP/1.1");
        return Err(Refusal::new(Blame::Client, with_request_details(status, info)));
    }
    Ok(())
}

/// Builds the request to the backend from the client's; its URI is still missing.
fn upgrade_request(
    backend: &WorkerBackend,
    request: Request<IncomingBody>,
    forwarded_headers: &ForwardedHeaders<'_>,
    protocol: &str,
    info: &RequestInfo<'_>,
) -> Result<Request<Body>, Refusal> {
    let settings = &backend.api_service().settings;
    let Ok(protocol) = HeaderValue::from_str(protocol) else {
        return Err(protocol_not_allowed(&backend.api_service().name, info));
    };
    let (mut parts, _) = request.into_parts();
    header_rewrite::clean(&mut parts.headers, settings.owns_origin, &settings.allowed_request_headers);
    if settings.keeps_host {
        forwarded_headers.set_host(&mut parts.headers);
    }
    let mut request = Request::new(Body::Empty);
    *request.method_mut() = parts.method;
    *request.headers_mut() = forwarded_headers.build(&parts.headers);
    let headers = request.headers_mut();
    // Exactly this value: a further proxy must find no other header named here.
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol);
    // A request with an upgrade has no body; what follows the head belongs to the tunnel.
    headers.remove(CONTENT_LENGTH);
    Ok(request)
}

/// Sends the request head and receives the response head, which is due within the request timeout: only the tunnel may
/// last for hours.
async fn exchange_heads(
    backend: &WorkerBackend,
    index: usize,
    connection: &mut Http1Connection,
    request: Request<Body>,
    info: &RequestInfo<'_>,
) -> Result<Response<IncomingBody>, Refusal> {
    let (name, timeout) = (&backend.api_service().name, backend.api_service().settings.request_timeout);
    let deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
    let failure = match with_deadline(deadline, Box::pin(connection.send(request))).await {
        Some(Ok(response)) => return Ok(response),
        Some(Err(error)) => match egress::unprocessed_error(&error) {
            Some(refused) => ForwardError::Unreachable(refused),
            None if egress::is_invalid_http(&error) => ForwardError::InvalidResponse(error_chain(&error)),
            None => ForwardError::Broken(error_chain(&error)),
        },
        None => return Err(timeout_refusal(name, info, false, backend.common_failure())),
    };
    if !matches!(failure, ForwardError::Unreachable(_)) {
        backend.record_no_response(index);
    }
    backend.record_failure(&failure);
    Err(refusal_for(&failure, name, info, false))
}

/// The response to the client when the backend switched protocols.
fn upgrade_response(backend: &WorkerBackend, response: Response<IncomingBody>) -> Response<()> {
    let protocol = response.headers().get(UPGRADE).cloned();
    let (parts, _) = response.into_parts();
    let mut headers = parts.headers;
    backend.response_headers().apply(parts.status, &mut headers);
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(UPGRADE, protocol);
    }
    let mut response = Response::new(());
    *response.status_mut() = parts.status;
    *response.headers_mut() = headers;
    response
}

/// Relays the response of a backend that did not switch protocols.
fn relay_response(
    backend: &WorkerBackend,
    connection: Http1Connection,
    response: Response<IncomingBody>,
    slot: LongRunningSlot,
    info: &RequestInfo<'_>,
    record: &mut AccessRecord,
) -> Result<Response<ForwardedBody>, Refusal> {
    let status = response.status();
    // A backend that owns its origin may respond otherwise, for example with a redirect.
    if status.as_u16() < 400 && !backend.api_service().settings.owns_origin {
        let message = format!("invalid upgrade response: status code {}", status.as_u16());
        return Err(bad_gateway_refusal(&backend.api_service().name, info, "UpgradeRefused", &message));
    }
    let (mut parts, from) = response.into_parts();
    let headers = backend.response_headers().clone();
    headers.apply(status, &mut parts.headers);
    // Bytes that the client sent after its request were meant for the tunnel.
    parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    record.record_response_head(status.as_u16(), &parts.headers, None);
    let source = ResponseBodySource {
        from,
        guard: ConnectionGuard::dedicated(connection),
        headers,
        end_condition: EndCondition::Process(slot, None),
        _permits: [None, None],
        user: None,
    };
    Ok(Response::from_parts(parts, ForwardedBody::streamed(source)))
}

/// Copies in both directions until one side ends, the process drains or the client's connection is closed.
async fn run_tunnel(
    client: OnUpgrade,
    backend: impl AsyncRead + AsyncWrite + Unpin,
    slot: LongRunningSlot,
    connection: UpgradedConnection,
    mut record: AccessRecord,
) {
    let Ok(client) = client.await else { return };
    let counts = Cell::new(TunnelBytes::default());
    let end = tokio::select! {
        copied = copy_bidirectional(TokioIo::new(client), backend, HALF_CLOSE_LINGER, &counts) => {
            if copied.is_ok() { EndReason::Complete } else { EndReason::BackendBroke }
        }
        () = slot.stopped() => EndReason::Drained,
        () = connection.close_requested() => EndReason::Cut,
    };
    record.request_body_counter().set_bytes(counts.get().from_client);
    record.add_sent_bytes(counts.get().from_backend as usize);
    record.set_end(end);
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
            Ok((connection, timing)) => return Ok((index, connection, timing)),
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
