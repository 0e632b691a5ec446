//! Findings of `narthex check` in readable files: a gateway starts with them, but does not serve as intended.

use rustls_pki_types::UnixTime;

use super::backend_files::BackendFiles;
use crate::authorize;
use crate::commands::gateway::audit_setup::AuditFiles;
use crate::commands::gateway::review_thread::Kubeconfigs;
use crate::config::GatewayConfig;
use crate::egress::EgressRoutes;
use crate::process::Problem;
use crate::registry::{ApiService, ClientCertificate};

/// The files that could be read.
pub(super) struct ReadableFiles<'f> {
    pub(super) backends: &'f BackendFiles,
    pub(super) kubeconfigs: &'f Kubeconfigs,
    pub(super) audit: Option<&'f AuditFiles>,
    pub(super) egress_routes: Option<&'f EgressRoutes>,
    pub(super) authorization: Option<&'f authorize::AuthorizationConfigFile>,
}

impl ReadableFiles<'_> {
    /// Certificates outside their validity except those of serving, and inconsistent objects of the registry, without those
    /// in `found`.
    pub(super) fn findings(&self, config: &GatewayConfig, mut found: Vec<Problem>) -> Vec<Problem> {
        let now = UnixTime::now();
        let BackendFiles { identity, registry, delegate, upstreams, cluster } = self.backends;
        found.extend(identity.as_ref().and_then(|(_, pair)| pair.get().validity_problem(now)));
        found.extend(self.kubeconfigs.invalid_certificates(now));
        found.extend(self.authorization.into_iter().flat_map(|authorization| authorization.untimely(now)));
        found.extend(cluster.iter().flat_map(|cluster| cluster.untimely(now)));
        found.extend(self.audit.into_iter().flat_map(|audit| audit.invalid_certificates(now)));
        found.extend(
            self.egress_routes
                .into_iter()
                .flat_map(EgressRoutes::identities)
                .filter_map(|pair| pair.validity_problem(now)),
        );
        let registered = registry.iter().flat_map(|(_, registry)| registry.sorted_api_services());
        let upstreams =
            upstreams.iter().flat_map(|(_, upstreams)| upstreams).map(|upstream| upstream.api_service.clone());
        for one in registered.chain(upstreams) {
            let location = registry.as_ref().and_then(|(directory, _)| directory.location_of(&one.name));
            backend_findings(&one, location.as_deref(), now, &mut found);
        }
        if let Some((_, delegate)) = delegate {
            backend_findings(delegate, None, now, &mut found);
        }
        if let Some((directory, registry)) = registry {
            let elsewhere = config.backends.cluster.is_some() || config.embedded_api.is_some();
            found.extend(
                directory.cross_check(registry, config.backends.resolve_rules, self.egress_routes, elsewhere).0,
            );
        }
        // Several APIServices often have the same CA bundle, and a kubeconfig adds its own name to a file: one finding.
        let mut news: Vec<Problem> = Vec::new();
        for problem in found {
            let is = |earlier: &Problem| {
                earlier.location == problem.location && problem.message.starts_with(&earlier.message)
            };
            if !news.iter().any(is) {
                news.push(problem);
            }
        }
        news
    }
}

/// `location` is where an APIService of the directory stands.
fn backend_findings(backend: &ApiService, location: Option<&str>, now: UnixTime, found: &mut Vec<Problem>) {
    let bundle = backend.ca_bundle.iter().flat_map(|bundle| bundle.validity_problems(now));
    found.extend(bundle.map(|problem| match location {
        Some(location) => Problem { location: location.to_owned(), field: "spec.caBundle".to_owned(), ..problem },
        None => problem,
    }));
    if let ClientCertificate::Dedicated(pair) = &backend.client_certificate {
        found.extend(pair.validity_problem(now));
    }
}
