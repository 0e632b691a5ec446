//! Sends an authorized request to its backend and returns the response.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body as _;

use super::backend::WorkerBackend;
use super::error_response::{bad_gateway_refusal, refusal_for, timeout_refusal, with_request_details};
use super::forwarded_headers::ForwardedHeaders;
use super::header_rewrite;
use super::long_running::LongRunningResponses;
use super::request_body::{RequestBodyFault, RequestBodySource};
use super::response_body::{EndCondition, InflightPermits, OutcomeReporter, RelayedBody};
use super::retry::{ForwardError, RequestReplay, RetryScope, send_with_retries};
use super::watch_framing::WatchFraming;
use crate::authenticate::IdentityHeaderMatcher;
use crate::authorize::Permit;
use crate::authorize::rbac_proxy::RbacProxyRules;
use crate::availability::CircuitPermit;
use crate::egress::{DialTiming, EndpointResponse};
use crate::kubeapi::{RequestInfo, Status};
use crate::listen::ConnectionHandle;
use crate::message::{Blame, Body, IncomingBody, Refusal, hop_by_hop};
use crate::observe::access::{AccessRecord, BodyCounter, ConnectTimings};
use crate::process::with_deadline;
use crate::registry;

/// A request to send, with everything that belongs to it.
pub struct OutboundRequest<'o> {
    /// The client's request; its headers are rewritten, its URI replaced.
    pub request: Box<Request<IncomingBody>>,
    /// Path and query to send: those that were authorized and routed.
    pub path_and_query: PathAndQuery,
    /// Identity and forwarding headers.
    pub forwarded_headers: ForwardedHeaders<'o>,
    /// Identity headers, which a client must not send as trailers either.
    pub identity_headers: &'o Arc<IdentityHeaderMatcher>,
    /// Rules that authorized the request by headers, if any: those must not come as trailers.
    pub rules: Option<Arc<RbacProxyRules>>,
    /// The client's connection, for upgrades.
    pub connection: &'o ConnectionHandle,
    /// Request timeout; none for a long-running request.
    pub timeout: Option<Duration>,
    /// Whether a response that is a stream by its type (gRPC, server-sent events) makes it long-running.
    pub streams_by_type: bool,
    /// In-flight permits; held until the end of the response.
    pub permits: InflightPermits,
    /// Circuit permit; held until the response head.
    pub circuit_permit: Option<Box<CircuitPermit>>,
}

/// Sends a request to `backend` and returns its response; the body streams with `record` in it.
///
/// The [`Permit`] is proof that the request was authorized, the [`WorkerBackend`] that it was routed. With `reject_redirects`
/// a redirect of the backend becomes 502 instead of reaching the client.
///
/// # Errors
/// A [`Refusal`] if there is no response to pass on; the record is returned with it.
pub async fn send(
    permit: &Permit<'_>,
    backend: &Rc<WorkerBackend>,
    outbound: OutboundRequest<'_>,
    reject_redirects: bool,
    streams: &LongRunningResponses,
    mut record: AccessRecord,
) -> Result<Response<Body>, (Refusal, AccessRecord)> {
    let began = record.last_phase_end();
    let OutboundRequest {
        request, path_and_query, forwarded_headers: origin, identity_headers, rules, connection, ..
    } = outbound;
    let OutboundRequest { mut timeout, streams_by_type, permits: mut places, circuit_permit, .. } = outbound;
    let info = permit.request();
    let name = &backend.api_service().name;
    let most = backend.api_service().settings.max_request_bytes;
    if let Some(most) = most
        && request.body().size_hint().lower() > most
    {
        return Err((too_large_refusal(most, info), record));
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
            circuit_permit.as_deref(),
            record,
        );
        return Box::pin(upgrade).await;
    }
    let is_head = request.method() == Method::HEAD;
    let PreparedRequest { request, replay: copy, source, is_safe: safe, retry_scope: again } =
        match prepare(request, path_and_query, backend, &origin, (identity_headers, rules), || {
            record.request_body_counter()
        }) {
            Ok(prepared) => prepared,
            Err(refusal) => return Err((refusal, record)),
        };
    if let Some(circuit_permit) = &circuit_permit {
        circuit_permit.mark_sent();
    }
    let tried = {
        let exchange = pin!(send_with_retries(
            request,
            copy.as_ref(),
            source.as_ref(),
            again,
            timeout.is_none(),
            backend,
            |reason| record.record_retry(reason)
        ));
        with_deadline(timeout.map(|timeout| began + timeout), exchange).await
    };
    let fault = source.and_then(|source| source.fault());
    let (index, sent) = match tried {
        Some(Ok(sent)) => sent,
        Some(Err(_)) if let Some(fault) = fault => {
            return Err((body_fault_refusal(fault, most.unwrap_or_default(), info), record));
        }
        Some(Err(failure)) => {
            backend.record_failure(&failure);
            let failure = match failure {
                // No endpoint was tried: report the last known error.
                ForwardError::NoEndpoint => {
                    backend.common_failure().map_or(ForwardError::NoEndpoint, ForwardError::Unreachable)
                }
                failure => failure,
            };
            return Err((refusal_for(&failure, name, info, safe), record));
        }
        None => return Err((timeout_refusal(name, info, safe, backend.common_failure()), record)),
    };
    let opened = sent.timing.total() > Duration::ZERO;
    record.record_backend_headers(opened.then(|| connect_timing(&sent.timing)));
    record.set_endpoint(&backend.member(index).metrics);
    let fine = backend.record_response(index, sent.response.status());
    let EndpointResponse { response, guard: mut lease, .. } = sent;
    let (mut parts, mut from) = response.into_parts();
    if streams_by_type && timeout.is_some() && is_stream(&parts.headers) {
        (timeout, places) = (None, [None, None]);
        record.mark_long_running();
    }
    if timeout.is_none() {
        lease.mark_long_running();
    }
    let has_no_body = is_head || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    if has_no_body && !from.is_end_stream() {
        let backend = backend.clone();
        from = from.without_body(move || backend.record_forbidden_body(index));
    }
    if reject_redirects && is_redirect(parts.status, &parts.headers) {
        backend.record_success(index);
        let message = "the backend attempted to redirect this request, which is not permitted";
        return Err((bad_gateway_refusal(name, info, "RedirectRejected", message), record));
    }
    if to_http2 && (parts.version != Version::HTTP_2 || timeout.is_none()) {
        header_rewrite::compact_values(&mut parts.headers);
    }
    backend.response_headers().apply(parts.status, &mut parts.headers);
    record.record_response_head(parts.status.as_u16(), &parts.headers, from.size_hint().exact());
    // Short responses are judged by their end; the end of a long-running one says little.
    let at_end = timeout.is_some() || !info.is_long_running();
    if fine && !at_end {
        backend.record_success(index);
    }
    let merit = (fine && at_end).then(|| OutcomeReporter { backend: backend.clone(), index });
    let limit = match timeout {
        Some(timeout) => {
            // The connection enforces the deadline, too: hyper does not poll a body while its client does not read.
            if !from.is_end_stream() {
                connection.set_response_deadline(began + timeout);
            }
            EndCondition::Deadline(began + timeout, merit)
        }
        None => match WatchFraming::from_headers(&parts.headers).filter(|_| info.verb == "watch") {
            Some(events) => {
                let place = streams.register();
                let watching = backend.member(index).watches.register(&place);
                EndCondition::Watch(place, events, watching)
            }
            None => EndCondition::Process(streams.register(), merit),
        },
    };
    parts.version = Version::HTTP_11;
    let user = timeout.is_none().then(|| permit.user().clone());
    let headers = backend.response_headers().clone();
    let relayed = RelayedBody::new(from, lease, record, headers, limit, places, user);
    Ok(Response::from_parts(parts, Body::streaming(relayed)))
}

/// Timing of the dial for the access record.
pub(super) fn connect_timing(timing: &DialTiming) -> ConnectTimings {
    ConnectTimings { dial: timing.connect, proxy: timing.proxy, tls: timing.handshake }
}

/// A request as sent to the backend.
struct PreparedRequest<'o> {
    request: Box<Request<Body>>,
    /// Recreates the request for retries; `None` if it must not be retried.
    replay: Option<RequestReplay<'o>>,
    /// Source of its body; `None` without a body.
    source: Option<Rc<RequestBodySource>>,
    /// Whether its method is safe and it has no body.
    is_safe: bool,
    retry_scope: RetryScope,
}

fn prepare<'o>(
    request: Box<Request<IncomingBody>>,
    path_and_query: PathAndQuery,
    backend: &WorkerBackend,
    origin: &'o ForwardedHeaders<'o>,
    (identity_headers, rules): (&Arc<IdentityHeaderMatcher>, Option<Arc<RbacProxyRules>>),
    receipt: impl FnOnce() -> Rc<BodyCounter>,
) -> Result<PreparedRequest<'o>, Refusal> {
    let (mut parts, body) = request.into_parts();
    let most = backend.api_service().settings.max_request_bytes;
    let source = RequestBodySource::new(body, most, identity_headers, rules, receipt);
    let body = source.as_ref().and_then(RequestBodySource::next_attempt).unwrap_or_default();
    let safe = source.is_none() && matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let again = match backend.api_service().settings.retry {
        registry::RetryMode::Never => RetryScope::Never,
        registry::RetryMode::Safe if safe => RetryScope::Always,
        registry::RetryMode::NotStarted if safe => RetryScope::StaleConnection,
        registry::RetryMode::Safe | registry::RetryMode::NotStarted => RetryScope::NotProcessed,
    };
    let uri = backend_uri(backend.prefix(), path_and_query)?;
    let settings = &backend.api_service().settings;
    header_rewrite::clean(&mut parts.headers, settings.owns_origin, &settings.allowed_request_headers);
    if settings.keeps_host {
        origin.set_host(&mut parts.headers);
    }
    let mut request = Box::new(Request::new(body));
    *request.method_mut() = parts.method.clone();
    *request.headers_mut() = origin.build(&parts.headers);
    *request.uri_mut() = uri.clone();
    let copy = (again != RetryScope::Never).then_some(RequestReplay {
        method: parts.method,
        uri,
        headers: parts.headers,
        forwarded_headers: origin,
    });
    Ok(PreparedRequest { request, replay: copy, source, is_safe: safe, retry_scope: again })
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

pub(super) fn backend_uri(prefix: &str, path_and_query: PathAndQuery) -> Result<Uri, Refusal> {
    if prefix.is_empty() {
        return Ok(Uri::from(path_and_query));
    }
    Uri::try_from(format!("{prefix}{path_and_query}")).map_err(|error| {
        Refusal::new(Blame::Client, Status::bad_request("the request's path cannot be sent on")).with_cause(error)
    })
}

/// The refusal for a fault of the client's request body.
fn body_fault_refusal(fault: RequestBodyFault, most: u64, info: &RequestInfo<'_>) -> Refusal {
    match fault {
        RequestBodyFault::TooLarge => too_large_refusal(most, info),
        RequestBodyFault::Broken => {
            let status = Status::bad_request("the request's body broke off, or cannot be read");
            Refusal::new(Blame::Client, with_request_details(status, info))
        }
    }
}

fn too_large_refusal(most: u64, info: &RequestInfo<'_>) -> Refusal {
    let status = Status::request_entity_too_large(format!("limit is {most} bytes"));
    Refusal::new(Blame::Client, with_request_details(status, info))
}
