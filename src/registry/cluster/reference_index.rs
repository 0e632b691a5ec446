//! Index of the Services that APIServices reference.

use std::collections::{BTreeMap, BTreeSet};

/// The referenced Services, each with its referrers.
#[derive(Default)]
pub(super) struct ReferenceIndex {
    /// By namespace and name of the Service.
    by_namespace: BTreeMap<String, BTreeMap<String, BTreeSet<Referrer>>>,
    /// Namespace and name of the Service that each referrer references.
    services_by_referrer: BTreeMap<Referrer, (String, String)>,
}

/// A version of an APIService, with its name.
pub(super) type Referrer = (ReferrerSource, String);

/// Version of an APIService that references a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReferrerSource {
    /// The one in the kube-apiserver.
    KubeApiserver,
    /// The published one, which may be an earlier version of the kube-apiserver's.
    Published,
    /// The one in the registry directory.
    Directory,
}

impl ReferenceIndex {
    /// Sets the Service that `namer` references, by namespace and name, or none. Returns the namespaces in which the
    /// set of referenced Services changed.
    pub(super) fn set(&mut self, namer: &Referrer, service: Option<(&str, &str)>) -> Vec<String> {
        let before = self.services_by_referrer.get(namer);
        if before.map(|(namespace, name)| (namespace.as_str(), name.as_str())) == service {
            return Vec::new();
        }
        let mut changed = Vec::new();
        if let Some((namespace, service)) = self.services_by_referrer.remove(namer)
            && let Some(services) = self.by_namespace.get_mut(&namespace)
            && let Some(namers) = services.get_mut(&service)
        {
            namers.remove(namer);
            if namers.is_empty() {
                services.remove(&service);
                if services.is_empty() {
                    self.by_namespace.remove(&namespace);
                }
                changed.push(namespace);
            }
        }
        if let Some((namespace, service)) = service {
            let (namespace, service) = (namespace.to_owned(), service.to_owned());
            self.services_by_referrer.insert(namer.clone(), (namespace.clone(), service.clone()));
            let services = self.by_namespace.entry(namespace.clone()).or_default();
            if !services.contains_key(&service) {
                changed.push(namespace);
            }
            services.entry(service).or_default().insert(namer.clone());
        }
        changed
    }

    /// The referenced Services of a namespace.
    pub(super) fn services(&self, namespace: &str) -> BTreeSet<String> {
        self.by_namespace.get(namespace).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    /// The referrers of Services of this namespace, with the Service.
    pub(super) fn referrers(&self, namespace: &str) -> impl Iterator<Item = (&Referrer, &str)> {
        let services = self.by_namespace.get(namespace).into_iter().flatten();
        services.flat_map(|(service, namers)| namers.iter().map(move |namer| (namer, service.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_index_keeps_service_while_referenced() {
        let mut named = ReferenceIndex::default();
        let (a, b) = ((ReferrerSource::KubeApiserver, "a".to_owned()), (ReferrerSource::Published, "a".to_owned()));
        assert_eq!(named.set(&a, Some(("ns", "api"))), ["ns"]);
        assert!(named.set(&b, Some(("ns", "api"))).is_empty(), "it is already");
        assert_eq!(named.set(&a, Some(("far", "api"))), ["far"], "the other names it still");
        assert_eq!(named.set(&b, Some(("ns", "other"))), ["ns", "ns"]);
        assert_eq!(named.referrers("ns").map(|(_, service)| service).collect::<Vec<_>>(), ["other"]);
        assert_eq!(named.set(&b, None), ["ns"]);
        assert!(named.services("ns").is_empty() && named.set(&b, None).is_empty());
        assert_eq!(named.services("far").len(), 1);
    }
}
