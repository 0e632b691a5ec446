//! Calls of conversion webhooks: how many objects each has, to which address it goes, and what waits for it.

use http::Method;
use serde_json::{Value, json};

use super::conversion_webhooks::{CRDS, V1, V2, crd, create, establish, failure, route_v1};
use crate::support::client::{get, next_chunk, request};
use crate::support::conversion_webhook::ConversionWebhook;
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;
use crate::support::store_file::insert_record;

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_gets_at_most_500_objects_a_call() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    for number in 0..501 {
        create(&client, V1, &route_v1(&format!("r{number:03}"), 80)).await;
    }
    let list = client.get(V2).await.json();
    let hosts = list["items"].as_array().unwrap().iter().map(|item| item["spec"]["host"].as_str().unwrap().to_owned());
    let expected: Vec<String> = (0..501).map(|number| format!("r{number:03}")).collect();
    assert_eq!(hosts.collect::<Vec<_>>(), expected);
    let mut calls = webhook.take_calls();
    calls.sort_unstable();
    assert_eq!(calls, [1, 500]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_that_hangs_delays_its_version_only() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    create(&client, V1, &route_v1("a", 80)).await;
    let held = webhook.hold().await;
    let path = format!("{V2}/a");
    let mut watch = client.send(get(&format!("{V2}?watch=1"), &[])).await.unwrap().into_body();
    let given_up = api.http1().await;
    let waiting = {
        let waiting = given_up.get(&path);
        tokio::pin!(waiting);
        let called = eventually("a call of the webhook", async || (!webhook.take_calls().is_empty()).then_some(()));
        tokio::select! {
            response = &mut waiting => panic!("{}", response.text()),
            () = called => {}
        }
        // All this needs no conversion.
        assert_eq!(client.get(V1).await.json()["items"].as_array().unwrap().len(), 1);
        create(&client, V1, &route_v1("b", 80)).await;
        let merge = [("content-type", "application/merge-patch+json")];
        let patch = r#"{"metadata":{"labels":{"a":"b"}}}"#;
        let patched = client.send_and_read(request(Method::PATCH, &format!("{V1}/a"), &merge, patch)).await;
        assert_eq!(patched.status, 200, "{}", patched.text());
        drop(held);
        waiting.await
    };
    assert_eq!(waiting.json()["spec"]["host"], "a");
    let event = next_chunk(&mut watch).await.unwrap().unwrap();
    let event: Value = serde_json::from_slice(event.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!((&event["type"], &event["object"]["spec"]["host"]), (&json!("ADDED"), &json!("a")));
    assert_eq!(client.get(&path).await.json()["metadata"]["labels"]["a"], "b");
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_that_hangs_does_not_delay_shutdown_or_changes() {
    let mut api = EmbeddedApiFixture::start(&["--shutdown-delay-duration=0s"]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    create(&client, V1, &route_v1("a", 80)).await;
    let _held = webhook.hold().await;
    let mut watch = client.send(get(&format!("{V2}?watch=1"), &[])).await.unwrap().into_body();
    eventually("a call of the webhook", async || (!webhook.take_calls().is_empty()).then_some(())).await;
    let path = format!("{CRDS}/routes.example.com");
    let mut changed = client.get(&path).await.json();
    changed["spec"]["versions"][1]["served"] = json!(false);
    assert_eq!(send_json(&client, Method::PUT, &path, &changed).await.status, 200);
    assert!(next_chunk(&mut watch).await.is_none(), "the watch ends with its version");
    assert_eq!(client.get(V2).await.status, 404);
    changed = client.get(&path).await.json();
    changed["spec"]["versions"][1]["served"] = json!(true);
    assert_eq!(send_json(&client, Method::PUT, &path, &changed).await.status, 200);
    let mut watch = eventually("the version to be served", async || {
        let watch = client.send(get(&format!("{V2}?watch=1"), &[])).await.unwrap();
        (watch.status() == 200).then(|| watch.into_body())
    })
    .await;
    api.gateway.signal("TERM");
    assert!(next_chunk(&mut watch).await.is_none());
    assert_eq!(api.gateway.wait_for_exit().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_is_reached_at_the_endpoints_of_its_service() {
    let mut api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    let mut conversion = webhook.conversion_by_service();
    conversion["webhook"]["clientConfig"]["service"]["port"] = json!(443);
    establish(&client, &crd("v1", &conversion)).await;
    create(&client, V1, &route_v1("a", 80)).await;
    let service = json!({"metadata": {"name": "converter"},
        "spec": {"ports": [{"name": "https", "port": 443}]}});
    create(&client, "/api/v1/namespaces/default/services", &service).await;
    let none = failure(&client.get(&format!("{V2}/a")).await);
    assert!(none.ends_with("no endpoints available for service \"converter\""), "{none}");
    drop(client);
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    // A loopback address would be refused by validation.
    let (ip, port) = (webhook.backend.address.ip().to_string(), webhook.backend.address.port());
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "converter-1", "namespace": "default", "uid": "u", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"kubernetes.io/service-name": "converter"}},
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": true}}],
    });
    let store = api.environment.path("data/store.db");
    insert_record(&store, "/registry/endpointslices/default/converter-1", slice.to_string().as_bytes());
    api.restart();
    let client = api.http2().await;
    let converted = eventually("the endpoint to be known", async || {
        let response = client.get(&format!("{V2}/a")).await;
        (response.status == 200).then(|| response.json())
    })
    .await;
    assert_eq!(converted["spec"]["host"], "a");
    let authority = webhook.backend.last_request().uri.authority().map(ToString::to_string);
    assert_eq!(authority.as_deref(), Some("converter.default.svc:443"));
}
