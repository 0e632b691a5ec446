//! A second scheduler, as the Kubernetes task "Configure Multiple Schedulers" sets it up, with a standby: real
//! kube-schedulers that know nothing but narthex.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::Trial;
use crate::world::{Door, Identity, Process, World, eventually, kubeconfig, peer};

pub(super) const THROUGH: &[(&str, Trial)] =
    &[("two kube-schedulers: the leader binds, and when it is gone the standby does", leader_and_standby)];

const NAME: &str = "my-scheduler";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/my-scheduler";

fn leader_and_standby(world: &World) {
    let directory = world.scratch("schedulers");
    let front = &world.front.as_ref().expect("narthex was started").door;
    let admin = world.cluster.admin();
    allow(front, admin);
    let node = node(front, admin);
    let configuration = configuration(world, front, &directory);
    let mut schedulers = ["one", "two"].map(|name| {
        let arguments =
            [format!("--config={}", configuration.display()), "--secure-port=0".to_owned(), "--v=2".to_owned()];
        Some(Process::start(&format!("scheduler-{name}"), &peer("kube-scheduler"), arguments, &directory))
    });

    pod(front, admin, "first", NAME);
    pod(front, admin, "not-ours", "somebody-else");
    is_bound(front, admin, "first", &node);
    let leader = holder(front, admin);

    // Which of the two it is, only its log says.
    let leads = |process: &Process| process.log().contains("Successfully acquired lease");
    let leading = schedulers.iter().position(|one| one.as_ref().is_some_and(&leads)).expect("one of them leads");
    let mut ended = schedulers[leading].take().unwrap();
    ended.signal(Signal::KILL);
    ended.wait();
    pod(front, admin, "second", NAME);
    is_bound(front, admin, "second", &node);
    assert_ne!(holder(front, admin), leader);
    assert!(schedulers.iter().flatten().all(leads), "the standby took over");
    let left = front.get(Some(admin), &pod_path("not-ours")).unwrap().json();
    assert_eq!(left["spec"]["nodeName"], Value::Null, "a pod of another scheduler is not theirs");
}

/// What the task adds to the rights of kube-scheduler: a lease of another name.
fn allow(door: &Door, admin: &Identity) {
    let metadata = json!({"name": "my-scheduler-leases"});
    door.create(
        admin,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata,
            "rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [NAME],
                 "verbs": ["get", "update", "patch"]},
            ],
        }),
    );
    door.create(
        admin,
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "my-scheduler-leases"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}],
        }),
    );
}

/// A node without a machine.
fn node(door: &Door, admin: &Identity) -> String {
    let name = "made-by-hand";
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    door.create(
        admin,
        "/api/v1/nodes",
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        }),
    );
    // Admission taints every new node until a controller finds it ready; there is none here.
    let patch = json!({"spec": {"taints": null}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let answer = door.send(Some(admin), "PATCH", &format!("/api/v1/nodes/{name}"), &headers, patch.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    name.to_owned()
}

fn configuration(world: &World, door: &Door, directory: &Path) -> std::path::PathBuf {
    let scheduler = world.cluster.authorities.client.client("kube-scheduler", "system:kube-scheduler", &[], None);
    let kubeconfig = kubeconfig::write(directory, "kube-scheduler", &door.url(), &door.authority, Some(&scheduler));
    let path = directory.join("configuration.yaml");
    let document = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "profiles": [{"schedulerName": NAME}],
        "leaderElection": {
            "leaderElect": true, "resourceNamespace": "kube-system", "resourceName": NAME,
            "leaseDuration": "6s", "renewDeadline": "4s", "retryPeriod": "1s",
        },
    });
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

fn pod(door: &Door, admin: &Identity, name: &str, scheduler: &str) {
    door.create(
        admin,
        "/api/v1/namespaces/default/pods",
        &json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"schedulerName": scheduler, "containers": [{"name": "c", "image": "i"}]},
        }),
    );
}

fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

fn is_bound(door: &Door, admin: &Identity, name: &str, node: &str) {
    eventually(&format!("pod {name} being bound"), || {
        let pod = door.get(Some(admin), &pod_path(name))?.json();
        if pod["spec"]["nodeName"] == node { Ok(()) } else { Err(pod["status"].to_string()) }
    });
}

fn holder(door: &Door, admin: &Identity) -> Value {
    door.get(Some(admin), LEASE).unwrap().json()["spec"]["holderIdentity"].clone()
}
