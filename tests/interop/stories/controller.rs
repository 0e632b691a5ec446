//! A controller of the other client library: kube-rs lists, watches and applies through narthex.

use serde_json::{Value, json};

use super::Trial;
use crate::world::{Process, World, eventually, kubeconfig, peer};

pub(super) const THROUGH: &[(&str, Trial)] = &[("a kube-rs controller sees changes and applies its own", mirror)];

fn mirror(world: &World) {
    let directory = world.scratch("kube-rs");
    let front = &world.front.as_ref().expect("narthex was started").door;
    let admin = world.cluster.admin();
    let namespace = format!("kube-rs-{:08x}", fastrand::u32(..));
    world.cluster.create_namespace(&namespace);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"}});
    front.create(admin, &maps, &map("before", json!({"mirror": "yes"})));

    let config = kubeconfig::write(&directory, "controller", &front.url(), &front.authority, Some(admin));
    let environment = [format!("KUBECONFIG={}", config.display()), peer("kube-rs-controller").display().to_string()];
    let _controller = Process::start("kube-rs", std::path::Path::new("/usr/bin/env"), environment, &directory);

    let says = |name: &str, wanted: &str| {
        eventually(&format!("{name} mirrored as {wanted}"), || {
            let found = front.get(Some(admin), &format!("{maps}/{name}"))?.json();
            let mirrored = &found["metadata"]["annotations"]["mirror"];
            if mirrored == wanted { Ok(()) } else { Err(found["metadata"].to_string()) }
        });
    };
    says("before", "1");
    front.create(admin, &maps, &map("after", json!({"mirror": "yes"})));
    front.create(admin, &maps, &map("other", json!({})));
    says("after", "1");
    let patch = json!({"data": {"a": "2"}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let answer = front.send(Some(admin), "PATCH", &format!("{maps}/after"), &headers, patch.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    says("after", "2");
    let other = front.get(Some(admin), &format!("{maps}/other")).unwrap().json();
    assert_eq!(other["metadata"]["annotations"], Value::Null, "it asked for labeled ones only");
}
