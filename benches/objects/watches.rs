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

/// How long events are made.
const SECONDS: u64 = 5;

/// Watches of one namespace, `per_connection` of them on each connection.
struct WatchGroup {
    namespace: &'static str,
    per_connection: u64,
    label: &'static str,
}

const WATCH_GROUPS: [WatchGroup; 2] = [
    // As the informers of one process share a connection.
    WatchGroup { namespace: "watched-1", per_connection: 100, label: "100 a connection" },
    WatchGroup { namespace: "watched-2", per_connection: 1, label: "a connection each" },
];

/// Measures 1 and [`Options::watches`] watches at 20 and 200 changes a second. The watches of the first group are idle
/// while the second is measured.
pub(crate) async fn measure(
    environment: &BenchEnvironment,
    kind: ApiServerKind,
    server: &Proxy,
    options: &Options,
    results: &mut Results,
) {
    let writer = ApiClient::connect(environment.directory(), server.port, &environment.token).await;
    let mut idle = Vec::new();
    for group in WATCH_GROUPS {
        let collection = format!("/api/v1/namespaces/{}/configmaps", group.namespace);
        let namespace =
            serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": group.namespace}});
        for (path, body) in
            [("/api/v1/namespaces", namespace.to_string()), (collection.as_str(), config_map("watched", 0))]
        {
            writer.clone().send(&ObjectRequest::new(Method::POST, path).body("application/json", body)).await;
        }
        let mut received = Vec::new();
        let mut client = writer.clone();
        for watches in [1, options.watches] {
            let before = memory(server);
            while (received.len() as u64) < watches {
                if (received.len() as u64).is_multiple_of(group.per_connection) {
                    client = ApiClient::connect(environment.directory(), server.port, &environment.token).await;
                }
                received.push(open_watch(client.clone(), &collection).await);
            }
            if watches > 1 {
                tokio::time::sleep(Duration::from_secs(2)).await;
                let name = format!("memory per idle watch, {}", group.label);
                results.add(kind, &name, "KiB", (memory(server) - before) / (watches - 1) as f64);
            }
            for rate in [20, 200] {
                let events = Events { collection: &collection, received: &received, rate };
                let label =
                    if watches > 1 { format!("{watches} watches, {}", group.label) } else { "1 watch".to_owned() };
                events.measure(&writer, kind, server, &label, results).await;
            }
        }
        idle.push(received);
    }
}

/// Opens a watch from now on; how many events it has received.
async fn open_watch(mut client: ApiClient, collection: &str) -> Arc<AtomicU64> {
    let path = format!("{collection}?watch=true&resourceVersion=0&timeoutSeconds=3000");
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

/// Changes of one object, `rate` a second.
struct Events<'e> {
    collection: &'e str,
    received: &'e [Arc<AtomicU64>],
    rate: u64,
}

impl Events<'_> {
    async fn measure(
        &self,
        writer: &ApiClient,
        kind: ApiServerKind,
        server: &Proxy,
        label: &str,
        results: &mut Results,
    ) {
        let Events { collection, received, rate } = *self;
        let total = || received.iter().map(|events| events.load(Ordering::Relaxed)).sum::<u64>();
        let (changes, watches) = (rate * SECONDS, received.len() as u64);
        let (before, first) = (cpu(server), total());
        let began = Instant::now();
        for change in 0..changes {
            let body = format!(r#"{{"data":{{"change":"{rate}-{watches}-{change}"}}}}"#);
            let patch = ObjectRequest::new(Method::PATCH, format!("{collection}/watched"));
            writer.clone().send(&patch.body("application/merge-patch+json", body)).await;
            let due = Duration::from_secs_f64((change + 1) as f64 / rate as f64);
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        }
        let end = Instant::now() + Duration::from_secs(20);
        while total() - first < changes * watches && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let arrived = total() - first;
        let name = format!("{label}, {rate} changes a second");
        results.add(kind, &format!("{name}: arrived"), "%", arrived as f64 * 100.0 / (changes * watches) as f64);
        let cost = (cpu(server) - before) * 1000.0 / arrived as f64;
        results.add(kind, &format!("{name}: CPU per 1,000 events"), "ms", cost);
    }
}
