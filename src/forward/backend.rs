//! An APIService's backend on one worker: its endpoints and their health.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{StatusCode, Uri};
use kubeapi::Status;

use super::endpoint_watches::{ApiServiceState, EndpointWatches};
use super::error_response::ForwardError;
use super::header_rewrite::ResponseHeaderPolicy;
use super::retry_budget::RetryBudget;
use crate::availability::{Availability, BackendOutcome, EndpointHealth};
use crate::egress::{Address, BackendTls, DialError, Endpoint, EndpointKey, Pool, TransportSecurity};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::{self, WorkerMetrics};
use crate::process::Problem;
use crate::registry::{ApiService, ClientCertificate, ResolvedBackend};
use crate::route::Route;
use crate::tls::KeyPair;
use crate::tls::client::ClientSettings;

/// The backend of one APIService, on one worker.
pub struct WorkerBackend {
    api_service: Arc<ApiService>,
    members: Vec<BackendMember>,
    preferred_count: usize,
    prefix: String,
    metrics: Rc<metrics::ApiServiceMetrics>,
    availability: Arc<Availability>,
    state: Rc<ApiServiceState>,
    response_headers: Rc<ResponseHeaderPolicy>,
}

/// Looks up the backend that a new request would use.
pub trait BackendSource {
    /// The backend of `route` with the current client certificate; `None` if it cannot be reached safely.
    fn current_backend(&self, route: &Arc<Route>) -> Option<Rc<WorkerBackend>>;
}

/// The backend for retries of a request. Retries use the current client certificate: the backend may no longer trust the
/// previous one.
pub struct BackendRenewal<'w> {
    source: &'w dyn BackendSource,
    /// The route of the request.
    route: Arc<Route>,
    /// The backend of the retries so far, if it differs from that of the first attempt. Kept here so that it is known
    /// even if the sending is canceled.
    renewed: OnceCell<Rc<WorkerBackend>>,
}

impl<'w> BackendRenewal<'w> {
    /// Renewal from `source` for a request of `route`.
    pub fn new(source: &'w dyn BackendSource, route: Arc<Route>) -> BackendRenewal<'w> {
        BackendRenewal { source, route, renewed: OnceCell::new() }
    }

    /// Replaces the backend if the client certificate changed since the first attempt, at `first`. Returns whether it
    /// did; it is replaced at most once.
    pub(super) fn renew(&self, first: &WorkerBackend) -> bool {
        self.renewed.get().is_none()
            && self.current_backend(first).is_some_and(|current| self.renewed.set(current).is_ok())
    }

    /// The backend of the retries so far, if it was replaced.
    pub(super) fn renewed(&self) -> Option<&Rc<WorkerBackend>> {
        self.renewed.get()
    }

    /// The current backend, if its endpoints differ from those of `before`. It has the same members.
    fn current_backend(&self, before: &WorkerBackend) -> Option<Rc<WorkerBackend>> {
        let current = self.source.current_backend(&self.route)?;
        let mut pairs = current.members.iter().zip(&before.members);
        pairs.any(|(now, before)| !Rc::ptr_eq(&now.endpoint, &before.endpoint)).then_some(current)
    }
}

pub(super) struct BackendMember {
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) metrics: Rc<metrics::EndpointMetrics>,
    /// Health shared by all workers.
    pub(super) health: Arc<EndpointHealth>,
    /// Watches of the APIService at this endpoint.
    pub(super) watches: Rc<EndpointWatches>,
    /// Value of the shared unresponsive count that this worker has seen.
    unresponsive_count: Cell<u32>,
    /// Whether this worker recorded a dial failure.
    dial_failure_recorded: Cell<bool>,
}

impl WorkerBackend {
    /// The backend of `route`. `identity` is the client certificate unless the APIService names another; `state` is the
    /// state kept for the APIService when its backend is replaced. Connections are shared with every backend that is
    /// equal in everything that determines trust.
    ///
    /// # Errors
    /// No TLS configuration is possible, for example without system roots.
    pub fn new(
        route: &Route,
        identity: Option<&Arc<KeyPair>>,
        state: &Rc<ApiServiceState>,
        pool: &Pool,
        metrics: &WorkerMetrics,
    ) -> Result<WorkerBackend, Problem> {
        let (api_service, resolved) = (&route.api_service, route.resolved_backend());
        let wire = transport_security(api_service, resolved, identity)?;
        let member = |(address, standing): (&Address, &Arc<EndpointHealth>)| BackendMember {
            endpoint: pool
                .endpoint_with_counter(&endpoint_key(api_service, resolved, address, &wire), &route.connections),
            metrics: metrics.endpoint(&api_service.name, &address.to_string()),
            health: standing.clone(),
            watches: state.watches(address),
            unresponsive_count: Cell::new(standing.unresponsive_count()),
            dial_failure_recorded: Cell::new(false),
        };
        Ok(WorkerBackend {
            members: resolved.endpoints.iter().zip(&route.endpoint_health).map(member).collect(),
            preferred_count: resolved.preferred_count,
            prefix: resolved.prefix.clone(),
            metrics: metrics.service(&api_service.name),
            availability: route.availability.clone(),
            state: state.clone(),
            response_headers: Rc::new(ResponseHeaderPolicy {
                owns_origin: api_service.settings.owns_origin,
                allowed: api_service.settings.allowed_response_headers.clone(),
            }),
            api_service: api_service.clone(),
        })
    }

    /// The APIService of this backend.
    pub fn api_service(&self) -> &Arc<ApiService> {
        &self.api_service
    }

    /// Metrics of its requests.
    pub fn metrics(&self) -> &Rc<metrics::ApiServiceMetrics> {
        &self.metrics
    }

    /// Policy for response headers and trailers.
    pub(super) fn response_headers(&self) -> &Rc<ResponseHeaderPolicy> {
        &self.response_headers
    }

    /// Endpoints of the backend, the preferred ones first, with whether each is ejected.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Rc<Endpoint>, &Rc<metrics::EndpointMetrics>, bool)> {
        self.members.iter().map(|member| (&member.endpoint, &member.metrics, member.is_ejected()))
    }

    pub(super) fn member(&self, index: usize) -> &BackendMember {
        &self.members[index]
    }

    pub(super) fn members(&self) -> &[BackendMember] {
        &self.members
    }

    /// Number of preferred endpoints, which share the load; the rest are fallbacks.
    pub(super) fn preferred_count(&self) -> usize {
        self.preferred_count.min(self.members.len())
    }

    /// The retry budget of the APIService on this worker.
    pub(super) fn retry_budget(&self) -> &RetryBudget {
        &self.state.retry_budget
    }

    /// Records a response head with `status`. Returns whether it counts as a success once the body is complete: then
    /// call
    /// [`WorkerBackend::record_success`] or [`WorkerBackend::record_broken_body`].
    pub(super) fn record_response(&self, index: usize, status: StatusCode) -> bool {
        self.availability.record_answer();
        // Other errors may be the client's fault.
        let fault = matches!(status.as_u16(), 500 | 502..=504);
        if fault {
            self.record_endpoint_failure(index, "ServerError", false);
        }
        !fault
    }

    /// Records a successful response of a member.
    pub(super) fn record_success(&self, index: usize) {
        self.members[index].health.record_success();
    }

    /// Records a response that broke off. As with an error status, the request may be the cause.
    pub(super) fn record_broken_body(&self, index: usize) {
        self.record_endpoint_failure(index, "BrokenAnswer", false);
    }

    /// Records a response with a body although its status allows none.
    pub(super) fn record_forbidden_body(&self, index: usize) {
        self.metrics.record_forbidden_body();
        self.record_broken_body(index);
    }

    /// Records a request that got no valid response.
    pub(super) fn record_no_response(&self, index: usize) {
        self.record_endpoint_failure(index, "NoAnswer", true);
    }

    /// Records a request that failed at all members tried.
    pub(super) fn record_failure(&self, failure: &ForwardError) {
        match failure {
            ForwardError::NoEndpoint => {
                let reason = self.common_failure().map_or("NoEndpoints", |error| error.reason);
                self.availability.record_failure(BackendOutcome::Unreachable, reason);
            }
            ForwardError::Unreachable(error) if self.members.iter().all(|member| !member.endpoint.is_usable()) => {
                self.availability.record_failure(BackendOutcome::Unreachable, error.reason);
            }
            ForwardError::Unreachable(_) => {}
            ForwardError::InvalidResponse(_) => {
                self.availability.record_failure(BackendOutcome::NoAnswer, "InvalidAnswer")
            }
            ForwardError::Broken(_) => self.availability.record_failure(BackendOutcome::NoAnswer, "ConnectionBroken"),
            ForwardError::NoResponse(_) => self.availability.record_failure(BackendOutcome::NoAnswer, "NoAnswer"),
        }
    }

    /// Ejects a member that fails repeatedly (outlier detection). A member that gives no response may be ejected while
    /// another one is left. When more than half respond with errors, the endpoints are hardly the cause, and ejecting
    /// more would only overload the rest.
    fn record_endpoint_failure(&self, index: usize, why: &'static str, surely: bool) {
        let member = &self.members[index];
        let may_go = || {
            let out = self.members.iter().filter(|other| other.is_ejected()).count();
            let limit = if surely { self.members.len() - 1 } else { self.members.len() / 2 };
            out < limit
        };
        if member.health.record_failure(may_go) {
            let (service, endpoint) = (&self.api_service.name, member.metrics.address());
            tracing::warn!(apiservice = %service, endpoint, why, "endpoint ejected after repeated failures");
        }
    }

    /// Shares what this worker found out about endpoints with the others, which then need not wait to find out: that
    /// one is unresponsive, or cannot be connected to. Call every second.
    pub fn sync_endpoint_health(&self) {
        for member in &self.members {
            // First apply what others found: an unused connection is no evidence of health.
            member.is_usable();
            match member.endpoint.failure_reason() {
                Some(reason) => {
                    member.dial_failure_recorded.set(true);
                    member.health.record_dial(Err(reason));
                }
                // This worker is connected, whatever others found.
                None if member.dial_failure_recorded.take()
                    || member.health.dial_failure().is_some() && member.endpoint.is_connected() =>
                {
                    member.health.record_dial(Ok(()));
                }
                None => {}
            }
            // Share only what this worker found itself: repeating what others shared would never end.
            if member.endpoint.take_became_unresponsive() {
                let (silences, is_first) = member.health.record_unresponsive();
                member.unresponsive_count.set(silences);
                // It may answer again already, which is then recorded the next time.
                member.dial_failure_recorded.set(true);
                if is_first {
                    let (service, endpoint) = (&self.api_service.name, member.metrics.address());
                    tracing::warn!(apiservice = %service, endpoint, "endpoint does not answer; not used until it does");
                }
            }
        }
    }

    /// The URI of a request for `path_and_query`; URL backends have a path prefix.
    ///
    /// # Errors
    /// 400 for a path that makes no valid URI with the prefix.
    pub(super) fn uri(&self, path_and_query: PathAndQuery) -> Result<Uri, Refusal> {
        if self.prefix.is_empty() {
            return Ok(Uri::from(path_and_query));
        }
        Uri::try_from(format!("{}{path_and_query}", self.prefix)).map_err(|error| {
            Refusal::new(Blame::Client, Status::bad_request("the request's path cannot be sent on")).with_cause(error)
        })
    }

    /// Last error of the first endpoint, if no endpoint is usable.
    pub(super) fn common_failure(&self) -> Option<DialError> {
        let mut failures = self.members.iter().map(|member| member.endpoint.failure());
        let first = failures.next()?;
        if failures.all(|failure| failure.is_some()) { first } else { None }
    }
}

impl BackendMember {
    /// Whether requests can be sent to it, as far as is known.
    pub(super) fn is_usable(&self) -> bool {
        let silences = self.health.unresponsive_count();
        if silences != self.unresponsive_count.get() {
            self.unresponsive_count.set(silences);
            self.endpoint.mark_unresponsive();
        }
        self.endpoint.is_usable()
    }

    /// Whether the endpoint gets no new requests.
    fn is_ejected(&self) -> bool {
        !self.endpoint.is_usable() || self.health.is_ejected()
    }
}

/// TLS settings or plaintext protocol of the backend of `api_service`. `identity` is the client certificate unless the
/// APIService configures another.
///
/// # Errors
/// As [`BackendTls::new`].
pub fn transport_security(
    api_service: &ApiService,
    resolved: &ResolvedBackend,
    identity: Option<&Arc<KeyPair>>,
) -> Result<TransportSecurity, Problem> {
    if let Some(protocol) = resolved.plaintext_protocol {
        return Ok(TransportSecurity::Plaintext(protocol));
    }
    let settings = ClientSettings {
        ca_bundle: api_service.ca_bundle.clone(),
        insecure_skip_verify: api_service.insecure_skip_tls_verify,
        identity: match &api_service.client_certificate {
            ClientCertificate::Shared => identity.cloned(),
            ClientCertificate::Dedicated(pair) => Some(pair.clone()),
            ClientCertificate::None => None,
        },
        alpn: Vec::new(),
    };
    Ok(TransportSecurity::Tls(Arc::new(BackendTls::new(&resolved.server_name, settings)?)))
}

/// The pool's key for the endpoint `address` of `resolved`, with its [`transport_security`] settings.
pub fn endpoint_key(
    api_service: &ApiService,
    resolved: &ResolvedBackend,
    address: &Address,
    wire: &TransportSecurity,
) -> EndpointKey {
    EndpointKey {
        address: address.clone(),
        security: wire.clone(),
        connect_timeout: api_service.settings.connect_timeout,
        egress_route: resolved.egress_route.clone(),
        preserve_host: api_service.settings.keeps_host,
    }
}
