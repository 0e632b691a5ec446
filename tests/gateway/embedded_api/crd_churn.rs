//! CustomResourceDefinitions come and go in a loop. The long form says whether memory stays flat.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

/// Minutes of the long form.
const MINUTES: &str = "NARTHEX_TEST_CHURN_MINUTES";

/// Rounds of the short form.
const ROUNDS: usize = 8;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn crd(round: usize) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "integer", "default": round}, "text": {"type": "string", "pattern": "^[a-z]*$"}}}}});
    let version = |name: &str, is_stored: bool| {
        json!({"name": name, "served": true, "storage": is_stored, "schema": {"openAPIV3Schema": schema},
            "selectableFields": [{"jsonPath": ".spec.text"}]})
    };
    let plural = format!("things{round}");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.churn{round}.example.com")},
        "spec": {
            "group": format!("churn{round}.example.com"), "scope": "Namespaced",
            "names": {"plural": plural, "kind": format!("Thing{round}")},
            "versions": [version("v1", true), version("v2", false)],
        },
    })
}

/// A CRD comes, is used in all ways, changes, and goes.
async fn run_round(client: &Client, round: usize) {
    let crd = crd(round);
    let own = format!("{CRDS}/{}", crd["metadata"]["name"].as_str().unwrap());
    let group = format!("churn{round}.example.com");
    let objects = |version: &str| format!("/apis/{group}/{version}/namespaces/default/things{round}");
    let created = send_json(client, Method::POST, CRDS, &crd).await;
    assert_eq!(created.status, 201, "{}", created.text());
    eventually("objects to be served", async || {
        let found = client.get(&objects("v2")).await.status == 200;
        (found && client.get(&format!("/apis/{group}/v1")).await.status == 200).then_some(())
    })
    .await;
    for name in ["a", "b", "c"] {
        let object = json!({"apiVersion": format!("{group}/v1"), "kind": format!("Thing{round}"), "metadata": {"name": name},
            "spec": {"text": name}});
        let created = send_json(client, Method::POST, &objects("v1"), &object).await;
        assert_eq!(created.json()["spec"]["size"], round, "{}", created.text());
    }
    let list = client.get(&format!("{}?fieldSelector=spec.text%3Db", objects("v2"))).await.json();
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
    let index = client.get("/openapi/v3").await.json();
    let document = index["paths"][format!("apis/{group}/v1")]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert_eq!(client.get(&document).await.status, 200);
    let mut watch = client.send(get(&format!("{}?watch=1", objects("v2")), &[])).await.unwrap().into_body();
    assert!(next_chunk(&mut watch).await.unwrap().is_ok());
    let merge = [("content-type", "application/merge-patch+json")];
    let changed = client.send_and_read(request(Method::PATCH, &own, &merge, r#"{"spec":{"versions":null}}"#)).await;
    assert_eq!(changed.status, 422, "{}", changed.text());
    let body = json!({"spec": {"names": {"shortNames": [format!("t{round}")]}}}).to_string();
    let changed = client.send_and_read(request(Method::PATCH, &own, &merge, &body)).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    let deleted = client.send_and_read(request(Method::DELETE, &own, &[], "")).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text());
    // It ends: with the change, or with the CRD.
    while let Some(chunk) = next_chunk(&mut watch).await {
        chunk.unwrap();
    }
    eventually("the CRD to be gone", async || {
        let is_gone = client.get(&own).await.status == 404 && client.get(&objects("v1")).await.status == 404;
        (is_gone && client.get(&format!("/apis/{group}")).await.status == 404).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crds_come_and_go_without_a_trace() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let services = async || {
        let list = client.get("/apis/apiregistration.k8s.io/v1/apiservices").await.json();
        list["items"].as_array().unwrap().len()
    };
    let before = services().await;
    let minutes = std::env::var(MINUTES).ok().map(|text| text.parse::<f64>().expect("a number of minutes"));
    let Some(minutes) = minutes else {
        for round in 0..ROUNDS {
            run_round(&client, round).await;
        }
        assert_eq!(client.get(CRDS).await.json()["items"], json!([]));
        return eventually("the APIServices to be gone", async || (services().await == before).then_some(())).await;
    };
    let (began, whole) = (Instant::now(), Duration::from_secs_f64(minutes * 60.0));
    let (mut round, mut resident) = (0, Vec::new());
    // At the start, each quarter, and the end.
    for quarter in 0..=4 {
        while round == 0 || began.elapsed() < whole.mul_f64(f64::from(quarter) / 4.0) {
            run_round(&client, round).await;
            round += 1;
        }
        resident.push(api.gateway.resident_kilobytes());
        println!("after {round} CRDs: {} MiB resident", resident[resident.len() - 1] >> 10);
    }
    // The history of changes is kept for five minutes, so that the first half may grow.
    let (middle, end) = (resident[2], resident[4]);
    let is_flat = end <= middle + middle / 20 + 4096;
    println!(
        "start {} MiB, middle {} MiB, end {} MiB: {}",
        resident[0] >> 10,
        middle >> 10,
        end >> 10,
        if is_flat { "flat" } else { "it grows" }
    );
    assert!(is_flat, "memory grows");
}
