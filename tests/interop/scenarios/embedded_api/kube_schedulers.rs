//! Two kube-schedulers that know only the embedded API server and elect a leader with a Lease that it stores.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::environment::{Gateway, Process, TestEnvironment, eventually, kubeconfig, peer};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/second-scheduler";

pub(super) fn standby_takes_over(environment: &TestEnvironment) {
    let directory = environment.scratch("embedded-schedulers");
    let admin = environment.cluster.admin();
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let endpoint = &embedded.endpoint;
    let kubeconfig = kubeconfig::write(&directory, "scheduler", &endpoint.url(), &endpoint.authority, Some(admin));
    let configuration = directory.join("scheduler.yaml");
    let document = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "leaderElection": {
            "leaderElect": true, "resourceNamespace": "kube-system", "resourceName": "second-scheduler",
            "leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s",
        },
    });
    std::fs::write(&configuration, document.to_string()).unwrap();
    let mut schedulers = ["one", "two"].map(|name| {
        let arguments =
            [format!("--config={}", configuration.display()), "--secure-port=0".to_owned(), "--v=2".to_owned()];
        Some(Process::start(&format!("scheduler-{name}"), &peer("kube-scheduler"), arguments, &directory))
    });
    let leads = |process: &Process| process.log().contains("Successfully acquired lease");
    let leading = eventually("a leader", || {
        let leading = schedulers.iter().position(|one| one.as_ref().is_some_and(leads));
        leading.ok_or_else(|| "no scheduler acquired the Lease".to_owned())
    });
    let lease = || Ok::<_, String>(endpoint.get(Some(admin), LEASE)?.json()["spec"].clone());
    let leader = lease().unwrap()["holderIdentity"].clone();
    eventually("the standby to see the leader's Lease", || {
        let standby = schedulers[1 - leading].as_ref().unwrap();
        match standby.log().contains("Attempting to acquire leader lease") && !leads(standby) {
            true => Ok(()),
            false => Err(standby.log()),
        }
    });
    let mut killed = schedulers[leading].take().unwrap();
    killed.signal(Signal::KILL);
    killed.wait();
    let spec = eventually("the standby to take over", || {
        let spec = lease()?;
        if spec["holderIdentity"] != leader { Ok(spec) } else { Err(spec.to_string()) }
    });
    assert_eq!(spec["leaseTransitions"], 1, "{spec}");
    // A scheduler elects after its informers are filled. Nodes, Pods and the like are listed and watched empty.
    let log = schedulers[1 - leading].as_ref().unwrap().log();
    for kind in ["Node", "Pod", "Namespace", "PersistentVolumeClaim", "PodDisruptionBudget", "ResourceClaim"] {
        assert!(log.lines().any(|line| line.contains("Caches populated") && line.contains(&format!("v1.{kind}\""))));
    }
    assert_eq!(failed_watches(&log), [""; 0]);
    let nodes = endpoint.get(Some(admin), "/api/v1/nodes").unwrap().json();
    assert_eq!(nodes["items"], Value::Array(Vec::new()));
}

/// Lines of a log in which client-go's reflectors report that a list or watch failed.
pub(super) fn failed_watches(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("Failed to watch") || line.contains("failed to list")).collect()
}
