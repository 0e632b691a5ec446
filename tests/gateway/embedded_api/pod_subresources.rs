//! Subresources of Pods and workloads: `scale`, `eviction`, `binding`, `log`, and deletions that end gracefully.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

async fn create(client: &Client, path: &str, object: &Value) -> Value {
    let created = send_json(client, Method::POST, path, object).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

async fn merge(client: &Client, path: &str, patch: &Value) -> ClientResponse {
    let headers = [("content-type", "application/merge-patch+json")];
    client.send_and_read(request(Method::PATCH, path, &headers, &patch.to_string())).await
}

async fn create_pod(client: &Client, name: &str) -> Value {
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    create(client, PODS, &json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec})).await
}

async fn bind(client: &Client, name: &str, node: &str) -> ClientResponse {
    let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
    send_json(client, Method::POST, &format!("{PODS}/{name}/binding"), &binding).await
}

async fn delete(client: &Client, path: &str, options: &Value) -> ClientResponse {
    send_json(client, Method::DELETE, path, options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_of_a_deployment_is_read_and_written() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "c", "operator": "NotIn", "values": ["z", "y"]}, {"key": "b", "operator": "DoesNotExist"}]});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": selector, "template": template}});
    let created = create(&client, DEPLOYMENTS, &deployment).await;
    let path = format!("{DEPLOYMENTS}/d/scale");
    let scale = client.get(&path).await.json();
    let metadata = json!({"name": "d", "namespace": "default", "uid": created["metadata"]["uid"],
        "resourceVersion": created["metadata"]["resourceVersion"],
        "creationTimestamp": created["metadata"]["creationTimestamp"]});
    let expected = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": 1}, "status": {"replicas": 0, "selector": "a=b,!b,c notin (y,z)"}});
    assert_eq!(scale, expected);
    let patched = merge(&client, &path, &json!({"spec": {"replicas": 4}})).await;
    assert_eq!((patched.status.as_u16(), &patched.json()["spec"]["replicas"]), (200, &json!(4)), "{}", patched.text());
    let now = client.get(&format!("{DEPLOYMENTS}/d")).await.json();
    assert_eq!((&now["spec"]["replicas"], &now["metadata"]["generation"]), (&json!(4), &json!(2)));
    let refused = merge(&client, &path, &json!({"spec": {"replicas": -1}})).await.assert_failure(422, "Invalid");
    let message =
        "Scale.autoscaling \"d\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0";
    assert_eq!(refused["message"], message);
    // An older scale.
    send_json(&client, Method::PUT, &path, &scale).await.assert_failure(409, "Conflict");
    client.get(&format!("{DEPLOYMENTS}/x/scale")).await.assert_failure(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_is_bound_once() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create_pod(&client, "a").await;
    let bound = bind(&client, "a", "n1").await;
    assert_eq!((bound.status.as_u16(), &bound.json()["status"]), (201, &json!("Success")), "{}", bound.text());
    let pod = client.get(&format!("{PODS}/a")).await.json();
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(
        (&pod["spec"]["nodeName"], &condition["type"], &condition["status"]),
        (&json!("n1"), &json!("PodScheduled"), &json!("True"))
    );
    let refused = bind(&client, "a", "n2").await.assert_failure(409, "Conflict");
    let message = "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n1\"";
    assert_eq!(refused["message"], message);
    bind(&client, "x", "n2").await.assert_failure(404, "NotFound");
    let nameless = json!({"metadata": {"name": "a"}, "target": {"kind": "Pod"}});
    let refused = send_json(&client, Method::POST, &format!("{PODS}/a/binding"), &nameless).await;
    assert_eq!(refused.status, 500, "{}", refused.text());
    let text = refused.text();
    assert!(text.contains("target.kind: Unsupported value") && text.contains("target.name: Required value"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn binding_that_is_created_as_such_names_its_pod() {
    const BINDINGS: &str = "/api/v1/namespaces/default/bindings";
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create_pod(&client, "a").await;
    let binding = |name: &str| json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
    let post = async |name: &str| send_json(&client, Method::POST, BINDINGS, &binding(name)).await;
    assert_eq!(post("a").await.json()["status"], "Success");
    assert_eq!(client.get(&format!("{PODS}/a")).await.json()["spec"]["nodeName"], "n1");
    post("a").await.assert_failure(409, "Conflict");
    post("x").await.assert_failure(404, "NotFound");
    assert_eq!(post("").await.assert_failure(400, "BadRequest")["message"], "Name parameter required.");
    client.get(BINDINGS).await.assert_failure(405, "MethodNotAllowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn component_statuses_say_what_components_say() {
    const STATUSES: &str = "/api/v1/componentstatuses";
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let listed = client.get(STATUSES).await;
    assert_eq!(listed.headers["warning"], "299 - \"v1 ComponentStatus is deprecated in v1.19+\"");
    let listed = listed.json();
    let names: Vec<&str> =
        listed["items"].as_array().unwrap().iter().filter_map(|status| status["metadata"]["name"].as_str()).collect();
    assert_eq!(
        (names, &listed["kind"]),
        (vec!["controller-manager", "etcd-0", "scheduler"], &"ComponentStatusList".into())
    );
    let healthy = json!([{"type": "Healthy", "status": "True", "message": "ok"}]);
    assert_eq!(client.get(&format!("{STATUSES}/etcd-0")).await.json()["conditions"], healthy);
    let selected = client.get(&format!("{STATUSES}?fieldSelector=metadata.name%3Dscheduler")).await.json();
    assert_eq!(selected["items"].as_array().unwrap().len(), 1);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = client.send_and_read(request(Method::GET, STATUSES, &table, "")).await.json();
    assert_eq!(table["rows"][1]["cells"], json!(["etcd-0", "Healthy", "ok", ""]));
    client.get(&format!("{STATUSES}/x")).await.assert_failure(404, "NotFound");
    send_json(&client, Method::POST, STATUSES, &json!({})).await.assert_failure(405, "MethodNotAllowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_answers_as_if_nobody_listened() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let message = async |path: &str, code: u16, reason: &str| {
        client.get(path).await.assert_failure(code, reason)["message"].as_str().unwrap().to_owned()
    };
    create_pod(&client, "a").await;
    assert_eq!(message(&format!("{PODS}/a/proxy/x"), 400, "BadRequest").await, "address not allowed");
    let text = message(&format!("{PODS}/ftp:a:1/proxy"), 400, "BadRequest").await;
    assert_eq!(text, "invalid pod request \"ftp:a:1\"");
    message(&format!("{PODS}/x/proxy"), 404, "NotFound").await;
    merge(&client, &format!("{PODS}/a/status"), &json!({"status": {"podIP": "10.0.0.9"}})).await;
    let text = message(&format!("{PODS}/a:81/proxy/x/y"), 503, "ServiceUnavailable").await;
    assert_eq!(text, "error trying to reach service: this server does not connect to 10.0.0.9:81");
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    let ports = json!([{"name": "http", "port": 80}]);
    create(&client, SERVICES, &json!({"metadata": {"name": "web"}, "spec": {"ports": ports}})).await;
    message(&format!("{SERVICES}/web/proxy/"), 404, "NotFound").await;
    let text = message(&format!("{SERVICES}/web:81/proxy/"), 503, "ServiceUnavailable").await;
    assert_eq!(text, "no service port 81 found for service \"web\"");
    let target = json!({"kind": "Pod", "namespace": "default", "name": "a"});
    let subsets =
        json!([{"addresses": [{"ip": "10.0.0.9", "targetRef": target}], "ports": [{"name": "http", "port": 8080}]}]);
    let endpoints = json!({"metadata": {"name": "web"}, "subsets": subsets});
    create(&client, "/api/v1/namespaces/default/endpoints", &endpoints).await;
    let text = message(&format!("{SERVICES}/web:80/proxy/"), 503, "ServiceUnavailable").await;
    assert_eq!(text, "error trying to reach service: this server does not connect to 10.0.0.9:8080");
    let text = message(&format!("{SERVICES}/web:other/proxy/"), 503, "ServiceUnavailable").await;
    assert_eq!(text, "no endpoints available for service \"web:other\"");
    create(&client, "/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await;
    let text = message("/api/v1/nodes/n/proxy/metrics", 500, "InternalError").await;
    assert_eq!(text, "Internal error occurred: no preferred addresses found; known addresses: []");
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_on_a_node_is_deleted_by_its_kubelet() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let path = format!("{PODS}/a");
    // On no node: at once.
    create_pod(&client, "a").await;
    let deleted = delete(&client, &path, &json!({})).await.json();
    assert_eq!((&deleted["kind"], &deleted["metadata"]["name"]), (&json!("Pod"), &json!("a")));
    client.get(&path).await.assert_failure(404, "NotFound");
    // On a node: marked, then shortened, then gone.
    create_pod(&client, "a").await;
    bind(&client, "a", "n1").await;
    for (options, seconds) in
        [(json!({}), 30), (json!({"gracePeriodSeconds": 60}), 30), (json!({"gracePeriodSeconds": 5}), 5)]
    {
        let marked = delete(&client, &path, &options).await.json();
        let metadata = &marked["metadata"];
        assert_eq!(metadata["deletionGracePeriodSeconds"], seconds, "{marked}");
        assert_eq!(metadata["generation"], 2);
    }
    let marked = client.get(&path).await.json();
    let time = |field: &str| marked["metadata"][field].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let left = time("deletionTimestamp").duration_since(time("creationTimestamp")).as_secs();
    assert!((0..60).contains(&left), "the end of the time, not its beginning: {left}");
    assert_eq!(delete(&client, &path, &json!({"gracePeriodSeconds": 0})).await.status, 200);
    client.get(&path).await.assert_failure(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_asks_the_budget() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let evict = async |name: &str| {
        let eviction = json!({"metadata": {"name": name}, "deleteOptions": {"gracePeriodSeconds": 0}});
        send_json(&client, Method::POST, &format!("{PODS}/{name}/eviction"), &eviction).await
    };
    for name in ["a", "b", "c"] {
        create_pod(&client, name).await;
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(merge(&client, &format!("{PODS}/{name}/status"), &status).await.status, 200);
    }
    // Without a budget.
    let evicted = evict("a").await;
    assert_eq!((evicted.status.as_u16(), &evicted.json()["status"]), (201, &json!("Success")), "{}", evicted.text());
    client.get(&format!("{PODS}/a")).await.assert_failure(404, "NotFound");
    evict("a").await.assert_failure(404, "NotFound");
    let budget =
        json!({"metadata": {"name": "p"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    create(&client, BUDGETS, &budget).await;
    // The controller has not looked at it.
    let refused = evict("b").await;
    assert_eq!(refused.headers["retry-after"], "10");
    let refused = refused.assert_failure(429, "TooManyRequests");
    assert_eq!(refused["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    let cause = &refused["details"]["causes"][0];
    assert_eq!(cause["message"], "The disruption budget p is still being processed by the server.");
    assert_eq!(cause["reason"], "DisruptionBudget");
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2,
        "desiredHealthy": 1, "expectedPods": 2}});
    let patched = merge(&client, &format!("{BUDGETS}/p/status"), &status).await;
    assert_eq!(patched.status, 200, "{}", patched.text());
    assert_eq!(evict("b").await.status, 201);
    let counted = client.get(&format!("{BUDGETS}/p")).await.json();
    assert_eq!(counted["status"]["disruptionsAllowed"], 0);
    assert!(counted["status"]["disruptedPods"]["b"].is_string(), "{counted}");
    assert_eq!(counted["status"]["conditions"][0]["reason"], "InsufficientPods");
    let healthy = json!({"status": {"currentHealthy": 1}});
    merge(&client, &format!("{BUDGETS}/p/status"), &healthy).await;
    let refused = evict("c").await.assert_failure(429, "TooManyRequests");
    let message = "The disruption budget p needs 1 healthy pods and has 1 currently";
    assert_eq!(refused["details"]["causes"][0]["message"], message);
    assert_eq!(client.get(&format!("{PODS}/c")).await.status, 200);
    // A Pod that has ended disrupts nobody.
    merge(&client, &format!("{PODS}/c/status"), &json!({"status": {"phase": "Failed"}})).await;
    assert_eq!(evict("c").await.status, 201);
    let wrong = json!({"metadata": {"name": "other"}});
    let refused = send_json(&client, Method::POST, &format!("{PODS}/c/eviction"), &wrong).await;
    assert_eq!(
        refused.assert_failure(400, "BadRequest")["message"],
        "name in URL does not match name in Eviction object"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_pod_without_a_node() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create_pod(&client, "a").await;
    let log = client.get(&format!("{PODS}/a/log")).await;
    assert_eq!((log.status.as_u16(), log.text().as_str()), (200, ""));
    assert_eq!(log.headers["content-type"], "text/plain");
    let refused = client.get(&format!("{PODS}/a/log?container=x")).await.assert_failure(400, "BadRequest");
    assert_eq!(refused["message"], "container x is not valid for pod a");
    let refused = client.get(&format!("{PODS}/a/exec?command=ls")).await.assert_failure(400, "BadRequest");
    assert_eq!(refused["message"], "pod a does not have a host assigned");
    bind(&client, "a", "n1").await;
    client.get(&format!("{PODS}/a/log")).await.assert_failure(500, "InternalError");
    client.get(&format!("{PODS}/x/log")).await.assert_failure(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn resize_and_ephemeral_containers_change_their_part_alone() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
    create(&client, PODS, &json!({"metadata": {"name": "a"}, "spec": {"containers": [container]}})).await;
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    let patch = async |subresource: &str, spec: Value| {
        let body = json!({"metadata": {"labels": {"x": "y"}}, "spec": spec}).to_string();
        client.send_and_read(request(Method::PATCH, &format!("{PODS}/a/{subresource}"), &strategic, &body)).await
    };
    let resized = patch(
        "resize",
        json!({"containers": [{"name": "c", "image": "other",
        "resources": {"requests": {"cpu": "2"}}}]}),
    )
    .await;
    assert_eq!(resized.status, 200, "{}", resized.text());
    let pod = resized.json();
    let changed = &pod["spec"]["containers"][0];
    assert_eq!((&changed["resources"]["requests"]["cpu"], &changed["image"]), (&json!("2"), &json!("i")));
    assert_eq!((&pod["metadata"]["generation"], &pod["metadata"]["labels"]), (&json!(2), &Value::Null));
    let storage = json!({"containers": [{"name": "c", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}]});
    patch("resize", storage).await.assert_failure(422, "Invalid");
    let debug = json!({"ephemeralContainers": [{"name": "debug", "image": "d"}]});
    let added = patch("ephemeralcontainers", debug).await;
    assert_eq!(added.status, 200, "{}", added.text());
    assert_eq!(added.json()["spec"]["ephemeralContainers"][0]["name"], "debug");
    let removed = json!({"spec": {"ephemeralContainers": null}});
    let refused =
        merge(&client, &format!("{PODS}/a/ephemeralcontainers"), &removed).await.assert_failure(422, "Invalid");
    assert!(
        refused["message"].as_str().unwrap().contains("existing ephemeral containers \"debug\" may not be removed")
    );
}
