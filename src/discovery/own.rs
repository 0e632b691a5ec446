//! What we serve ourselves: `apiregistration.k8s.io`, read only, so that `kubectl get apiservices` works, and the
//! questions about oneself that `kubectl auth` asks, unless a backend answers those.

use serde_json::{Value, json};

use super::document::{Kind, Resource, Scope};

/// Its group. An APIService that claims it is not believed: what is registered is ours to say.
pub(super) const GROUP: &str = "apiregistration.k8s.io";
/// Its version.
pub(super) const VERSION: &str = "v1";
/// Where the resources of our own group are listed.
pub(super) const PATH: &str = "/apis/apiregistration.k8s.io/v1";

/// Our own group as an `APIResourceList`, for clients that read the older form.
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

/// Its one resource. Only reads: the registry directory owns the objects.
pub(super) fn resources() -> Vec<Resource> {
    vec![Resource {
        resource: "apiservices".into(),
        response_kind: Kind { group: GROUP.into(), version: VERSION.into(), kind: "APIService".into() },
        scope: Scope::Cluster,
        singular_resource: "apiservice".into(),
        verbs: ["get", "list", "watch"].map(String::from).to_vec(),
        short_names: Vec::new(),
        categories: vec!["api-extensions".into()],
        subresources: Vec::new(),
    }]
}

/// One group of questions about oneself; all are of version `v1`.
pub(super) struct Questions {
    pub(super) group: &'static str,
    /// Where they are listed.
    pub(super) path: &'static str,
    kinds: &'static [&'static str],
}

pub(super) static QUESTIONS: [Questions; 2] = [
    Questions { group: "authentication.k8s.io", path: "/apis/authentication.k8s.io/v1", kinds: &["SelfSubjectReview"] },
    Questions {
        group: "authorization.k8s.io",
        path: "/apis/authorization.k8s.io/v1",
        kinds: &["SelfSubjectAccessReview", "SelfSubjectRulesReview"],
    },
];

impl Questions {
    pub(super) fn resource_list(&self) -> Value {
        let resources: Vec<Value> = self
            .kinds
            .iter()
            .map(|kind| {
                let name = kind.to_ascii_lowercase();
                json!({
                    "name": format!("{name}s"), "singularName": name, "namespaced": false, "kind": kind,
                    "verbs": ["create"],
                })
            })
            .collect();
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": format!("{}/{VERSION}", self.group),
            "resources": resources,
        })
    }

    pub(super) fn resources(&self) -> Vec<Resource> {
        let resource = |kind: &&str| Resource {
            resource: format!("{}s", kind.to_ascii_lowercase()),
            response_kind: Kind { group: self.group.into(), version: VERSION.into(), kind: (*kind).into() },
            scope: Scope::Cluster,
            singular_resource: kind.to_ascii_lowercase(),
            verbs: vec!["create".into()],
            short_names: Vec::new(),
            categories: Vec::new(),
            subresources: Vec::new(),
        };
        self.kinds.iter().map(resource).collect()
    }
}
