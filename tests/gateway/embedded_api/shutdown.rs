//! Drain: watches end between events, writes in flight finish, acknowledged writes are there after the restart.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request, streaming_request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_watches_and_finishes_writes() {
    let mut api = EmbeddedApiFixture::start(&["--access-log=all", "--access-log-format=json"]);
    let client = api.http2().await;
    let created = send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(created.status, 201);
    let mut watches = Vec::new();
    for client in [api.http1().await, client.clone()] {
        let mut body = client.send(get(&format!("{CONFIG_MAPS}?watch=1"), &[])).await.unwrap().into_body();
        next_chunk(&mut body).await.unwrap().unwrap();
        watches.push(body);
    }
    let writer = api.http1().await;
    let (sender, write) = streaming_request(Method::POST, CONFIG_MAPS, &[("content-type", "application/json")]);
    let write = tokio::spawn(async move { writer.send_and_read(write).await });
    sender.send(Bytes::from_static(b"{\"metadata\":{\"name\":")).await.unwrap();
    let mutating = "apiserver_current_inflight_requests{request_kind=\"mutating\"}";
    super::observability::wait_for_metric(&api.gateway, mutating, 1.0).await;

    api.gateway.signal("TERM");
    for mut watch in watches {
        // Cleanly: a client sees the end of the stream, and begins another watch elsewhere.
        while let Some(chunk) = next_chunk(&mut watch).await {
            assert!(chunk.unwrap().ends_with(b"}\n"));
        }
    }
    sender.send(Bytes::from_static(b"\"late\"}}")).await.unwrap();
    drop(sender);
    let written = write.await.unwrap();
    assert_eq!(written.status, 201, "{}", written.text());
    assert_eq!(api.gateway.wait_for_exit().await.code(), Some(0));
    assert!(!api.environment.path("data/store.db-wal").exists(), "the log is part of the database");

    api.restart();
    let list = api.http2().await.get(CONFIG_MAPS).await.json();
    let names: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["a", "late"]);
}

/// Names of the ConfigMaps that a process has after it was killed while clients wrote.
async fn names(client: &Client) -> Vec<String> {
    let list = client.get(CONFIG_MAPS).await.json();
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_process_keeps_acknowledged_writes() {
    let mut api = EmbeddedApiFixture::start_synchronized();
    for round in 0..3 {
        let client = api.http2().await;
        let (acknowledged, mut names_acknowledged) = tokio::sync::mpsc::unbounded_channel();
        let writer = tokio::spawn(async move {
            for number in 0.. {
                let name = format!("r{round}-{number}");
                let object = json!({"metadata": {"name": name}});
                let headers = [("content-type", "application/json")];
                match client.send(request(Method::POST, CONFIG_MAPS, &headers, &object.to_string())).await {
                    Ok(response) if response.status() == 201 => acknowledged.send(name).unwrap(),
                    _ => return,
                }
            }
        });
        let mut expected = Vec::new();
        while expected.len() < 20 {
            expected.push(names_acknowledged.recv().await.unwrap());
        }
        api.gateway.signal("KILL");
        writer.await.unwrap();
        while let Ok(name) = names_acknowledged.try_recv() {
            expected.push(name);
        }
        api.restart();
        let found = names(&api.http2().await).await;
        let lost: Vec<_> = expected.iter().filter(|name| !found.contains(name)).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
}
