//! What is allowed, works, and deserves a second look: an operator who is careful wants to have been told.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::observe::metrics::Metrics;
use crate::process::{Drain, Phase, Problem, Published, Publisher};
use crate::registry::{ApiService, Backend, Registry};
use crate::tls::server::Trust;

/// What there is to doubt, as lines for a person.
pub(super) type Doubts = Vec<String>;

/// Publishes what deserves a second look, says each new one in the log, and counts them, until the process ends.
pub(super) async fn follow(
    mut registry: Published<Registry>,
    mut trust: Published<Trust>,
    publisher: Publisher<Doubts>,
    metrics: Arc<Metrics>,
    mut drain: Drain,
) {
    loop {
        let now = registry.get();
        let mut doubts: Doubts = now.warnings.iter().map(ToString::to_string).collect();
        let before = publisher.reader().get();
        let more: Vec<String> = doubts_of(&now, &trust.get()).iter().map(ToString::to_string).collect();
        // The registry's own are logged where they are found.
        for doubt in more.iter().filter(|doubt| !before.contains(doubt)) {
            tracing::warn!("registry: {doubt}");
        }
        doubts.extend(more);
        metrics.registry_warnings(doubts.len());
        if *before != doubts {
            publisher.publish(Arc::new(doubts));
        }
        tokio::select! {
            () = registry.changed() => {}
            () = trust.changed() => {}
            () = drain.reached(Phase::Ending) => return,
        }
    }
}

/// What only the whole shows: who shares an authority with clients, and who serves a part of somebody else's group.
fn doubts_of(registry: &Registry, trust: &Trust) -> Vec<Problem> {
    let mut doubts = Vec::new();
    let mut groups: BTreeMap<&str, Vec<&ApiService>> = BTreeMap::new();
    for one in &registry.api_services {
        groups.entry(&one.group).or_default().push(one);
        let Some(bundle) = &one.ca_bundle else { continue };
        for (other, whose) in [(&trust.client, "clients"), (&trust.request_header, "front proxies")] {
            if other.as_ref().is_some_and(|other| other.overlaps(bundle)) {
                let message = format!(
                    "it has an authority that vouches for {whose}, too: whoever gets a certificate there as one of them \
                     may pass for the backend; give backends an authority of their own"
                );
                doubts.push(Problem::field(place(one), "spec.caBundle", message));
            }
        }
    }
    for (group, versions) in groups {
        let Some(local) = versions.iter().find(|one| one.backend == Backend::Local) else { continue };
        for one in versions.iter().filter(|one| one.backend != Backend::Local) {
            let message = format!(
                "takes over a part of {group}, which {} has from the API server itself: its clients' objects go to \
                 another server",
                local.name
            );
            doubts.push(Problem::field(place(one), "spec.group", message));
        }
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
        let doubts: Vec<String> = doubts_of(&registry, &trust).iter().map(ToString::to_string).collect();
        assert_eq!(doubts.len(), 2, "{doubts:#?}");
        assert!(doubts[0].starts_with("APIService v1.careless.io: spec.caBundle: "), "{doubts:#?}");
        assert!(doubts[1].starts_with("APIService v2.apps: spec.group: takes over a part of apps, which v1.apps has"));
        let nobody = Trust { client: None, request_header: bundle(&backends), front_proxies: None, generation: 0 };
        assert_eq!(doubts_of(&registry, &nobody).len(), 4);
    }
}
