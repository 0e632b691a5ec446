//! Catalog of the embedded API server: which built-in resources it serves, and which of them it stores.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::resources::builtin::builtin_kinds;
use crate::resources::{Resource, ServedKind};

/// What the embedded API server does with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serving {
    /// Objects are stored.
    Stored,
    /// Objects are stored, without any controller, if `--runtime-config` enables it; otherwise listed and watched empty.
    Optional,
    /// Listed and watched empty: a stored object would promise a behavior of the API server that does not exist.
    Empty,
    /// Read and watched: the gateway itself makes the objects.
    Generated,
    /// Of a CustomResourceDefinition: objects are stored.
    Custom,
}

/// Group, plural (`*` for all others of the group), and what is done with it. These are the resources that kubectl,
/// informers, kube-controller-manager and kube-scheduler list. The order of groups is kube-apiserver's in discovery.
const SERVED: [(&str, &str, Serving); 30] = [
    ("apiregistration.k8s.io", "apiservices", Serving::Stored),
    ("", "configmaps", Serving::Stored),
    ("", "endpoints", Serving::Stored),
    ("", "events", Serving::Stored),
    ("", "namespaces", Serving::Stored),
    ("", "secrets", Serving::Stored),
    ("", "serviceaccounts", Serving::Stored),
    ("", "services", Serving::Stored),
    ("", "limitranges", Serving::Empty),
    ("", "resourcequotas", Serving::Empty),
    ("", "*", Serving::Optional),
    ("apps", "*", Serving::Optional),
    ("events.k8s.io", "events", Serving::Stored),
    ("autoscaling", "*", Serving::Optional),
    ("batch", "*", Serving::Optional),
    ("certificates.k8s.io", "*", Serving::Empty),
    ("networking.k8s.io", "servicecidrs", Serving::Empty),
    ("networking.k8s.io", "ipaddresses", Serving::Empty),
    ("networking.k8s.io", "*", Serving::Optional),
    ("policy", "*", Serving::Optional),
    ("rbac.authorization.k8s.io", "*", Serving::Empty),
    ("storage.k8s.io", "*", Serving::Optional),
    ("admissionregistration.k8s.io", "*", Serving::Empty),
    ("apiextensions.k8s.io", "customresourcedefinitions", Serving::Stored),
    ("scheduling.k8s.io", "*", Serving::Optional),
    ("coordination.k8s.io", "leases", Serving::Stored),
    ("node.k8s.io", "*", Serving::Optional),
    ("discovery.k8s.io", "endpointslices", Serving::Stored),
    ("resource.k8s.io", "*", Serving::Optional),
    ("flowcontrol.apiserver.k8s.io", "*", Serving::Empty),
];

/// Verbs of a custom resource, in kube-apiserver's order.
pub(super) const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// Verbs of a resource that clients cannot change.
const READ_VERBS: [&str; 3] = ["get", "list", "watch"];

/// A resource in the version that is served and stored.
#[derive(Clone, Debug)]
pub struct CatalogEntry {
    /// The resource and the version.
    pub kind: ServedKind,
    serving: Serving,
    is_stored: bool,
}

/// The resources that an embedded API server serves.
#[derive(Clone)]
pub struct ResourceCatalog {
    entries: Vec<CatalogEntry>,
    /// Places of the entries, ordered by group, plural name and version.
    by_name: Vec<usize>,
}

impl CatalogEntry {
    /// An entry of a CustomResourceDefinition.
    pub fn of_custom(kind: ServedKind) -> CatalogEntry {
        CatalogEntry { kind, serving: Serving::Custom, is_stored: true }
    }

    /// Whether objects are stored. If not, the resource is listed and watched empty.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Whether `--runtime-config` says if objects are stored.
    pub fn is_optional(&self) -> bool {
        self.serving == Serving::Optional
    }

    /// The verbs of the resource in discovery.
    pub fn verbs(&self) -> &[&'static str] {
        if self.is_stored { &self.kind.version.verbs } else { &READ_VERBS }
    }

    /// The verbs that are answered. While a CRD is being deleted, discovery lists fewer.
    pub fn answered_verbs(&self) -> &[&'static str] {
        if self.serving == Serving::Custom { &CUSTOM_VERBS } else { self.verbs() }
    }

    /// The verbs of a subresource that are served; none if it is not served.
    pub fn subresource_verbs(&self, name: &str) -> &[&'static str] {
        match (self.kind.version.subresource(name), name) {
            (Some(subresource), "status" | "finalize" | "scale") if self.serving == Serving::Custom => {
                &subresource.verbs
            }
            (Some(subresource), "status" | "finalize") if self.is_stored => &subresource.verbs,
            (Some(_), "status") => &READ_VERBS[..1],
            _ => &[],
        }
    }

    /// `v1` or `group/version`.
    pub fn group_version(&self) -> String {
        self.kind.api_version()
    }

    /// Whether the resource is of a CustomResourceDefinition.
    pub fn is_custom(&self) -> bool {
        self.serving == Serving::Custom
    }

    fn name(&self) -> (&str, &str, &str) {
        let (group, plural) = self.kind.resource.group_resource();
        (group, plural, &self.kind.version.version)
    }

    /// Why objects are not stored, and what enables them if anything does.
    pub fn why_not_stored(&self) -> String {
        let (plural, group_version) = (&*self.kind.resource.plural, self.group_version());
        match (self.serving, plural) {
            (Serving::Generated, "apiservices") => {
                return "APIServices are read from the registry directory and cannot be changed here: change the files there".to_owned();
            }
            (Serving::Generated, _) => {
                return format!("{plural} are generated from the gateway's configuration and are read-only");
            }
            _ => {}
        }
        let name = match &*self.kind.resource.group {
            "" => plural.to_owned(),
            group => format!("{plural}.{group}"),
        };
        if self.is_optional() {
            format!(
                "{name} are not stored by this server and listed empty; \
                 --runtime-config={group_version}/{plural}=true stores them, without controllers"
            )
        } else {
            format!("{name} are listed empty: this server does not implement them yet, so it stores none")
        }
    }
}

impl ResourceCatalog {
    /// The catalog with the optional resources that `stores` selects.
    pub fn new(stores: impl Fn(&CatalogEntry) -> bool) -> ResourceCatalog {
        ResourceCatalog::of_rows(&SERVED, stores)
    }

    /// The catalog of a gateway without an embedded API server: what it generates, read-only. These are the APIServices
    /// of its registry, and with `--serve-delegation` a ConfigMap.
    pub fn of_generated(registrations: bool, delegation: bool) -> ResourceCatalog {
        let mut rows = Vec::new();
        if registrations {
            rows.push(("apiregistration.k8s.io", "apiservices", Serving::Generated));
        }
        if delegation {
            rows.push(("", "configmaps", Serving::Generated));
        }
        ResourceCatalog::of_rows(&rows, |_| false)
    }

    fn of_rows(rows: &[(&str, &str, Serving)], stores: impl Fn(&CatalogEntry) -> bool) -> ResourceCatalog {
        let kinds = builtin_kinds();
        let mut entries = Vec::new();
        for (at, (group, plural, serving)) in rows.iter().enumerate() {
            let is_named_before =
                |resource: &Resource| rows[..at].iter().any(|(of, name, _)| of == group && *name == resource.plural);
            let all = kinds.resources().iter().filter(|resource| {
                resource.group == *group
                    && if *plural == "*" { !is_named_before(resource) } else { resource.plural == *plural }
            });
            for resource in all {
                // A kube-apiserver stores some kinds in a version that it does not serve any more.
                let stored = resource.storage.as_ref().and_then(|(_, version)| resource.version(version));
                let Some(version) = stored.or(resource.versions.first()) else { continue };
                let kind = ServedKind { resource: resource.clone(), version: version.clone() };
                if resource.storage.is_some() {
                    let mut entry = CatalogEntry { kind, serving: *serving, is_stored: false };
                    entry.is_stored = *serving == Serving::Stored || entry.is_optional() && stores(&entry);
                    entries.push(entry);
                }
            }
        }
        ResourceCatalog::of_entries(entries)
    }

    fn of_entries(entries: Vec<CatalogEntry>) -> ResourceCatalog {
        let mut by_name: Vec<usize> = (0..entries.len()).collect();
        by_name.sort_by(|a, b| entries[*a].name().cmp(&entries[*b].name()));
        ResourceCatalog { entries, by_name }
    }

    /// The built-in resources of this catalog, and those of CustomResourceDefinitions. A CRD of a group that the
    /// server has itself is not served.
    #[must_use]
    pub fn with_custom(&self, custom: impl IntoIterator<Item = CatalogEntry>) -> ResourceCatalog {
        let builtin = self.entries.iter().filter(|entry| entry.serving != Serving::Custom);
        let mut entries: Vec<CatalogEntry> = builtin.cloned().collect();
        let groups: HashSet<Cow<'static, str>> =
            entries.iter().map(|builtin| builtin.kind.resource.group.clone()).collect();
        entries.extend(custom.into_iter().filter(|entry| !groups.contains(&entry.kind.resource.group)));
        ResourceCatalog::of_entries(entries)
    }

    /// All resources, ordered by group as in a kube-apiserver's discovery.
    pub fn entries(&self) -> &[CatalogEntry] {
        &self.entries
    }

    /// All resources of a group.
    pub fn in_group(&self, group: &str) -> impl Iterator<Item = &CatalogEntry> {
        let start = self.by_name.partition_point(|at| self.entries[*at].name().0 < group);
        let entries = self.by_name[start..].iter().map(|at| &self.entries[*at]);
        entries.take_while(move |entry| entry.kind.resource.group == group)
    }

    /// Finds a served resource.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&CatalogEntry> {
        let found = self.by_name.binary_search_by(|at| self.entries[*at].name().cmp(&(group, plural, version)));
        found.ok().map(|index| &self.entries[self.by_name[index]])
    }
}

impl std::fmt::Debug for ResourceCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stored: Vec<_> =
            self.entries.iter().filter(|entry| entry.is_stored).map(|one| &one.kind.resource.plural).collect();
        f.debug_struct("ResourceCatalog").field("stored", &stored).finish_non_exhaustive()
    }
}

impl Default for ResourceCatalog {
    fn default() -> ResourceCatalog {
        ResourceCatalog::new(|_| false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_catalog_stores_or_lists_empty() {
        let catalog = ResourceCatalog::default();
        let stored: Vec<_> = catalog
            .entries()
            .iter()
            .filter(|entry| entry.is_stored())
            .map(|entry| &*entry.kind.resource.plural)
            .collect();
        let expected = [
            "apiservices",
            "configmaps",
            "endpoints",
            "events",
            "namespaces",
            "secrets",
            "serviceaccounts",
            "services",
            "events",
            "customresourcedefinitions",
            "leases",
            "endpointslices",
        ];
        assert_eq!(stored, expected);
        let pods = catalog.find("", "v1", "pods").unwrap();
        assert_eq!(pods.verbs(), ["get", "list", "watch"]);
        assert_eq!((pods.subresource_verbs("status"), pods.subresource_verbs("log").len()), (&["get"][..], 0));
        assert!(pods.why_not_stored().contains("--runtime-config=v1/pods=true"));
        // Stored in versions that are not served; the other is stored in the newer of two.
        for (group, version, plural) in [
            ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
            ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies"),
            ("autoscaling", "v2", "horizontalpodautoscalers"),
        ] {
            assert!(catalog.find(group, version, plural).is_some(), "{plural}");
        }
        let roles = catalog.find("rbac.authorization.k8s.io", "v1", "roles").unwrap();
        assert!(!roles.is_stored() && !roles.why_not_stored().contains("--runtime-config"));
        assert!(catalog.find("", "v1", "bindings").is_none() && catalog.find("", "v1", "*").is_none());
    }

    #[test]
    fn resource_catalog_stores_optional_resources_only() {
        let catalog = ResourceCatalog::new(|_| true);
        assert!(catalog.find("", "v1", "pods").unwrap().is_stored());
        assert!(!catalog.find("rbac.authorization.k8s.io", "v1", "roles").unwrap().is_stored());
        let deployments = catalog.find("apps", "v1", "deployments").unwrap();
        assert_eq!(deployments.subresource_verbs("status"), ["get", "patch", "update"]);
        assert!(deployments.subresource_verbs("scale").is_empty());
        let names: std::collections::BTreeSet<_> =
            catalog.entries().iter().map(|entry| entry.kind.resource.group_resource()).collect();
        assert_eq!(names.len(), catalog.entries().len());
    }
}
