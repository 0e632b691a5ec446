//! Many concurrent watches, more than one HTTP/2 connection to the backend can carry.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::TestFn;
use crate::environment::{HttpsEndpoint, TestEnvironment, runtime};

pub(super) const TESTS: &[(&str, TestFn)] = &[("watch: 500 watches receive one event", many_watches)];

const CONNECTIONS: usize = 10;
const WATCHES_EACH: usize = 50;

fn many_watches(environment: &TestEnvironment) {
    for target in environment.targets() {
        watch_event_at_endpoint(environment, environment.endpoint(target));
    }
}

/// Opens all watches at one endpoint and counts those that receive an event.
pub(super) fn watch_event_at_endpoint(environment: &TestEnvironment, endpoint: &HttpsEndpoint) {
    let namespace = format!("crowd-{:08x}", fastrand::u32(..));
    environment.cluster.create_namespace(&namespace);
    let base = format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders");
    runtime().block_on(async {
        let received =
            tokio::time::timeout(Duration::from_secs(180), count_watches_with_event(environment, endpoint, &base));
        assert_eq!(received.await.expect("an event on every watch"), CONNECTIONS * WATCHES_EACH);
    });
}

/// Opens all watches, creates an object and counts the watches that receive the event.
async fn count_watches_with_event(environment: &TestEnvironment, endpoint: &HttpsEndpoint, base: &str) -> usize {
    let jane = environment.cluster.jane();
    // Opened one after another on each connection: a server may reject a burst of new watches with 429.
    let openers = (0..CONNECTIONS).map(async |_| {
        let mut connection = endpoint.connect_http2(jane).await;
        let mut open = Vec::new();
        for _ in 0..WATCHES_EACH {
            let response = connection.get(&format!("{base}?watch=1&timeoutSeconds=600")).await.expect("a watch opens");
            // The response header means that the watch is established.
            assert_eq!(response.status(), 200);
            open.push(response.into_body());
        }
        open
    });
    let open = futures_util::future::join_all(openers).await;
    let document = serde_json::json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": "news"}, "spec": {"reference": "all"},
    });
    let (jane, endpoint, path) = (jane.clone(), endpoint.clone(), base.to_owned());
    tokio::task::spawn_blocking(move || endpoint.create(&jane, &path, &document)).await.unwrap();
    let mut received = 0;
    for body in open.into_iter().flatten() {
        received += usize::from(receives_event(body, "news").await);
    }
    received
}

async fn receives_event(mut body: Incoming, name: &str) -> bool {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.expect("the watch to stay open").into_data() {
            text.extend_from_slice(&data);
        }
        if text.ends_with(b"\n") && String::from_utf8_lossy(&text).contains(&format!("\"name\":\"{name}\"")) {
            return true;
        }
    }
    false
}
