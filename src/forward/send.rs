//! Sends an authorized request to its backend and returns the response.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;

use super::backend::Backend;
use super::events::Events;
use super::exchange::{Again, Copy, Failure, exchange};
use super::failure::{about, bad_answer, refuse, timed_out};
use super::relay::{Limit, Merit, Places, Relayed};
use super::rewrite;
use super::signature::Origin;
use super::streams::Streams;
use super::upload::{Fault, Source};
use crate::authenticate::IdentityHeaders;
use crate::authorize::Permit;
use crate::authorize::rbac_proxy::Rules;
use crate::availability::Passage;
use crate::egress::{Sent, Timing};
use crate::kubeapi::{RequestInfo, Status};
use crate::listen::Closer;
use crate::message::{Blame, Body, Received, Refusal, hop_by_hop};
use crate::observe::access::{AccessRecord, Opening, Receipt};
use crate::process::within;
use crate::registry;

/// A request to send, with everything that belongs to it.
pub struct Outbound<'o> {
    /// The client's request; its headers are rewritten, its URI replaced.
    pub request: Box<Request<Received>>,
    /// Path and query to send: those that were authorized and routed.
    pub path_and_query: PathAndQuery,
    /// Identity and forwarding headers.
    pub origin: Origin<'o>,
    /// Identity headers, which a client must not send as trailers either.
    pub identity_headers: &'o Arc<IdentityHeaders>,
    /// Rules that authorized the request by headers, if any: those must not come as trailers.
    pub rules: Option<Arc<Rules>>,
    /// The client's connection, for upgrades.
    pub connection: &'o Closer,
    /// Request timeout; none for a long-running request.
    pub timeout: Option<Duration>,
    /// Whether a response that is a stream by its type (gRPC, server-sent events) makes it long-running.
    pub streams_by_type: bool,
    /// In-flight permits; held until the end of the response.
    pub places: Places,
    /// Circuit permit; held until the response head.
    pub passage: Option<Box<Passage>>,
}

/// Sends a request to `backend` and returns its response; the body streams with `record` in it.
///
/// The [`Permit`] is proof that the request was authorized, the [`Backend`] that it was routed. With `reject_redirects`
/// a redirect of the backend becomes 502 instead of reaching the client.
///
/// # Errors
/// A [`Refusal`] if there is no response to pass on; the record is returned with it.
pub async fn send(
    permit: &Permit<'_>,
    backend: &Rc<Backend>,
    outbound: Outbound<'_>,
    reject_redirects: bool,
    streams: &Streams,
    mut record: AccessRecord,
) -> Result<Response<Body>, (Refusal, AccessRecord)> {
    let began = record.last_phase_ended();
    let Outbound { request, path_and_query, origin, identity_headers, rules, connection, .. } = outbound;
    let Outbound { mut timeout, streams_by_type, mut places, passage, .. } = outbound;
    let info = permit.request();
    let name = &backend.api_service().name;
    let most = backend.api_service().settings.max_request_bytes;
    if let Some(most) = most
        && request.body().size_hint().lower() > most
    {
        return Err((too_large(most, info), record));
    }
    let to_http2 = request.version() == Version::HTTP_2;
    let protocol = hop_by_hop::upgrade_protocol(request.headers()).map(str::to_owned);
    if let Some(protocol) = protocol {
        // Boxed: rare, and every other request would pay for its size.
        let upgrade = super::upgrade::upgrade(
            backend,
            request,
            path_and_query,
            info,
            origin,
            &protocol,
            streams,
            connection,
            passage.as_deref(),
            record,
        );
        return Box::pin(upgrade).await;
    }
    let is_head = request.method() == Method::HEAD;
    let Prepared { request, copy, source, safe, again } =
        match prepare(request, path_and_query, backend, &origin, (identity_headers, rules), || record.receipt()) {
            Ok(prepared) => prepared,
            Err(refusal) => return Err((refusal, record)),
        };
    if let Some(passage) = &passage {
        passage.sent();
    }
    let tried = {
        let exchange =
            pin!(exchange(request, copy.as_ref(), source.as_ref(), again, timeout.is_none(), backend, |reason| record
                .retried(reason)));
        within(timeout.map(|timeout| began + timeout), exchange).await
    };
    let fault = source.and_then(|source| source.fault());
    let (index, sent) = match tried {
        Some(Ok(sent)) => sent,
        Some(Err(_)) if let Some(fault) = fault => {
            return Err((at_fault(fault, most.unwrap_or_default(), info), record));
        }
        Some(Err(failure)) => {
            backend.failed(&failure);
            let failure = match failure {
                // No endpoint was tried: report the last known error.
                Failure::NoEndpoint => backend.failure_of_all().map_or(Failure::NoEndpoint, Failure::Unreachable),
                failure => failure,
            };
            return Err((refuse(&failure, name, info, safe), record));
        }
        None => return Err((timed_out(name, info, safe, backend.failure_of_all()), record)),
    };
    let opened = sent.timing.whole() > Duration::ZERO;
    record.answered(opened.then(|| opening(&sent.timing)));
    record.endpoint(&backend.member(index).counts);
    let fine = backend.answered(index, sent.response.status());
    let Sent { response, mut lease, .. } = sent;
    let (mut parts, mut from) = response.into_parts();
    if streams_by_type && timeout.is_some() && is_stream(&parts.headers) {
        (timeout, places) = (None, [None, None]);
        record.runs_long();
    }
    if timeout.is_none() {
        lease.lasts();
    }
    let has_no_body = is_head || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if has_no_body && !from.is_end_stream() {
        let backend = backend.clone();
        from = from.without_body(move || backend.sent_forbidden_body(index));
    }
    if reject_redirects && is_redirect(parts.status, &parts.headers) {
        backend.served(index);
        let message = "the backend attempted to redirect this request, which is not permitted";
        return Err((bad_answer(name, info, "RedirectRejected", message), record));
    }
    if to_http2 && (parts.version != Version::HTTP_2 || timeout.is_none()) {
        rewrite::compact(&mut parts.headers);
    }
    backend.response_headers().clean(parts.status, &mut parts.headers);
    record.answers(parts.status.as_u16(), &parts.headers, from.size_hint().exact());
    // Short responses are judged by their end; the end of a long-running one says little.
    let at_end = timeout.is_some() || !info.is_long_running();
    if fine && !at_end {
        backend.served(index);
    }
    let merit = (fine && at_end).then(|| Merit { backend: backend.clone(), index });
    let limit = match timeout {
        Some(timeout) => {
            // The connection enforces the deadline, too: hyper does not poll a body while its client does not read.
            if !from.is_end_stream() {
                connection.answer_by(began + timeout);
            }
            Limit::Deadline(began + timeout, merit)
        }
        None => match Events::of(&parts.headers).filter(|_| info.verb == "watch") {
            Some(events) => {
                let place = streams.enter();
                let watching = backend.member(index).watches.begin(&place);
                Limit::Watch(place, events, watching)
            }
            None => Limit::Process(streams.enter(), merit),
        },
    };
    parts.version = Version::HTTP_11;
    let user = timeout.is_none().then(|| permit.user().clone());
    let headers = backend.response_headers().clone();
    let relayed = Relayed::new(from, lease, record, headers, limit, places, user);
    Ok(Response::from_parts(parts, Body::streamed(relayed)))
}

/// Timing of the dial for the access record.
pub(super) fn opening(timing: &Timing) -> Opening {
    Opening { dial: timing.connect, proxy: timing.proxy, tls: timing.handshake }
}

/// A request as sent to the backend.
struct Prepared<'o> {
    request: Box<Request<Body>>,
    /// Recreates the request for retries; `None` if it must not be retried.
    copy: Option<Copy<'o>>,
    /// Source of its body; `None` without a body.
    source: Option<Rc<Source>>,
    /// Whether its method is safe and it has no body.
    safe: bool,
    again: Again,
}

fn prepare<'o>(
    request: Box<Request<Received>>,
    path_and_query: PathAndQuery,
    backend: &Backend,
    origin: &'o Origin<'o>,
    (identity_headers, rules): (&Arc<IdentityHeaders>, Option<Arc<Rules>>),
    receipt: impl FnOnce() -> Rc<Receipt>,
) -> Result<Prepared<'o>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let most = backend.api_service().settings.max_request_bytes;
    let source = Source::of(body, most, identity_headers, rules, receipt);
    let body = source.as_ref().and_then(Source::body).unwrap_or_default();
    let safe = source.is_none() && matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let again = match backend.api_service().settings.retry {
        registry::Retry::Never => Again::Never,
        registry::Retry::Safe if safe => Again::Always,
        registry::Retry::Unbegun if safe => Again::Unheard,
        registry::Retry::Safe | registry::Retry::Unbegun => Again::Unbegun,
    };
    let uri = uri(backend.prefix(), path_and_query)?;
    let settings = &backend.api_service().settings;
    rewrite::clean(&mut parts.headers, settings.owns_origin, &settings.allowed_request_headers);
    if settings.keeps_host {
        origin.put_host(&mut parts.headers);
    }
    let mut request = Box::new(Request::new(body));
    *request.method_mut() = parts.method.clone();
    *request.headers_mut() = origin.sign(&parts.headers);
    *request.uri_mut() = uri.clone();
    let copy = (again != Again::Never).then_some(Copy { method: parts.method, uri, headers: parts.headers, origin });
    Ok(Prepared { request, copy, source, safe, again })
}

/// Whether a response is a stream by its type: gRPC or server-sent events.
fn is_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let begins = |with: &[u8]| {
            value.as_bytes().get(..with.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(with))
        };
        begins(b"application/grpc") || begins(b"text/event-stream")
    })
}

/// Whether a response is a redirect in the sense of CVE-2022-3172: a 3xx status with a Location.
fn is_redirect(status: StatusCode, headers: &HeaderMap) -> bool {
    status.is_redirection() && headers.contains_key(http::header::LOCATION)
}

pub(super) fn uri(prefix: &str, path_and_query: PathAndQuery) -> Result<Uri, Refusal> {
    if prefix.is_empty() {
        return Ok(Uri::from(path_and_query));
    }
    Uri::try_from(format!("{prefix}{path_and_query}")).map_err(|error| {
        Refusal::new(Blame::Client, Status::bad_request("the request's path cannot be sent on")).because(error)
    })
}

/// The refusal for a fault of the client's request body.
fn at_fault(fault: Fault, most: u64, info: &RequestInfo<'_>) -> Refusal {
    match fault {
        Fault::TooLarge => too_large(most, info),
        Fault::Broken => {
            let status = Status::bad_request("the request's body broke off, or cannot be read");
            Refusal::new(Blame::Client, about(status, info))
        }
    }
}

fn too_large(most: u64, info: &RequestInfo<'_>) -> Refusal {
    let status = Status::request_entity_too_large(format!("limit is {most} bytes"));
    Refusal::new(Blame::Client, about(status, info))
}
