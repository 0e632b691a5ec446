//! Deletion of namespaces that hold objects with finalizers.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const NAMESPACE: &str = "/api/v1/namespaces/held";

/// Reads a watch until an event that `is_last` accepts; returns `TYPE name` of all.
async fn watch_until(client: &Client, path: &str, is_last: impl Fn(&Value) -> bool) -> Vec<String> {
    let mut body = client.send(get(path, &[])).await.unwrap().into_body();
    let (mut text, mut events) = (Vec::new(), Vec::new());
    while let Some(chunk) = next_chunk(&mut body).await {
        text.extend_from_slice(&chunk.unwrap());
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            events.push(format!("{} {name}", event["type"].as_str().unwrap()));
            if is_last(&event) {
                return events;
            }
        }
    }
    panic!("{path} ended after {events:?}");
}

/// `TYPE=STATUS MESSAGE` of the conditions.
fn conditions(namespace: &Value) -> Vec<String> {
    let conditions = namespace["status"]["conditions"].as_array().into_iter().flatten();
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    conditions.map(|one| format!("{}={} {}", text(one, "type"), text(one, "status"), text(one, "message"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_deletion_marks_objects_with_finalizers_and_deletes_the_others() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let create = async |path: &str, metadata: Value| {
        let response = send_json(&client, Method::POST, path, &json!({ "metadata": metadata })).await;
        assert_eq!(response.status, 201, "{path}");
    };
    let maps = format!("{NAMESPACE}/configmaps");
    create("/api/v1/namespaces", json!({"name": "held"})).await;
    create(&maps, json!({"name": "a", "finalizers": ["example.com/hold"]})).await;
    create(&maps, json!({"name": "b"})).await;
    create(&format!("{NAMESPACE}/secrets"), json!({"name": "c"})).await;
    let deleted = client.send_and_read(request(Method::DELETE, NAMESPACE, &[], "")).await;
    assert_eq!((deleted.status.as_u16(), &deleted.json()["status"]["phase"]), (200, &json!("Terminating")));

    // The owner of the finalizer sees the deletion; the other objects are gone without waiting for it.
    let is_marked = |event: &Value| event["object"]["metadata"]["deletionTimestamp"].is_string();
    watch_until(&client, &format!("{maps}?watch=1"), is_marked).await;
    let is_deleted = |event: &Value| event["type"] == "DELETED";
    let since = |path: &str| format!("{path}?watch=1&resourceVersion=1");
    assert_eq!(watch_until(&client, &since(&maps), is_deleted).await.last().unwrap(), "DELETED b");
    assert_eq!(
        watch_until(&client, &since(&format!("{NAMESPACE}/secrets")), is_deleted).await.last().unwrap(),
        "DELETED c"
    );

    // Its conditions say why the namespace remains.
    let namespace = eventually("the conditions", async || {
        Some(client.get(NAMESPACE).await.json()).filter(|namespace| namespace["status"]["conditions"].is_array())
    })
    .await;
    assert_eq!(
        conditions(&namespace)[3..],
        [
            "NamespaceContentRemaining=True Some resources are remaining: configmaps. has 1 resource instances",
            "NamespaceFinalizersRemaining=True Some content in the namespace has finalizers remaining: \
             example.com/hold in 1 resource instances",
        ]
    );

    let headers = [("content-type", "application/merge-patch+json")];
    let patch = request(Method::PATCH, &format!("{maps}/a"), &headers, r#"{"metadata":{"finalizers":null}}"#);
    assert_eq!(client.send_and_read(patch).await.status, 200);
    let own = since("/api/v1/namespaces") + "&fieldSelector=metadata.name%3Dheld";
    let last = watch_until(&client, &own, |event| {
        let is_deleted = event["type"] == "DELETED";
        // As from kube-controller-manager, nothing remains in a namespace that is gone.
        assert!(
            !is_deleted || conditions(&event["object"])[3].starts_with("NamespaceContentRemaining=False"),
            "{event}"
        );
        is_deleted
    });
    assert_eq!(last.await.last().unwrap(), "DELETED held");
    assert_eq!(client.send_and_read(get(NAMESPACE, &[])).await.status, 404);
}

#[tokio::test]
async fn empty_namespace_with_another_finalizer_has_conditions_until_it_is_finalized() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "held"}, "spec": {"finalizers": ["example.com/own"]}});
    assert_eq!(send_json(&client, Method::POST, "/api/v1/namespaces", &object).await.status, 201);
    assert_eq!(client.send_and_read(request(Method::DELETE, NAMESPACE, &[], "")).await.status, 200);
    let mut namespace = eventually("the finalizer of the server is gone", async || {
        let namespace = client.get(NAMESPACE).await.json();
        (namespace["spec"]["finalizers"] == json!(["example.com/own"])).then_some(namespace)
    })
    .await;
    assert_eq!(
        conditions(&namespace),
        [
            "NamespaceDeletionDiscoveryFailure=False All resources successfully discovered",
            "NamespaceDeletionGroupVersionParsingFailure=False All legacy kube types successfully parsed",
            "NamespaceDeletionContentFailure=False All content successfully deleted, may be waiting on finalization",
            "NamespaceContentRemaining=False All content successfully removed",
            "NamespaceFinalizersRemaining=False All content-preserving finalizers finished",
        ]
    );
    namespace["spec"]["finalizers"] = json!([]);
    let finalized = send_json(&client, Method::PUT, &format!("{NAMESPACE}/finalize"), &namespace).await;
    assert_eq!(finalized.status, 200, "{}", finalized.text());
    assert_eq!(client.get(NAMESPACE).await.status, 404);
}

#[tokio::test]
async fn create_in_terminating_namespace_names_resource_with_group() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "held"}, "spec": {"finalizers": ["example.com/own"]}});
    assert_eq!(send_json(&client, Method::POST, "/api/v1/namespaces", &object).await.status, 201);
    assert_eq!(client.send_and_read(request(Method::DELETE, NAMESPACE, &[], "")).await.status, 200);
    for (path, resource) in [
        ("/apis/coordination.k8s.io/v1/namespaces/held/leases", "leases.coordination.k8s.io"),
        ("/api/v1/namespaces/held/configmaps", "configmaps"),
    ] {
        for (metadata, name) in
            [(json!({"name": "c"}), "c"), (json!({"generateName": "g-"}), "g-"), (json!({}), "Unknown")]
        {
            let refused = send_json(&client, Method::POST, path, &json!({ "metadata": metadata })).await;
            let status = refused.assert_failure(403, "Forbidden");
            let expected = format!(
                "{resource} {name:?} is forbidden: unable to create new content in namespace held because it is being \
                 terminated"
            );
            assert_eq!((&status["message"], &status["details"]["name"]), (&json!(expected), &json!(name)));
        }
    }
}
