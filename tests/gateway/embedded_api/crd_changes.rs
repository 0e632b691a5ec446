//! Changes of CustomResourceDefinitions: objects that were sent as they are stored follow the new schema, also in watches.

use http::Method;
use serde_json::{Value, json};

use crate::embedded_api::observability::wait_for_metric;
use crate::support::client::{Client, get, metric_value, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/lamps.changes.example.com";

fn lamps(version: &str) -> String {
    format!("/apis/changes.example.com/{version}/namespaces/default/lamps")
}

/// Versions `v1`, which is stored, and `v2`; with the fields of their `spec`.
fn versions(v1: &Value, v2: &Value) -> Value {
    let version = |name: &str, fields: &Value| {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
        json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}})
    };
    json!([version("v1", v1), version("v2", v2)])
}

async fn establish(client: &Client, versions: &Value) {
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "lamps.changes.example.com"},
        "spec": {"group": "changes.example.com", "scope": "Namespaced", "versions": versions,
            "names": {"plural": "lamps", "kind": "Lamp"}},
    });
    assert_eq!(send_json(client, Method::POST, CRDS, &crd).await.status, 201);
    eventually("objects to be served", async || (client.get(&lamps("v2")).await.status == 200).then_some(())).await;
}

async fn create(client: &Client, name: &str) {
    let object = json!({"apiVersion": "changes.example.com/v1", "kind": "Lamp", "metadata": {"name": name},
        "spec": {"color": "red"}});
    let created = send_json(client, Method::POST, &lamps("v1"), &object).await;
    assert_eq!(created.status, 201, "{}", created.text());
}

/// The spec of the object `a` in a version: read alone, in a list, and by a new watch.
async fn specs(client: &Client, version: &str) -> [Value; 3] {
    let path = lamps(version);
    let alone = client.get(&format!("{path}/a")).await.json();
    let list = client.get(&path).await.json();
    let mut watch = client.send(get(&format!("{path}?watch=1"), &[])).await.unwrap().into_body();
    let event = next_chunk(&mut watch).await.unwrap().unwrap();
    let event: Value = serde_json::from_slice(event.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    let objects = [alone, list["items"][0].clone(), event["object"].clone()];
    for object in &objects {
        assert_eq!(object["apiVersion"], format!("changes.example.com/{version}"), "{object}");
    }
    objects.map(|object| object["spec"].clone())
}

fn thrice(spec: &Value) -> [Value; 3] {
    [spec.clone(), spec.clone(), spec.clone()]
}

#[tokio::test(flavor = "multi_thread")]
async fn annotation_of_a_crd_with_large_numbers_keeps_its_generation() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let size = json!({"size": {"type": "integer", "minimum": -1_000_000, "maximum": 4_294_967_295_u64}});
    establish(&client, &versions(&size, &size)).await;
    let headers = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"metadata":{"annotations":{"a":"b"}}}"#;
    let patched = client.send_and_read(request(Method::PATCH, CRD, &headers, patch)).await.json();
    assert_eq!(
        (&patched["metadata"]["annotations"]["a"], &patched["metadata"]["generation"]),
        (&json!("b"), &json!(1))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_change_shows_in_objects_that_were_read_before() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let text = json!({"type": "string"});
    let color = json!({"color": text});
    establish(&client, &versions(&color, &color)).await;
    create(&client, "a").await;
    let red = json!({"color": "red"});
    for version in ["v1", "v2", "v1", "v2"] {
        assert_eq!(specs(&client, version).await, thrice(&red), "{version}");
    }
    let with_default = json!({"color": text, "watts": {"type": "integer", "default": 60}});
    for (v1, v2, expected) in [
        // A default of the version in which the object is stored alone.
        (&color, &with_default, [red.clone(), red.clone()]),
        (&with_default, &color, [json!({"color": "red", "watts": 60}), red.clone()]),
        (&json!({}), &color, [json!({}), json!({})]),
        (&color, &color, [red.clone(), red.clone()]),
    ] {
        let mut watch = client.send(get(&format!("{}?watch=1", lamps("v1")), &[])).await.unwrap().into_body();
        let body = json!({"spec": {"versions": versions(v1, v2)}}).to_string();
        let headers = [("content-type", "application/merge-patch+json")];
        let changed = client.send_and_read(request(Method::PATCH, CRD, &headers, &body)).await;
        assert_eq!(changed.status, 200, "{}", changed.text());
        // A watch by the old CRD ends when the new one counts.
        while next_chunk(&mut watch).await.is_some() {}
        for _ in 0..2 {
            assert_eq!(specs(&client, "v1").await, thrice(&expected[0]));
            assert_eq!(specs(&client, "v2").await, thrice(&expected[1]));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_list_has_the_keys_of_a_kube_apiserver_in_their_order() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    establish(&client, &versions(&json!({}), &json!({}))).await;
    let list = client.get(&lamps("v1")).await;
    let version = &list.json()["metadata"]["resourceVersion"];
    assert_eq!(
        list.text(),
        format!(
            "{{\"apiVersion\":\"changes.example.com/v1\",\"items\":[],\"kind\":\"LampList\",\
             \"metadata\":{{\"continue\":\"\",\"resourceVersion\":{version}}}}}\n"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_custom_resources_come_and_go_with_their_crd() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let objects = "apiserver_resource_objects{group=\"changes.example.com\",resource=\"lamps\"}";
    assert_eq!(metric_value(&api.gateway, objects).await, None);
    establish(&client, &versions(&json!({}), &json!({}))).await;
    create(&client, "a").await;
    create(&client, "b").await;
    wait_for_metric(&api.gateway, objects, 2.0).await;
    assert_eq!(client.send_and_read(request(Method::DELETE, CRD, &[], "")).await.status, 200);
    eventually("the metric to be gone", async || metric_value(&api.gateway, objects).await.is_none().then_some(()))
        .await;
}
