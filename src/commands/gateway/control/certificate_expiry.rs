//! Certificate inventory and expiry warnings: certificates in use, and those presented by servers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::admin::{PeerCertificateReport, StatusReport, timestamp};
use crate::egress::{EgressRoute, EgressRoutes};
use crate::observe::metrics::{CallKind, Metrics};
use crate::registry::ClientCertificate;
use crate::route::{Route, RouteTable};
use crate::tls::{CertificateInUse, CertificateReport, EARLIEST_EXPIRY_WARNING, ExpiryLog, KeyPair};

/// Users of one server that are named; more are only counted.
const MOST_USERS: usize = 5;

/// The places where certificates are found.
pub(in crate::commands::gateway) struct CertificateSources<'s> {
    pub(in crate::commands::gateway) in_use: &'s [CertificateInUse],
    /// The front-proxy client certificate.
    pub(in crate::commands::gateway) identity: Option<Arc<KeyPair>>,
    pub(in crate::commands::gateway) egress_routes: &'s EgressRoutes,
    pub(in crate::commands::gateway) table: &'s RouteTable,
    pub(in crate::commands::gateway) metrics: &'s Metrics,
}

impl CertificateSources<'_> {
    /// The certificates that are presented or trusted, each file once: those of flags, and the key pairs of APIServices
    /// and egress proxies.
    pub(in crate::commands::gateway) fn certificates(&self) -> Vec<CertificateReport> {
        let mut all: Vec<CertificateReport> = self.in_use.iter().map(CertificateReport::from).collect();
        all.extend(self.identity.as_ref().map(|pair| CertificateReport::from(&**pair)));
        let mut listed_files: BTreeSet<String> = all.iter().map(|one| one.file.clone()).collect();
        for pair in self.egress_routes.identities().chain(self.apiservice_key_pairs()) {
            if listed_files.insert(pair.location().to_owned()) {
                all.push(CertificateReport::from(&**pair));
            }
        }
        all
    }

    /// Certificates presented by servers that expire at `until` (seconds since 1970) or before.
    pub(in crate::commands::gateway) fn peer_certificates(&self, until: u64) -> Vec<PeerCertificateReport> {
        let ending = self.metrics.peer_certificates().expiring(until);
        if ending.is_empty() {
            return Vec::new();
        }
        let users = self.server_uses();
        let report = |(server, server_name, facts): (String, String, crate::observe::metrics::PeerCertificateInfo)| {
            let used_by = users.get(&server).map(list).unwrap_or_default();
            let (not_before, not_after) = (format_seconds(facts.not_before), format_seconds(facts.not_after));
            PeerCertificateReport {
                server,
                server_name,
                used_by,
                subject: facts.subject,
                not_before,
                not_after,
                refused: facts.refused.to_owned(),
            }
        };
        ending.into_iter().map(report).collect()
    }

    /// Removes the certificates of servers that are no longer used.
    pub(super) fn remove_unused_peers(&self) {
        let users = self.server_uses();
        self.metrics.peer_certificates().retain(|server| users.contains_key(server));
    }

    /// The key pairs of the annotation `narthex.dev/client-certificate`.
    fn apiservice_key_pairs(&self) -> impl Iterator<Item = &Arc<KeyPair>> {
        self.routes().filter_map(|route| match &route.api_service.client_certificate {
            ClientCertificate::Dedicated(pair) => Some(pair),
            ClientCertificate::Shared | ClientCertificate::None => None,
        })
    }

    fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.table.routes().chain(self.table.delegate()).chain(self.table.upstreams())
    }

    /// What each server is used for, by address.
    fn server_uses(&self) -> HashMap<String, BTreeSet<String>> {
        let mut users: HashMap<String, BTreeSet<String>> = HashMap::new();
        for route in self.routes() {
            for endpoint in route.resolved.iter().flat_map(|resolved| &resolved.endpoints) {
                users.entry(endpoint.to_string()).or_default().insert(route.api_service.name.clone());
            }
        }
        for of in self.metrics.calls().status() {
            // The proxies themselves are below.
            if of.kind != CallKind::EgressProxy {
                let name = if of.name.is_empty() { String::new() } else { format!(" {}", of.name) };
                users.entry(of.server).or_default().insert(format!("{}{name}", of.kind.as_str()));
            }
        }
        for (name, way) in self.egress_routes.entries() {
            let EgressRoute::Proxied(selection) = way else { continue };
            for proxy in selection.proxies.iter() {
                users.entry(proxy.address.to_string()).or_default().insert(format!("egress selection {name}"));
            }
        }
        users
    }
}

/// The first few of `names`, and how many more there are.
fn list(names: &BTreeSet<String>) -> String {
    let first: Vec<&str> = names.iter().take(MOST_USERS).map(String::as_str).collect();
    match names.len().saturating_sub(MOST_USERS) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn format_seconds(seconds: u64) -> String {
    timestamp(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// What a check of certificate expiry logged and recorded.
#[derive(Default)]
pub(super) struct CertificateExpiryCheck {
    log: ExpiryLog,
    /// Files of key pairs of APIServices that have an expiry series in the metrics.
    metric_files: BTreeSet<String>,
}

impl CertificateExpiryCheck {
    /// Logs and counts certificates that expire soon.
    pub(super) fn check(&mut self, sources: &CertificateSources<'_>, now: SystemTime) {
        let until = (now + EARLIEST_EXPIRY_WARNING).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let report = StatusReport {
            certificates: sources.certificates(),
            peer_certificates: sources.peer_certificates(until),
            ..StatusReport::default()
        };
        self.record_metrics(sources);
        self.log.check(report.expiring_certificates(now), sources.metrics.certificates());
    }

    fn record_metrics(&mut self, sources: &CertificateSources<'_>) {
        let mut gone = std::mem::take(&mut self.metric_files);
        for pair in sources.apiservice_key_pairs() {
            gone.remove(pair.location());
            sources.metrics.certificates().set_expiry(pair.location(), pair.not_after().as_secs());
            self.metric_files.insert(pair.location().to_owned());
        }
        gone.iter().for_each(|file| sources.metrics.certificates().remove(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_server_are_listed_up_to_a_few() {
        let names = |count: usize| (0..count).map(|number| format!("v1.{number}.io")).collect::<BTreeSet<_>>();
        assert_eq!(list(&names(2)), "v1.0.io, v1.1.io");
        assert_eq!(list(&names(7)), "v1.0.io, v1.1.io, v1.2.io, v1.3.io, v1.4.io and 2 more");
    }
}
