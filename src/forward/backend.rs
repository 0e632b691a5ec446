//! One APIService's backend as one worker sees it: its endpoints, and which comes next.

use std::rc::Rc;
use std::sync::Arc;

use crate::egress::{BackendTls, Endpoint, Pool, Upstream};
use crate::observe::metrics::{self, WorkerMetrics};
use crate::process::Problem;
use crate::registry::ApiService;
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
}

pub(super) struct Member {
    pub(super) endpoint: Rc<Endpoint>,
    pub(super) counts: Rc<metrics::Endpoint>,
}

impl Backend {
    /// The backend of `target`; `ours` is the certificate we present unless the APIService names another.
    /// Connections are shared with every backend that is equal in all that bears on trust.
    ///
    /// # Errors
    /// When no TLS configuration can be made of it, for example without any system roots.
    pub fn new(
        target: &Target,
        ours: Option<&Arc<KeyPair>>,
        pool: &Pool,
        metrics: &WorkerMetrics,
    ) -> Result<Backend, Problem> {
        let (api_service, resolved) = (&target.route().api_service, target.resolved());
        let tls = Arc::new(backend_tls(api_service, &resolved.server_name, ours)?);
        let connect_timeout = api_service.settings.connect_timeout;
        let member = |destination: &crate::egress::Destination| Member {
            endpoint: pool.endpoint(&Upstream { destination: destination.clone(), tls: tls.clone(), connect_timeout }),
            counts: metrics.endpoint(&api_service.name, &destination.to_string()),
        };
        Ok(Backend {
            members: resolved.endpoints.iter().map(member).collect(),
            preferred: resolved.preferred,
            prefix: resolved.prefix.clone(),
            counts: metrics.service(&api_service.name),
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

    /// Its endpoints, the preferred ones first.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Rc<Endpoint>, &Rc<metrics::Endpoint>)> {
        self.members.iter().map(|member| (&member.endpoint, &member.counts))
    }

    pub(super) fn member(&self, index: usize) -> &Member {
        &self.members[index]
    }

    /// What stands before every path; empty for all but URL backends.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The endpoint that should take the next request: the one with the fewest, among those that answer
    /// and did not just fail this request; the other address family only if none of the first is left.
    /// One in `doubtful` only if there is no other.
    pub(super) fn pick(&self, failed: &[usize], doubtful: &[usize]) -> Option<(usize, &Rc<Endpoint>)> {
        if doubtful.is_empty() || self.members.len() == 1 {
            return self.pick_from(failed);
        }
        let not: Vec<usize> = failed.iter().chain(doubtful).copied().collect();
        self.pick_from(&not).or_else(|| self.pick_from(failed))
    }

    fn pick_from(&self, failed: &[usize]) -> Option<(usize, &Rc<Endpoint>)> {
        if let [only] = &*self.members {
            return (failed.is_empty() && only.endpoint.is_usable()).then_some((0, &only.endpoint));
        }
        let (first, second) = self.members.split_at(self.preferred.min(self.members.len()));
        least(first, 0, failed).or_else(|| least(second, first.len(), failed))
    }

    /// Why no endpoint is usable: what the first of them said last.
    pub(super) fn failure(&self) -> Option<crate::egress::DialError> {
        self.members.iter().find_map(|member| member.endpoint.failure())
    }
}

fn least<'m>(members: &'m [Member], offset: usize, failed: &[usize]) -> Option<(usize, &'m Rc<Endpoint>)> {
    // Starting anywhere keeps equals from always falling on the first.
    let start = if members.len() > 1 { fastrand::usize(..members.len()) } else { 0 };
    (0..members.len())
        .map(|step| (start + step) % members.len())
        .filter(|at| !failed.contains(&(at + offset)) && members[*at].endpoint.is_usable())
        .min_by_key(|at| members[*at].endpoint.pending())
        .map(|at| (at + offset, &members[at].endpoint))
}

/// Whom we expect behind `api_service`, and who we say we are there.
///
/// # Errors
/// As [`BackendTls::new`].
pub fn backend_tls(api_service: &ApiService, name: &str, ours: Option<&Arc<KeyPair>>) -> Result<BackendTls, Problem> {
    let settings = ClientSettings {
        authorities: api_service.ca_bundle.clone(),
        insecure_skip_verify: api_service.insecure_skip_tls_verify,
        identity: api_service.client_certificate.as_ref().or(ours).cloned(),
        alpn: Vec::new(),
    };
    BackendTls::new(name, settings)
}
