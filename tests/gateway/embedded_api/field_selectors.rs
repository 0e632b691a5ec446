//! Field selectors of built-in kinds: zero values, lists and watches.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn start() -> EmbeddedApiFixture {
    EmbeddedApiFixture::start(&[])
}

async fn create(client: &Client, path: &str, object: Value) -> Value {
    let created = send_json(client, Method::POST, path, &object).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

/// Names of the objects that a selector selects.
async fn selected(client: &Client, path: &str, selector: &str) -> Vec<String> {
    let list = client.get(&format!("{path}?fieldSelector={}", selector.replace('=', "%3D"))).await.json();
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{selector}: {list}"));
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn pod(name: &str, spec: &Value) -> Value {
    let mut pod =
        json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Running", "podIP": "10.0.0.9"}});
    pod["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn field_selectors_match_fields_that_are_absent() {
    let api = start();
    let client = api.http2().await;
    create(&client, NODES, json!({"metadata": {"name": "open"}})).await;
    create(&client, NODES, json!({"metadata": {"name": "closed"}, "spec": {"unschedulable": true}})).await;
    // Clients cannot choose the status of a new pod.
    let created = create(&client, PODS, pod("ordinary", &json!({}))).await;
    assert_eq!((&created["status"]["phase"], &created["status"]["podIP"]), (&json!("Pending"), &Value::Null));
    create(&client, PODS, pod("host", &json!({"hostNetwork": true, "nodeName": "open"}))).await;
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    create(
        &client,
        JOBS,
        json!({"metadata": {"name": "job"}, "spec": {"template": template}, "status": {"succeeded": 1}}),
    )
    .await;
    for (path, selector, expected) in [
        (NODES, "spec.unschedulable=false", &["open"][..]),
        (NODES, "spec.unschedulable=true", &["closed"]),
        (NODES, "spec.unschedulable!=true", &["open"]),
        (NODES, "spec.unschedulable=", &[]),
        (PODS, "spec.hostNetwork=false", &["ordinary"]),
        (PODS, "spec.hostNetwork=true", &["host"]),
        (PODS, "status.phase=Pending", &["host", "ordinary"]),
        (PODS, "status.phase!=Pending", &[]),
        (PODS, "spec.nodeName=,status.podIP=", &["ordinary"]),
        (PODS, "spec.host=open", &["host"]),
        (PODS, "spec.restartPolicy=Always,spec.schedulerName=default-scheduler", &["host", "ordinary"]),
        (PODS, "status.podIPs=", &["host", "ordinary"]),
        (JOBS, "status.successful=0", &["job"]),
        (JOBS, "status.successful=1", &[]),
    ] {
        assert_eq!(selected(&client, path, selector).await, expected, "{selector}");
    }
    for (path, selector, text) in [
        (JOBS, "status.succeeded=0", "field label \"status.succeeded\" not supported for Job"),
        (NODES, "metadata.namespace=x", "field label not supported: metadata.namespace"),
        (
            "/apis/apps/v1/replicasets",
            "status.replicas=0",
            "\"status.replicas\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
    ] {
        let refused = client.get(&format!("{path}?fieldSelector={}", selector.replace('=', "%3D"))).await;
        assert_eq!(refused.assert_failure(400, "BadRequest")["message"], text);
    }
    assert_eq!(selected(&client, "/api/v1/persistentvolumes", "metadata.namespace=x").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn field_selector_watch_sees_objects_enter_and_leave_by_zero_value() {
    let api = start();
    let client = api.http2().await;
    create(&client, NODES, json!({"metadata": {"name": "n"}})).await;
    let path = format!("{NODES}?watch=1&fieldSelector=spec.unschedulable%3Dfalse");
    let mut watch = client.send(get(&path, &[])).await.unwrap().into_body();
    let merge = [("content-type", "application/merge-patch+json")];
    let path = format!("{NODES}/n");
    for spec in [json!({"unschedulable": true}), json!({"unschedulable": null})] {
        let patch = request(Method::PATCH, &path, &merge, &json!({"spec": spec}).to_string());
        assert_eq!(client.send_and_read(patch).await.status, 200);
    }
    let mut lines = Vec::new();
    while lines.iter().filter(|byte| **byte == b'\n').count() < 3 {
        lines.extend_from_slice(&next_chunk(&mut watch).await.expect("more events").unwrap());
    }
    let events = lines.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap());
    let types: Vec<Value> = events.map(|event: Value| event["type"].clone()).collect();
    assert_eq!(types, ["ADDED", "DELETED", "ADDED"]);
}
