//! A CRD changes while many watches are open: each ends cleanly, goes on where it was, and misses nothing.

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ticks.watched.example.com";
const CONNECTIONS: usize = 4;
const WATCHES_PER_CONNECTION: usize = 50;
const WRITES: i64 = 60;
/// Writes between two changes of the CRD.
const WRITES_PER_CHANGE: i64 = 15;

fn ticks(version: &str) -> String {
    format!("/apis/watched.example.com/{version}/namespaces/default/ticks")
}

fn crd() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "number": {"type": "integer"}}}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ticks.watched.example.com"},
        "spec": {
            "group": "watched.example.com", "scope": "Namespaced", "names": {"plural": "ticks", "kind": "Tick"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema},
                {"name": "v2", "served": true, "storage": false, "schema": schema},
            ],
        },
    })
}

/// Watches from a version on, and again from the last one when the watch ends, until the last write was seen. Returns the
/// numbers that were written, and how often the watch ended.
async fn follow(client: &Client, version: &str, start: &str) -> (Vec<i64>, usize) {
    let (mut revision, mut numbers, mut ends) = (start.to_owned(), Vec::new(), 0);
    while numbers.last() != Some(&WRITES) {
        let path = format!("{}?watch=1&allowWatchBookmarks=true&resourceVersion={revision}", ticks(version));
        let response = client.send(get(&path, &[])).await.unwrap();
        assert_eq!(response.status(), 200);
        let (mut body, mut rest) = (response.into_body(), Vec::new());
        while let Some(chunk) = next_chunk(&mut body).await {
            rest.extend_from_slice(&chunk.expect("a watch ends cleanly"));
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let event: Value = serde_json::from_slice(&rest[..end]).unwrap();
                rest.drain(..=end);
                assert!(event["type"] == "MODIFIED" || event["type"] == "BOOKMARK", "{event}");
                assert_eq!(event["object"]["apiVersion"], format!("watched.example.com/{version}"));
                revision = event["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
                numbers.extend(event["object"]["spec"]["number"].as_i64().filter(|_| event["type"] == "MODIFIED"));
            }
            if numbers.last() == Some(&WRITES) {
                return (numbers, ends);
            }
        }
        assert!(rest.is_empty(), "an event was cut off");
        ends += 1;
    }
    (numbers, ends)
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_change_ends_200_watches_which_resume_without_a_gap() {
    let api = EmbeddedApiFixture::start(&[]);
    let writer = api.http2().await;
    assert_eq!(send_json(&writer, Method::POST, CRDS, &crd()).await.status, 201);
    eventually("objects to be served", async || (writer.get(&ticks("v2")).await.status == 200).then_some(())).await;
    let object = json!({"apiVersion": "watched.example.com/v1", "kind": "Tick", "metadata": {"name": "a"},
        "spec": {"number": 0}});
    let created = send_json(&writer, Method::POST, &ticks("v1"), &object).await.json();
    let start = created["metadata"]["resourceVersion"].as_str().unwrap();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(api.http2().await);
    }
    let follows = clients.iter().flat_map(|client| {
        (0..WATCHES_PER_CONNECTION).map(move |place| follow(client, if place % 2 == 0 { "v1" } else { "v2" }, start))
    });
    let write = async {
        let merge = [("content-type", "application/merge-patch+json")];
        for number in 1..=WRITES {
            let path = format!("{}/a", ticks(if number % 2 == 0 { "v1" } else { "v2" }));
            let body = json!({"spec": {"number": number}}).to_string();
            let written = writer.send_and_read(request(Method::PATCH, &path, &merge, &body)).await;
            assert_eq!(written.status, 200, "{}", written.text());
            if number % WRITES_PER_CHANGE == 0 && number < WRITES {
                let mut watch = writer.send(get(&format!("{}?watch=1", ticks("v1")), &[])).await.unwrap().into_body();
                let mut changed = crd();
                for version in changed["spec"]["versions"].as_array_mut().unwrap() {
                    version["schema"]["openAPIV3Schema"]["description"] = json!(format!("change {number}"));
                }
                let body = json!({"spec": changed["spec"]}).to_string();
                let written = writer.send_and_read(request(Method::PATCH, CRD, &merge, &body)).await;
                assert_eq!(written.status, 200, "{}", written.text());
                // The change is in effect when a watch ends.
                while next_chunk(&mut watch).await.is_some() {}
            }
        }
    };
    let (results, ()) = tokio::join!(join_all(follows), write);
    let expected: Vec<i64> = (1..=WRITES).collect();
    for (numbers, ends) in results {
        assert_eq!(numbers, expected);
        assert!(ends >= 1, "the CRD changed under each watch");
    }
}
