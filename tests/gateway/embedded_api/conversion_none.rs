//! Conversion strategy `None`: what is stored has the fields of the storage version, what is read those of the version that
//! is asked for, and defaults of no other than the storage version. Expected values are those of a kube-apiserver 1.36.

use http::Method;
use serde_json::{Value, json};

use super::conversion_webhooks::{V1, V2, crd, create, establish, failure, route};
use crate::support::backend::json_response;
use crate::support::client::{Client, request};
use crate::support::conversion_webhook::ConversionWebhook;
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

/// Versions with different defaults and fields, and defaults in the status.
async fn start() -> (EmbeddedApiFixture, Client) {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let mut crd = crd("v1", &json!({"strategy": "None"}));
    let text = |default: &str| json!({"type": "string", "default": default});
    for (version, spec, status) in [
        (
            0_usize,
            json!({"a": text("A1"), "only1": text("d1"), "shared": {"type": "number"}}),
            json!({"phase": text("P1")}),
        ),
        (1, json!({"a": text("A2"), "only2": text("d2"), "shared": {"type": "number"}}), json!({"phase": text("P2")})),
    ] {
        let version = &mut crd["spec"]["versions"][version];
        version["subresources"] = json!({"status": {}});
        version["schema"]["openAPIV3Schema"]["properties"] = json!({
            "spec": {"type": "object", "properties": spec},
            "status": {"type": "object", "default": {}, "properties": status},
        });
    }
    establish(&client, &crd).await;
    (api, client)
}

async fn patch(client: &Client, path: &str, body: &Value) -> Value {
    let headers = [("content-type", "application/merge-patch+json")];
    let response = client.send_and_read(request(Method::PATCH, path, &headers, &body.to_string())).await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

async fn spec(client: &Client, path: &str) -> Value {
    client.get(path).await.json()["spec"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_none_reads_defaults_of_storage_version_alone() {
    let (_api, client) = start().await;
    let written = create(&client, V2, &route("v2", "a", &json!({"shared": 5, "only2": "x"}))).await;
    assert_eq!(written["spec"], json!({"a": "A2", "shared": 5}), "the field is not stored, and its default not read");
    assert_eq!(written["status"], json!({"phase": "P1"}));
    assert_eq!(spec(&client, &format!("{V1}/a")).await, json!({"a": "A2", "only1": "d1", "shared": 5}));
    create(&client, V1, &route("v1", "b", &json!({}))).await;
    assert_eq!(spec(&client, &format!("{V2}/b")).await, json!({"a": "A1"}));
    let list = client.get(V2).await.json();
    let specs: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["spec"]).collect();
    assert_eq!(specs, [&json!({"a": "A2", "shared": 5}), &json!({"a": "A1"})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_none_drops_fields_and_counts_generations_of_other_version() {
    let (_api, client) = start().await;
    create(&client, V1, &route("v1", "a", &json!({"only1": "kept?"}))).await;
    // The patched object has the default of v2, which the old one lacks and the store does not keep.
    for generation in [2, 3] {
        let patched = patch(&client, &format!("{V2}/a"), &json!({"metadata": {"labels": {"x": "y"}}})).await;
        assert_eq!((&patched["spec"], &patched["metadata"]["generation"]), (&json!({"a": "A1"}), &json!(generation)));
    }
    // A field that v2 does not know is lost, and its default is back.
    assert_eq!(spec(&client, &format!("{V1}/a")).await, json!({"a": "A1", "only1": "d1"}));
    patch(&client, &format!("{V2}/a"), &json!({"spec": {"only2": "lost"}})).await;
    let unchanged = patch(&client, &format!("{V1}/a"), &json!({})).await;
    assert_eq!((&unchanged["spec"]["a"], &unchanged["metadata"]["generation"]), (&json!("A1"), &json!(4)));
    assert_eq!(spec(&client, &format!("{V2}/a")).await, json!({"a": "A1"}), "it does not come back");
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_answers_what_would_be_stored() {
    let (_api, client) = start().await;
    let content = |mut object: Value| {
        for field in ["uid", "resourceVersion", "creationTimestamp"] {
            object["metadata"].as_object_mut().unwrap().remove(field);
        }
        object
    };
    for (version, path) in [("v1", V1), ("v2", V2)] {
        let name = format!("of-{version}");
        let mut object = route(version, &name, &json!({"shared": -0.0, "only1": "1", "only2": "2"}));
        object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        let dry = create(&client, &format!("{path}?dryRun=All"), &object).await;
        assert_eq!(dry["status"], json!({"phase": "P1"}), "{version}");
        assert_eq!(content(dry), content(create(&client, path, &object).await), "{version}");
        let path = format!("{path}/{name}");
        for body in [json!({"spec": {"shared": 1.0, "only2": "3"}}), json!({"spec": {"a": null}}), json!({})] {
            let dry = patch(&client, &format!("{path}?dryRun=All"), &body).await;
            assert_eq!(content(dry), content(patch(&client, &path, &body).await), "{version} {body}");
        }
        let status = format!("{path}/status");
        let dry = patch(&client, &format!("{status}?dryRun=All"), &json!({"status": null})).await;
        let stored = patch(&client, &status, &json!({"status": null})).await;
        assert_eq!((dry["status"].is_object(), &dry["status"]), (true, &stored["status"]), "{version}");
        let marked = send_json(&client, Method::DELETE, &format!("{path}?dryRun=All"), &json!({})).await.json();
        assert_eq!(marked["spec"], spec(&client, &path).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_fails_with_conversion_webhook() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    let object = route("v2", "a", &json!({"host": "a", "port": "80"}));
    let path = format!("{V2}?dryRun=All");
    assert_eq!(create(&client, &path, &object).await["spec"], json!({"host": "a", "port": "80"}));
    webhook.set_answer(|_| json_response(503, "{}"));
    let dry = failure(&send_json(&client, Method::POST, &path, &object).await);
    assert_eq!(dry, failure(&send_json(&client, Method::POST, V2, &object).await));
}
