//! Warnings about APIServices that are valid but probably not intended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::observe::metrics::Metrics;
use crate::process::{Drain, HelpTopic, Problem, Published, Publisher, ShardedMap, ShutdownPhase};
use crate::registry::{ApiService, ApiServiceBackend, Registry, Revision};
use crate::tls::server::ClientTrust;

/// The current warnings.
#[derive(Clone, Default)]
pub(in crate::commands::gateway) struct RegistryWarnings {
    /// By name of the APIService.
    by_name: ShardedMap<Arc<[Problem]>>,
    count: usize,
}

impl RegistryWarnings {
    /// All warnings, sorted by the name of the APIService.
    pub(in crate::commands::gateway) fn lines(&self) -> Vec<String> {
        let mut names: Vec<&str> = self.by_name.names().collect();
        names.sort_unstable();
        names.into_iter().flat_map(|name| self.get(name)).map(ToString::to_string).collect()
    }

    fn get(&self, name: &str) -> &[Problem] {
        self.by_name.get(name).map(AsRef::as_ref).unwrap_or_default()
    }

    fn set(&mut self, name: &str, warnings: Vec<Problem>) {
        self.count = self.count + warnings.len() - self.get(name).len();
        match warnings.is_empty() {
            true => self.by_name.remove(name),
            false => self.by_name.insert(name, warnings.into()),
        }
    }
}

/// Publishes the warnings, logs each new one, and counts them, until the process ends.
pub(super) async fn follow(
    mut registry: Published<Registry>,
    mut trust: Published<ClientTrust>,
    publisher: Publisher<RegistryWarnings>,
    metrics: Arc<Metrics>,
    mut drain: Drain,
) {
    let mut doubting = WarningTracker::default();
    loop {
        if let Some(doubts) = doubting.update(&registry.get(), &trust.get()) {
            metrics.set_registry_warnings(doubts.count);
            publisher.publish(Arc::new(doubts));
        }
        tokio::select! {
            () = registry.changed() => {}
            () = trust.changed() => {}
            () = drain.wait_for(ShutdownPhase::Ending) => return,
        }
    }
}

/// Computes the warnings incrementally.
#[derive(Default)]
struct WarningTracker {
    warnings: RegistryWarnings,
    /// The names of the APIServices of each group.
    groups: BTreeMap<String, BTreeSet<String>>,
    last_inputs: Option<(Revision, Arc<ClientTrust>)>,
}

impl WarningTracker {
    /// The warnings now, if they changed.
    fn update(&mut self, registry: &Registry, trust: &Arc<ClientTrust>) -> Option<RegistryWarnings> {
        let since = self.last_inputs.as_ref().filter(|(_, before)| Arc::ptr_eq(before, trust));
        let changes = since.and_then(|(mark, _)| registry.changes_since(mark));
        let changed: BTreeSet<String> = match changes {
            Some(changes) => changes.api_services.into_iter().map(str::to_owned).collect(),
            None => {
                let group_names = self.groups.values().flatten().cloned();
                registry.api_services().map(|one| one.name.clone()).chain(group_names).collect()
            }
        };
        self.last_inputs = Some((registry.revision(), trust.clone()));
        let mut names = BTreeSet::new();
        for name in changed {
            // A version contains no dot.
            let group = name.split_once('.').map_or("", |(_, group)| group);
            let versions = self.groups.entry(group.to_owned()).or_default();
            match registry.api_service(&name) {
                Some(_) => versions.insert(name.clone()),
                None => versions.remove(&name),
            };
            names.extend(versions.iter().cloned());
            if versions.is_empty() {
                self.groups.remove(group);
            }
            names.insert(name);
        }
        let mut changed = false;
        for name in names {
            let lines = registry.api_service(&name).map(|one| self.lines(one, registry, trust)).unwrap_or_default();
            let before = self.warnings.get(&name);
            if *before == *lines {
                continue;
            }
            // The registry logs its own warnings itself.
            let own = registry.warnings_of(&name).len();
            for doubt in lines.iter().skip(own).filter(|doubt| !before.contains(doubt)) {
                tracing::warn!(help = doubt.help_link(), "registry: {doubt}");
            }
            self.warnings.set(&name, lines);
            changed = true;
        }
        changed.then(|| self.warnings.clone())
    }

    fn lines(&self, one: &ApiService, registry: &Registry, trust: &ClientTrust) -> Vec<Problem> {
        let own = registry.warnings_of(&one.name).iter().cloned();
        let versions = self.groups.get(&one.group).into_iter().flatten();
        let versions = versions.filter_map(|name| registry.api_service(name)).map(AsRef::as_ref);
        own.chain(apiservice_warnings(one, versions, trust)).collect()
    }
}

/// Warnings that need more than the APIService itself: its CA bundle contains a client CA, or a local APIService serves
/// another version of its group. `versions` are all APIServices of the group.
fn apiservice_warnings<'r>(
    one: &ApiService,
    mut versions: impl Iterator<Item = &'r ApiService>,
    trust: &ClientTrust,
) -> Vec<Problem> {
    let mut doubts = Vec::new();
    if let Some(bundle) = &one.ca_bundle {
        for (other, peers) in [(&trust.client, "clients"), (&trust.request_header, "front proxies")] {
            if other.as_ref().is_some_and(|other| other.shares_key_with(bundle)) {
                let message = format!(
                    "it contains a CA that is trusted for {peers}, too: a holder of such a certificate could pose as \
                     the backend; use a separate CA for backends"
                );
                let doubt = Problem::at_field(problem_place(one), "spec.caBundle", message);
                doubts.push(doubt.with_help(HelpTopic::AuthorityShared));
            }
        }
    }
    if one.backend != ApiServiceBackend::Local
        && let Some(local) = versions.find(|other| other.backend == ApiServiceBackend::Local)
    {
        let message = format!(
            "claims part of group {}, but {} is served by the API server itself (Local): the group is split between two servers",
            one.group, local.name
        );
        doubts.push(Problem::at_field(problem_place(one), "spec.group", message).with_help(HelpTopic::GroupSplit));
    }
    doubts
}

fn problem_place(one: &ApiService) -> String {
    format!("APIService {}", one.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Settings, parse_manifests};
    use crate::tls::{Authority, Bundle};

    fn registry(services: &[(&str, Option<&str>)]) -> Registry {
        let one = |(name, bundle): &(&str, Option<&str>)| {
            let (version, group) = name.split_once('.').unwrap();
            let bundle = bundle.map(|pem| {
                use base64::Engine as _;
                base64::engine::general_purpose::STANDARD.encode(pem)
            });
            let service = bundle
                .map_or(String::new(), |bundle| format!("caBundle: {bundle}, service: {{name: a, namespace: b}}, "));
            format!(
                "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {name}}}\n\
                 spec: {{group: {group}, version: {version}, {service}groupPriorityMinimum: 1, versionPriority: 1}}\n---\n"
            )
        };
        parse_manifests(&Settings::default(), "a.yaml", &services.iter().map(one).collect::<String>()).unwrap()
    }

    #[test]
    fn registry_warns_of_shared_ca_and_shared_group() {
        let (clients, backends) = (Authority::generate("clients").pem(), Authority::generate("backends").pem());
        let registry = registry(&[
            ("v1.apps", None),
            ("v2.apps", Some(&backends)),
            ("v1.careless.io", Some(&format!("{backends}{clients}"))),
            ("v1.fine.io", Some(&backends)),
        ]);
        let bundle = |pem: &str| Some(Bundle::from_pem(pem.as_bytes(), "test").unwrap());
        let trust = ClientTrust { client: bundle(&clients), request_header: None, front_proxies: None, generation: 0 };
        let doubts_of = |registry: &Registry, trust: ClientTrust| {
            let doubts = WarningTracker::default().update(registry, &Arc::new(trust)).unwrap();
            let lines: Vec<String> =
                doubts.lines().into_iter().filter(|line| line.starts_with("APIService ")).collect();
            lines
        };
        let doubts = doubts_of(&registry, trust);
        assert_eq!(doubts.len(), 2, "{doubts:#?}");
        assert!(doubts[0].starts_with("APIService v1.careless.io: spec.caBundle: "), "{doubts:#?}");
        assert!(doubts[1].starts_with(
            "APIService v2.apps: spec.group: claims part of group apps, but v1.apps is served by the API server itself"
        ));
        let nobody =
            ClientTrust { client: None, request_header: bundle(&backends), front_proxies: None, generation: 0 };
        assert_eq!(doubts_of(&registry, nobody).len(), 4);
    }
}
