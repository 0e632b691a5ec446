//! Definitions: memory of installed ones, time until they are served, OpenAPI after a change of one.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::BenchedServer;
use super::resource::{BenchResource, CRDS, JSON, MERGE_PATCH};
use crate::client::{ApiClient, ObjectRequest, send_all};
use crate::{Results, memory};

/// Definitions of one group.
const PER_GROUP: u64 = 10;
/// How long the server may work on a change of one CRD.
const CHANGE_TIME: Duration = Duration::from_secs(5);
/// Interval of requests for OpenAPI v2: it is a large document.
const POLL_INTERVAL_V2: Duration = Duration::from_millis(200);

pub(super) fn resource(number: u64) -> BenchResource {
    BenchResource::new(&format!("group{}.bench.dev", number / PER_GROUP), number)
}

/// Installs the CRDs of these numbers, and waits until the last is served.
pub(crate) async fn install(client: &ApiClient, numbers: std::ops::Range<u64>) {
    let (first, count, last) = (numbers.start, numbers.end - numbers.start, numbers.end.saturating_sub(1));
    send_all(client, count, 4, move |number| {
        let body = resource(first + number).crd(None).to_string();
        ObjectRequest::new(Method::POST, CRDS).body(JSON, body)
    })
    .await;
    wait_for(client, &resource(last).collection("v2", "bench"), |_| true).await;
}

pub(super) async fn measure(on: &BenchedServer<'_>, sizes: &[u64], results: &mut Results) {
    let at_rest = on.settled_memory().await;
    let mut installed = 0;
    for &size in sizes {
        let (began, before) = (Instant::now(), on.cpu());
        install(&on.client, installed..size).await;
        let seconds = began.elapsed().as_secs_f64();
        let unused = on.settled_memory().await;
        let name = format!("{size} CRDs");
        let new = (size - installed) as f64;
        results.add(on.kind, &format!("{name}: CPU per new one, until it is quiet"), "ms", (on.cpu() - before) / new);
        results.add(on.kind, &format!("{name}: time per new one, 4 at once"), "ms", seconds * 1000.0 / new);
        results.add(on.kind, &format!("{name}: memory of each, unused"), "KiB", (unused - at_rest) / size as f64);
        use_all(on, size).await;
        let used = memory(on.server);
        results.add(on.kind, &format!("{name}: memory of each, used"), "KiB", (used - at_rest) / size as f64);
        installed = size;
        measure_new(on, size, results).await;
        measure_change(on, size, results).await;
        measure_change_v2(on, size, results).await;
    }
}

/// Creates an object of each, and lists it in both versions.
async fn use_all(on: &BenchedServer<'_>, count: u64) {
    send_all(&on.client, count, 4, |number| {
        let resource = resource(number);
        let body = resource.object("v1", &format!("used-{}", fastrand::u64(..)), 0);
        ObjectRequest::new(Method::POST, resource.collection("v1", "bench")).body(JSON, body)
    })
    .await;
    for version in ["v1", "v2"] {
        let list = move |number| ObjectRequest::new(Method::GET, resource(number).collection(version, "bench"));
        send_all(&on.client, count, 4, list).await;
    }
}

/// The time until a new CRD is established, in discovery, in OpenAPI, and has an object.
async fn measure_new(on: &BenchedServer<'_>, size: u64, results: &mut Results) {
    let new = BenchResource::new(&format!("new{size}.bench.dev"), 0);
    let (crd, root) = (new.crd(None).to_string(), format!("/apis/{}/v2", new.group));
    let began = Instant::now();
    on.client.clone().send(&ObjectRequest::new(Method::POST, CRDS).body(JSON, crd)).await;
    let elapsed = |began: Instant| began.elapsed().as_secs_f64() * 1000.0;
    let established = async {
        let path = format!("{CRDS}/{}", new.crd_name());
        let is_established = |body: &Value| {
            let conditions = body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True")
        };
        wait_for(&on.client, &path, is_established).await;
        elapsed(began)
    };
    let discovery = async {
        wait_for(&on.client, &root, |body| body["resources"].as_array().is_some_and(|all| !all.is_empty())).await;
        elapsed(began)
    };
    let openapi = async {
        let key = format!("apis/{}/v2", new.group);
        wait_for(&on.client, "/openapi/v3", |body| body["paths"][&key].is_object()).await;
        elapsed(began)
    };
    let first_object = async {
        let create = ObjectRequest::new(Method::POST, new.collection("v1", "bench"));
        let create = create.body(JSON, new.object("v1", "first", 0));
        while !on.client.clone().try_send(&create).await.0.is_success() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        elapsed(began)
    };
    let (established, discovery, openapi, first_object) = tokio::join!(established, discovery, openapi, first_object);
    for (what, time) in [
        ("Established", established),
        ("discovery", discovery),
        ("OpenAPI v3", openapi),
        ("first object created", first_object),
    ] {
        results.add(on.kind, &format!("new CRD beside {size}: {what} after"), "ms", time);
    }
}

/// Adds a field to the first version of a CRD.
async fn add_field(on: &BenchedServer<'_>, resource: &BenchResource, field: &str) {
    let mut crd = resource.crd(None);
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][field] =
        json!({"type": "string"});
    let patch = json!({"spec": {"versions": crd["spec"]["versions"]}}).to_string();
    let path = format!("{CRDS}/{}", resource.crd_name());
    on.client.clone().send(&ObjectRequest::new(Method::PATCH, path).body(MERGE_PATCH, patch)).await;
}

/// CPU time after a change of one CRD while a client reads its OpenAPI, and what that client receives.
async fn measure_change(on: &BenchedServer<'_>, size: u64, results: &mut Results) {
    let changed = resource(0);
    on.settled_memory().await;
    let key = format!("apis/{}/v1", changed.group);
    let index = ObjectRequest::new(Method::GET, "/openapi/v3");
    let url = |body: &[u8]| {
        let index: Value = serde_json::from_slice(body).unwrap_or_default();
        index["paths"][&key]["serverRelativeURL"].as_str().unwrap_or_default().to_owned()
    };
    let before_url = url(&on.client.clone().send(&index).await);
    let field = format!("field{size}");
    let (before, began) = (on.cpu(), Instant::now());
    add_field(on, &changed, &field).await;
    let mut bytes = 0;
    loop {
        let body = on.client.clone().send(&index).await;
        bytes += body.len();
        let now_url = url(&body);
        if now_url != before_url && !now_url.is_empty() {
            let document = on.client.clone().send(&ObjectRequest::new(Method::GET, now_url)).await;
            bytes += document.len();
            if String::from_utf8_lossy(&document).contains(&field) {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let name = format!("one of {size} CRDs changed: OpenAPI v3");
    results.add(on.kind, &format!("{name} after"), "ms", began.elapsed().as_secs_f64() * 1000.0);
    tokio::time::sleep(CHANGE_TIME.saturating_sub(began.elapsed())).await;
    results.add(on.kind, &format!("{name}, CPU"), "ms", on.cpu() - before);
    results.add(on.kind, &format!("{name}, bytes received"), "kB", bytes as f64 / 1000.0);
}

/// Time and CPU time until OpenAPI v2, which a client has read before, has a change of one CRD.
async fn measure_change_v2(on: &BenchedServer<'_>, size: u64, results: &mut Results) {
    // The first request of a large one is answered with 503 while it is built.
    wait_for(&on.client, "/openapi/v2", |_| true).await;
    let document = ObjectRequest::new(Method::GET, "/openapi/v2");
    let bytes = on.client.clone().send(&document).await.len();
    on.settled_memory().await;
    let field = format!("version2field{size}");
    let (before, began) = (on.cpu(), Instant::now());
    add_field(on, &resource(0), &field).await;
    while !String::from_utf8_lossy(&on.client.clone().send(&document).await).contains(&field) {
        tokio::time::sleep(POLL_INTERVAL_V2).await;
    }
    let name = format!("one of {size} CRDs changed: OpenAPI v2");
    results.add(on.kind, &format!("{name} after"), "ms", began.elapsed().as_secs_f64() * 1000.0);
    results.add(on.kind, &format!("{name}, CPU"), "ms", on.cpu() - before);
    results.add(on.kind, &format!("{name}, its size"), "kB", bytes as f64 / 1000.0);
}

/// Reads a document until it is as wanted, at most two minutes.
async fn wait_for(client: &ApiClient, path: &str, is_wanted: impl Fn(&Value) -> bool) {
    let (request, end) = (ObjectRequest::new(Method::GET, path), Instant::now() + Duration::from_secs(120));
    loop {
        let (status, body) = client.clone().try_send(&request).await;
        if status.is_success() && is_wanted(&serde_json::from_slice(&body).unwrap_or_default()) {
            return;
        }
        assert!(Instant::now() < end, "{path}: {status} {}", String::from_utf8_lossy(&body));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
