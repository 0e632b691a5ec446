//! API groups served locally: `apiregistration.k8s.io`, read-only, so that `kubectl get apiservices` works; and review
//! APIs for `kubectl auth` and backends, unless a backend serves those.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::model::{DiscoveryResource, ResourceKind, Scope, Subresource};
use crate::resources::ServedSubresource;
use crate::rest::served_resources;

/// Group of the APIServices. An APIService that claims it is ignored.
pub(super) const GROUP: &str = "apiregistration.k8s.io";
/// Version of all local groups.
pub(super) const VERSION: &str = "v1";
/// Path of the resource list of `apiregistration.k8s.io/v1`.
pub(super) const PATH: &str = "/apis/apiregistration.k8s.io/v1";

/// `apiregistration.k8s.io/v1` as an `APIResourceList`, the legacy format.
pub(super) fn resource_list() -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [{
            "name": "apiservices",
            "singularName": "apiservice",
            "namespaced": false,
            "kind": "APIService",
            "verbs": ["get", "list", "watch"],
            "categories": ["api-extensions"],
        }, {
            "name": "apiservices/status",
            "singularName": "",
            "namespaced": false,
            "kind": "APIService",
            "verbs": ["get"],
        }],
    })
}

/// The resource of `apiregistration.k8s.io/v1`. Read-only: the registry directory owns the objects.
pub(super) fn resources() -> Vec<DiscoveryResource> {
    vec![DiscoveryResource {
        resource: "apiservices".into(),
        response_kind: ResourceKind { group: GROUP.into(), version: VERSION.into(), kind: "APIService".into() },
        scope: Scope::Cluster,
        singular_resource: "apiservice".into(),
        verbs: ["get", "list", "watch"].map(String::from).to_vec(),
        short_names: Vec::new(),
        categories: vec!["api-extensions".into()],
        subresources: Vec::new(),
    }]
}

/// Version `v1` of a group that is served locally unless a backend claims it.
pub(super) struct LocalGroup {
    /// Group; empty for the core group.
    pub(super) group: &'static str,
    /// Path of its resource list.
    pub(super) list_path: String,
    resources: Vec<DiscoveryResource>,
}

impl LocalGroup {
    fn new(group: &'static str, resources: Vec<DiscoveryResource>) -> LocalGroup {
        let list_path = match group {
            "" => format!("/api/{VERSION}"),
            group => format!("/apis/{group}/{VERSION}"),
        };
        LocalGroup { group, list_path, resources }
    }

    fn of_reviews(group: &'static str, kinds: &[&str]) -> LocalGroup {
        let resource = |kind: &&str| local_resource(group, kind, Scope::Cluster, &["create"]);
        LocalGroup::new(group, kinds.iter().map(resource).collect())
    }
}

fn local_resource(group: &str, kind: &str, scope: Scope, verbs: &[&str]) -> DiscoveryResource {
    let singular = kind.to_ascii_lowercase();
    DiscoveryResource {
        resource: format!("{singular}s"),
        response_kind: ResourceKind { group: group.into(), version: VERSION.into(), kind: kind.into() },
        scope,
        singular_resource: singular,
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        short_names: Vec::new(),
        categories: Vec::new(),
        subresources: Vec::new(),
    }
}

/// Self-review APIs.
static SELF_REVIEWS: LazyLock<Vec<LocalGroup>> = LazyLock::new(|| {
    vec![
        LocalGroup::of_reviews("authentication.k8s.io", &["SelfSubjectReview"]),
        LocalGroup::of_reviews("authorization.k8s.io", &["SelfSubjectAccessReview", "SelfSubjectRulesReview"]),
    ]
});

/// Review APIs and ConfigMaps for backends (`--serve-delegation`).
static WITH_DELEGATION: LazyLock<Vec<LocalGroup>> = LazyLock::new(|| {
    let mut config_maps = local_resource("", "ConfigMap", Scope::Namespaced, &["get", "list", "watch"]);
    config_maps.short_names.push("cm".to_owned());
    vec![
        LocalGroup::new("", vec![config_maps]),
        LocalGroup::of_reviews("authentication.k8s.io", &["SelfSubjectReview", "TokenReview"]),
        LocalGroup::of_reviews(
            "authorization.k8s.io",
            &["SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"],
        ),
    ]
});

/// The resources of the embedded API server (`--embedded-api`), and the self-review APIs.
static EMBEDDED: LazyLock<Vec<LocalGroup>> = LazyLock::new(|| {
    let mut groups: Vec<LocalGroup> = Vec::new();
    for (resource, version) in served_resources().iter().filter(|(_, version)| version.version == VERSION) {
        let scope = if resource.is_namespaced { Scope::Namespaced } else { Scope::Cluster };
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let subresource = |one: &ServedSubresource| {
            let (group, version) = (
                if one.group.is_empty() { resource.group } else { one.group },
                if one.version.is_empty() { VERSION } else { one.version },
            );
            Subresource {
                subresource: one.name.to_owned(),
                response_kind: ResourceKind { group: group.into(), version: version.into(), kind: one.kind.into() },
                accepted_types: Vec::new(),
                verbs: owned(&one.verbs),
            }
        };
        let served = |one: &&ServedSubresource| matches!(one.name, "status" | "finalize");
        let resource_entry = DiscoveryResource {
            singular_resource: resource.singular.to_owned(),
            resource: resource.plural.to_owned(),
            short_names: owned(&resource.short_names),
            categories: owned(&resource.categories),
            subresources: version.subresources.iter().filter(served).map(subresource).collect(),
            ..local_resource(resource.group, resource.kind, scope, &version.verbs)
        };
        match groups.iter_mut().find(|group| group.group == resource.group) {
            Some(group) => group.resources.push(resource_entry),
            None => groups.push(LocalGroup::new(resource.group, vec![resource_entry])),
        }
    }
    groups.push(LocalGroup::of_reviews("authentication.k8s.io", &["SelfSubjectReview"]));
    groups.push(LocalGroup::of_reviews("authorization.k8s.io", &["SelfSubjectAccessReview", "SelfSubjectRulesReview"]));
    groups
});

/// Which groups are served locally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalGroups {
    /// Whether reviews for backends are served instead of by a kube-apiserver (`--serve-delegation`).
    pub delegation: bool,
    /// Whether there is a delegate, which serves the self-reviews.
    pub delegate: bool,
    /// Whether the resources of the embedded API server are served (`--embedded-api`).
    pub embedded: bool,
    /// Whether the discovery and OpenAPI documents of `apiregistration.k8s.io` are the delegate's: the APIServices are
    /// registered in its cluster, and it serves them.
    pub apiregistration_from_delegate: bool,
}

impl LocalGroups {
    /// Whether the APIServices are served locally.
    pub(crate) fn has_registrations(self) -> bool {
        !self.apiregistration_from_delegate
    }

    /// Whether `group` is served locally, even if an APIService claims it.
    pub(super) fn is_reserved(self, group: &str) -> bool {
        group == GROUP && !self.apiregistration_from_delegate
    }

    pub(super) fn groups(self) -> &'static [LocalGroup] {
        match self {
            LocalGroups { embedded: true, .. } => &EMBEDDED,
            LocalGroups { delegate: true, .. } => &[],
            LocalGroups { delegation: true, .. } => &WITH_DELEGATION,
            LocalGroups { .. } => &SELF_REVIEWS,
        }
    }
}

impl LocalGroup {
    /// The resources as an `APIResourceList`, the legacy format.
    pub(super) fn resource_list(&self) -> Value {
        let mut resources = Vec::new();
        for one in &self.resources {
            let is_namespaced = one.scope == Scope::Namespaced;
            let mut resource = json!({
                "name": one.resource, "singularName": one.singular_resource, "namespaced": is_namespaced,
                "kind": one.response_kind.kind, "verbs": one.verbs,
            });
            if !one.short_names.is_empty() {
                resource["shortNames"] = json!(one.short_names);
            }
            if !one.categories.is_empty() {
                resource["categories"] = json!(one.categories);
            }
            resources.push(resource);
            resources.extend(one.subresources.iter().map(|sub| {
                json!({
                    "name": format!("{}/{}", one.resource, sub.subresource), "singularName": "",
                    "namespaced": is_namespaced, "kind": sub.response_kind.kind, "verbs": sub.verbs,
                })
            }));
        }
        let group_version =
            if self.group.is_empty() { VERSION.to_owned() } else { format!("{}/{VERSION}", self.group) };
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
    }

    pub(super) fn resources(&self) -> Vec<DiscoveryResource> {
        self.resources.clone()
    }
}
