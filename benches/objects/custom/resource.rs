//! The custom resource of the benchmark.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::BenchedServer;
use crate::client::ObjectRequest;

pub(super) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(super) const JSON: &str = "application/json";
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";

/// A custom resource with the versions `v1`, which is stored, and `v2`.
#[derive(Clone, Debug)]
pub(super) struct BenchResource {
    pub(super) group: String,
    pub(super) plural: String,
    pub(super) kind: String,
}

/// The schema of an object. `more` is a field that only `v2` has.
pub(super) fn schema(more: bool) -> Value {
    let text = |default: Option<&str>| match default {
        Some(default) => json!({"type": "string", "maxLength": 200, "default": default}),
        None => json!({"type": "string", "maxLength": 200}),
    };
    let quantity = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]});
    let mut spec = json!({
        "image": {"type": "string", "pattern": "^[a-z0-9./:-]+$"},
        "replicas": {"type": "integer", "minimum": 0, "default": 1},
        "paused": {"type": "boolean", "default": false},
        "strategy": {"type": "object", "default": {}, "properties": {
            "type": {"type": "string", "enum": ["Recreate", "RollingUpdate"], "default": "RollingUpdate"},
            "maxSurge": quantity, "maxUnavailable": quantity,
        }},
        "selector": {"type": "object", "additionalProperties": text(None)},
        "resources": {"type": "object", "properties": {
            "limits": {"type": "object", "additionalProperties": quantity},
            "requests": {"type": "object", "additionalProperties": quantity},
        }},
        "env": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "required": ["name"], "properties": {"name": text(None), "value": text(Some(""))},
        }},
        "ports": {"type": "array", "items": {"type": "object", "required": ["port"], "properties": {
            "name": text(None), "port": {"type": "integer", "minimum": 1, "maximum": 65535},
            "protocol": text(Some("TCP")),
        }}},
    });
    if more {
        spec["description"] = text(None);
    }
    let status = json!({"type": "object", "properties": {
        "ready": {"type": "integer"}, "conditions": {"type": "array", "items": {"type": "object", "properties": {
            "type": text(None), "status": text(None), "reason": text(None), "message": text(None),
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        }}},
    }});
    json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["image"], "properties": spec}, "status": status,
    }})
}

impl BenchResource {
    pub(super) fn new(group: &str, number: u64) -> BenchResource {
        BenchResource { group: group.to_owned(), plural: format!("machine{number}s"), kind: format!("Machine{number}") }
    }

    pub(super) fn crd_name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// The CRD; objects are converted by the webhook of a `clientConfig`, if there is one.
    pub(super) fn crd(&self, webhook: Option<&Value>) -> Value {
        let version = |name: &str, more| {
            json!({
                "name": name, "served": true, "storage": name == "v1", "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema(more)},
                "additionalPrinterColumns": [
                    {"name": "Image", "type": "string", "jsonPath": ".spec.image"},
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                ],
            })
        };
        let conversion = match webhook {
            Some(client) => json!({"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"], "clientConfig": client,
            }}),
            None => json!({"strategy": "None"}),
        };
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": self.crd_name()},
            "spec": {
                "group": self.group, "scope": "Namespaced", "names": {"plural": self.plural, "kind": self.kind},
                "versions": [version("v1", false), version("v2", true)], "conversion": conversion,
            },
        })
    }

    /// Path of the objects of a namespace.
    pub(super) fn collection(&self, version: &str, namespace: &str) -> String {
        format!("/apis/{}/{version}/namespaces/{namespace}/{}", self.group, self.plural)
    }

    /// An object of about 1.5 kB.
    pub(super) fn object(&self, version: &str, name: &str, change: u64) -> String {
        let env: Vec<Value> =
            (0..8).map(|at| json!({"name": format!("VARIABLE_{at}"), "value": "x".repeat(110)})).collect();
        json!({
            "apiVersion": format!("{}/{version}", self.group), "kind": self.kind, "metadata": {"name": name},
            "spec": {
                "image": "registry.example.com/team/application:1.2.3", "replicas": change % 100, "env": env,
                "selector": {"app": name, "tier": "backend"},
                "strategy": {"type": "RollingUpdate", "maxSurge": "25%", "maxUnavailable": 1},
                "resources": {"limits": {"cpu": "500m", "memory": "128Mi"}, "requests": {"cpu": 1}},
                "ports": [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}],
            },
        })
        .to_string()
    }

    /// Creates the CRD and waits until an object can be created.
    pub(super) async fn install(&self, on: &BenchedServer<'_>, webhook: Option<&Value>) {
        let create = ObjectRequest::new(Method::POST, CRDS).body(JSON, self.crd(webhook).to_string());
        on.client.clone().send(&create).await;
        let list = ObjectRequest::new(Method::GET, self.collection("v2", "bench"));
        while !on.client.clone().try_send(&list).await.0.is_success() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
