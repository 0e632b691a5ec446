//! Events to watches of two versions of one resource.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use http_body_util::BodyExt as _;

use super::resource::{BenchResource, JSON, MERGE_PATCH};
use super::{BenchedServer, webhook};
use crate::Results;
use crate::client::{ApiClient, ObjectRequest};

/// Watches of each version.
const WATCHES: u64 = 50;
const CHANGES: u64 = 100;
const CHANGES_PER_SECOND: u64 = 20;

pub(super) async fn measure(on: &BenchedServer<'_>, results: &mut Results) {
    let client_config = webhook::start(on.environment).await;
    for (label, group, webhook) in
        [("None", "none.bench.dev", None), ("webhook", "hook.bench.dev", Some(&client_config))]
    {
        let resource = BenchResource::new(group, 0);
        resource.install(on, webhook).await;
        let path = resource.collection("v1", "bench");
        let create = ObjectRequest::new(Method::POST, path.clone()).body(JSON, resource.object("v1", "watched", 0));
        on.client.clone().send(&create).await;
        let received = Arc::<AtomicU64>::default();
        let mut tasks = tokio::task::JoinSet::new();
        for version in ["v1", "v2"] {
            // As the informers of one process share a connection.
            let client = ApiClient::connect(on.environment.directory(), on.server.port, &on.environment.token).await;
            for _ in 0..WATCHES {
                let path = format!(
                    "{}?watch=true&resourceVersion=0&timeoutSeconds=3000",
                    resource.collection(version, "bench")
                );
                let (mut client, received) = (client.clone(), received.clone());
                tasks.spawn(async move {
                    let mut body = client.open(&ObjectRequest::new(Method::GET, path)).await;
                    while let Some(Ok(frame)) = body.frame().await {
                        let lines =
                            frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
                        received.fetch_add(lines as u64, Ordering::Relaxed);
                    }
                });
            }
        }
        let watches = 2 * WATCHES;
        wait_until(&received, watches).await;
        let (before, began) = (on.cpu(), Instant::now());
        for change in 0..CHANGES {
            let body = format!(r#"{{"spec":{{"replicas":{}}}}}"#, change + 1);
            let patch = ObjectRequest::new(Method::PATCH, format!("{path}/watched")).body(MERGE_PATCH, body);
            on.client.clone().send(&patch).await;
            let due = Duration::from_secs_f64((change + 1) as f64 / CHANGES_PER_SECOND as f64);
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        }
        wait_until(&received, watches * (1 + CHANGES)).await;
        let events = received.load(Ordering::Relaxed).saturating_sub(watches);
        let name = format!("{watches} watches in two versions, {label}");
        let arrived = events as f64 * 100.0 / (watches * CHANGES) as f64;
        results.add(on.kind, &format!("{name}: arrived"), "%", arrived);
        let cost = (on.cpu() - before) * 1000.0 / events.max(1) as f64;
        results.add(on.kind, &format!("{name}: CPU per 1,000 events"), "ms", cost);
        tasks.shutdown().await;
    }
}

/// Waits until as many events have arrived, at most 20 s.
async fn wait_until(received: &AtomicU64, count: u64) {
    let end = Instant::now() + Duration::from_secs(20);
    while received.load(Ordering::Relaxed) < count && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
