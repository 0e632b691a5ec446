//! Leader election: of two gateways with one kube-apiserver, one writes conditions, and the other takes over.

use rustix::process::Signal;

use super::TestFn;
use super::cluster_registry::{ClusterFixture, FLUNDERS, wait_for_response};
use crate::environment::{Gateway, TestEnvironment, eventually};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("leader election: one of two gateways writes conditions, the other takes over", single_status_writer)];

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/narthex";

pub(super) fn wait_for_log(gateway: &Gateway, text: &str) -> String {
    eventually(&format!("the log line {text:?}"), || {
        let log = gateway.process.log();
        log.lines().find(|line| line.contains(text)).map(str::to_owned).ok_or_else(|| "no such line".to_owned())
    })
}

fn count(gateway: &Gateway, text: &str) -> usize {
    gateway.process.log().lines().filter(|line| line.contains(text)).count()
}

fn lease(fixture: &ClusterFixture) -> serde_json::Value {
    fixture.cluster.endpoint.get(Some(fixture.admin()), LEASE).unwrap().json()
}

/// kube-apiserver's aggregator cannot reach the cluster IP here and writes Available=False; the gateways reach the
/// endpoint. The leader must not overwrite the aggregator repeatedly.
fn single_status_writer(environment: &TestEnvironment) {
    let fixture = ClusterFixture::set(environment.scratch("elected"));
    let admin = fixture.admin().clone();
    let debug = [("--log-level", "debug")];
    let mut first = fixture.gateway("narthex-first", &debug);
    wait_for_log(&first, "acquired leadership");
    let second = fixture.gateway("narthex-second", &debug);
    wait_for_log(&second, "new leader elected");
    for gateway in [&first, &second] {
        wait_for_response(gateway, &admin, FLUNDERS, 200, "FlunderList");
    }
    // With the shipped RBAC objects; the Lease is as kubectl shows it.
    wait_for_log(&first, "Available condition written");
    let lease_object = lease(&fixture);
    assert_eq!(lease_object["spec"]["leaseDurationSeconds"], 15, "{lease_object}");
    assert_eq!(lease_object["spec"]["leaseTransitions"], 0, "{lease_object}");
    for version in ["v1alpha1", "v1beta1"] {
        eventually("the leader to leave the condition to the aggregator", || {
            let log = first.process.log();
            let left = |line: &str| line.contains("another writer overwrites") && line.contains(version);
            if log.lines().any(left) { Ok(()) } else { Err("no such line".to_owned()) }
        });
    }
    assert_eq!(count(&first, "Available condition written"), 4, "two writes for each of two APIServices");

    first.process.signal(Signal::TERM);
    assert!(first.process.wait().success());
    wait_for_log(&first, "Lease released");
    wait_for_log(&second, "acquired leadership");
    let lease_object = lease(&fixture);
    assert_eq!(lease_object["spec"]["leaseTransitions"], 1, "{lease_object}");
    assert_eq!(count(&second, "lost leadership"), 0);
    wait_for_response(&second, &admin, FLUNDERS, 200, "FlunderList");
}
