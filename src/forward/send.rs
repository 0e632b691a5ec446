//! From a permitted request to the backend's answer.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
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
use crate::availability::Passage;
use crate::egress::{Sent, Timing};
use crate::kubeapi::{RequestInfo, Status};
use crate::listen::Closer;
use crate::message::{Blame, Body, Received, Refusal, hop_by_hop};
use crate::observe::access::{AccessRecord, Opening, Receipt};
use crate::process::within;
use crate::registry;

/// One request, ready to go.
pub struct Outbound<'o> {
    /// As it came; its headers are rewritten, its URI replaced.
    pub request: Box<Request<Received>>,
    /// The path and query to send: what was judged and routed.
    pub path_and_query: PathAndQuery,
    /// From where and from whom.
    pub origin: Origin<'o>,
    /// What a client must not say behind its body either.
    pub identity_headers: &'o Arc<IdentityHeaders>,
    /// The client's connection, should it become a tunnel.
    pub connection: &'o Closer,
    /// How long it may take in all; none for a long-running request.
    pub timeout: Option<Duration>,
    /// Its places among the requests under way; taken until the answer's end.
    pub places: Places,
    /// What it was let through with; kept until its answer begins.
    pub passage: Option<Box<Passage>>,
}

/// Sends a request to `backend` and gives its answer, whose body goes on streaming with `record` in it.
///
/// The [`Permit`] is proof that the request was authorised, the [`Backend`] that it was routed. With
/// `reject_redirects` a redirect of the backend becomes 502 instead of reaching the client.
///
/// # Errors
/// A [`Refusal`] when there is no answer to pass on; the record is given back with it.
pub async fn send(
    permit: &Permit<'_>,
    backend: &Rc<Backend>,
    outbound: Outbound<'_>,
    reject_redirects: bool,
    streams: &Streams,
    mut record: AccessRecord,
) -> Result<Response<Body>, (Refusal, AccessRecord)> {
    let began = record.last_phase_ended();
    let Outbound { request, path_and_query, origin, identity_headers, connection, timeout, places, passage } = outbound;
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
    let Prepared { request, copy, source, safe, again } =
        match prepare(request, path_and_query, backend, &origin, identity_headers, || record.receipt()) {
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
                // Nobody was asked: say what is known of why.
                Failure::NoEndpoint => backend.failure().map_or(Failure::NoEndpoint, Failure::Unreachable),
                failure => failure,
            };
            return Err((refuse(&failure, name, info, safe), record));
        }
        None => return Err((timed_out(name, info, safe), record)),
    };
    let opened = sent.timing.whole() > Duration::ZERO;
    record.answered(opened.then(|| opening(&sent.timing)));
    record.endpoint(&backend.member(index).counts);
    let fine = backend.answered(index, sent.response.status());
    let Sent { response, mut lease, .. } = sent;
    if timeout.is_none() {
        lease.lasts();
    }
    let (mut parts, from) = response.into_parts();
    if parts.status.is_informational() || has_odd_framing(&parts.headers) {
        backend.broke(index);
        let what = format!("{} with Transfer-Encoding {:?}", parts.status, parts.headers.get(TRANSFER_ENCODING));
        return Err((refuse(&Failure::Nonsense(what), name, info, safe), record));
    }
    if reject_redirects && is_redirect(parts.status, &parts.headers) {
        backend.served(index);
        let message = "the backend attempted to redirect this request, which is not permitted";
        return Err((bad_answer(name, info, "RedirectRejected", message), record));
    }
    if to_http2 && (parts.version != Version::HTTP_2 || timeout.is_none()) {
        rewrite::compact(&mut parts.headers);
    }
    rewrite::response(&mut parts.headers, backend.api_service().settings.owns_origin);
    record.answers(parts.status.as_u16(), &parts.headers, from.size_hint().exact());
    // What is soon over is judged by its end; of what goes on for long the end says little.
    let at_end = timeout.is_some() || !info.is_long_running();
    if fine && !at_end {
        backend.served(index);
    }
    let merit = (fine && at_end).then(|| Merit { backend: backend.clone(), index });
    let limit = match timeout {
        Some(timeout) => {
            // The connection holds the client to it too: hyper asks a body for nothing while its client takes
            // nothing.
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
    let relayed = Relayed::new(from, lease, record, limit, places);
    Ok(Response::from_parts(parts, Body::stream(relayed)))
}

/// What opening a connection took, as the record has it.
pub(super) fn opening(timing: &Timing) -> Opening {
    Opening { dial: timing.connect, proxy: timing.proxy, tls: timing.handshake }
}

/// A request as the backend gets it.
struct Prepared<'o> {
    request: Box<Request<Body>>,
    /// For when it must be sent again; none when it must not.
    copy: Option<Copy<'o>>,
    /// What its body is read from; none when there is none.
    source: Option<Rc<Source>>,
    /// Whether it changes nothing, and has no body.
    safe: bool,
    again: Again,
}

fn prepare<'o>(
    request: Box<Request<Received>>,
    path_and_query: PathAndQuery,
    backend: &Backend,
    origin: &'o Origin<'o>,
    identity_headers: &Arc<IdentityHeaders>,
    receipt: impl FnOnce() -> Rc<Receipt>,
) -> Result<Prepared<'o>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let most = backend.api_service().settings.max_request_bytes;
    let source = Source::of(body, most, identity_headers, receipt);
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
    rewrite::clean(&mut parts.headers, settings.owns_origin);
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

/// Whether it is doubtful where the answer ends, or what it is: any coding but `chunked` would reach the client
/// as it is, without the header that says so, and a length beside it may be another one's.
fn has_odd_framing(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return false };
    !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")
        || codings.next().is_some()
        || headers.contains_key(CONTENT_LENGTH)
}

/// A redirect in the sense of CVE-2022-3172: a status of its class with somewhere to go.
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

/// There is no answer because of the client.
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
