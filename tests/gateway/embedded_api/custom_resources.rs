//! CustomResourceDefinitions: what they define is served, validated, discovered and removed.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.stable.example.com";
const CRON_TABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com",
            "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"]},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["cronSpec"], "properties": {
                        "cronSpec": {"type": "string", "pattern": "^\\S+( \\S+){4}$"},
                        "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
                    }},
                    "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                }}},
                "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.cronSpec"}],
                "additionalPrinterColumns": [{"name": "Spec", "type": "string", "jsonPath": ".spec.cronSpec"}],
            }],
        },
    })
}

fn cron_tab(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec})
}

/// Creates the CRD and waits until it is established and in discovery.
async fn establish(client: &Client) {
    establish_crd(client, &crd()).await;
}

async fn establish_crd(client: &Client, crd: &Value) {
    let created = send_json(client, Method::POST, CRDS, crd).await;
    assert_eq!(created.status, 201, "{}", created.text());
    eventually("the CRD to be established and discovered", async || {
        let object = client.get(CRD).await.json();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let is_established = conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True");
        let discovered = client.get("/apis/stable.example.com/v1").await;
        (is_established && discovered.status == 200).then_some(())
    })
    .await;
}

async fn patch(client: &Client, path: &str, body: &str) -> (u16, Value) {
    let headers = [("content-type", "application/merge-patch+json")];
    let response = client.send_and_read(request(Method::PATCH, path, &headers, body)).await;
    (response.status.as_u16(), response.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resource_is_defaulted_pruned_validated_and_selected() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    establish(&client).await;
    let spec = json!({"cronSpec": "* * * * *", "unknown": 1});
    let created = send_json(&client, Method::POST, CRON_TABS, &cron_tab("a", &spec)).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let warnings: Vec<_> = created.headers.get_all("warning").iter().collect();
    assert_eq!(warnings, [r#"299 - "unknown field \"spec.unknown\"""#]);
    let object = created.json();
    assert_eq!(
        (&object["spec"], &object["metadata"]["generation"]),
        (&json!({"cronSpec": "* * * * *", "replicas": 1}), &json!(1))
    );

    let strict = format!("{CRON_TABS}?fieldValidation=Strict");
    let refused = send_json(&client, Method::POST, &strict, &cron_tab("b", &spec)).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.json()["message"].as_str().unwrap().ends_with(r#"strict decoding error: unknown field "spec.unknown""#)
    );

    let wrong = send_json(&client, Method::POST, CRON_TABS, &cron_tab("b", &json!({"replicas": 11}))).await;
    assert_eq!(wrong.status, 422);
    assert_eq!(
        wrong.json()["message"],
        "CronTab.stable.example.com \"b\" is invalid: [spec.replicas: Invalid value: 11: spec.replicas in \
         body should be less than or equal to 10, spec.cronSpec: Required value]"
    );

    let other = send_json(&client, Method::POST, CRON_TABS, &cron_tab("c", &json!({"cronSpec": "0 0 0 0 0"}))).await;
    assert_eq!(other.status, 201);
    let selected = client.get(&format!("{CRON_TABS}?fieldSelector=spec.cronSpec%3D0+0+0+0+0")).await.json();
    let names: Vec<_> = selected["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["c"]);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = client.send_and_read(get(CRON_TABS, &table)).await.json();
    assert_eq!(table["rows"][0]["cells"], json!(["a", "* * * * *"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resource_status_is_written_by_its_subresource_alone() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    establish(&client).await;
    let mut object = cron_tab("a", &json!({"cronSpec": "* * * * *"}));
    object["status"] = json!({"replicas": 5});
    let created = send_json(&client, Method::POST, CRON_TABS, &object).await.json();
    assert_eq!((&created["status"], &created["metadata"]["generation"]), (&Value::Null, &json!(1)));
    let path = format!("{CRON_TABS}/a");
    let (code, changed) = patch(&client, &path, r#"{"spec":{"replicas":2},"status":{"replicas":2}}"#).await;
    assert_eq!((code, &changed["status"], &changed["metadata"]["generation"]), (200, &Value::Null, &json!(2)));
    let body = r#"{"metadata":{"labels":{"x":"y"}},"spec":{"replicas":3},"status":{"replicas":2}}"#;
    let (code, changed) = patch(&client, &format!("{path}/status"), body).await;
    assert_eq!((code, &changed["status"], &changed["spec"]["replicas"]), (200, &json!({"replicas": 2}), &json!(2)));
    assert_eq!((&changed["metadata"]["labels"], &changed["metadata"]["generation"]), (&Value::Null, &json!(2)));
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    let refused = client.send_and_read(request(Method::PATCH, &path, &strategic, "{}")).await;
    assert_eq!(refused.status, 415);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resource_crd_deleted_with_its_objects_and_watches() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    establish(&client).await;
    let mut object = cron_tab("a", &json!({"cronSpec": "* * * * *"}));
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_eq!(send_json(&client, Method::POST, CRON_TABS, &object).await.status, 201);
    assert_eq!(
        send_json(&client, Method::POST, CRON_TABS, &cron_tab("b", &json!({"cronSpec": "* * * * *"}))).await.status,
        201
    );
    let mut watch = client.send(get(&format!("{CRON_TABS}?watch=1"), &[])).await.unwrap().into_body();
    let deleted = client.send_and_read(request(Method::DELETE, CRD, &[], "")).await.json();
    assert_eq!(deleted["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    eventually("only the object with a finalizer remains", async || {
        let list = client.get(CRON_TABS).await.json();
        (list["items"].as_array().unwrap().len() == 1).then_some(())
    })
    .await;
    let refused = send_json(&client, Method::POST, CRON_TABS, &cron_tab("c", &json!({"cronSpec": "* * * * *"}))).await;
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("create not allowed while custom resource definition is terminating"));
    let (code, _) = patch(&client, &format!("{CRON_TABS}/a"), r#"{"metadata":{"finalizers":null}}"#).await;
    assert_eq!(code, 200);
    let mut text = Vec::new();
    while let Some(chunk) = next_chunk(&mut watch).await {
        text.extend_from_slice(&chunk.unwrap());
    }
    let events: Vec<Value> =
        String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let deleted: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "DELETED")
        .map(|event| &event["object"]["metadata"]["name"])
        .collect();
    assert_eq!(deleted, ["b", "a"]);
    eventually("the CRD and its discovery are gone", async || {
        let gone = client.get(CRD).await.status == 404 && client.get("/apis/stable.example.com/v1").await.status == 404;
        gone.then_some(())
    })
    .await;

    // The name can come back, with nothing of what was.
    establish(&client).await;
    assert_eq!(client.get(CRON_TABS).await.json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resource_served_in_versions_and_across_restarts() {
    let mut api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    establish(&client).await;
    assert_eq!(
        send_json(&client, Method::POST, CRON_TABS, &cron_tab("a", &json!({"cronSpec": "* * * * *"}))).await.status,
        201
    );
    let mut changed = client.get(CRD).await.json();
    let mut second = changed["spec"]["versions"][0].clone();
    changed["spec"]["versions"][0]["storage"] = json!(false);
    second["name"] = json!("v2");
    // Versions that differ in their schemas may not have the same selectable fields.
    second.as_object_mut().unwrap().remove("selectableFields");
    second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["added"] =
        json!({"type": "string", "default": "x"});
    changed["spec"]["versions"].as_array_mut().unwrap().push(second);
    let updated = send_json(&client, Method::PUT, CRD, &changed).await;
    assert_eq!(updated.status, 200, "{}", updated.text());
    assert_eq!(updated.json()["status"]["storedVersions"], json!(["v1", "v2"]));
    let read = async |client: &Client, version: &str| {
        let path = CRON_TABS.replace("/v1/", &format!("/{version}/"));
        let object = eventually("the version", async || {
            let response = client.get(&format!("{path}/a")).await;
            (response.status == 200).then(|| response.json())
        })
        .await;
        (object["apiVersion"].clone(), object["spec"]["added"].clone())
    };
    // It has the defaults of the version in which it is stored.
    assert_eq!(read(&client, "v2").await, (json!("stable.example.com/v2"), Value::Null));
    assert_eq!(read(&client, "v1").await, (json!("stable.example.com/v1"), Value::Null));
    drop(client);
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    api.restart();
    let client = api.http2().await;
    assert_eq!(read(&client, "v2").await, (json!("stable.example.com/v2"), Value::Null));
    let group = client.get("/apis/stable.example.com").await.json();
    let versions: Vec<_> = group["versions"].as_array().unwrap().iter().map(|version| &version["version"]).collect();
    assert_eq!(versions, ["v2", "v1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resource_is_scaled_by_its_subresource() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let mut crd = crd();
    crd["spec"]["versions"][0]["subresources"]["scale"] =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["replicas"]["minimum"] = json!(0);
    establish_crd(&client, &crd).await;
    let spec = json!({"cronSpec": "* * * * *", "replicas": 2});
    let created = send_json(&client, Method::POST, CRON_TABS, &cron_tab("a", &spec)).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let (object, path) = (created.json(), format!("{CRON_TABS}/a/scale"));
    let scale = client.get(&path).await.json();
    let metadata = &object["metadata"];
    assert_eq!(
        scale,
        json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 2}, "status": {"replicas": 0}, "metadata": {
            "name": "a", "namespace": "default", "uid": metadata["uid"], "creationTimestamp": metadata["creationTimestamp"],
            "resourceVersion": metadata["resourceVersion"],
        }})
    );

    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = json!(5);
    let scaled = send_json(&client, Method::PUT, &path, &wanted).await;
    assert_eq!((scaled.status.as_u16(), &scaled.json()["spec"]["replicas"]), (200, &json!(5)));
    let object = client.get(&format!("{CRON_TABS}/a")).await.json();
    assert_eq!((&object["spec"]["replicas"], &object["metadata"]["generation"]), (&json!(5), &json!(2)));
    // The resourceVersion is an old one now.
    assert_eq!(send_json(&client, Method::PUT, &path, &wanted).await.status, 409);

    let patch = [("content-type", "application/merge-patch+json")];
    let patched = client.send_and_read(request(Method::PATCH, &path, &patch, r#"{"spec":{"replicas":7}}"#)).await;
    assert_eq!((patched.status.as_u16(), &patched.json()["spec"]["replicas"]), (200, &json!(7)));
    let none = client.send_and_read(request(Method::PATCH, &path, &patch, r#"{"spec":{"replicas":0}}"#)).await;
    assert_eq!((none.status.as_u16(), &none.json()["spec"]), (200, &json!({})), "Go omits zeros");
    assert_eq!(client.get(&path).await.json()["spec"], json!({}));
    assert_eq!(client.get(&format!("{CRON_TABS}/a")).await.json()["spec"]["replicas"], 0);
    let wrong = client.send_and_read(request(Method::PATCH, &path, &patch, r#"{"spec":{"replicas":-1}}"#)).await;
    assert_eq!(wrong.status, 422);
    let message = wrong.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(".spec.replicas: Invalid value: -1: should be a non-negative integer"), "{message}");
    assert_eq!(client.get(&format!("{CRON_TABS}/b/scale")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resource_in_protobuf_is_refused_and_its_connection_stays() {
    let api = EmbeddedApiFixture::start(&[]);
    for client in [api.http1().await, api.http2().await] {
        if client.get(CRD).await.status != 200 {
            establish(&client).await;
        }
        let created =
            send_json(&client, Method::POST, CRON_TABS, &cron_tab("a", &json!({"cronSpec": "* * * * *"}))).await;
        assert!(matches!(created.status.as_u16(), 201 | 409), "{}", created.text());
        let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
        let (object, status) = (format!("{CRON_TABS}/a"), format!("{CRON_TABS}/a/status"));
        for (method, path) in [(Method::POST, CRON_TABS), (Method::PUT, &object), (Method::PUT, &status)] {
            for body in ["k8s\0\n\0\u{12}\0\u{1a}\0\"\0", "k8s\0", "hello", ""] {
                let response = client.send_and_read(request(method.clone(), path, &headers, body)).await;
                response.assert_failure(415, "UnsupportedMediaType");
            }
        }
        assert_eq!(client.get(CRON_TABS).await.json()["items"].as_array().map(Vec::len), Some(1));
    }
}
