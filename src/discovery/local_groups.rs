//! API groups served locally: `apiregistration.k8s.io`, read-only without an embedded API server, so that `kubectl get
//! apiservices` works; and review APIs for `kubectl auth` and backends, unless a backend serves those.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use serde::Serialize;

use super::model::{DiscoveryResource, ResourceKind, Scope, Subresource};
use crate::resources::ServedSubresource;
use crate::resources::catalog::{CatalogEntry, ResourceCatalog};

/// Group of the APIServices. An APIService that claims it is ignored.
pub(super) const GROUP: &str = "apiregistration.k8s.io";
/// Version of the local groups that are not in a catalog.
pub(super) const VERSION: &str = "v1";

/// The resource of `apiregistration.k8s.io/v1`. Read-only: the registry directory owns the objects.
fn resources() -> Vec<DiscoveryResource> {
    vec![DiscoveryResource {
        resource: "apiservices".into(),
        response_kind: own_kind("APIService"),
        scope: Scope::Cluster,
        singular_resource: "apiservice".into(),
        verbs: ["get", "list", "watch"].map(String::from).to_vec(),
        short_names: Vec::new(),
        categories: vec!["api-extensions".into()],
        subresources: vec![Subresource {
            subresource: "status".into(),
            response_kind: own_kind("APIService"),
            accepted_types: Vec::new(),
            verbs: vec!["get".into()],
        }],
    }]
}

/// A kind of the group and version of its resource, which a kube-apiserver does not repeat.
fn own_kind(kind: &str) -> ResourceKind {
    ResourceKind { kind: kind.to_owned(), ..ResourceKind::default() }
}

/// A version of a group that is served locally unless a backend claims it.
#[derive(PartialEq)]
pub(super) struct LocalGroup {
    /// Group; empty for the core group.
    pub(super) group: Cow<'static, str>,
    /// Version.
    pub(super) version: Cow<'static, str>,
    /// Path of its resource list.
    pub(super) list_path: String,
    resources: Vec<LocalResource>,
}

/// A resource of a [`LocalGroup`].
#[derive(PartialEq)]
struct LocalResource {
    entry: DiscoveryResource,
    /// `storageVersionHash`, which only the legacy format has; empty if nothing is stored.
    storage_version_hash: Cow<'static, str>,
}

impl LocalGroup {
    fn new(
        group: impl Into<Cow<'static, str>>,
        version: impl Into<Cow<'static, str>>,
        resources: Vec<LocalResource>,
    ) -> LocalGroup {
        let (group, version) = (group.into(), version.into());
        let list_path = match &*group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        LocalGroup { group, version, list_path, resources }
    }

    fn of_reviews(group: &'static str, kinds: &[&str]) -> LocalGroup {
        let resource = |kind: &&str| local_resource(kind, Scope::Cluster, &["create"]);
        LocalGroup::new(group, VERSION, kinds.iter().map(resource).map(LocalResource::from).collect())
    }
}

impl From<DiscoveryResource> for LocalResource {
    fn from(entry: DiscoveryResource) -> LocalResource {
        LocalResource { entry, storage_version_hash: Cow::Borrowed("") }
    }
}

fn local_resource(kind: &str, scope: Scope, verbs: &[&str]) -> DiscoveryResource {
    let singular = kind.to_ascii_lowercase();
    DiscoveryResource {
        resource: format!("{singular}s"),
        response_kind: own_kind(kind),
        scope,
        singular_resource: singular,
        verbs: owned(verbs),
        short_names: Vec::new(),
        categories: Vec::new(),
        subresources: Vec::new(),
    }
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Self-review APIs.
fn self_reviews() -> [LocalGroup; 2] {
    [
        LocalGroup::of_reviews("authentication.k8s.io", &["SelfSubjectReview"]),
        LocalGroup::of_reviews("authorization.k8s.io", &["SelfSubjectAccessReview", "SelfSubjectRulesReview"]),
    ]
}

/// Review APIs and ConfigMaps for backends (`--serve-delegation`).
fn with_delegation() -> Vec<LocalGroup> {
    let mut config_maps = local_resource("ConfigMap", Scope::Namespaced, &["get", "list", "watch"]);
    config_maps.short_names.push("cm".to_owned());
    let [authentication, authorization] = backend_reviews();
    vec![LocalGroup::new("", VERSION, vec![config_maps.into()]), authentication, authorization]
}

/// Review APIs for backends and clients.
fn backend_reviews() -> [LocalGroup; 2] {
    [LocalGroup::of_reviews("authentication.k8s.io", &["SelfSubjectReview", "TokenReview"]), access_reviews()]
}

fn access_reviews() -> LocalGroup {
    let kinds = ["SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"];
    let mut group = LocalGroup::of_reviews("authorization.k8s.io", &kinds);
    group.resources.insert(0, local_resource("LocalSubjectAccessReview", Scope::Namespaced, &["create"]).into());
    group
}

/// The resources of the embedded API server (`--embedded-api`), and the review APIs.
fn embedded(catalog: &ResourceCatalog, reviews: [LocalGroup; 2]) -> Vec<LocalGroup> {
    let mut groups: Vec<LocalGroup> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for entry in catalog.entries().iter().filter(|entry| entry.kind.resource.group != GROUP) {
        let (group, version) = (&entry.kind.resource.group, &entry.kind.version.version);
        let resource = catalog_resource(entry);
        match places.entry((group, version)) {
            Entry::Occupied(place) => groups[*place.get()].resources.push(resource),
            Entry::Vacant(place) => {
                place.insert(groups.len());
                groups.push(LocalGroup::new(group.clone(), version.clone(), vec![resource]));
            }
        }
    }
    for group in &mut groups {
        group.resources.sort_by(|a, b| a.entry.resource.cmp(&b.entry.resource));
    }
    // As in a kube-apiserver, where these follow `apps`.
    let at = groups.iter().position(|group| group.group == "apps").map_or(groups.len(), |at| at + 1);
    groups.splice(at..at, reviews);
    groups
}

fn catalog_resource(entry: &CatalogEntry) -> LocalResource {
    let (resource, version) = (&entry.kind.resource, &entry.kind.version);
    let subresource = |one: &ServedSubresource| Subresource {
        subresource: one.name.to_owned(),
        response_kind: ResourceKind {
            group: one.group.to_string(),
            version: one.version.to_string(),
            kind: one.kind.to_string(),
        },
        accepted_types: Vec::new(),
        verbs: owned(entry.subresource_verbs(one.name)),
    };
    let served = |one: &&ServedSubresource| !entry.subresource_verbs(one.name).is_empty();
    LocalResource {
        entry: DiscoveryResource {
            resource: resource.plural.to_string(),
            response_kind: own_kind(&resource.kind),
            scope: if resource.is_namespaced { Scope::Namespaced } else { Scope::Cluster },
            singular_resource: resource.singular.to_string(),
            verbs: owned(entry.verbs()),
            short_names: resource.short_names.iter().map(Cow::to_string).collect(),
            categories: resource.categories.iter().map(Cow::to_string).collect(),
            subresources: version.subresources.iter().filter(served).map(subresource).collect(),
        },
        storage_version_hash: version.storage_version_hash.clone(),
    }
}

/// Which groups are served locally.
#[derive(Clone, Debug, Default)]
pub struct LocalGroups {
    /// Whether reviews for backends are served instead of by a kube-apiserver (`--serve-delegation`, `--embedded-api`).
    pub reviews: bool,
    /// Whether there is a delegate, which serves the self-reviews.
    pub delegate: bool,
    /// The resources of the embedded API server (`--embedded-api`).
    pub embedded: Option<Arc<ResourceCatalog>>,
    /// Whether the discovery and OpenAPI documents of `apiregistration.k8s.io` are the delegate's: the APIServices are
    /// registered in its cluster, and it serves them.
    pub apiregistration_from_delegate: bool,
    /// The path prefix of the control plane, which clients must put before the paths in documents.
    pub path_prefix: Option<Arc<str>>,
}

impl LocalGroups {
    /// Whether the APIServices are served locally.
    pub(crate) fn has_registrations(&self) -> bool {
        !self.apiregistration_from_delegate
    }

    /// Whether `group` is served locally, even if an APIService claims it.
    pub(super) fn is_reserved(&self, group: &str) -> bool {
        group == GROUP && !self.apiregistration_from_delegate
    }

    /// `apiregistration.k8s.io/v1`. An embedded API server stores its objects; else they are read-only.
    pub(super) fn registrations(&self) -> LocalGroup {
        let entry = self.embedded.as_ref().and_then(|embedded| embedded.find(GROUP, VERSION, "apiservices"));
        let resources = match entry {
            Some(entry) => vec![catalog_resource(entry)],
            None => resources().into_iter().map(LocalResource::from).collect(),
        };
        LocalGroup::new(GROUP, VERSION, resources)
    }

    pub(super) fn groups(&self) -> Vec<Arc<LocalGroup>> {
        let groups = match self {
            LocalGroups { embedded: Some(catalog), .. } => embedded(catalog, backend_reviews()),
            LocalGroups { delegate: true, .. } => Vec::new(),
            LocalGroups { reviews: true, .. } => with_delegation(),
            LocalGroups { .. } => self_reviews().into(),
        };
        groups.into_iter().map(Arc::new).collect()
    }
}

/// `metav1.APIResourceList`, the legacy format, in Kubernetes' field order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApiResourceList<'g> {
    kind: &'static str,
    /// Empty for the core group, as in a kube-apiserver.
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    group_version: String,
    resources: Vec<ApiResource<'g>>,
}

/// A resource or subresource of an [`ApiResourceList`].
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource<'g> {
    name: Cow<'g, str>,
    singular_name: &'g str,
    namespaced: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'g str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'g str,
    kind: &'g str,
    verbs: &'g [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    short_names: &'g [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    categories: &'g [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    storage_version_hash: &'g str,
}

impl LocalResource {
    /// The resource and its subresources.
    fn list_entries(&self) -> impl Iterator<Item = ApiResource<'_>> {
        let one = &self.entry;
        let namespaced = one.scope == Scope::Namespaced;
        let resource = ApiResource {
            name: Cow::Borrowed(&one.resource),
            singular_name: &one.singular_resource,
            namespaced,
            group: "",
            version: "",
            kind: &one.response_kind.kind,
            verbs: &one.verbs,
            short_names: &one.short_names,
            categories: &one.categories,
            storage_version_hash: &self.storage_version_hash,
        };
        let subresources = one.subresources.iter().map(move |sub| ApiResource {
            name: Cow::Owned(format!("{}/{}", one.resource, sub.subresource)),
            singular_name: "",
            namespaced,
            group: &sub.response_kind.group,
            version: &sub.response_kind.version,
            kind: &sub.response_kind.kind,
            verbs: &sub.verbs,
            short_names: &[],
            categories: &[],
            storage_version_hash: "",
        });
        std::iter::once(resource).chain(subresources)
    }
}

impl LocalGroup {
    /// The resources as an `APIResourceList`, the legacy format.
    pub(super) fn resource_list(&self) -> ApiResourceList<'_> {
        let (group_version, api_version) = match &*self.group {
            "" => (self.version.to_string(), ""),
            group => (format!("{group}/{}", self.version), "v1"),
        };
        let resources = self.resources.iter().flat_map(LocalResource::list_entries).collect();
        ApiResourceList { kind: "APIResourceList", api_version, group_version, resources }
    }

    pub(super) fn resources(&self) -> Vec<DiscoveryResource> {
        self.resources.iter().map(|one| one.entry.clone()).collect()
    }
}
