//! Tests of watches.

use std::time::Duration;

use serde_json::json;

use super::{DOORS, ExampleServer, GREETINGS, TABLE};
use crate::process::{Drain, ShutdownPhase};

const JSON: &str = "application/json";

#[tokio::test]
async fn watch_sends_initial_objects_then_changes() {
    let world = ExampleServer::new();
    let mut events = world.watch(&format!("{DOORS}?watch=true"), JSON).await;
    assert_eq!(events.next_summary().await, "ADDED nave");
    assert_eq!(events.next_summary().await, "ADDED street");
    world.post(GREETINGS, json!({"metadata": {"name": "elsewhere"}})).await;
    world.post(DOORS, json!({"metadata": {"name": "attic"}})).await;
    world.patch(&format!("{DOORS}/attic"), "merge-patch+json", json!({"spec": {"open": true}})).await;
    world.delete(&format!("{DOORS}/attic"), "").await;
    assert_eq!(events.next_summary().await, "ADDED attic");
    assert_eq!(events.next_summary().await, "MODIFIED attic");
    let deleted = events.next().await.unwrap();
    assert_eq!(
        (&deleted["type"], &deleted["object"]["metadata"]["resourceVersion"]),
        (&json!("DELETED"), &json!("1009"))
    );
}

#[tokio::test]
async fn watch_from_resource_version_sends_later_changes() {
    let world = ExampleServer::new();
    world.post(GREETINGS, json!({"metadata": {"name": "late"}})).await;
    let mut events = world.watch(&format!("{GREETINGS}?watch=1&resourceVersion=1005"), JSON).await;
    assert_eq!(events.next_summary().await, "ADDED late");
    world.delete(&format!("{GREETINGS}/late"), "").await;
    assert_eq!(events.next_summary().await, "DELETED late");
}

#[tokio::test]
async fn watch_with_selector_adds_and_deletes_by_label() {
    let world = ExampleServer::new();
    let path = format!("{GREETINGS}?watch=1&resourceVersion=1005&labelSelector=tone%3Dwarm");
    let mut events = world.watch(&path, JSON).await;
    let label = async |name: &str, tone: &str| {
        let patch = json!({"metadata": {"labels": {"tone": tone}}});
        world.patch(&format!("{GREETINGS}/{name}"), "merge-patch+json", patch).await
    };
    label("moin", "warm").await;
    label("hello", "cold").await;
    world.delete(&format!("{GREETINGS}/hello"), "").await;
    world.delete(&format!("{GREETINGS}/moin"), "").await;
    assert_eq!(events.next_summary().await, "ADDED moin");
    let gone = events.next().await.unwrap();
    assert_eq!((&gone["type"], &gone["object"]["metadata"]["name"]), (&json!("DELETED"), &json!("hello")));
    assert_eq!(gone["object"]["metadata"]["labels"]["tone"], "warm", "in its last matching state");
    assert_eq!(gone["object"]["metadata"]["resourceVersion"], "1007");
    assert_eq!(events.next_summary().await, "DELETED moin");
}

#[tokio::test]
async fn watch_list_ends_initial_events_with_bookmark() {
    let world = ExampleServer::new();
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut events = world.watch(&format!("{DOORS}?{query}&resourceVersion=0"), JSON).await;
    assert_eq!(events.next_summary().await, "ADDED nave");
    assert_eq!(events.next_summary().await, "ADDED street");
    let end = events.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["kind"]), (&json!("BOOKMARK"), &json!("Door")));
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["metadata"]["resourceVersion"], "1005");
    assert_eq!(world.get(&format!("{DOORS}?watch=1&sendInitialEvents=true")).await.code, 422);
}

#[tokio::test]
async fn watch_bookmarks_periodic_when_requested() {
    let world = ExampleServer::with(64, Duration::from_millis(5));
    let mut events = world.watch(&format!("{DOORS}?watch=1&resourceVersion=1005&allowWatchBookmarks=true"), JSON).await;
    let first = events.next().await.unwrap();
    assert_eq!((&first["type"], first["object"].get("spec")), (&json!("BOOKMARK"), None));
    world.post(GREETINGS, json!({"metadata": {"name": "elsewhere"}})).await;
    loop {
        let event = events.next().await.unwrap();
        assert_eq!(event["type"], "BOOKMARK");
        if event["object"]["metadata"]["resourceVersion"] == "1006" {
            break;
        }
    }
    let mut silent = world.watch(&format!("{DOORS}?watch=1&resourceVersion=1006&timeoutSeconds=1"), JSON).await;
    assert_eq!(silent.next().await, None);
}

#[tokio::test]
async fn watch_too_old_revision_sends_expired_error() {
    let world = ExampleServer::with(2, Duration::from_secs(3600));
    let mut events = world.watch(&format!("{DOORS}?watch=1&resourceVersion=1001"), JSON).await;
    let error = events.next().await.unwrap();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(error["object"]["reason"], "Expired");
    assert_eq!(error["object"]["message"], "too old resource version: 1001 (1003)");
    assert_eq!(events.next().await, None);
    let mut events = world.watch(&format!("{DOORS}?watch=1&resourceVersion=9999"), JSON).await;
    assert_eq!(events.next().await.unwrap()["object"]["code"], 504);
}

#[tokio::test]
async fn watch_as_table_sends_columns_once() {
    let world = ExampleServer::new();
    let mut events = world.watch(&format!("{DOORS}?watch=1"), TABLE).await;
    let (first, second) = (events.next().await.unwrap(), events.next().await.unwrap());
    assert_eq!((&first["object"]["kind"], &first["object"]["rows"][0]["cells"][0]), (&json!("Table"), &json!("nave")));
    assert!(first["object"]["columnDefinitions"].is_array());
    assert_eq!(
        (second["object"]["rows"].as_array().unwrap().len(), &second["object"]["columnDefinitions"]),
        (1, &json!(null))
    );
}

#[tokio::test]
async fn watch_ends_at_shutdown() {
    let world = ExampleServer::new();
    let mut events = world.watch(&format!("{DOORS}?watch=1&resourceVersion=1005"), JSON).await;
    world.drainer.advance(ShutdownPhase::Draining);
    let (drainer, drain) = Drain::new();
    let elsewhere = ExampleServer { api: world.api.clone(), drainer, drain };
    elsewhere.post(DOORS, json!({"metadata": {"name": "last"}})).await;
    assert_eq!(events.next_summary().await, "ADDED last");
    world.drainer.advance(ShutdownPhase::Ending);
    assert_eq!(events.next().await, None);
}
