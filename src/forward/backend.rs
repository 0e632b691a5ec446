//! An APIService's backend on one worker: its endpoints and their health.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;

use super::budget::Budget;
use super::exchange::Failure;
use super::history::{History, Watches};
use super::rewrite::ResponseHeaders;
use crate::availability::{Availability, Fate, Standing};
use crate::egress::{Address, BackendTls, DialError, Endpoint, Pool, Upstream, Wire};
use crate::observe::metrics::{self, WorkerMetrics};
use crate::process::Problem;
use crate::registry::{ApiService, ClientCertificate, Resolved};
use crate::route::Target;
use crate::tls::KeyPair;
use crate::tls::client::ClientSettings;

/// The backend of one APIService, on one worker.
pub struct Backend {
    api_service: Arc<ApiService>,
    members: Vec<Member>,
    preferred: usize,
    prefix: String,
    counts: Rc<metrics::Service>,
    availability: Arc<Availability>,
    history: Rc<History>,
    response_headers: Rc<ResponseHeaders>,
}

pub(super) struct Member {
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) counts: Rc<metrics::Endpoint>,
    /// Health shared by all workers.
    pub(super) standing: Arc<Standing>,
    /// Watches of the APIService at this endpoint.
    pub(super) watches: Rc<Watches>,
    /// Value of the shared unresponsive count that this worker has seen.
    silences: Cell<u32>,
    /// Whether this worker recorded a dial failure.
    unreachable: Cell<bool>,
}

impl Backend {
    /// The backend of `target`. `ours` is the client certificate unless the APIService names another; `history` is the
    /// state kept for the APIService when its backend is replaced. Connections are shared with every backend that is
    /// equal in everything that determines trust.
    ///
    /// # Errors
    /// No TLS configuration is possible, for example without system roots.
    pub fn new(
        target: &Target,
        ours: Option<&Arc<KeyPair>>,
        history: &Rc<History>,
        pool: &Pool,
        metrics: &WorkerMetrics,
    ) -> Result<Backend, Problem> {
        let (api_service, resolved) = (&target.route().api_service, target.resolved());
        let wire = wire(api_service, resolved, ours)?;
        let member = |(address, standing): (&Address, &Arc<Standing>)| Member {
            endpoint: pool.endpoint_of(&upstream(api_service, resolved, address, &wire), &target.route().connections),
            counts: metrics.endpoint(&api_service.name, &address.to_string()),
            standing: standing.clone(),
            watches: history.watches(address),
            silences: Cell::new(standing.silences()),
            unreachable: Cell::new(false),
        };
        Ok(Backend {
            members: resolved.endpoints.iter().zip(&target.route().standings).map(member).collect(),
            preferred: resolved.preferred,
            prefix: resolved.prefix.clone(),
            counts: metrics.service(&api_service.name),
            availability: target.route().availability.clone(),
            history: history.clone(),
            response_headers: Rc::new(ResponseHeaders {
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
    pub fn counts(&self) -> &Rc<metrics::Service> {
        &self.counts
    }

    /// Policy for response headers and trailers.
    pub(super) fn response_headers(&self) -> &Rc<ResponseHeaders> {
        &self.response_headers
    }

    /// Its endpoints, the preferred ones first, with whether each is ejected.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Rc<Endpoint>, &Rc<metrics::Endpoint>, bool)> {
        self.members.iter().map(|member| (&member.endpoint, &member.counts, member.is_out()))
    }

    pub(super) fn member(&self, index: usize) -> &Member {
        &self.members[index]
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Number of preferred endpoints, which share the load; the rest are fallbacks.
    pub(super) fn preferred(&self) -> usize {
        self.preferred.min(self.members.len())
    }

    /// The retry budget of the APIService on this worker.
    pub(super) fn budget(&self) -> &Budget {
        &self.history.budget
    }

    /// Records a response head with `status`. Returns whether it counts as a success once the body is complete: then
    /// call
    /// [`Backend::served`] or [`Backend::broke_off`].
    pub(super) fn answered(&self, index: usize, status: StatusCode) -> bool {
        self.availability.answered();
        // Other errors may be the client's fault.
        let fault = matches!(status.as_u16(), 500 | 502..=504);
        if fault {
            self.fault(index, "ServerError", false);
        }
        !fault
    }

    /// Records a successful response of a member.
    pub(super) fn served(&self, index: usize) {
        self.members[index].standing.answered();
    }

    /// Records a response that broke off. As with an error status, the request may be the cause.
    pub(super) fn broke_off(&self, index: usize) {
        self.fault(index, "BrokenAnswer", false);
    }

    /// Records a body after a status that has none.
    pub(super) fn sent_forbidden_body(&self, index: usize) {
        self.counts.sent_forbidden_body();
        self.broke_off(index);
    }

    /// Records a request that got no valid response.
    pub(super) fn broke(&self, index: usize) {
        self.fault(index, "NoAnswer", true);
    }

    /// Records a request that failed at all members tried.
    pub(super) fn failed(&self, failure: &Failure) {
        match failure {
            Failure::NoEndpoint => {
                let reason = self.failure_of_all().map_or("NoEndpoints", |error| error.reason);
                self.availability.failed(Fate::Unreachable, reason);
            }
            Failure::Unreachable(error) if self.members.iter().all(|member| !member.endpoint.is_usable()) => {
                self.availability.failed(Fate::Unreachable, error.reason);
            }
            Failure::Unreachable(_) => {}
            Failure::Nonsense(_) => self.availability.failed(Fate::Lost, "InvalidAnswer"),
            Failure::Broken(_) => self.availability.failed(Fate::Lost, "ConnectionBroken"),
            Failure::NoResponse(_) => self.availability.failed(Fate::Lost, "NoAnswer"),
        }
    }

    /// Ejects a member that fails repeatedly (outlier detection). A member that gives no response may be ejected while
    /// another one is left. When more than half respond with errors, the endpoints are hardly the cause, and ejecting
    /// more would only overload the rest.
    fn fault(&self, index: usize, why: &'static str, surely: bool) {
        let member = &self.members[index];
        let may_go = || {
            let out = self.members.iter().filter(|other| other.is_out()).count();
            let most = if surely { self.members.len() - 1 } else { self.members.len() / 2 };
            out < most
        };
        if member.standing.failed(may_go) {
            let (service, endpoint) = (&self.api_service.name, member.counts.address());
            tracing::warn!(apiservice = %service, endpoint, why, "endpoint ejected after repeated failures");
        }
    }

    /// Shares what this worker found out about endpoints with the others, which then need not wait to find out: that
    /// one is unresponsive, or cannot be connected to. Call every second.
    pub fn share_silence(&self) {
        for member in &self.members {
            // First apply what others found: an unused connection is no evidence of health.
            member.is_usable();
            match member.endpoint.failure_reason() {
                Some(reason) => {
                    member.unreachable.set(true);
                    member.standing.record_dial(Err(reason));
                }
                // This worker is connected, whatever others found.
                None if member.unreachable.take()
                    || member.standing.dial_failure().is_some() && member.endpoint.is_connected() =>
                {
                    member.standing.record_dial(Ok(()));
                }
                None => {}
            }
            // Share only what this worker found itself: repeating what others shared would never end.
            if member.endpoint.fell_silent() {
                let (silences, is_first) = member.standing.record_silence();
                member.silences.set(silences);
                // It may answer again already, which is then recorded the next time.
                member.unreachable.set(true);
                if is_first {
                    let (service, endpoint) = (&self.api_service.name, member.counts.address());
                    tracing::warn!(apiservice = %service, endpoint, "endpoint does not answer; not used until it does");
                }
            }
        }
    }

    /// Path prefix; empty except for URL backends.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Last error of the first endpoint, if no endpoint is usable.
    pub(super) fn failure_of_all(&self) -> Option<DialError> {
        let mut failures = self.members.iter().map(|member| member.endpoint.failure());
        let first = failures.next()?;
        if failures.all(|failure| failure.is_some()) { first } else { None }
    }
}

impl Member {
    /// Whether requests can be sent to it, as far as is known.
    pub(super) fn is_usable(&self) -> bool {
        let silences = self.standing.silences();
        if silences != self.silences.get() {
            self.silences.set(silences);
            self.endpoint.suspect();
        }
        self.endpoint.is_usable()
    }

    /// Whether it gets no new requests.
    fn is_out(&self) -> bool {
        !self.endpoint.is_usable() || self.standing.is_out()
    }
}

/// TLS settings or plaintext protocol of the backend of `api_service`. `ours` is the client certificate unless the
/// APIService configures another.
///
/// # Errors
/// As [`BackendTls::new`].
pub fn wire(api_service: &ApiService, resolved: &Resolved, ours: Option<&Arc<KeyPair>>) -> Result<Wire, Problem> {
    if let Some(protocol) = resolved.plain {
        return Ok(Wire::Plain(protocol));
    }
    let settings = ClientSettings {
        authorities: api_service.ca_bundle.clone(),
        insecure_skip_verify: api_service.insecure_skip_tls_verify,
        identity: match &api_service.client_certificate {
            ClientCertificate::Shared => ours.cloned(),
            ClientCertificate::Own(pair) => Some(pair.clone()),
            ClientCertificate::None => None,
        },
        alpn: Vec::new(),
    };
    Ok(Wire::Tls(Arc::new(BackendTls::new(&resolved.server_name, settings)?)))
}

/// The pool's key for the endpoint `address` of `resolved`, with its [`wire`] settings.
pub fn upstream(api_service: &ApiService, resolved: &Resolved, address: &Address, wire: &Wire) -> Upstream {
    Upstream {
        address: address.clone(),
        wire: wire.clone(),
        connect_timeout: api_service.settings.connect_timeout,
        way: resolved.way.clone(),
        keeps_host: api_service.settings.keeps_host,
    }
}
