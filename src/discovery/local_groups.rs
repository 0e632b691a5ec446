//! API groups served locally: `apiregistration.k8s.io`, read-only, so that `kubectl get apiservices` works; and review
//! APIs for `kubectl auth` and backends, unless a backend serves those.

use serde_json::{Value, json};

use super::model::{DiscoveryResource, ResourceKind, Scope};

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
    pub(super) list_path: &'static str,
    resources: &'static [LocalResource],
}

/// A resource of a local group.
struct LocalResource {
    kind: &'static str,
    scope: Scope,
    verbs: &'static [&'static str],
    short_names: &'static [&'static str],
}

const fn review_resource(kind: &'static str) -> LocalResource {
    LocalResource { kind, scope: Scope::Cluster, verbs: &["create"], short_names: &[] }
}

const CONFIG_MAPS: LocalResource = LocalResource {
    kind: "ConfigMap",
    scope: Scope::Namespaced,
    verbs: &["get", "list", "watch"],
    short_names: &["cm"],
};

/// Self-review APIs.
static SELF_REVIEWS: [LocalGroup; 2] = [
    LocalGroup {
        group: "authentication.k8s.io",
        list_path: "/apis/authentication.k8s.io/v1",
        resources: &[review_resource("SelfSubjectReview")],
    },
    LocalGroup {
        group: "authorization.k8s.io",
        list_path: "/apis/authorization.k8s.io/v1",
        resources: &[review_resource("SelfSubjectAccessReview"), review_resource("SelfSubjectRulesReview")],
    },
];

/// Review APIs and ConfigMaps for backends (`--serve-delegation`).
static WITH_DELEGATION: [LocalGroup; 3] = [
    LocalGroup { group: "", list_path: "/api/v1", resources: &[CONFIG_MAPS] },
    LocalGroup {
        group: "authentication.k8s.io",
        list_path: "/apis/authentication.k8s.io/v1",
        resources: &[review_resource("SelfSubjectReview"), review_resource("TokenReview")],
    },
    LocalGroup {
        group: "authorization.k8s.io",
        list_path: "/apis/authorization.k8s.io/v1",
        resources: &[
            review_resource("SelfSubjectAccessReview"),
            review_resource("SelfSubjectRulesReview"),
            review_resource("SubjectAccessReview"),
        ],
    },
];

/// Which groups are served locally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalGroups {
    /// Whether reviews for backends are served instead of by a kube-apiserver (`--serve-delegation`).
    pub delegation: bool,
    /// Whether there is a delegate, which serves the self-reviews.
    pub delegate: bool,
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
            LocalGroups { delegate: true, .. } => &[],
            LocalGroups { delegation: true, .. } => &WITH_DELEGATION,
            LocalGroups { .. } => &SELF_REVIEWS,
        }
    }
}

impl LocalGroup {
    pub(super) fn resource_list(&self) -> Value {
        let resource = |kept: &LocalResource| {
            let name = kept.kind.to_ascii_lowercase();
            let mut resource = json!({
                "name": format!("{name}s"), "singularName": name, "namespaced": kept.scope == Scope::Namespaced,
                "kind": kept.kind, "verbs": kept.verbs,
            });
            if !kept.short_names.is_empty() {
                resource["shortNames"] = json!(kept.short_names);
            }
            resource
        };
        let group_version =
            if self.group.is_empty() { VERSION.to_owned() } else { format!("{}/{VERSION}", self.group) };
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": self.resources.iter().map(resource).collect::<Vec<_>>(),
        })
    }

    pub(super) fn resources(&self) -> Vec<DiscoveryResource> {
        let resource = |kept: &LocalResource| DiscoveryResource {
            resource: format!("{}s", kept.kind.to_ascii_lowercase()),
            response_kind: ResourceKind { group: self.group.into(), version: VERSION.into(), kind: kept.kind.into() },
            scope: kept.scope,
            singular_resource: kept.kind.to_ascii_lowercase(),
            verbs: kept.verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            short_names: kept.short_names.iter().map(|name| (*name).to_owned()).collect(),
            categories: Vec::new(),
            subresources: Vec::new(),
        };
        self.resources.iter().map(resource).collect()
    }
}
