//! Catalog of the embedded API server: which built-in resources it serves, and which of them it stores.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::resources::builtin::builtin_kinds;
use crate::resources::{Resource, ServedKind};

/// What the embedded API server does with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serving {
    /// Objects are stored, always: the server itself needs them.
    Required,
    /// Objects are stored, unless `--runtime-config` turns the resource off.
    Stored(Enforcement),
    /// Read and watched: the gateway itself makes the objects.
    Generated,
    /// No object is stored: requests are answered by a function of the kind.
    Unstored,
    /// Of a CustomResourceDefinition: objects are stored.
    Custom,
}

/// What acts on the objects of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// This server, or its clients.
    Any,
    /// Nothing: in a kube-apiserver they change how it admits, authorizes or limits.
    Missing,
    /// The controllers of a kube-controller-manager, which make workloads run.
    Controllers,
}

const STORED: Serving = Serving::Stored(Enforcement::Any);
const UNENFORCED: Serving = Serving::Stored(Enforcement::Missing);
const WORKLOAD: Serving = Serving::Stored(Enforcement::Controllers);

/// Group, plural (`*` for all others of the group), and what is done with it. The order of groups is kube-apiserver's in
/// discovery.
const SERVED: [(&str, &str, Serving); 33] = [
    ("apiregistration.k8s.io", "apiservices", Serving::Required),
    ("", "configmaps", Serving::Required),
    ("", "endpoints", Serving::Required),
    ("", "events", Serving::Required),
    ("", "namespaces", Serving::Required),
    ("", "secrets", Serving::Required),
    ("", "serviceaccounts", Serving::Required),
    ("", "services", Serving::Required),
    ("", "limitranges", UNENFORCED),
    ("", "resourcequotas", UNENFORCED),
    ("", "replicationcontrollers", WORKLOAD),
    ("", "bindings", Serving::Unstored),
    ("", "componentstatuses", Serving::Unstored),
    ("", "*", STORED),
    ("apps", "controllerrevisions", STORED),
    ("apps", "*", WORKLOAD),
    ("events.k8s.io", "events", Serving::Required),
    ("autoscaling", "*", STORED),
    ("batch", "*", WORKLOAD),
    ("certificates.k8s.io", "*", STORED),
    ("networking.k8s.io", "networkpolicies", UNENFORCED),
    ("networking.k8s.io", "*", STORED),
    ("policy", "*", STORED),
    ("rbac.authorization.k8s.io", "*", STORED),
    ("storage.k8s.io", "*", STORED),
    ("admissionregistration.k8s.io", "*", UNENFORCED),
    ("apiextensions.k8s.io", "customresourcedefinitions", Serving::Required),
    ("scheduling.k8s.io", "*", STORED),
    ("coordination.k8s.io", "leases", Serving::Required),
    ("node.k8s.io", "*", STORED),
    ("discovery.k8s.io", "endpointslices", Serving::Required),
    ("resource.k8s.io", "*", STORED),
    ("flowcontrol.apiserver.k8s.io", "*", UNENFORCED),
];

/// The subresources that are served of objects that are stored.
const SUBRESOURCES: [&str; 9] =
    ["status", "finalize", "scale", "approval", "ephemeralcontainers", "resize", "eviction", "binding", "token"];

/// Subresources by which a client reaches a kubelet, a Pod or a Service.
pub const CONNECT_SUBRESOURCES: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

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
        CatalogEntry { kind, serving: Serving::Custom }
    }

    /// Whether objects are stored.
    pub fn is_stored(&self) -> bool {
        !matches!(self.serving, Serving::Generated | Serving::Unstored)
    }

    /// Whether the gateway itself makes the objects, which clients read and watch.
    pub fn is_generated(&self) -> bool {
        self.serving == Serving::Generated
    }

    /// Whether `--runtime-config` can turn the resource off.
    pub fn is_optional(&self) -> bool {
        matches!(self.serving, Serving::Stored(_) | Serving::Unstored)
    }

    /// What acts on the objects.
    pub fn enforcement(&self) -> Enforcement {
        match self.serving {
            Serving::Stored(enforcement) => enforcement,
            _ => Enforcement::Any,
        }
    }

    /// The verbs of the resource in discovery.
    pub fn verbs(&self) -> &[&'static str] {
        if self.is_generated() { &READ_VERBS } else { &self.kind.version.verbs }
    }

    /// The verbs that are answered. While a CRD is being deleted, discovery lists fewer.
    pub fn answered_verbs(&self) -> &[&'static str] {
        if self.serving == Serving::Custom { &CUSTOM_VERBS } else { self.verbs() }
    }

    /// The verbs of a subresource that are served; none if it is not served.
    pub fn subresource_verbs(&self, name: &str) -> &[&'static str] {
        match (self.kind.version.subresource(name), name) {
            (Some(subresource), name)
                if self.is_stored() && (SUBRESOURCES.contains(&name) || CONNECT_SUBRESOURCES.contains(&name)) =>
            {
                &subresource.verbs
            }
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

    /// Why clients cannot write the objects, which the gateway makes.
    pub fn why_generated(&self) -> String {
        match &*self.kind.resource.plural {
            "apiservices" => {
                "APIServices are read from the registry directory and cannot be changed here: change the files there"
                    .to_owned()
            }
            plural => format!("{plural} are generated from the gateway's configuration and are read-only"),
        }
    }
}

impl ResourceCatalog {
    /// The catalog with the optional resources that `is_enabled` selects.
    pub fn new(is_enabled: impl Fn(&CatalogEntry) -> bool) -> ResourceCatalog {
        ResourceCatalog::of_rows(&SERVED, is_enabled)
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

    fn of_rows(rows: &[(&str, &str, Serving)], is_enabled: impl Fn(&CatalogEntry) -> bool) -> ResourceCatalog {
        let kinds = builtin_kinds();
        let mut entries = Vec::new();
        for (at, (group, plural, serving)) in rows.iter().enumerate() {
            let is_named_before =
                |resource: &Resource| rows[..at].iter().any(|(of, name, _)| of == group && *name == resource.plural);
            let all = kinds.resources().iter().filter(|resource| {
                resource.group == *group
                    && if *plural == "*" { !is_named_before(resource) } else { resource.plural == *plural }
            });
            // Reviews are answered before the catalog is asked.
            let is_kept = |resource: &Resource| resource.storage.is_some() || *serving == Serving::Unstored;
            for resource in all {
                for version in resource.versions.iter().filter(|_| is_kept(resource)) {
                    let kind = ServedKind { resource: resource.clone(), version: version.clone() };
                    let entry = CatalogEntry { kind, serving: *serving };
                    if !entry.is_optional() || is_enabled(&entry) {
                        entries.push(entry);
                    }
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
            self.entries.iter().filter(|entry| entry.is_stored()).map(|one| &one.kind.resource.plural).collect();
        f.debug_struct("ResourceCatalog").field("stored", &stored).finish_non_exhaustive()
    }
}

impl Default for ResourceCatalog {
    fn default() -> ResourceCatalog {
        ResourceCatalog::new(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_catalog_has_all_stored_kinds_unless_they_are_turned_off() {
        let catalog = ResourceCatalog::default();
        let names = |catalog: &ResourceCatalog| -> Vec<String> {
            catalog.entries().iter().map(|entry| entry.kind.resource.plural.to_string()).collect()
        };
        let stored = builtin_kinds().resources().iter().filter(|resource| resource.storage.is_some());
        let (kept, unstored): (Vec<_>, Vec<_>) = catalog.entries().iter().partition(|entry| entry.is_stored());
        assert_eq!(kept.len(), stored.map(|resource| resource.versions.len()).sum::<usize>());
        let unstored: Vec<&str> = unstored.iter().map(|entry| &*entry.kind.resource.plural).collect();
        assert_eq!(unstored, ["bindings", "componentstatuses"]);
        let required = [
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
        assert_eq!(names(&ResourceCatalog::new(|_| false)), required);
        // Stored in versions that are not served; the last is served in two.
        for (group, version, plural) in [
            ("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
            ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies"),
            ("autoscaling", "v2", "horizontalpodautoscalers"),
            ("autoscaling", "v1", "horizontalpodautoscalers"),
        ] {
            assert!(catalog.find(group, version, plural).is_some(), "{plural}");
        }
        assert!(catalog.find("", "v1", "*").is_none());
        let deployments = catalog.find("apps", "v1", "deployments").unwrap();
        assert_eq!(deployments.subresource_verbs("status"), ["get", "patch", "update"]);
        let names: std::collections::BTreeSet<_> = catalog.entries().iter().map(CatalogEntry::name).collect();
        assert_eq!(names.len(), catalog.entries().len());
    }

    #[test]
    fn resource_catalog_knows_who_acts_on_objects() {
        let catalog = ResourceCatalog::default();
        for (group, version, plural, expected) in [
            ("networking.k8s.io", "v1", "networkpolicies", Enforcement::Missing),
            ("rbac.authorization.k8s.io", "v1", "roles", Enforcement::Any),
            ("apps", "v1", "deployments", Enforcement::Controllers),
            ("apps", "v1", "controllerrevisions", Enforcement::Any),
            ("", "v1", "pods", Enforcement::Any),
            ("", "v1", "configmaps", Enforcement::Any),
        ] {
            assert_eq!(catalog.find(group, version, plural).unwrap().enforcement(), expected, "{plural}");
        }
    }
}
