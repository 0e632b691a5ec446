//! Upgrades: requests that turn their connection into a tunnel (SPDY/3.1, WebSocket).

use std::cell::Cell;
use std::time::{Duration, Instant};

use http::header::{CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;

use super::backend::Backend;
use super::choice::Errand;
use super::exchange::{Failure, describe};
use super::failure::{about, bad_answer, refuse, timed_out};
use super::relay::{Limit, Relayed};
use super::rewrite;
use super::signature::Origin;
use super::streams::Streams;
use super::tunnel::{Carried, carry};
use crate::availability::Passage;
use crate::egress::http1::Line;
use crate::egress::{self, DialError, DialPhase, Lease, Timing};
use crate::kubeapi::{RequestInfo, Status};
use crate::listen::Closer;
use crate::message::{Blame, Body, Received, Refusal};
use crate::observe::access::{AccessRecord, End};
use crate::process::within;

/// How long the other side may be idle after a half-close before the tunnel ends.
const LINGER: Duration = Duration::from_secs(30);

/// Relays an upgrade over a dedicated HTTP/1.1 connection. Only a 101 opens a tunnel; a backend's error is passed on as
/// an ordinary response, and everything else is refused (CVE-2018-1002105).
///
/// # Errors
/// A [`Refusal`], with the record.
#[expect(clippy::too_many_arguments, reason = "the parts of one request, taken apart by its only caller")]
pub(super) async fn upgrade(
    backend: &Backend,
    mut request: Box<Request<Received>>,
    path_and_query: PathAndQuery,
    info: &RequestInfo<'_>,
    origin: Origin<'_>,
    protocol: &str,
    streams: &Streams,
    connection: &Closer,
    passage: Option<&Passage>,
    mut record: AccessRecord,
) -> Result<Response<Body>, (Refusal, AccessRecord)> {
    let name = &backend.api_service().name;
    let settings = &backend.api_service().settings;
    if !protocol.split(',').all(|token| settings.upgrade_protocols.allows(token.trim())) {
        return Err((not_allowed(name, info), record));
    }
    if request.version() != Version::HTTP_11 {
        let status = Status::bad_request("an upgrade needs HTTP/1.1");
        return Err((Refusal::new(Blame::Client, about(status, info)), record));
    }
    let client = hyper::upgrade::on(&mut *request);
    let (mut parts, _) = request.into_parts();
    let Ok(wanted) = HeaderValue::from_str(protocol) else {
        return Err((not_allowed(name, info), record));
    };
    rewrite::clean(&mut parts.headers, settings.owns_origin, &settings.allowed_request_headers);
    if settings.keeps_host {
        origin.put_host(&mut parts.headers);
    }
    parts.headers = origin.sign(&parts.headers);
    // Exactly this value: a further proxy must find no other header named here.
    parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    parts.headers.insert(UPGRADE, wanted);
    // A request with an upgrade has no body; what follows the head belongs to the tunnel.
    parts.headers.remove(CONTENT_LENGTH);
    let mut outbound = Request::new(Body::Empty);
    *outbound.method_mut() = parts.method;
    *outbound.headers_mut() = parts.headers;
    *outbound.uri_mut() = match super::send::uri(backend.prefix(), path_and_query) {
        Ok(uri) => uri,
        Err(refusal) => return Err((refusal, record)),
    };

    if let Some(passage) = passage {
        passage.sent();
    }
    let (index, mut line, timing) = match open(backend).await {
        Ok(opened) => opened,
        Err(failure) => {
            backend.failed(&failure);
            return Err((refuse(&failure, name, info, true), record));
        }
    };
    let member = backend.member(index);
    record.endpoint(&member.counts);
    member.endpoint.in_origin_form(&mut outbound);
    // The tunnel may last for hours, but its response head is due like any other.
    let patience = settings.request_timeout;
    let patience = (!patience.is_zero()).then(|| Instant::now() + patience);
    let response = match within(patience, Box::pin(line.ask(outbound))).await {
        Some(Ok(response)) => response,
        Some(Err(error)) => {
            let failure = match egress::unprocessed(&error) {
                Some(refused) => Failure::Unreachable(refused),
                None if egress::is_nonsense(&error) => Failure::Nonsense(describe(&error)),
                None => Failure::Broken(describe(&error)),
            };
            if !matches!(failure, Failure::Unreachable(_)) {
                backend.broke(index);
            }
            backend.failed(&failure);
            return Err((refuse(&failure, name, info, false), record));
        }
        None => return Err((timed_out(name, info, false, backend.failure_of_all()), record)),
    };
    record.answered(Some(super::send::opening(&timing)));
    let status = response.status();
    if backend.answered(index, status) {
        backend.served(index);
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let answered = response.headers().get(UPGRADE).cloned();
        let (parts, _) = response.into_parts();
        let Some(backend_side) = line.switch() else {
            let failure = Failure::Broken("the connection is still being read".to_owned());
            return Err((refuse(&failure, name, info, false), record));
        };
        let mut headers = parts.headers;
        backend.response_headers().clean(status, &mut headers);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Some(answered) = answered {
            headers.insert(UPGRADE, answered);
        }
        record.status(status.as_u16());
        let (place, tunnel) = (streams.enter(), connection.tunnel());
        tokio::task::spawn_local(async move {
            let Ok(client) = client.await else { return };
            let counts = Cell::new(Carried::default());
            let end = tokio::select! {
                carried = carry(TokioIo::new(client), backend_side, LINGER, &counts) => {
                    if carried.is_ok() { End::Complete } else { End::BackendBroke }
                }
                () = place.ending() => End::Drained,
                () = tunnel.cut() => End::Cut,
            };
            record.receipt().carried(counts.get().from_client);
            record.sent(counts.get().from_backend as usize);
            record.ended(end);
        });
        let mut answer = Response::new(Body::Empty);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        return Ok(answer);
    }
    // A backend that owns its origin may respond otherwise, for example with a redirect.
    if status.as_u16() < 400 && !settings.owns_origin {
        let message = format!("invalid upgrade response: status code {}", status.as_u16());
        return Err((bad_answer(name, info, "UpgradeRefused", &message), record));
    }
    let (mut parts, from) = response.into_parts();
    backend.response_headers().clean(status, &mut parts.headers);
    // Bytes that the client sent after its request were meant for the tunnel.
    parts.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    record.answers(status.as_u16(), &parts.headers, None);
    let limit = Limit::Process(streams.enter(), None);
    let headers = backend.response_headers().clone();
    let relayed = Relayed::new(from, Lease::private(line), record, headers, limit, [None, None], None);
    Ok(Response::from_parts(parts, Body::streamed(relayed)))
}

type Opened = (usize, Line, Timing);

/// A connection to the first endpoint that takes one.
async fn open(backend: &Backend) -> Result<Opened, Failure> {
    let mut failed = Vec::new();
    let mut last = backend.failure_of_all();
    while let Some((index, endpoint)) = backend.pick(&failed, &[], Errand { safe: false, lasts: true }) {
        match endpoint.open_private().await {
            Ok((line, timing)) => return Ok((index, line, timing)),
            Err(error) => last = Some(error),
        }
        failed.push(index);
    }
    Err(Failure::Unreachable(last.unwrap_or_else(|| DialError {
        phase: DialPhase::Connect,
        reason: "NoEndpoints",
        cause: "no endpoint is usable".to_owned(),
    })))
}

fn not_allowed(name: &str, info: &RequestInfo<'_>) -> Refusal {
    let status = Status::forbidden(format!(
        "aggregated API {name} does not allow an upgrade to this protocol; the annotation narthex.dev/upgrade-protocols \
         of its APIService says which it allows"
    ));
    Refusal::new(Blame::Client, about(status, info))
}
