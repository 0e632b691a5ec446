//! One APIService's backend as one worker sees it: its endpoints, and how they serve.

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

/// Where the requests for one APIService go, from one worker.
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
    /// How it stands with all workers.
    pub(super) standing: Arc<Standing>,
    /// The APIService's watches that are there.
    pub(super) watches: Rc<Watches>,
    /// How often it was silent, as far as this worker knows.
    silences: Cell<u32>,
    /// Whether this worker recorded that it cannot be connected to.
    unreachable: Cell<bool>,
}

impl Backend {
    /// The backend of `target`; `ours` is the certificate we present unless the APIService names another, `history` what
    /// its APIService keeps when this one is followed by the next.
    /// Connections are shared with every backend that is equal in all that bears on trust.
    ///
    /// # Errors
    /// When no TLS configuration can be made of it, for example without any system roots.
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

    /// The APIService it stands for.
    pub fn api_service(&self) -> &Arc<ApiService> {
        &self.api_service
    }

    /// What its requests are counted with.
    pub fn counts(&self) -> &Rc<metrics::Service> {
        &self.counts
    }

    /// Which headers and trailers of its responses reach clients.
    pub(super) fn response_headers(&self) -> &Rc<ResponseHeaders> {
        &self.response_headers
    }

    /// Its endpoints, the preferred ones first, and whether each is out.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Rc<Endpoint>, &Rc<metrics::Endpoint>, bool)> {
        self.members.iter().map(|member| (&member.endpoint, &member.counts, member.is_out()))
    }

    pub(super) fn member(&self, index: usize) -> &Member {
        &self.members[index]
    }

    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// How many of them are to be balanced; the rest are for when these fail.
    pub(super) fn preferred(&self) -> usize {
        self.preferred.min(self.members.len())
    }

    /// How often requests may be sent once more.
    pub(super) fn budget(&self) -> &Budget {
        &self.history.budget
    }

    /// A request was answered by a member, with this status. Whether it served well, if the rest of its answer comes,
    /// too: say that by [`Backend::served`] or [`Backend::broke_off`].
    pub(super) fn answered(&self, index: usize, status: StatusCode) -> bool {
        self.availability.answered();
        // Other errors may be what the client asked for.
        let fault = matches!(status.as_u16(), 500 | 502..=504);
        if fault {
            self.fault(index, "ServerError", false);
        }
        !fault
    }

    /// A member served a request well, as far as can be said.
    pub(super) fn served(&self, index: usize) {
        self.members[index].standing.answered();
    }

    /// A member began an answer and did not end it. What was asked for may be the reason, as with an error.
    pub(super) fn broke_off(&self, index: usize) {
        self.fault(index, "BrokenAnswer", false);
    }

    /// A member sent a body behind a status that has none.
    pub(super) fn sent_forbidden_body(&self, index: usize) {
        self.counts.sent_forbidden_body();
        self.broke_off(index);
    }

    /// A request that was sent to a member got nothing back that is an answer.
    pub(super) fn broke(&self, index: usize) {
        self.fault(index, "NoAnswer", true);
    }

    /// A request was not answered by anybody.
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

    /// Takes a member out that fails again and again. Who gives no answer may go as long as another is left; when more
    /// than half answer with errors it is hardly their own fault, and nothing is won by crowding the rest.
    fn fault(&self, index: usize, why: &'static str, surely: bool) {
        let member = &self.members[index];
        let may_go = || {
            let out = self.members.iter().filter(|other| other.is_out()).count();
            let most = if surely { self.members.len() - 1 } else { self.members.len() / 2 };
            out < most
        };
        if member.standing.failed(may_go) {
            let (service, endpoint) = (&self.api_service.name, member.counts.address());
            tracing::warn!(apiservice = %service, endpoint, why, "an endpoint fails again and again; it is left for a while");
        }
    }

    /// What one worker found out about an endpoint, the others need not find out by waiting: that it is silent, or cannot
    /// be connected to. Call it every second.
    pub fn share_silence(&self) {
        for member in &self.members {
            // First what others found: a connection that nobody uses says nothing against it.
            member.is_usable();
            match member.endpoint.failure_reason() {
                Some(reason) => {
                    member.unreachable.set(true);
                    member.standing.record_dial(Err(reason));
                }
                // Whatever others found: this worker is connected.
                None if member.unreachable.take()
                    || member.standing.dial_failure().is_some() && member.endpoint.is_connected() =>
                {
                    member.standing.record_dial(Ok(()));
                }
                None => {}
            }
            // Only what this worker found out itself: one that tells what it was told would never be done.
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

    /// What stands before every path; empty for all but URL backends.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Why no endpoint is usable, if none is: what the first of them said last.
    pub(super) fn failure_of_all(&self) -> Option<DialError> {
        let mut failures = self.members.iter().map(|member| member.endpoint.failure());
        let first = failures.next()?;
        if failures.all(|failure| failure.is_some()) { first } else { None }
    }
}

impl Member {
    /// Whether requests can be sent there, as far as is known.
    pub(super) fn is_usable(&self) -> bool {
        let silences = self.standing.silences();
        if silences != self.silences.get() {
            self.silences.set(silences);
            self.endpoint.suspect();
        }
        self.endpoint.is_usable()
    }

    /// Whether nothing new goes there now.
    fn is_out(&self) -> bool {
        !self.endpoint.is_usable() || self.standing.is_out()
    }
}

/// What is spoken where `api_service` leads now: over TLS, with whom we expect there, as whom we say we are; `ours` is
/// the pair that all are shown that say nothing else.
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

/// One of the endpoints of `resolved` for the pool, with what [`wire`] said is spoken there.
pub fn upstream(api_service: &ApiService, resolved: &Resolved, address: &Address, wire: &Wire) -> Upstream {
    Upstream {
        address: address.clone(),
        wire: wire.clone(),
        connect_timeout: api_service.settings.connect_timeout,
        way: resolved.way.clone(),
        keeps_host: api_service.settings.keeps_host,
    }
}
