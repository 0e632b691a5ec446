//! Memory with 200 CRDs and 51,000 objects: 50,000 of custom resources and 1,000 ConfigMaps.

use http::Method;

use super::resource::{BenchResource, JSON};
use super::{BenchedServer, crds};
use crate::client::{ObjectRequest, send_all};
use crate::operations::config_map;
use crate::{Results, memory};

const CRDS: u64 = 200;
/// Custom resources that have objects.
const USED: u64 = 50;
const CUSTOM_OBJECTS: u64 = 50_000;
const CONFIG_MAPS: u64 = 1_000;

pub(super) async fn measure(on: &BenchedServer<'_>, results: &mut Results) {
    crds::install(&on.client, 0..CRDS).await;
    let resources: Vec<BenchResource> = (0..USED).map(crds::resource).collect();
    send_all(&on.client, CUSTOM_OBJECTS, 32, move |number| {
        let resource = &resources[(number % USED) as usize];
        let body = resource.object("v1", &format!("object-{number}"), number);
        ObjectRequest::new(Method::POST, resource.collection("v1", "bench")).body(JSON, body)
    })
    .await;
    send_all(&on.client, CONFIG_MAPS, 32, |number| {
        let body = config_map(&format!("object-{number}"), number);
        ObjectRequest::new(Method::POST, "/api/v1/namespaces/bench/configmaps").body(JSON, body)
    })
    .await;
    let name = format!("{} objects, {CRDS} CRDs", CUSTOM_OBJECTS + CONFIG_MAPS);
    results.add(on.kind, &format!("{name}: memory at once"), "MiB", memory(on.server) / 1024.0);
    results.add(on.kind, &format!("{name}: memory when quiet"), "MiB", on.settled_memory().await / 1024.0);
}
