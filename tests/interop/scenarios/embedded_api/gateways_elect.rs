//! Two gateways that elect a leader with a Lease in a third one, which stores it.

use rustix::process::Signal;
use serde_json::Value;

use crate::environment::{Gateway, TestEnvironment, eventually, kubeconfig};
use crate::scenarios::leader_election::{LEASE, wait_for_log};

pub(super) fn standby_takes_over(environment: &TestEnvironment) {
    let directory = environment.scratch("embedded-election");
    let (cluster, admin) = (&environment.cluster, environment.cluster.admin());
    let store = Gateway::start_embedded_api(cluster, &directory, "lease-store", &[]);
    let endpoint = &store.endpoint;
    let kubeconfig = kubeconfig::write(&directory, "electing", &endpoint.url(), &endpoint.authority, Some(admin));
    let flags = [
        ("--kubeconfig", kubeconfig.to_str().unwrap()),
        ("--leader-elect-lease-duration", "6s"),
        ("--leader-elect-renew-deadline", "4s"),
        ("--leader-elect-retry-period", "1s"),
    ];
    let spec = || Ok::<Value, String>(endpoint.get(Some(admin), LEASE)?.json()["spec"].clone());
    let wait_for_holder_other_than = |before: &Value| {
        eventually("another holder of the Lease", || {
            let spec = spec()?;
            let holder = &spec["holderIdentity"];
            if holder.as_str().is_some_and(|text| !text.is_empty()) && holder != before {
                Ok(spec)
            } else {
                Err(spec.to_string())
            }
        })
    };
    let mut first = Gateway::start_without_registry(cluster, &directory, "electing-first", &flags);
    wait_for_log(&first, "acquired leadership");
    let holder = wait_for_holder_other_than(&Value::Null)["holderIdentity"].clone();
    let mut second = Gateway::start_without_registry(cluster, &directory, "electing-second", &flags);
    wait_for_log(&second, "new leader elected");
    assert_eq!(spec().unwrap()["holderIdentity"], holder);

    // A killed leader's Lease runs out.
    first.process.signal(Signal::KILL);
    let taken = wait_for_holder_other_than(&holder);
    assert_eq!((&taken["leaseTransitions"], &taken["leaseDurationSeconds"]), (&1.into(), &6.into()), "{taken}");
    wait_for_log(&second, "acquired leadership");
    first.restart();
    wait_for_log(&first, "new leader elected");

    // One that ends gives it up.
    second.process.signal(Signal::TERM);
    assert!(second.process.wait().success());
    wait_for_log(&second, "Lease released");
    let taken = wait_for_holder_other_than(&taken["holderIdentity"]);
    assert_eq!(taken["leaseTransitions"], 2, "{taken}");
}
