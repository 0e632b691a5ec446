//! Watches: memory of idle ones, and the cost of events to one and to many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use http_body_util::BodyExt as _;

use crate::client::{ApiClient, ObjectRequest};
use crate::fixtures::{BenchEnvironment, Proxy};
use crate::operations::config_map;
use crate::{ApiServerKind, Options, Results, cpu, memory};

const COLLECTION: &str = "/api/v1/namespaces/watched/configmaps";

/// How long events are made.
const SECONDS: u64 = 5;

/// Measures 1 and [`Options::watches`] watches, each on a connection of its own, at 20 and 200 changes a second.
pub(crate) async fn measure(
    environment: &BenchEnvironment,
    kind: ApiServerKind,
    server: &Proxy,
    options: &Options,
    results: &mut Results,
) {
    let writer = ApiClient::connect(environment.directory(), server.port, &environment.token).await;
    let namespace = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "watched"}});
    for (path, body) in [("/api/v1/namespaces", namespace.to_string()), (COLLECTION, config_map("watched", 0))] {
        writer.clone().send(&ObjectRequest::new(Method::POST, path).body("application/json", body)).await;
    }
    let mut received = Vec::new();
    for watches in [1, options.watches] {
        let before = memory(server);
        while (received.len() as u64) < watches {
            received.push(open_watch(environment, server).await);
        }
        if watches > 1 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            results.add(kind, "memory per idle watch", "KiB", (memory(server) - before) / (watches - 1) as f64);
        }
        for rate in [20, 200] {
            measure_events(&writer, kind, server, &received, rate, results).await;
        }
    }
}

/// Opens a watch from now on; how many bytes of events it has received.
async fn open_watch(environment: &BenchEnvironment, server: &Proxy) -> Arc<AtomicU64> {
    let mut client = ApiClient::connect(environment.directory(), server.port, &environment.token).await;
    let path = format!("{COLLECTION}?watch=true&resourceVersion=0&timeoutSeconds=3000");
    let mut body = client.open(&ObjectRequest::new(Method::GET, path)).await;
    let events = Arc::new(AtomicU64::new(0));
    let count = events.clone();
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(data) = frame.into_data() {
                let lines = data.iter().filter(|byte| **byte == b'\n').count();
                count.fetch_add(lines as u64, Ordering::Relaxed);
            }
        }
        drop(client);
    });
    // The object that exists.
    while events.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    events
}

async fn measure_events(
    writer: &ApiClient,
    kind: ApiServerKind,
    server: &Proxy,
    received: &[Arc<AtomicU64>],
    rate: u64,
    results: &mut Results,
) {
    let total = || received.iter().map(|events| events.load(Ordering::Relaxed)).sum::<u64>();
    let (changes, watches) = (rate * SECONDS, received.len() as u64);
    let (before, first) = (cpu(server), total());
    let began = Instant::now();
    for change in 0..changes {
        let body = format!(r#"{{"data":{{"change":"{rate}-{watches}-{change}"}}}}"#);
        let path = format!("{COLLECTION}/watched");
        let patch = ObjectRequest::new(Method::PATCH, path).body("application/merge-patch+json", body);
        writer.clone().send(&patch).await;
        let due = Duration::from_secs_f64((change + 1) as f64 / rate as f64);
        tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
    }
    let end = Instant::now() + Duration::from_secs(20);
    while total() - first < changes * watches && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let arrived = total() - first;
    let name = format!("{watches} watches, {rate} changes a second");
    results.add(kind, &format!("{name}: arrived"), "%", arrived as f64 * 100.0 / (changes * watches) as f64);
    results.add(kind, &format!("{name}: CPU per 1,000 events"), "ms", (cpu(server) - before) * 1000.0 / arrived as f64);
}
