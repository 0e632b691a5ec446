//! A kube-rs controller that lists, watches and applies through narthex.

use serde_json::{Value, json};

use super::TestFn;
use crate::environment::{Process, TestEnvironment, eventually, kubeconfig, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[("kube-rs: controller watches and applies", mirrors_config_maps)];

fn mirrors_config_maps(environment: &TestEnvironment) {
    let directory = environment.scratch("kube-rs");
    let cluster_gateway = &environment.cluster_gateway.as_ref().expect("narthex was started").endpoint;
    let admin = environment.cluster.admin();
    let namespace = format!("kube-rs-{:08x}", fastrand::u32(..));
    environment.cluster.create_namespace(&namespace);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"a": "1"}});
    cluster_gateway.create(admin, &maps, &map("before", json!({"mirror": "yes"})));

    let config =
        kubeconfig::write(&directory, "controller", &cluster_gateway.url(), &cluster_gateway.authority, Some(admin));
    let env_arguments = [format!("KUBECONFIG={}", config.display()), peer("kube-rs-controller").display().to_string()];
    let _controller = Process::start("kube-rs", std::path::Path::new("/usr/bin/env"), env_arguments, &directory);

    let wait_for_mirror = |name: &str, wanted: &str| {
        eventually(&format!("{name} mirrored as {wanted}"), || {
            let found = cluster_gateway.get(Some(admin), &format!("{maps}/{name}"))?.json();
            let mirrored = &found["metadata"]["annotations"]["mirror"];
            if mirrored == wanted { Ok(()) } else { Err(found["metadata"].to_string()) }
        });
    };
    wait_for_mirror("before", "1");
    cluster_gateway.create(admin, &maps, &map("after", json!({"mirror": "yes"})));
    cluster_gateway.create(admin, &maps, &map("other", json!({})));
    wait_for_mirror("after", "1");
    let patch = json!({"data": {"a": "2"}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let response =
        cluster_gateway.send(Some(admin), "PATCH", &format!("{maps}/after"), &headers, patch.as_bytes()).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    wait_for_mirror("after", "2");
    let other = cluster_gateway.get(Some(admin), &format!("{maps}/other")).unwrap().json();
    assert_eq!(other["metadata"]["annotations"], Value::Null, "the watch has a label selector");
}
