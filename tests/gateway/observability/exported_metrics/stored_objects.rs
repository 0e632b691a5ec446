//! A gateway with the embedded API server: stored objects, their watches, a conversion webhook, a full disk.

use http::Method;
use serde_json::json;

use super::requests::{metrics_of, metrics_with};
use crate::embedded_api::conversion_webhooks::{V1, V2, crd, create, establish, route_v1};
use crate::support::client::{Client, get, next_chunk};
use crate::support::conversion_webhook::ConversionWebhook;
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json, start_on_small_disk};
use crate::support::fixtures::TestEnvironment;

pub(super) async fn embedded_api() -> String {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let created = send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(created.status, 201);
    let mut watch = client.send(get(&format!("{CONFIG_MAPS}?watch=1"), &[])).await.unwrap().into_body();
    next_chunk(&mut watch).await.unwrap().unwrap();
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    create(&client, V1, &route_v1("one", 80)).await;
    assert_eq!(client.get(V2).await.status, 200);
    metrics_of(&api.gateway).await
}

/// Writes that the disk has no room for.
pub(super) async fn full_disk() -> String {
    let environment = TestEnvironment::new();
    let gateway = start_on_small_disk(&environment);
    let admin = environment.issue_user("admin", &["system:masters"]);
    let client = Client::http2(&environment, &gateway, Some(&admin)).await;
    let mut is_refused = false;
    for number in 0..100 {
        let object = json!({"metadata": {"name": format!("big{number}")}, "data": {"k": "x".repeat(200_000)}});
        is_refused = send_json(&client, Method::POST, CONFIG_MAPS, &object).await.status == 503;
        if is_refused {
            break;
        }
    }
    assert!(is_refused, "no limit is reached");
    metrics_with(&gateway, &["etcd_request_errors_total"]).await
}
