//! Operations on single objects, and lists.

use std::time::Instant;

use http::Method;
use serde_json::json;

use crate::client::{ApiClient, ObjectRequest, send_all};
use crate::fixtures::{BenchEnvironment, Proxy};
use crate::{ApiServerKind, Options, Results, cpu, memory, written};

const COLLECTION: &str = "/api/v1/namespaces/bench/configmaps";
const JSON: &str = "application/json";

/// Requests at once.
const AT_ONCE: u64 = 8;

/// A ConfigMap of about 1.5 kB.
pub(crate) fn config_map(name: &str, change: u64) -> String {
    let data: serde_json::Map<_, _> = (0..10).map(|key| (format!("key-{key}"), json!("x".repeat(130)))).collect();
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    object["data"]["change"] = json!(change.to_string());
    object.to_string()
}

fn object_path(number: u64) -> String {
    format!("{COLLECTION}/object-{number}")
}

fn put(number: u64, change: u64) -> ObjectRequest {
    ObjectRequest::new(Method::PUT, object_path(number)).body(JSON, config_map(&format!("object-{number}"), change))
}

/// Creates, reads, changes and deletes [`Options::objects`] objects.
pub(crate) async fn measure(
    client: &ApiClient,
    kind: ApiServerKind,
    server: &Proxy,
    options: &Options,
    results: &mut Results,
) {
    let count = options.objects;
    let before = written(server);
    let create =
        |number| ObjectRequest::new(Method::POST, COLLECTION).body(JSON, config_map(&format!("object-{number}"), 0));
    per_thousand(client, kind, server, "create", count, create, results).await;
    results.add(kind, "written to disk for a create", "kB", (written(server) - before) / 1000.0 / count as f64);
    let get = |number| ObjectRequest::new(Method::GET, object_path(number));
    per_thousand(client, kind, server, "get", count, get, results).await;
    let cached = |number| ObjectRequest::new(Method::GET, format!("{}?resourceVersion=0", object_path(number)));
    per_thousand(client, kind, server, "get at resourceVersion 0", count, cached, results).await;
    per_thousand(client, kind, server, "PUT, one field changed", count, |number| put(number, 1), results).await;
    per_thousand(client, kind, server, "PUT, unchanged", count, |number| put(number, 1), results).await;
    let patch = |number| {
        ObjectRequest::new(Method::PATCH, object_path(number))
            .body("application/merge-patch+json", r#"{"data":{"change":"2"}}"#)
    };
    per_thousand(client, kind, server, "merge patch", count, patch, results).await;
    let strategic = |number| {
        ObjectRequest::new(Method::PATCH, object_path(number))
            .body("application/strategic-merge-patch+json", r#"{"data":{"change":"3"}}"#)
    };
    per_thousand(client, kind, server, "strategic merge patch", count, strategic, results).await;
    measure_lease(client, kind, server, count, results).await;
    let delete = |number| ObjectRequest::new(Method::DELETE, object_path(number));
    per_thousand(client, kind, server, "delete", count, delete, results).await;
}

async fn measure_lease(client: &ApiClient, kind: ApiServerKind, server: &Proxy, count: u64, results: &mut Results) {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/bench/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "bench"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}});
    client.clone().send(&ObjectRequest::new(Method::POST, LEASES).body(JSON, lease.to_string())).await;
    // One after the other, as a leader renews.
    let before = cpu(server);
    send_all(client, count, 1, move |number| {
        let time = format!("2026-01-01T00:00:00.{:06}Z", number % 1_000_000);
        ObjectRequest::new(Method::PATCH, format!("{LEASES}/bench"))
            .body("application/merge-patch+json", json!({"spec": {"renewTime": time}}).to_string())
    })
    .await;
    results.add(kind, "lease renewal, CPU per 1,000", "ms", (cpu(server) - before) * 1000.0 / count as f64);
}

/// CPU time of [`AT_ONCE`] requests at a time, for a thousand of them.
pub(crate) async fn per_thousand(
    client: &ApiClient,
    kind: ApiServerKind,
    server: &Proxy,
    name: &str,
    count: u64,
    request: impl Fn(u64) -> ObjectRequest + Send + Sync + 'static,
    results: &mut Results,
) {
    let before = cpu(server);
    send_all(client, count, AT_ONCE, request).await;
    results.add(kind, &format!("{name}, CPU per 1,000"), "ms", (cpu(server) - before) * 1000.0 / count as f64);
}

/// Acknowledged creates a second with 1 and 64 clients, each on a connection of its own.
pub(crate) async fn measure_rates(
    environment: &BenchEnvironment,
    kind: ApiServerKind,
    server: &Proxy,
    results: &mut Results,
) {
    for clients in [1, 64] {
        let each = if clients == 1 { 300 } else { 30 };
        let mut tasks = tokio::task::JoinSet::new();
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(ApiClient::connect(environment.directory(), server.port, &environment.token).await);
        }
        let began = Instant::now();
        for (index, client) in connections.into_iter().enumerate() {
            tasks.spawn(async move {
                let create = move |number| {
                    let name = format!("rate-{clients}-{index}-{number}");
                    ObjectRequest::new(Method::POST, COLLECTION).body(JSON, config_map(&name, 0))
                };
                send_all(&client, each, 1, create).await;
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("the load runs");
        }
        let rate = (each * clients) as f64 / began.elapsed().as_secs_f64();
        results.add(kind, &format!("acknowledged creates with {clients} clients"), "per s", rate);
    }
}

/// Lists of 1,000 and of [`Options::many`] objects: whole, in pages, compressed, as a Table.
pub(crate) async fn measure_lists(
    client: &ApiClient,
    kind: ApiServerKind,
    server: &Proxy,
    options: &Options,
    results: &mut Results,
) {
    let empty = memory(server);
    for (namespace, count) in [("list-1", 1_000), ("list-2", options.many)] {
        let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        client
            .clone()
            .send(&ObjectRequest::new(Method::POST, "/api/v1/namespaces").body(JSON, object.to_string()))
            .await;
        let path = collection.clone();
        send_all(client, count, 32, move |number| {
            ObjectRequest::new(Method::POST, path.clone()).body(JSON, config_map(&format!("object-{number}"), 0))
        })
        .await;
        let plain = || ObjectRequest::new(Method::GET, collection.clone());
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let protobuf = "application/vnd.kubernetes.protobuf";
        for (form, request) in [
            ("JSON", plain()),
            ("gzip", plain().header("accept-encoding", "gzip")),
            ("Table", plain().header("accept", table)),
            ("protobuf", plain().header("accept", protobuf)),
        ] {
            let before = cpu(server);
            let mut bytes = 0;
            for _ in 0..3 {
                bytes = client.clone().send(&request).await.len();
            }
            assert!(bytes > 1000, "an empty list");
            let name = format!("list of {count}, {form}, CPU");
            results.add(kind, &name, "ms", (cpu(server) - before) / 3.0);
        }
        let before = cpu(server);
        list_pages(client, &collection, count).await;
        results.add(kind, &format!("list of {count}, pages of 500, CPU"), "ms", cpu(server) - before);
    }
    let objects = 1_000 + options.many;
    results.add(kind, "memory per object after lists", "KiB", (memory(server) - empty) / objects as f64);
}

async fn list_pages(client: &ApiClient, collection: &str, count: u64) {
    let (mut next, mut found) = (String::new(), 0);
    loop {
        let path = format!("{collection}?limit=500&continue={next}");
        let body = client.clone().send(&ObjectRequest::new(Method::GET, path)).await;
        let page: serde_json::Value = serde_json::from_slice(&body).expect("a list");
        found += page["items"].as_array().map_or(0, Vec::len) as u64;
        match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => next = token.to_owned(),
            None => break,
        }
    }
    assert_eq!(found, count, "objects in all pages");
}
