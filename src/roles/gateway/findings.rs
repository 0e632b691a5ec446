//! Findings of `narthex check` in readable files: a gateway starts with them, but does not serve as intended.

use rustls_pki_types::UnixTime;

use super::auditing::AuditFiles;
use super::delegation::Kubeconfigs;
use crate::authorize;
use crate::config::GatewayConfig;
use crate::egress::Ways;
use crate::process::Problem;
use crate::registry::{ApiService, ClientCertificate, Cluster, Directory, Registry, Upstreams};
use crate::tls::KeyPair;

/// The files that could be read.
pub(super) struct Readable<'f> {
    pub(super) identity: Option<&'f KeyPair>,
    pub(super) registry: Option<&'f (Directory, Registry)>,
    pub(super) delegate: Option<&'f ApiService>,
    pub(super) upstreams: Option<&'f Upstreams>,
    pub(super) kubeconfigs: &'f Kubeconfigs,
    pub(super) cluster: Option<&'f Cluster>,
    pub(super) audit: Option<&'f AuditFiles>,
    pub(super) ways: Option<&'f Ways>,
    pub(super) authorization: Option<&'f authorize::ConfigurationFile>,
}

impl Readable<'_> {
    /// Certificates outside their validity except those of serving, and inconsistent objects of the registry, without those
    /// in `found`.
    pub(super) fn findings(&self, config: &GatewayConfig, mut found: Vec<Problem>) -> Vec<Problem> {
        let now = UnixTime::now();
        found.extend(self.identity.and_then(|pair| pair.untimely(now)));
        found.extend(self.kubeconfigs.untimely(now));
        found.extend(self.authorization.into_iter().flat_map(|authorization| authorization.untimely(now)));
        found.extend(self.cluster.into_iter().flat_map(|cluster| cluster.untimely(now)));
        found.extend(self.audit.into_iter().flat_map(|audit| audit.untimely(now)));
        found.extend(self.ways.into_iter().flat_map(Ways::identities).filter_map(|pair| pair.untimely(now)));
        let registered = self.registry.into_iter().flat_map(|(_, registry)| registry.in_order());
        let upstreams = self.upstreams.into_iter().flatten().map(|upstream| upstream.api_service.clone());
        for one in registered.chain(upstreams) {
            let place = self.registry.and_then(|(directory, _)| directory.place_of(&one.name));
            of_backend(&one, place.as_deref(), now, &mut found);
        }
        if let Some(delegate) = self.delegate {
            of_backend(delegate, None, now, &mut found);
        }
        if let Some((directory, registry)) = self.registry {
            let elsewhere = config.behind.cluster.is_some();
            found.extend(directory.cross_check(registry, config.behind.rules, self.ways, elsewhere).0);
        }
        // Several APIServices often have the same CA bundle, and a kubeconfig adds its own name to a file: one finding.
        let mut news: Vec<Problem> = Vec::new();
        for problem in found {
            let is = |known: &Problem| known.place == problem.place && problem.message.starts_with(&known.message);
            if !news.iter().any(is) {
                news.push(problem);
            }
        }
        news
    }
}

/// `place` is where an APIService of the directory stands.
fn of_backend(backend: &ApiService, place: Option<&str>, now: UnixTime, found: &mut Vec<Problem>) {
    let bundle = backend.ca_bundle.iter().flat_map(|bundle| bundle.untimely(now));
    found.extend(bundle.map(|problem| match place {
        Some(place) => Problem::field(place, "spec.caBundle", problem.message),
        None => problem,
    }));
    if let ClientCertificate::Own(pair) = &backend.client_certificate {
        found.extend(pair.untimely(now));
    }
}
