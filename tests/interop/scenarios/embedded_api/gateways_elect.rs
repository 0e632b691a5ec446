//! Two gateways that elect a leader with a Lease in a third one, which stores it.

use rustix::process::Signal;
use serde_json::Value;

use crate::environment::{Gateway, Identity, Kubectl, TestEnvironment, eventually, kubeconfig};
use crate::scenarios::leader_election::wait_for_log;
use crate::scenarios::standalone::KubectlUser;

const LEADER_METRIC: &str = "leader_election_master_status{name=\"narthex\"}";

pub(super) fn standby_takes_over(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("election-{}", kubectl.version.replace('.', "-"));
    let directory = environment.scratch(&name);
    let (cluster, admin) = (&environment.cluster, environment.cluster.admin());
    let store = Gateway::start_embedded_api(cluster, &directory, &format!("{name}-store"), &[]);
    let endpoint = &store.endpoint;
    let kubeconfig = kubeconfig::write(&directory, "electing", &endpoint.url(), &endpoint.authority, Some(admin));
    let flags = [
        ("--kubeconfig", kubeconfig.to_str().unwrap()),
        ("--leader-elect-lease-duration", "6s"),
        ("--leader-elect-renew-deadline", "4s"),
        ("--leader-elect-retry-period", "1s"),
    ];
    let start =
        |gateway: &str| Gateway::start_without_registry(cluster, &directory, &format!("{name}-{gateway}"), &flags);
    let user = KubectlUser { kubectl, kubeconfig: kubeconfig.clone(), home: directory.clone() };

    let mut first = start("first");
    wait_for_metric(&first, admin, "1");
    let by_first = lease(&user);
    assert_ne!(holder(&by_first), "", "{by_first}");
    let mut second = start("second");
    wait_for_log(&second, "new leader elected");
    wait_for_metric(&second, admin, "0");
    wait_for_metric(&first, admin, "1");
    assert_eq!(holder(&lease(&user)), holder(&by_first));

    // The Lease of a killed leader expires.
    first.process.signal(Signal::KILL);
    wait_for_metric(&second, admin, "1");
    let by_second = lease(&user);
    assert!(!["", holder(&by_first)].contains(&holder(&by_second)), "{by_second}");
    assert_eq!((&by_second["leaseTransitions"], &by_second["leaseDurationSeconds"]), (&1.into(), &6.into()));
    first.restart();
    wait_for_metric(&first, admin, "0");
    wait_for_metric(&second, admin, "1");
    assert_eq!(holder(&lease(&user)), holder(&by_second));

    // A leader that ends releases its Lease. The standby is stopped, so that nobody else can have written it.
    first.process.stop();
    second.process.signal(Signal::TERM);
    assert!(second.process.wait().success());
    let released = lease(&user);
    assert_eq!(holder(&released), "", "{released}");
    first.process.signal(Signal::CONT);
    wait_for_metric(&first, admin, "1");
    let by_first = lease(&user);
    assert!(!["", holder(&by_second)].contains(&holder(&by_first)), "{by_first}");
    assert_eq!(by_first["leaseTransitions"], 2, "{by_first}");
}

/// The `spec` of the Lease as kubectl prints it.
fn lease(user: &KubectlUser) -> Value {
    let printed = user.run(&["get", "lease", "narthex", "--namespace=kube-system", "--output=jsonpath={.spec}"]);
    serde_json::from_str(&printed).unwrap()
}

fn holder(spec: &Value) -> &str {
    spec["holderIdentity"].as_str().unwrap_or_default()
}

/// Waits until the gateway's metric says whether it leads.
fn wait_for_metric(gateway: &Gateway, admin: &Identity, value: &str) {
    eventually(&format!("{LEADER_METRIC} {value}"), || {
        let metrics = gateway.endpoint.get(Some(admin), "/metrics")?.text();
        let line = metrics.lines().find(|line| line.starts_with(LEADER_METRIC)).unwrap_or("no such metric");
        if line == format!("{LEADER_METRIC} {value}") { Ok(()) } else { Err(line.to_owned()) }
    });
}
