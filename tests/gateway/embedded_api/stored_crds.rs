//! What other servers stored: CRDs in v1beta1, objects that today's schema refuses, in versions that are gone, and
//! values that are no objects.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, get, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;
use crate::support::store_file::insert_record;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/olds.example.com";
const OLDS: &str = "/apis/example.com/v1/namespaces/default/olds";

/// A gateway that starts with these records in its store.
async fn start_with_records(records: &[(&str, String)]) -> (EmbeddedApiFixture, Client) {
    let mut api = EmbeddedApiFixture::start(&[]);
    // It may not handle SIGTERM yet.
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    for (key, value) in records {
        insert_record(&api.environment.path("data/store.db"), key, value.as_bytes());
    }
    api.restart();
    let client = api.http2().await;
    (api, client)
}

fn old_crd(schema: &Value) -> String {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "olds.example.com", "uid": "1f6ff3a4-0000-4000-8000-000000000001", "generation": 1,
            "creationTimestamp": "2019-01-01T00:00:00Z"},
        "spec": {
            "group": "example.com", "version": "v1", "scope": "Namespaced",
            "names": {"plural": "olds", "singular": "old", "kind": "Old", "listKind": "OldList"},
            "additionalPrinterColumns": [{"name": "A", "type": "string", "JSONPath": ".spec.a"}],
            "validation": {"openAPIV3Schema": schema},
        },
        "status": {"conditions": [], "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]},
    })
    .to_string()
}

fn old_object(api_version: &str, name: &str, spec: &Value) -> String {
    let metadata = json!({"name": name, "namespace": "default", "uid": format!("u-{name}"), "generation": 1,
        "creationTimestamp": "2019-01-01T00:00:00Z"});
    json!({"apiVersion": api_version, "kind": "Old", "metadata": metadata, "spec": spec}).to_string()
}

async fn condition(client: &Client, condition_type: &str) -> Value {
    eventually("a condition", async || {
        let crd = client.get(CRD).await.json();
        let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == condition_type)
    })
    .await
}

async fn establish(client: &Client) {
    eventually("the CRD to be established", async || {
        (client.get("/apis/example.com/v1").await.status == 200).then_some(())
    })
    .await;
}

async fn delete(client: &Client, path: &str) -> ClientResponse {
    client.send_and_read(request(Method::DELETE, path, &[], "")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_stored_as_v1beta1_is_served_as_v1() {
    let schema = json!({"properties": {"spec": {"properties": {"a": {"type": "string"}}}}});
    let key = "/registry/apiextensions.k8s.io/customresourcedefinitions/olds.example.com";
    let (mut api, client) = start_with_records(&[
        (key, old_crd(&schema)),
        ("/registry/example.com/olds/default/first", old_object("example.com/v1", "first", &json!({"a": "x", "b": 1}))),
    ])
    .await;
    establish(&client).await;
    let crd = client.get(CRD).await.json();
    assert_eq!(
        (&crd["apiVersion"], &crd["spec"]["preserveUnknownFields"], &crd["spec"]["version"]),
        (&json!("apiextensions.k8s.io/v1"), &json!(true), &Value::Null)
    );
    assert_eq!(crd["spec"]["versions"][0]["additionalPrinterColumns"][0]["jsonPath"], ".spec.a");
    assert_eq!(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], schema);
    let non_structural = condition(&client, "NonStructuralSchema").await;
    assert_eq!((&non_structural["status"], &non_structural["reason"]), (&json!("True"), &json!("Violations")));
    let message = non_structural["message"].as_str().unwrap();
    assert!(message.contains("spec.versions[0].schema.openAPIV3Schema.type: Required value"), "{message}");

    // Unknown fields are kept everywhere.
    let first = client.get(&format!("{OLDS}/first")).await.json();
    assert_eq!(first["spec"], json!({"a": "x", "b": 1}));
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = client.send_and_read(get(OLDS, &table)).await.json();
    assert_eq!(table["rows"][0]["cells"], json!(["first", "x"]));
    let second =
        json!({"apiVersion": "example.com/v1", "kind": "Old", "metadata": {"name": "second"}, "spec": {"b": 2}});
    let created = send_json(&client, Method::POST, OLDS, &second).await;
    assert_eq!((created.status.as_u16(), &created.json()["spec"]["b"]), (201, &json!(2)));

    // Old defects may stay; what is written is v1.
    let mut changed = client.get(CRD).await.json();
    changed["metadata"]["labels"] = json!({"touched": "yes"});
    let written = send_json(&client, Method::PUT, CRD, &changed).await;
    assert_eq!(written.status, 200, "{}", written.text());
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    api.restart();
    let client = api.http2().await;
    establish(&client).await;
    assert_eq!(client.get(CRD).await.json()["metadata"]["labels"]["touched"], "yes");
    assert_eq!(client.get(&format!("{OLDS}/second")).await.json()["spec"]["b"], 2);
    // Once it is structural, the condition is removed, and objects are pruned.
    let mut structural = client.get(CRD).await.json();
    structural["spec"]["preserveUnknownFields"] = json!(false);
    structural["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"a": {"type": "string"}}}}});
    let written = send_json(&client, Method::PUT, CRD, &structural).await;
    assert_eq!(written.status, 200, "{}", written.text());
    eventually("the condition to be removed", async || {
        let crd = client.get(CRD).await.json();
        let mut conditions = crd["status"]["conditions"].as_array().unwrap().iter();
        conditions.all(|one| one["type"] != "NonStructuralSchema").then_some(())
    })
    .await;
    eventually("objects to be pruned", async || {
        (client.get(&format!("{OLDS}/second")).await.json()["spec"] == json!({})).then_some(())
    })
    .await;
    assert_eq!(delete(&client, CRD).await.status, 200);
    eventually("the CRD to be removed", async || {
        (client.get(CRD).await.status == 404 && client.get(OLDS).await.status == 404).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_custom_objects_that_do_not_fit_are_served_or_named_and_deletable() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1}, "d": {"type": "string", "default": "d"}}}}});
    let records = [
        ("/registry/apiextensions.k8s.io/customresourcedefinitions/olds.example.com", old_crd(&schema)),
        (
            "/registry/example.com/olds/default/refused",
            old_object("example.com/v1", "refused", &json!({"a": "too long"})),
        ),
        ("/registry/example.com/olds/default/unserved", old_object("example.com/v0", "unserved", &json!({"a": "x"}))),
    ];
    let (mut api, client) = start_with_records(&records).await;
    establish(&client).await;
    let refused = client.get(&format!("{OLDS}/refused")).await.json();
    assert_eq!(refused["spec"], json!({"a": "too long", "d": "d"}));
    let unserved = client.get(&format!("{OLDS}/unserved")).await.json();
    assert_eq!((&unserved["apiVersion"], &unserved["spec"]["a"]), (&json!("example.com/v1"), &json!("x")));
    assert_eq!(client.get(OLDS).await.json()["items"].as_array().unwrap().len(), 2);
    // A write that leaves the wrong value as it is.
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"metadata":{"labels":{"a":"b"}}}"#;
    for name in ["refused", "unserved"] {
        let path = format!("{OLDS}/{name}");
        let patched = client.send_and_read(request(Method::PATCH, &path, &merge, patch)).await;
        assert_eq!((patched.status.as_u16(), &patched.json()["apiVersion"]), (200, &json!("example.com/v1")));
    }
    assert_eq!(delete(&client, &format!("{OLDS}/unserved")).await.status, 200);

    api.gateway.signal("TERM");
    assert_eq!(api.gateway.wait_for_exit().await.code(), Some(0));
    let store = api.environment.path("data/store.db");
    insert_record(&store, "/registry/example.com/olds/default/text", b"hello");
    insert_record(&store, "/registry/example.com/olds/default/list", b"[1]");
    insert_record(&store, "/registry/example.com/olds/default/empty", b"{}");
    insert_record(
        &store,
        "/registry/apiextensions.k8s.io/customresourcedefinitions/broken.example.com",
        b"{\"spec\":1}",
    );
    insert_record(&store, "/registry/apiextensions.k8s.io/customresourcedefinitions/text.example.com", b"hello");
    api.restart();
    let client = api.http2().await;
    establish(&client).await;
    api.gateway.wait_for_log(&["broken.example.com", "cannot be read"]).await;
    for name in ["text", "list"] {
        let failed = client.get(&format!("{OLDS}/{name}")).await;
        let message = failed.assert_failure(500, "InternalError")["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&format!("/registry/example.com/olds/default/{name} cannot be read")), "{message}");
    }
    let listed = client.get(OLDS).await;
    assert_eq!(listed.status, 500, "{}", listed.text());
    assert!(listed.text().contains("/registry/example.com/olds/default/"), "{}", listed.text());
    let mut watch = client.send(get(&format!("{OLDS}?watch=1"), &[])).await.unwrap().into_body();
    assert!(next_chunk(&mut watch).await.unwrap().is_ok());
    // The others are served, and all can be deleted.
    assert_eq!(client.get(&format!("{OLDS}/refused")).await.status, 200);
    for path in [format!("{OLDS}/text"), format!("{CRDS}/text.example.com")] {
        let deleted = delete(&client, &path).await;
        assert_eq!(deleted.status, 200, "{path}: {}", deleted.text());
        assert_eq!(client.get(&path).await.status, 404, "{path}");
    }
    let deleted = delete(&client, OLDS).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text());
    assert_eq!(client.get(OLDS).await.json()["items"], json!([]));
    assert_eq!(delete(&client, CRD).await.status, 200);
    eventually("the CRD to be removed", async || (client.get(CRD).await.status == 404).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_whose_deletion_was_interrupted_is_removed_with_its_objects() {
    let mut crd: Value = serde_json::from_str(&old_crd(&json!({"type": "object"}))).unwrap();
    crd["metadata"]["deletionTimestamp"] = json!("2019-01-02T00:00:00Z");
    crd["metadata"]["finalizers"] = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    crd["status"]["acceptedNames"] = crd["spec"]["names"].clone();
    crd["status"]["conditions"] = json!([{"type": "NamesAccepted", "status": "True"},
        {"type": "Established", "status": "True"}, {"type": "Terminating", "status": "True"}]);
    let (_api, client) = start_with_records(&[
        ("/registry/apiextensions.k8s.io/customresourcedefinitions/olds.example.com", crd.to_string()),
        ("/registry/example.com/olds/default/first", old_object("example.com/v1", "first", &json!({}))),
    ])
    .await;
    eventually("the CRD to be removed", async || (client.get(CRD).await.status == 404).then_some(())).await;
    // Nothing of it is found by a CRD with the same names.
    let mut again = crd.clone();
    again["apiVersion"] = json!("apiextensions.k8s.io/v1");
    again["metadata"] = json!({"name": "olds.example.com"});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    again["spec"] = json!({"group": "example.com", "scope": "Namespaced", "names": crd["spec"]["names"],
        "versions": [version]});
    let created = send_json(&client, Method::POST, CRDS, &again).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let list = eventually("objects to be served", async || {
        let list = client.get(OLDS).await;
        (list.status == 200).then(|| list.json())
    });
    assert_eq!(list.await["items"], json!([]));
}

/// What kube-apiserver 1.36 serves of the same values (upstream's `TestInvalidObjectMetaInStorage`).
#[tokio::test(flavor = "multi_thread")]
async fn stored_metadata_of_wrong_types_is_dropped_when_read() {
    let object = |name: &str, metadata: &Value| {
        let mut object: Value = serde_json::from_str(&old_object("example.com/v1", name, &json!({"a": "b"}))).unwrap();
        object["metadata"] = json!({"name": name, "namespace": "default", "uid": "u1"});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        object.to_string()
    };
    let owner = |more: Value| {
        let mut owner = json!({"apiVersion": "v1", "kind": "X", "name": "n", "uid": "u"});
        owner.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        owner
    };
    let first = json!({
        "labels": {"foo": 42, "bar": "abc"}, "annotations": "x", "unknown": 1, "finalizers": [1], "generation": "7",
        "creationTimestamp": "2020-01-01T00:00:00Z", "ownerReferences": [owner(json!({"blah": 1}))],
    });
    let second = json!({"labels": {"a": "b"}, "creationTimestamp": "yesterday", "deletionGracePeriodSeconds": "x"});
    let third = json!({"unknown": 1, "generation": 0, "labels": null});
    let records = [
        (
            "/registry/apiextensions.k8s.io/customresourcedefinitions/olds.example.com",
            old_crd(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "a": {"type": "string"}}}}})),
        ),
        ("/registry/example.com/olds/default/m1", object("m1", &first)),
        ("/registry/example.com/olds/default/m2", object("m2", &second)),
        ("/registry/example.com/olds/default/m3", object("m3", &third)),
    ];
    let (_api, client) = start_with_records(&records).await;
    establish(&client).await;
    let expected = [
        json!({"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 1, "name": "m1", "namespace": "default",
            "ownerReferences": [owner(json!({}))], "uid": "u1"}),
        json!({"generation": 1, "labels": {"a": "b"}, "name": "m2", "namespace": "default", "uid": "u1"}),
        json!({"generation": 1, "name": "m3", "namespace": "default", "uid": "u1"}),
    ];
    let metadata = |mut object: Value| {
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        object["metadata"].take()
    };
    let list = client.get(OLDS).await.json();
    for (at, expected) in expected.iter().enumerate() {
        let name = expected["name"].as_str().unwrap();
        let object = client.get(&format!("{OLDS}/{name}")).await;
        assert_eq!(object.status, 200, "{}", object.text());
        assert_eq!(metadata(object.json()), *expected);
        assert_eq!(metadata(list["items"][at].clone()), *expected);
    }
}
