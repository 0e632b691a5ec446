//! Warnings about APIServices that are valid but probably not intended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::observe::metrics::Metrics;
use crate::process::{Drain, Phase, Problem, Published, Publisher, Sharded};
use crate::registry::{ApiService, Backend, Mark, Registry};
use crate::tls::server::Trust;

/// The current warnings, as text lines.
#[derive(Clone, Default)]
pub(super) struct Doubts {
    /// By name of the APIService.
    by_name: Sharded<Arc<[String]>>,
    count: usize,
}

impl Doubts {
    /// All warnings, sorted by the name of the APIService.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut names: Vec<&str> = self.by_name.names().collect();
        names.sort_unstable();
        names.into_iter().flat_map(|name| self.of(name)).cloned().collect()
    }

    fn of(&self, name: &str) -> &[String] {
        self.by_name.get(name).map(AsRef::as_ref).unwrap_or_default()
    }

    fn put(&mut self, name: &str, lines: Vec<String>) {
        self.count = self.count + lines.len() - self.of(name).len();
        match lines.is_empty() {
            true => self.by_name.remove(name),
            false => self.by_name.insert(name, lines.into()),
        }
    }
}

/// Publishes the warnings, logs each new one, and counts them, until the process ends.
pub(super) async fn follow(
    mut registry: Published<Registry>,
    mut trust: Published<Trust>,
    publisher: Publisher<Doubts>,
    metrics: Arc<Metrics>,
    mut drain: Drain,
) {
    let mut doubting = Doubting::default();
    loop {
        if let Some(doubts) = doubting.look(&registry.get(), &trust.get()) {
            metrics.registry_warnings(doubts.count);
            publisher.publish(Arc::new(doubts));
        }
        tokio::select! {
            () = registry.changed() => {}
            () = trust.changed() => {}
            () = drain.reached(Phase::Ending) => return,
        }
    }
}

/// Computes the warnings incrementally.
#[derive(Default)]
struct Doubting {
    doubts: Doubts,
    /// The names of the APIServices of each group.
    groups: BTreeMap<String, BTreeSet<String>>,
    seen: Option<(Mark, Arc<Trust>)>,
}

impl Doubting {
    /// The warnings now, if they changed.
    fn look(&mut self, registry: &Registry, trust: &Arc<Trust>) -> Option<Doubts> {
        let since = self.seen.as_ref().filter(|(_, before)| Arc::ptr_eq(before, trust));
        let changes = since.and_then(|(mark, _)| registry.changes_since(mark));
        let changed: BTreeSet<String> = match changes {
            Some(changes) => changes.api_services.into_iter().map(str::to_owned).collect(),
            None => {
                let known = self.groups.values().flatten().cloned();
                registry.api_services().map(|one| one.name.clone()).chain(known).collect()
            }
        };
        self.seen = Some((registry.mark(), trust.clone()));
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
            let before = self.doubts.of(&name);
            if *before == *lines {
                continue;
            }
            // The registry logs its own warnings itself.
            let own = registry.warnings_of(&name).len();
            for doubt in lines.iter().skip(own).filter(|doubt| !before.contains(doubt)) {
                tracing::warn!("registry: {doubt}");
            }
            self.doubts.put(&name, lines);
            changed = true;
        }
        changed.then(|| self.doubts.clone())
    }

    fn lines(&self, one: &ApiService, registry: &Registry, trust: &Trust) -> Vec<String> {
        let own = registry.warnings_of(&one.name).iter().map(ToString::to_string);
        let versions = self.groups.get(&one.group).into_iter().flatten();
        let versions = versions.filter_map(|name| registry.api_service(name)).map(AsRef::as_ref);
        own.chain(doubts_of(one, versions, trust).iter().map(ToString::to_string)).collect()
    }
}

/// Warnings that need more than the APIService itself: its CA bundle contains a client CA, or a local APIService serves
/// another version of its group. `versions` are all APIServices of the group.
fn doubts_of<'r>(one: &ApiService, mut versions: impl Iterator<Item = &'r ApiService>, trust: &Trust) -> Vec<Problem> {
    let mut doubts = Vec::new();
    if let Some(bundle) = &one.ca_bundle {
        for (other, whose) in [(&trust.client, "clients"), (&trust.request_header, "front proxies")] {
            if other.as_ref().is_some_and(|other| other.overlaps(bundle)) {
                let message = format!(
                    "it contains a CA that is trusted for {whose}, too: a holder of such a certificate could pose as \
                     the backend; use a separate CA for backends"
                );
                doubts.push(Problem::field(place(one), "spec.caBundle", message));
            }
        }
    }
    if one.backend != Backend::Local
        && let Some(local) = versions.find(|other| other.backend == Backend::Local)
    {
        let message = format!(
            "takes over a part of {}, which {} has from the API server itself: these objects go to another server",
            one.group, local.name
        );
        doubts.push(Problem::field(place(one), "spec.group", message));
    }
    doubts
}

fn place(one: &ApiService) -> String {
    format!("APIService {}", one.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{Settings, read};
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
        read(&Settings::default(), "a.yaml", &services.iter().map(one).collect::<String>()).unwrap()
    }

    #[test]
    fn a_shared_authority_and_a_shared_group_are_told() {
        let (clients, backends) = (Authority::made("clients").pem(), Authority::made("backends").pem());
        let registry = registry(&[
            ("v1.apps", None),
            ("v2.apps", Some(&backends)),
            ("v1.careless.io", Some(&format!("{backends}{clients}"))),
            ("v1.fine.io", Some(&backends)),
        ]);
        let bundle = |pem: &str| Some(Bundle::from_pem(pem.as_bytes(), "test").unwrap());
        let trust = Trust { client: bundle(&clients), request_header: None, front_proxies: None, generation: 0 };
        let doubts_of = |registry: &Registry, trust: Trust| {
            let doubts = Doubting::default().look(registry, &Arc::new(trust)).unwrap();
            let lines: Vec<String> =
                doubts.lines().into_iter().filter(|line| line.starts_with("APIService ")).collect();
            lines
        };
        let doubts = doubts_of(&registry, trust);
        assert_eq!(doubts.len(), 2, "{doubts:#?}");
        assert!(doubts[0].starts_with("APIService v1.careless.io: spec.caBundle: "), "{doubts:#?}");
        assert!(doubts[1].starts_with("APIService v2.apps: spec.group: takes over a part of apps, which v1.apps has"));
        let nobody = Trust { client: None, request_header: bundle(&backends), front_proxies: None, generation: 0 };
        assert_eq!(doubts_of(&registry, nobody).len(), 4);
    }
}
