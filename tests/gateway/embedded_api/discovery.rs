//! Discovery and OpenAPI of what the embedded API server serves, and what it lists empty.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn named<'v>(list: &'v Value, name: &str) -> &'v Value {
    let resources = list["resources"].as_array().unwrap();
    resources.iter().find(|resource| resource["name"] == name).unwrap_or(&Value::Null)
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

/// The path of an OpenAPI v3 document, with its hash, as the index has it.
async fn document_path(client: &Client, key: &str) -> String {
    let index = client.get("/openapi/v3").await.json();
    index["paths"][key]["serverRelativeURL"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn embedded_api_discovery_names_what_is_served() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let core = client.get("/api/v1").await.json();
    let expected = json!({
        "name": "configmaps", "singularName": "configmap", "namespaced": true, "kind": "ConfigMap", "shortNames": ["cm"],
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
        "storageVersionHash": "qFsyl6wFWjQ=",
    });
    assert_eq!(*named(&core, "configmaps"), expected);
    assert_eq!(named(&core, "namespaces/finalize")["verbs"], json!(["update"]));
    assert_eq!(named(&core, "pods")["verbs"], expected["verbs"]);
    let eviction = json!({"name": "pods/eviction", "singularName": "", "namespaced": true, "group": "policy",
        "version": "v1", "kind": "Eviction", "verbs": ["create"]});
    assert_eq!(*named(&core, "pods/eviction"), eviction);
    assert_eq!(named(&core, "serviceaccounts/token")["kind"], "TokenRequest");

    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    // In the order of their APIServices, which the server stores after it has started.
    let groups = eventually("the groups in their order", async || {
        let groups = client.send_and_read(get("/apis", &[("accept", accept)])).await.json();
        let names = groups["items"].as_array()?.iter().map(|group| &group["metadata"]["name"]);
        let expected = ["apiregistration.k8s.io", "apps", "events.k8s.io", "authentication.k8s.io"];
        names.take(4).eq(expected).then_some(groups)
    })
    .await;
    let autoscaling = groups["items"].as_array().unwrap().iter().find(|one| one["metadata"]["name"] == "autoscaling");
    let version = &autoscaling.unwrap()["versions"][0];
    assert_eq!((&version["version"], &version["freshness"]), (&json!("v2"), &json!("Current")));
    assert_eq!(version["resources"][0]["responseKind"]["kind"], "HorizontalPodAutoscaler");
}

#[tokio::test]
async fn embedded_api_openapi_v3_document_has_the_hash_of_the_index() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let path = document_path(&client, "api/v1").await;
    let first = client.get(&path).await;
    assert_eq!(first.status, 200, "{}", first.text());
    assert_eq!(first.headers["cache-control"], "public, immutable");
    let etag = first.headers["etag"].to_str().unwrap().to_owned();
    assert_eq!(path, format!("/openapi/v3/api/v1?hash={}", etag.trim_matches('"')));
    let patch = &first.json()["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"];
    let names: Vec<&Value> = patch["parameters"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert!(names.contains(&&json!("fieldValidation")), "kubectl asks for it: {names:?}");

    let again = client.send_and_read(get(&path, &[("if-none-match", &etag)])).await;
    assert_eq!(again.status, 304);
    let packed = client.send_and_read(get(&path, &[("accept-encoding", "gzip")])).await;
    assert_eq!(packed.headers["content-encoding"], "gzip");
    for key in ["apis/apiregistration.k8s.io/v1", "apis/rbac.authorization.k8s.io/v1", "apis/autoscaling/v2"] {
        let document = client.get(&document_path(&client, key).await).await;
        assert_eq!(document.json()["openapi"], "3.0.0", "{key}");
    }
    client.get("/openapi/v3/apis/unknown/v1").await.assert_failure(404, "NotFound");
}

#[tokio::test]
async fn embedded_api_openapi_v2_describes_stored_kinds() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let document = client.get("/openapi/v2").await;
    assert_eq!(document.status, 200, "{}", document.text());
    let document = document.json();
    let lease = &document["definitions"]["io.k8s.api.coordination.v1.Lease"];
    assert!(lease["description"].as_str().unwrap().starts_with("Lease defines a lease concept"));
    assert_eq!(lease["properties"]["spec"]["$ref"], "#/definitions/io.k8s.api.coordination.v1.LeaseSpec");
    assert!(document["paths"]["/api/v1/namespaces/{namespace}/secrets"]["post"].is_object());
    let protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let encoded = client.send_and_read(get("/openapi/v2", &[("accept", protobuf)])).await;
    assert_eq!((encoded.status.as_u16(), &encoded.headers["content-type"]), (200, &protobuf.parse().unwrap()));
}

#[tokio::test]
async fn embedded_api_lists_resources_that_are_not_stored_empty() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for (path, kind) in [
        (PODS, "PodList"),
        ("/api/v1/nodes", "NodeList"),
        ("/apis/networking.k8s.io/v1/ingresses", "IngressList"),
        ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "CustomResourceDefinitionList"),
        ("/apis/autoscaling/v2/horizontalpodautoscalers", "HorizontalPodAutoscalerList"),
    ] {
        let list = client.get(path).await.json();
        assert_eq!((&list["kind"], &list["items"]), (&json!(kind), &json!([])), "{path}");
        assert!(!list["metadata"]["resourceVersion"].as_str().unwrap().is_empty());
    }
    let selected = client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Da,status.phase!%3DFailed").await;
    assert_eq!(selected.status, 200, "kubelets and schedulers select so: {}", selected.text());
    let watch = client.get(&format!("{PODS}?watch=true&timeoutSeconds=1")).await;
    assert_eq!((watch.status.as_u16(), watch.text().as_str()), (200, ""));
    client.get(&format!("{PODS}/a")).await.assert_failure(404, "NotFound");
    let created = send_json(&client, Method::POST, PODS, &pod()).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let list = client.get(PODS).await.json();
    assert_eq!(list["items"][0]["metadata"]["uid"], created.json()["metadata"]["uid"]);
    let body = json!({"status": {"phase": "Running"}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let patched = client.send_and_read(request(Method::PATCH, &format!("{PODS}/a/status"), &headers, &body)).await;
    assert_eq!((patched.status.as_u16(), &patched.json()["status"]["phase"]), (200, &json!("Running")));
}

#[tokio::test]
async fn embedded_api_runtime_config_turns_resources_off() {
    let api = EmbeddedApiFixture::start(&["--runtime-config=v1/pods=false,apps/v1=false"]);
    let client = api.http2().await;
    let core = client.get("/api/v1").await.json();
    assert!(named(&core, "nodes")["verbs"].as_array().unwrap().contains(&json!("create")));
    assert!(!core["resources"].as_array().unwrap().iter().any(|one| one["name"] == "pods"));
    client.get(PODS).await.assert_failure(404, "NotFound");
    send_json(&client, Method::POST, PODS, &pod()).await.assert_failure(404, "NotFound");
    assert_eq!(client.get("/apis/apps/v1").await.status, 404);
    let document = client.get(&document_path(&client, "api/v1").await).await.json();
    let has_path = |plural: &str| document["paths"][format!("/api/v1/namespaces/{{namespace}}/{plural}")].is_object();
    assert_eq!((has_path("pods"), has_path("configmaps")), (false, true));
}

#[tokio::test]
async fn kind_that_is_not_enforced_is_created_with_a_warning() {
    const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    const TEXT: &str = "299 - \"narthex stores this NetworkPolicy and does not enforce it\"";
    let policy = json!({"metadata": {"name": "a"}, "spec": {"podSelector": {}}});
    for (flags, expected) in [(&[][..], Some(TEXT)), (&["--unenforced-warnings=false"], None)] {
        let api = EmbeddedApiFixture::start(flags);
        let client = api.http2().await;
        let created = send_json(&client, Method::POST, POLICIES, &policy).await;
        assert_eq!(created.status, 201, "{}", created.text());
        assert_eq!(created.headers.get("warning").map(|text| text.to_str().unwrap()), expected);
        assert_eq!(send_json(&client, Method::POST, PODS, &pod()).await.headers.get("warning"), None);
    }
}

#[tokio::test]
async fn embedded_api_discovery_has_the_field_order_of_kubernetes() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for (path, expected) in [
        (
            "/api/v1",
            r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"bindings","singularName":"binding","namespaced":true,"kind":"Binding","verbs":["#,
        ),
        (
            "/apis/coordination.k8s.io/v1",
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"coordination.k8s.io/v1","resources":[{"name":"leases","singularName":"lease","namespaced":true,"kind":"Lease","verbs":["#,
        ),
        (
            "/apis/apiregistration.k8s.io/v1",
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apiregistration.k8s.io/v1","resources":[{"name":"apiservices","singularName":"apiservice","namespaced":false,"kind":"APIService","verbs":["#,
        ),
    ] {
        let text = client.get(path).await.text();
        assert!(text.starts_with(expected), "{path}: {text:.300}");
    }
    let core = client.get("/api/v1").await.text();
    assert!(core.contains(r#""shortNames":["ns"],"storageVersionHash":""#), "{core}");
    let version = client.get("/version").await.text();
    assert!(version.starts_with("{\n  \"major\": \"1\",\n  \"minor\": \"36\",\n  \"gitVersion\": "), "{version}");
}
