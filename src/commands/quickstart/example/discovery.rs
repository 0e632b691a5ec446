//! Discovery documents, legacy and aggregated (KEP-3352).

use aws_lc_rs::digest::{SHA512, digest};
use bytes::Bytes;
use serde_json::{Value, json};

use super::resource::{ExampleResource, GROUP, RESOURCES};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// The content type of aggregated discovery, also required in `Accept`.
pub(super) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A document that never changes, with its ETag.
pub(super) struct CachedDocument {
    pub(super) bytes: Bytes,
    /// Quoted, as `ETag` has it.
    pub(super) tag: String,
}

impl CachedDocument {
    pub(super) fn new(value: &Value) -> CachedDocument {
        let text = format!("{value}\n");
        let hash = digest(&SHA512, text.as_bytes());
        let tag: String = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        CachedDocument { bytes: text.into(), tag: format!("\"{tag}\"") }
    }
}

/// `GET /apis`, aggregated: `apidiscovery.k8s.io/v2`.
pub(super) fn aggregated() -> Value {
    let version = |resource: &ExampleResource| {
        json!({"version": resource.version, "freshness": "Current", "resources": [{
            "resource": resource.plural,
            "responseKind": {"group": GROUP, "version": resource.version, "kind": resource.kind},
            "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": resource.singular,
            "verbs": VERBS,
            "shortNames": resource.short_names,
            "categories": resource.categories,
        }]})
    };
    let versions: Vec<Value> = RESOURCES.iter().map(version).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [{"metadata": {"name": GROUP}, "versions": versions}]})
}

/// The response to `GET /apis`.
pub(super) fn groups() -> Value {
    let mut group = group();
    if let Some(fields) = group.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})
}

/// The response to `GET /apis/example.narthex.dev`.
pub(super) fn group() -> Value {
    let version =
        |resource: &ExampleResource| json!({"groupVersion": resource.group_version(), "version": resource.version});
    let versions: Vec<Value> = RESOURCES.iter().map(version).collect();
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "preferredVersion": versions[0],
        "versions": versions})
}

/// The response to `GET /apis/example.narthex.dev/v1`: the resources in the version of `resource`.
pub(super) fn resources(resource: &ExampleResource) -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": resource.group_version(), "resources": [{
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": VERBS,
        "shortNames": resource.short_names,
        "categories": resource.categories,
    }]})
}

/// The response to `GET /version`.
pub(super) fn version() -> Value {
    let number = env!("CARGO_PKG_VERSION");
    let mut parts = number.split('.');
    json!({"major": parts.next(), "minor": parts.next(), "gitVersion": format!("v{number}"), "gitCommit": "",
        "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)})
}
