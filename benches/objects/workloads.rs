//! Pods and Deployments: created, read, listed and printed. Unlike ConfigMaps they have many defaults and rules.

use http::Method;
use serde_json::{Value, json};

use crate::client::{ApiClient, ObjectRequest};
use crate::fixtures::Proxy;
use crate::operations::per_thousand;
use crate::{ApiServerKind, Options, Results, cpu};

const JSON: &str = "application/json";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// What an application of two containers says of its Pods.
fn pod_spec() -> Value {
    json!({
        "containers": [
            {
                "name": "app",
                "image": "registry.example.com/web:1.2.3",
                "ports": [{"name": "http", "containerPort": 8080}],
                "env": [
                    {"name": "MODE", "value": "production"},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                ],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
                "volumeMounts": [{"name": "settings", "mountPath": "/etc/web"}],
            },
            {"name": "proxy", "image": "registry.example.com/proxy:4", "args": ["--port=9090"]},
        ],
        "volumes": [{"name": "settings", "configMap": {"name": "web"}}],
        "securityContext": {"runAsNonRoot": true},
    })
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}}, "spec": pod_spec()})
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod_spec()},
        },
    })
}

/// Creates, reads, lists and prints [`Options::many`] Pods and as many Deployments.
pub(crate) async fn measure(
    client: &ApiClient,
    kind: ApiServerKind,
    server: &Proxy,
    options: &Options,
    results: &mut Results,
) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "workloads"}});
    let create = ObjectRequest::new(Method::POST, "/api/v1/namespaces").body(JSON, namespace.to_string());
    client.clone().send(&create).await;
    let (count, reads) = (options.many, options.objects.min(options.many));
    let kinds = [
        ("Pod", "/api/v1/namespaces/workloads/pods", pod as fn(&str) -> Value),
        ("Deployment", "/apis/apps/v1/namespaces/workloads/deployments", deployment),
    ];
    for (name, collection, object) in kinds {
        let create = move |number: u64| {
            let object = object(&format!("object-{number}"));
            ObjectRequest::new(Method::POST, collection).body(JSON, object.to_string())
        };
        per_thousand(client, kind, server, &format!("{name}: create"), count, create, results).await;
        let get = move |number: u64| ObjectRequest::new(Method::GET, format!("{collection}/object-{number}"));
        per_thousand(client, kind, server, &format!("{name}: get"), reads, get, results).await;
        for (form, accept) in [("JSON", JSON), ("Table", TABLE)] {
            let request = ObjectRequest::new(Method::GET, collection).header("accept", accept);
            let before = cpu(server);
            for _ in 0..3 {
                let bytes = client.clone().send(&request).await.len();
                assert!(bytes > 1000, "an empty list");
            }
            let name = format!("{name}: list of {count}, {form}, CPU");
            results.add(kind, &name, "ms", (cpu(server) - before) / 3.0);
        }
    }
}
