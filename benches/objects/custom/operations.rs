//! Operations and lists at the storage version, and at another one by both strategies of conversion.

use std::collections::HashMap;

use http::Method;
use serde_json::{Value, json};

use super::resource::{BenchResource, JSON};
use super::{BenchedServer, webhook};
use crate::client::{ObjectRequest, send_all};
use crate::{Options, Results};

/// Requests at once.
const AT_ONCE: u64 = 8;
/// Lists of which one figure is the mean.
const LISTS: usize = 3;

/// How objects are asked for.
struct Access<'r> {
    label: &'static str,
    resource: &'r BenchResource,
    version: &'static str,
}

pub(super) async fn measure(on: &BenchedServer<'_>, options: &Options, results: &mut Results) {
    let client_config = webhook::start(on.environment).await;
    let (plain, hooked) = (BenchResource::new("none.bench.dev", 0), BenchResource::new("hook.bench.dev", 0));
    plain.install(on, None).await;
    hooked.install(on, Some(&client_config)).await;
    let accesses = [
        Access { label: "storage version", resource: &plain, version: "v1" },
        Access { label: "None", resource: &plain, version: "v2" },
        Access { label: "webhook", resource: &hooked, version: "v2" },
    ];
    for access in &accesses {
        access.measure_operations(on, options.objects, results).await;
    }
    for (namespace, count) in [("list-1", 500), ("list-2", options.many)] {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}).to_string();
        on.client.clone().send(&ObjectRequest::new(Method::POST, "/api/v1/namespaces").body(JSON, body)).await;
        for resource in [&plain, &hooked] {
            create_many(on, resource, namespace, count).await;
        }
        for access in &accesses {
            access.measure_lists(on, namespace, count, results).await;
        }
    }
}

async fn create_many(on: &BenchedServer<'_>, resource: &BenchResource, namespace: &str, count: u64) {
    let (path, resource) = (resource.collection("v1", namespace), resource.clone());
    send_all(&on.client, count, 32, move |number| {
        let body = resource.object("v1", &format!("object-{number}"), number);
        ObjectRequest::new(Method::POST, path.clone()).body(JSON, body)
    })
    .await;
}

impl Access<'_> {
    async fn measure_operations(&self, on: &BenchedServer<'_>, count: u64, results: &mut Results) {
        let (label, version) = (self.label, self.version);
        let path = self.resource.collection(version, "bench");
        let name = |number: u64| format!("{}-{number}", label.split(' ').next().unwrap_or_default().to_lowercase());
        let create = {
            let (path, resource) = (path.clone(), self.resource.clone());
            move |number| {
                let body = resource.object(version, &name(number), number);
                ObjectRequest::new(Method::POST, path.clone()).body(JSON, body)
            }
        };
        let get = {
            let path = path.clone();
            move |number| ObjectRequest::new(Method::GET, format!("{path}/{}", name(number)))
        };
        let patch = {
            let path = path.clone();
            move |number| {
                ObjectRequest::new(Method::PATCH, format!("{path}/{}/status", name(number)))
                    .body(super::resource::MERGE_PATCH, r#"{"status":{"ready":1}}"#)
            }
        };
        self.per_thousand(on, "create", count, create, results).await;
        self.per_thousand(on, "get", count, get, results).await;
        let update = {
            // A custom object is not updated without its version.
            let list: Value =
                serde_json::from_slice(&on.client.clone().send(&ObjectRequest::new(Method::GET, &*path)).await)
                    .expect("a list");
            let metadata = |item: &Value, field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
            let items = list["items"].as_array().into_iter().flatten();
            let versions: HashMap<String, String> =
                items.map(|item| (metadata(item, "name"), metadata(item, "resourceVersion"))).collect();
            let (path, resource) = (path.clone(), self.resource.clone());
            move |number| {
                let name = name(number);
                let mut body: Value =
                    serde_json::from_str(&resource.object(version, &name, number + 1)).expect("an object");
                body["metadata"]["resourceVersion"] = json!(versions.get(&name));
                ObjectRequest::new(Method::PUT, format!("{path}/{name}")).body(JSON, body.to_string())
            }
        };
        self.per_thousand(on, "PUT, one field changed", count, update, results).await;
        self.per_thousand(on, "merge patch of status", count, patch, results).await;
    }

    async fn per_thousand(
        &self,
        on: &BenchedServer<'_>,
        name: &str,
        count: u64,
        request: impl Fn(u64) -> ObjectRequest + Send + Sync + 'static,
        results: &mut Results,
    ) {
        let before = on.cpu();
        send_all(&on.client, count, AT_ONCE, request).await;
        let cost = (on.cpu() - before) * 1000.0 / count as f64;
        results.add(on.kind, &format!("{name}, {}, CPU per 1,000", self.label), "ms", cost);
    }

    async fn measure_lists(&self, on: &BenchedServer<'_>, namespace: &str, count: u64, results: &mut Results) {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let request = || ObjectRequest::new(Method::GET, self.resource.collection(self.version, namespace));
        for (form, request) in [("JSON", request()), ("Table", request().header("accept", table))] {
            for (nth, repetitions) in [("first ", 1), ("", LISTS)] {
                if form == "Table" && !nth.is_empty() {
                    continue;
                }
                let before = on.cpu();
                for _ in 0..repetitions {
                    assert!(on.client.clone().send(&request).await.len() > 10_000, "an empty list");
                }
                let cost = (on.cpu() - before) / repetitions as f64;
                results.add(on.kind, &format!("{nth}list of {count}, {form}, {}, CPU", self.label), "ms", cost);
            }
        }
    }
}
