//! Sends an authorized request to its backend and returns the response.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::header::CONTENT_TYPE;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version, request, response};
use http_body::Body as _;
use kubeapi::{RequestInfo, Status};

use super::backend::WorkerBackend;
use super::error_response::{ForwardError, bad_gateway_refusal, refusal_for, timeout_refusal, with_request_details};
use super::forwarded_headers::ForwardedHeaders;
use super::header_rewrite;
use super::outbound_request::{OutboundRequest, ResponseOptions};
use super::request_body::{RequestBodyFault, RequestBodySource};
use super::response_body::{EndCondition, ForwardedBody, OutcomeReporter, ResponseBodySource};
use super::retry::{RequestReplay, RetryPlan, RetryScope, send_with_retries};
use super::upgrade::upgrade;
use super::watch_framing::WatchFraming;
use crate::authorize::Permit;
use crate::egress::EndpointResponse;
use crate::message::{Blame, Body, IncomingBody, Refusal, hop_by_hop};
use crate::observe::access::{AccessRecord, ConnectTimings};
use crate::process::with_deadline;
use crate::registry;

/// A request as sent to the backend.
struct PreparedRequest<'o> {
    request: Box<Request<Body>>,
    plan: RetryPlan<'o>,
    /// Whether its method is safe and it has no body.
    is_safe: bool,
}

/// Forwards one response.
struct ResponseForwarder<'r> {
    permit: &'r Permit<'r>,
    backend: &'r Rc<WorkerBackend>,
    /// Index of the member that responded.
    index: usize,
    /// Whether the client uses HTTP/2.
    to_http2: bool,
    is_head: bool,
    /// Deadline of the response; none if it is long-running.
    deadline: Option<Instant>,
    options: ResponseOptions<'r>,
}

/// Sends a request to `backend` and returns its response, whose body is forwarded once it has its access record.
///
/// The [`Permit`] is proof that the request was authorized, the [`WorkerBackend`] that it was routed.
///
/// # Errors
/// A [`Refusal`] if there is no response to pass on.
pub async fn send(
    permit: &Permit<'_>,
    backend: &Rc<WorkerBackend>,
    outbound: OutboundRequest<'_>,
    record: &mut AccessRecord,
) -> Result<Response<ForwardedBody>, Refusal> {
    let (started_at, info) = (record.last_phase_end(), permit.request());
    check_declared_size(backend, &outbound.request, info)?;
    let protocol = hop_by_hop::upgrade_protocol(outbound.request.headers()).map(str::to_owned);
    if let Some(protocol) = protocol {
        // Boxed: rare, and every other request would pay for its size.
        return Box::pin(upgrade(backend, outbound, info, &protocol, record)).await;
    }
    let to_http2 = outbound.request.version() == Version::HTTP_2;
    let is_head = outbound.request.method() == Method::HEAD;
    let deadline = outbound.timeout.map(|timeout| started_at + timeout);
    let OutboundRequest { request, path_and_query, forwarded_headers, identity_headers, rules, .. } = outbound;
    let (parts, body) = request.into_parts();
    let source = RequestBodySource::new(body, max_request_bytes(backend), &identity_headers, rules, || {
        record.request_body_counter()
    });
    let PreparedRequest { request, mut plan, is_safe } =
        build_backend_request(parts, source, path_and_query, &forwarded_headers, backend)?;
    plan.is_long_running = deadline.is_none();
    plan.renewal = Some(outbound.renewal);
    if let Some(circuit_permit) = &outbound.circuit_permit {
        circuit_permit.mark_sent();
    }
    let sent = {
        let sending = pin!(send_with_retries(request, &plan, backend, |reason| record.record_retry(reason)));
        with_deadline(deadline, sending).await
    };
    // Endpoints of a replaced backend say nothing about the retries.
    let backend = plan.backend(backend);
    let (index, sent) = match sent {
        Some(Ok(sent)) => sent,
        Some(Err(failure)) => return Err(failure_refusal(failure, &plan, backend, info, is_safe)),
        None => return Err(timeout_refusal(name(backend), info, is_safe, backend.common_failure())),
    };
    let dialed = sent.timing.total() > Duration::ZERO;
    record.record_backend_headers(dialed.then(|| ConnectTimings::from(sent.timing)));
    record.set_endpoint(&backend.member(index).metrics);
    ResponseForwarder { permit, backend, index, to_http2, is_head, deadline, options: outbound.response_options }
        .forward(sent, record)
}

fn name(backend: &WorkerBackend) -> &str {
    &backend.api_service().name
}

fn max_request_bytes(backend: &WorkerBackend) -> Option<u64> {
    backend.api_service().settings.max_request_bytes
}

/// Rejects a request with a `Content-Length` above the limit of its APIService.
fn check_declared_size(
    backend: &WorkerBackend,
    request: &Request<IncomingBody>,
    info: &RequestInfo<'_>,
) -> Result<(), Refusal> {
    match max_request_bytes(backend) {
        Some(max) if request.body().size_hint().lower() > max => Err(too_large_refusal(max, info)),
        _ => Ok(()),
    }
}

/// Builds the request to the backend from the client's.
fn build_backend_request<'o>(
    mut parts: request::Parts,
    source: Option<Rc<RequestBodySource>>,
    path_and_query: PathAndQuery,
    forwarded_headers: &'o ForwardedHeaders<'o>,
    backend: &WorkerBackend,
) -> Result<PreparedRequest<'o>, Refusal> {
    let settings = &backend.api_service().settings;
    let body = source.as_ref().and_then(RequestBodySource::next_attempt).unwrap_or_default();
    let is_safe = source.is_none() && matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let scope = match settings.retry {
        registry::RetryMode::Never => RetryScope::Never,
        registry::RetryMode::Safe if is_safe => RetryScope::Always,
        registry::RetryMode::NotStarted if is_safe => RetryScope::StaleConnection,
        registry::RetryMode::Safe | registry::RetryMode::NotStarted => RetryScope::NotProcessed,
    };
    let uri = backend.uri(path_and_query)?;
    header_rewrite::clean(&mut parts.headers, settings.owns_origin, &settings.allowed_request_headers);
    if settings.keeps_host {
        forwarded_headers.set_host(&mut parts.headers);
    }
    let mut request = Box::new(Request::new(body));
    *request.method_mut() = parts.method.clone();
    *request.headers_mut() = forwarded_headers.build(&parts.headers);
    *request.uri_mut() = uri.clone();
    let replay = (scope != RetryScope::Never).then_some(RequestReplay {
        method: parts.method,
        uri,
        headers: parts.headers,
        forwarded_headers,
    });
    Ok(PreparedRequest {
        request,
        plan: RetryPlan { scope, replay, source, is_long_running: false, renewal: None },
        is_safe,
    })
}

impl ResponseForwarder<'_> {
    /// Checks the response and rewrites its headers.
    fn forward(
        mut self,
        sent: EndpointResponse,
        record: &mut AccessRecord,
    ) -> Result<Response<ForwardedBody>, Refusal> {
        let EndpointResponse { response, mut guard, .. } = sent;
        let is_success = self.backend.record_response(self.index, response.status());
        let (mut parts, from) = response.into_parts();
        if self.options.streams_by_type && self.deadline.is_some() && is_stream(&parts.headers) {
            (self.deadline, self.options.permits) = (None, [None, None]);
            record.mark_long_running();
        }
        if self.deadline.is_none() {
            guard.mark_long_running();
        }
        let from = self.remove_forbidden_body(parts.status, from);
        self.check_redirect(&parts)?;
        if self.to_http2 && (parts.version != Version::HTTP_2 || self.deadline.is_none()) {
            header_rewrite::compact_values(&mut parts.headers);
        }
        let headers = self.backend.response_headers().clone();
        headers.apply(parts.status, &mut parts.headers);
        record.record_response_head(parts.status.as_u16(), &parts.headers, from.size_hint().exact());
        let end_condition = self.end_condition(is_success, &parts.headers, from.is_end_stream());
        parts.version = Version::HTTP_11;
        let user = self.deadline.is_none().then(|| self.permit.user().clone());
        let source = ResponseBodySource { from, guard, headers, end_condition, _permits: self.options.permits, user };
        Ok(Response::from_parts(parts, ForwardedBody::streamed(source)))
    }

    /// Cuts off a body that `status` or the request's method forbids.
    fn remove_forbidden_body(&self, status: StatusCode, from: IncomingBody) -> IncomingBody {
        let has_no_body = self.is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if !has_no_body || from.is_end_stream() {
            return from;
        }
        let (backend, index) = (self.backend.clone(), self.index);
        from.without_body(move || backend.record_forbidden_body(index))
    }

    fn check_redirect(&self, parts: &response::Parts) -> Result<(), Refusal> {
        if !self.options.reject_redirects || !is_redirect(parts.status, &parts.headers) {
            return Ok(());
        }
        self.backend.record_success(self.index);
        let message = "the backend attempted to redirect this request, which is not permitted";
        Err(bad_gateway_refusal(name(self.backend), self.permit.request(), "RedirectRejected", message))
    }

    /// What ends the response. `is_success` is the result of its head, `ended` says that it has no body.
    fn end_condition(&self, is_success: bool, headers: &HeaderMap, ended: bool) -> EndCondition {
        let (backend, index, info) = (self.backend, self.index, self.permit.request());
        // The outcome of a short response is known at its end; the end of a long-running one says little.
        let known_at_end = self.deadline.is_some() || !info.is_long_running();
        if is_success && !known_at_end {
            backend.record_success(index);
        }
        let reporter = (is_success && known_at_end).then(|| OutcomeReporter { backend: backend.clone(), index });
        if let Some(deadline) = self.deadline {
            // The connection enforces the deadline, too: hyper does not poll a body while its client does not read.
            if !ended {
                self.options.connection.set_response_deadline(deadline);
            }
            return EndCondition::Deadline(deadline, reporter);
        }
        let slot = self.options.streams.register();
        match WatchFraming::from_headers(headers).filter(|_| info.verb == "watch") {
            Some(framing) => {
                let registration = backend.member(index).watches.register(&slot);
                EndCondition::Watch(slot, framing, registration)
            }
            None => EndCondition::Process(slot, reporter),
        }
    }
}

/// The refusal for a request that got no response because of `failure`.
fn failure_refusal(
    failure: ForwardError,
    plan: &RetryPlan<'_>,
    backend: &WorkerBackend,
    info: &RequestInfo<'_>,
    is_safe: bool,
) -> Refusal {
    if let Some(fault) = plan.source.as_ref().and_then(|source| source.fault()) {
        return body_fault_refusal(fault, max_request_bytes(backend).unwrap_or_default(), info);
    }
    backend.record_failure(&failure);
    let failure = match failure {
        // No endpoint was tried: report the last known error.
        ForwardError::NoEndpoint => {
            backend.common_failure().map_or(ForwardError::NoEndpoint, ForwardError::Unreachable)
        }
        failure => failure,
    };
    refusal_for(&failure, name(backend), info, is_safe)
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

/// The refusal for a fault of the client's request body.
fn body_fault_refusal(fault: RequestBodyFault, max: u64, info: &RequestInfo<'_>) -> Refusal {
    match fault {
        RequestBodyFault::TooLarge => too_large_refusal(max, info),
        RequestBodyFault::Broken => {
            let status = Status::bad_request("the request's body broke off, or cannot be read");
            Refusal::new(Blame::Client, with_request_details(status, info))
        }
    }
}

fn too_large_refusal(max: u64, info: &RequestInfo<'_>) -> Refusal {
    let status = Status::request_entity_too_large(format!("limit is {max} bytes"));
    Refusal::new(Blame::Client, with_request_details(status, info))
}
