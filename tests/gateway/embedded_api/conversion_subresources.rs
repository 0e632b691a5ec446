//! The subresources `status` and `scale` of custom resources whose objects a webhook converts, in a version that is not
//! stored.

use http::Method;
use serde_json::{Value, json};

use super::conversion_webhooks::{V1, V2, crd, create, establish, failure, route};
use crate::support::backend::json_response;
use crate::support::client::{Client, ClientResponse, request};
use crate::support::conversion_webhook::ConversionWebhook;
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

async fn patch(client: &Client, path: &str, body: &Value) -> ClientResponse {
    let headers = [("content-type", "application/merge-patch+json")];
    client.send_and_read(request(Method::PATCH, path, &headers, &body.to_string())).await
}

/// A server with an object in v1, which is stored.
async fn start() -> (EmbeddedApiFixture, Client, ConversionWebhook) {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    let mut crd = crd("v1", &webhook.conversion_by_url());
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
        let properties = &mut version["schema"]["openAPIV3Schema"]["properties"];
        properties["spec"]["properties"]["replicas"] = json!({"type": "integer"});
        properties["status"] = json!({"type": "object", "properties": {
            "replicas": {"type": "integer"}, "phase": {"type": "string"}}});
    }
    establish(&client, &crd).await;
    create(&client, V1, &route("v1", "a", &json!({"hostPort": "a:80", "replicas": 2}))).await;
    (api, client, webhook)
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_written_through_a_version_that_is_converted() {
    let (_api, client, _webhook) = start().await;
    let status = format!("{V2}/a/status");
    let body = json!({"spec": {"host": "ignored"}, "status": {"phase": "Ready", "unknown": 1}});
    let patched = patch(&client, &status, &body).await;
    assert_eq!(patched.status, 200, "{}", patched.text());
    let object = patched.json();
    assert_eq!((&object["apiVersion"], &object["spec"]["host"]), (&json!("example.com/v2"), &json!("a")));
    assert_eq!((&object["status"], &object["metadata"]["generation"]), (&json!({"phase": "Ready"}), &json!(1)));
    let mut stored = client.get(&format!("{V1}/a")).await.json();
    assert_eq!((&stored["spec"]["hostPort"], &stored["status"]), (&json!("a:80"), &json!({"phase": "Ready"})));

    let mut replaced = client.get(&status).await.json();
    replaced["status"] = json!({"phase": "Gone"});
    assert_eq!(send_json(&client, Method::PUT, &status, &replaced).await.json()["status"]["phase"], "Gone");
    // A write of the object in the other version leaves the status.
    let mut current = client.get(&format!("{V2}/a")).await.json();
    current["spec"]["port"] = json!("81");
    current["status"] = json!({"phase": "Ignored"});
    let written = send_json(&client, Method::PUT, &format!("{V2}/a"), &current).await.json();
    assert_eq!((&written["status"]["phase"], &written["metadata"]["generation"]), (&json!("Gone"), &json!(2)));
    // The resourceVersion of the first read is an old one in every version.
    stored["status"] = json!({"phase": "Late"});
    assert_eq!(send_json(&client, Method::PUT, &format!("{V1}/a/status"), &stored).await.status, 409);
}

#[tokio::test(flavor = "multi_thread")]
async fn scale_is_read_and_written_through_a_version_that_is_converted() {
    let (_api, client, webhook) = start().await;
    let scale = format!("{V2}/a/scale");
    let mut wanted = client.get(&scale).await.json();
    assert_eq!((&wanted["kind"], &wanted["spec"]["replicas"]), (&json!("Scale"), &json!(2)));
    wanted["spec"]["replicas"] = json!(5);
    let scaled = send_json(&client, Method::PUT, &scale, &wanted).await;
    assert_eq!((scaled.status.as_u16(), &scaled.json()["spec"]["replicas"]), (200, &json!(5)), "{}", scaled.text());
    let stored = client.get(&format!("{V1}/a")).await.json();
    assert_eq!(stored["spec"], json!({"hostPort": "a:80", "replicas": 5}));
    assert_eq!(stored["metadata"]["generation"], 2);
    let patched = patch(&client, &scale, &json!({"spec": {"replicas": 7}})).await;
    assert_eq!((patched.status.as_u16(), &patched.json()["spec"]["replicas"]), (200, &json!(7)));
    assert_eq!(client.get(&format!("{V1}/a/scale")).await.json()["spec"]["replicas"], 7);

    webhook.set_answer(|_| json_response(503, "{}"));
    let body = json!({"spec": {"replicas": 8}});
    failure(&patch(&client, &scale, &body).await);
    assert_eq!(patch(&client, &format!("{V1}/a/scale"), &body).await.status, 200);
}
