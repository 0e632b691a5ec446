//! A second scheduler with a standby, as in the Kubernetes task "Configure Multiple Schedulers": real kube-schedulers
//! that only reach narthex.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::TestFn;
use crate::environment::{HttpsEndpoint, Identity, Process, TestEnvironment, eventually, kubeconfig, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("schedulers: the leader binds pods, the standby takes over", leader_and_standby)];

const NAME: &str = "my-scheduler";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/my-scheduler";

fn leader_and_standby(environment: &TestEnvironment) {
    let directory = environment.scratch("schedulers");
    let cluster_gateway = &environment.cluster_gateway.as_ref().expect("narthex was started").endpoint;
    let admin = environment.cluster.admin();
    allow(cluster_gateway, admin);
    let node = node(cluster_gateway, admin);
    let configuration = configuration(environment, cluster_gateway, &directory);
    let mut schedulers = ["one", "two"].map(|name| {
        let arguments =
            [format!("--config={}", configuration.display()), "--secure-port=0".to_owned(), "--v=2".to_owned()];
        Some(Process::start(&format!("scheduler-{name}"), &peer("kube-scheduler"), arguments, &directory))
    });

    pod(cluster_gateway, admin, "first", NAME);
    pod(cluster_gateway, admin, "other", "another-scheduler");
    is_bound(cluster_gateway, admin, "first", &node);
    let leader = holder(cluster_gateway, admin);

    // Only the log shows which of the two leads.
    let leads = |process: &Process| process.log().contains("Successfully acquired lease");
    let leading = schedulers.iter().position(|one| one.as_ref().is_some_and(&leads)).expect("a leader");
    let mut ended = schedulers[leading].take().unwrap();
    ended.signal(Signal::KILL);
    ended.wait();
    pod(cluster_gateway, admin, "second", NAME);
    is_bound(cluster_gateway, admin, "second", &node);
    assert_ne!(holder(cluster_gateway, admin), leader);
    assert!(schedulers.iter().flatten().all(leads), "the standby leads already");
    let left = cluster_gateway.get(Some(admin), &pod_path("other")).unwrap().json();
    assert_eq!(left["spec"]["nodeName"], Value::Null, "the pod of another scheduler was bound");
}

/// RBAC of the task: kube-scheduler's permissions with another lease name.
fn allow(endpoint: &HttpsEndpoint, admin: &Identity) {
    let metadata = json!({"name": "my-scheduler-leases"});
    endpoint.create(
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
    endpoint.create(
        admin,
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "my-scheduler-leases"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}],
        }),
    );
}

/// Creates a Node without a kubelet.
fn node(endpoint: &HttpsEndpoint, admin: &Identity) -> String {
    let name = "made-by-hand";
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    endpoint.create(
        admin,
        "/api/v1/nodes",
        &json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        }),
    );
    // Admission taints every new node until a controller finds it ready; the test removes the taint.
    let patch = json!({"spec": {"taints": null}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let response =
        endpoint.send(Some(admin), "PATCH", &format!("/api/v1/nodes/{name}"), &headers, patch.as_bytes()).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    name.to_owned()
}

fn configuration(environment: &TestEnvironment, endpoint: &HttpsEndpoint, directory: &Path) -> std::path::PathBuf {
    let scheduler = environment.cluster.authorities.client.client("kube-scheduler", "system:kube-scheduler", &[], None);
    let kubeconfig =
        kubeconfig::write(directory, "kube-scheduler", &endpoint.url(), &endpoint.authority, Some(&scheduler));
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

fn pod(endpoint: &HttpsEndpoint, admin: &Identity, name: &str, scheduler: &str) {
    endpoint.create(
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

fn is_bound(endpoint: &HttpsEndpoint, admin: &Identity, name: &str, node: &str) {
    eventually(&format!("pod {name} bound"), || {
        let pod = endpoint.get(Some(admin), &pod_path(name))?.json();
        if pod["spec"]["nodeName"] == node { Ok(()) } else { Err(pod["status"].to_string()) }
    });
}

fn holder(endpoint: &HttpsEndpoint, admin: &Identity) -> Value {
    endpoint.get(Some(admin), LEASE).unwrap().json()["spec"]["holderIdentity"].clone()
}
