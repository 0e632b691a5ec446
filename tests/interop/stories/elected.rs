//! Two gateways on one real kube-apiserver: one writes conditions, the other takes over when it ends.

use rustix::process::Signal;

use super::Trial;
use super::followed::{FLUNDERS, Stage, until};
use crate::world::{Gateway, World, eventually};

pub(super) const THROUGH: &[(&str, Trial)] =
    &[("of two gateways one writes conditions, and the other when it ends", one_of_two)];

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/narthex";

fn says(gateway: &Gateway, words: &str) -> String {
    eventually(&format!("the log to say {words:?}"), || {
        let log = gateway.process.log();
        log.lines().find(|line| line.contains(words)).map(str::to_owned).ok_or_else(|| "it does not".to_owned())
    })
}

fn count(gateway: &Gateway, words: &str) -> usize {
    gateway.process.log().lines().filter(|line| line.contains(words)).count()
}

fn lease(stage: &Stage) -> serde_json::Value {
    stage.cluster.door.get(Some(stage.admin()), LEASE).unwrap().json()
}

/// The kube-apiserver's own aggregator cannot reach the cluster IP here and writes so; the gateways can reach the
/// endpoint. Neither may fight for the last word.
fn one_of_two(world: &World) {
    let stage = Stage::set(world.scratch("elected"));
    let admin = stage.admin().clone();
    let debug = [("--log-level", "debug")];
    let mut first = stage.gateway("narthex-first", &debug);
    says(&first, "acquired leadership");
    let second = stage.gateway("narthex-second", &debug);
    says(&second, "new leader elected");
    for gateway in [&first, &second] {
        until(gateway, &admin, FLUNDERS, 200, "FlunderList");
    }
    // With the rights that are shipped, and a Lease as kubectl shows it.
    says(&first, "Available condition written");
    let held = lease(&stage);
    assert_eq!(held["spec"]["leaseDurationSeconds"], 15, "{held}");
    assert_eq!(held["spec"]["leaseTransitions"], 0, "{held}");
    for version in ["v1alpha1", "v1beta1"] {
        eventually("the first to leave it to the aggregator", || {
            let log = first.process.log();
            let left = |line: &str| line.contains("another writer overwrites") && line.contains(version);
            if log.lines().any(left) { Ok(()) } else { Err("it does not".to_owned()) }
        });
    }
    assert_eq!(count(&first, "Available condition written"), 4, "two tries for each of two");

    first.process.signal(Signal::TERM);
    assert!(first.process.wait().success());
    says(&first, "Lease released");
    says(&second, "acquired leadership");
    let held = lease(&stage);
    assert_eq!(held["spec"]["leaseTransitions"], 1, "{held}");
    assert_eq!(count(&second, "lost leadership"), 0);
    until(&second, &admin, FLUNDERS, 200, "FlunderList");
}
