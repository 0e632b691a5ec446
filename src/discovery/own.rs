//! The one group we serve ourselves: `apiregistration.k8s.io`, read only, so that `kubectl get apiservices` works.

use super::document::{Kind, Resource, Scope};

/// Its group. An APIService that claims it is not believed: what is registered is ours to say.
pub(super) const GROUP: &str = "apiregistration.k8s.io";
/// Its version.
pub(super) const VERSION: &str = "v1";
/// Where the resources of our own group are listed.
pub(super) const PATH: &str = "/apis/apiregistration.k8s.io/v1";

/// Our own group as an `APIResourceList`, for clients that read the older form.
pub(super) fn resource_list() -> serde_json::Value {
    serde_json::json!({
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
