//! Selection of custom objects in a version that a webhook converts: by fields and labels as they are in that version.

use http::Method;
use serde_json::{Value, json};

use super::conversion_webhooks::{V1, V2, crd, create, establish, route_v1};
use crate::support::client::{Client, get, next_chunk, request};
use crate::support::conversion_webhook::ConversionWebhook;
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

/// A server with routes a:1, b:2, c:1, d:1, stored in v1; v2 can be selected by `spec.port`.
async fn start() -> (EmbeddedApiFixture, Client, ConversionWebhook) {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    let mut crd = crd("v1", &webhook.conversion_by_url());
    crd["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".spec.port"}]);
    establish(&client, &crd).await;
    for (name, port) in [("a", 1), ("b", 2), ("c", 1), ("d", 1)] {
        create(&client, V1, &route_v1(name, port)).await;
    }
    (api, client, webhook)
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_selection_lists_by_fields_of_the_version() {
    let (_api, client, _webhook) = start().await;
    let list = async |query: &str| client.get(&format!("{V2}?{query}")).await.json();
    assert_eq!(names(&list("fieldSelector=spec.port%3D1").await), ["a", "c", "d"]);
    assert_eq!(names(&list("fieldSelector=spec.port!%3D1").await), ["b"]);
    assert_eq!(names(&list("fieldSelector=spec.port%3D1,metadata.name%3Dc").await), ["c"]);
    assert_eq!(names(&list("fieldSelector=spec.port%3D3").await), Vec::<&str>::new());

    let first = list("fieldSelector=spec.port%3D1&limit=2").await;
    assert_eq!(names(&first), ["a", "c"]);
    assert_eq!(first["metadata"]["remainingItemCount"], Value::Null);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = list(&format!("fieldSelector=spec.port%3D1&limit=2&continue={token}")).await;
    assert_eq!((names(&second), &second["metadata"]["continue"]), (vec!["d"], &json!("")));
    let whole = list("fieldSelector=spec.port%3D1&limit=3").await;
    assert_eq!((names(&whole).len(), &whole["metadata"]["continue"]), (3, &json!("")));

    // v1 has no such field.
    assert_eq!(client.get(&format!("{V1}?fieldSelector=spec.port%3D1")).await.status, 400);
    let path = format!("{V2}?fieldSelector=spec.port%3D1");
    let deleted = client.send_and_read(request(Method::DELETE, &path, &[], "")).await.json();
    assert_eq!(names(&deleted), ["a", "c", "d"]);
    assert_eq!(names(&client.get(V1).await.json()), ["b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_selection_watches_by_fields_of_the_version() {
    let (_api, client, webhook) = start().await;
    let mut watch =
        client.send(get(&format!("{V2}?watch=1&fieldSelector=spec.port%3D2"), &[])).await.unwrap().into_body();
    let mut events: Vec<Value> = Vec::new();
    let mut next = async || {
        while events.is_empty() {
            let chunk = next_chunk(&mut watch).await.expect("the watch goes on").unwrap();
            events.extend(chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(|line| {
                let event: Value = serde_json::from_slice(line).unwrap();
                json!([event["type"], event["object"]["metadata"]["name"], event["object"]["spec"]["port"]])
            }));
        }
        events.remove(0)
    };
    assert_eq!(next().await, json!(["ADDED", "b", "2"]));
    let set_port = async |name: &str, port: u16| {
        let mut object = client.get(&format!("{V1}/{name}")).await.json();
        object["spec"]["hostPort"] = json!(format!("{name}:{port}"));
        assert_eq!(send_json(&client, Method::PUT, &format!("{V1}/{name}"), &object).await.status, 200);
    };
    // Not selected before or after: no event.
    set_port("c", 3).await;
    set_port("a", 2).await;
    assert_eq!(next().await, json!(["ADDED", "a", "2"]), "it entered the selection");
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"metadata":{"labels":{"seen":"yes"}}}"#;
    client.send_and_read(request(Method::PATCH, &format!("{V1}/a"), &merge, patch)).await;
    assert_eq!(next().await, json!(["MODIFIED", "a", "2"]));
    set_port("a", 1).await;
    assert_eq!(next().await, json!(["DELETED", "a", "2"]), "it left the selection, as it was before");
    client.send_and_read(request(Method::DELETE, &format!("{V1}/d"), &[], "")).await;
    client.send_and_read(request(Method::DELETE, &format!("{V1}/b"), &[], "")).await;
    assert_eq!(next().await, json!(["DELETED", "b", "2"]));
    // One call for each state, at most.
    assert!(webhook.take_calls().iter().sum::<usize>() <= 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_selection_by_labels_that_the_webhook_adds() {
    let (_api, client, webhook) = start().await;
    webhook.set_answer(|right| {
        for object in right["response"]["convertedObjects"].as_array_mut().unwrap() {
            let port = object["spec"]["port"].clone();
            object["metadata"]["labels"] = json!({"port": port});
        }
        crate::support::conversion_webhook::right_answer(right)
    });
    assert_eq!(names(&client.get(&format!("{V2}?labelSelector=port%3D2")).await.json()), ["b"]);
    assert_eq!(names(&client.get(&format!("{V1}?labelSelector=port%3D2")).await.json()), Vec::<&str>::new());
}
