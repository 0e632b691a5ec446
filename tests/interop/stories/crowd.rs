//! Many watches at once, more than one HTTP/2 connection to the backend can carry.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::Trial;
use crate::world::{Door, World, runtime};

pub(super) const TRIALS: &[(&str, Trial)] = &[("500 watches all hear of one event", crowd)];

const CONNECTIONS: usize = 10;
const WATCHES_EACH: usize = 50;

fn crowd(world: &World) {
    for target in world.targets() {
        watch_at(world, world.door(target));
    }
}

/// All of them at one door.
pub(super) fn watch_at(world: &World, door: &Door) {
    let namespace = format!("crowd-{:08x}", fastrand::u32(..));
    world.cluster.create_namespace(&namespace);
    let base = format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders");
    runtime().block_on(async {
        let heard = tokio::time::timeout(Duration::from_secs(180), watch_together(world, door, &base));
        assert_eq!(heard.await.expect("every watch hears of it"), CONNECTIONS * WATCHES_EACH);
    });
}

/// Opens all watches, makes one object, and counts who hears of it.
async fn watch_together(world: &World, door: &Door, base: &str) -> usize {
    let jane = world.cluster.jane();
    // One after the other on each connection: a server may shed a rush of new watches with 429.
    let openers = (0..CONNECTIONS).map(async |_| {
        let mut connection = door.multiplexed(jane).await;
        let mut open = Vec::new();
        for _ in 0..WATCHES_EACH {
            let response = connection.get(&format!("{base}?watch=1&timeoutSeconds=600")).await.expect("a watch opens");
            // The head of the answer says that the server is watching.
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
    let (jane, door, path) = (jane.clone(), door.clone(), base.to_owned());
    tokio::task::spawn_blocking(move || door.create(&jane, &path, &document)).await.unwrap();
    let mut heard = 0;
    for body in open.into_iter().flatten() {
        heard += usize::from(hears_of(body, "news").await);
    }
    heard
}

async fn hears_of(mut body: Incoming, name: &str) -> bool {
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.expect("the watch goes on").into_data() {
            text.extend_from_slice(&data);
        }
        if text.ends_with(b"\n") && String::from_utf8_lossy(&text).contains(&format!("\"name\":\"{name}\"")) {
            return true;
        }
    }
    false
}
