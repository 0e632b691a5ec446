//! The chart without values as a release in a cluster: Deployment, pods, Service and disruption budget, with the real
//! kube-apiserver, kube-controller-manager and kube-scheduler, and nodes of kwok.
//!
//! Proved: kube-apiserver admits each object and each pod with its ServiceAccount, the pods are scheduled and count as
//! available, Helm waits for them, and an upgrade, a rollback and the removal end.
//! Not proved, because kwok runs no containers: the image, the probes, the mounted files. A gateway with the
//! configuration, the Secrets and the token of a release is in `install.rs`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::TestFn;
use crate::environment::{Cluster, Process, TestEnvironment, eventually, free_port, kubectl_run, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("install: release of the chart on nodes of kwok, upgraded, rolled back and removed", release_lives_and_ends)];

const NAMESPACE: &str = "narthex-system";
const RELEASE: &str = "gateway";
/// Name of the objects of the release.
const NAME: &str = "gateway-narthex";
const NODES: [&str; 2] = ["kwok-a", "kwok-b"];

/// A cluster whose Deployments become pods, and whose pods become ready.
struct NodeCluster {
    cluster: Cluster,
    directory: PathBuf,
    _components: [Process; 3],
}

impl NodeCluster {
    fn start(directory: PathBuf) -> NodeCluster {
        // ServiceAccounts exist here, so their admission is on.
        let cluster = Cluster::start_with(&directory, &["--disable-admission-plugins=".to_owned()]);
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let kubeconfig = file("kubeconfig", &cluster.admin_kubeconfig);
        let start = |name: &str, more: &[String]| {
            Process::start(name, &peer(name), [std::slice::from_ref(&kubeconfig), more].concat(), &directory)
        };
        let manager = [
            file("service-account-private-key-file", &cluster.authorities.service_account.0),
            file("root-ca-file", &cluster.authorities.serving.file),
            "--use-service-account-credentials=false".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        let port = free_port();
        let kwok = [
            "--manage-all-nodes=true".to_owned(),
            "--cidr=10.9.0.1/24".to_owned(),
            "--node-ip=127.0.0.1".to_owned(),
            format!("--node-port={port}"),
            format!("--server-address=127.0.0.1:{port}"),
        ];
        let components = [
            start("kube-controller-manager", &manager),
            start("kube-scheduler", &["--leader-elect=false".to_owned(), "--secure-port=0".to_owned()]),
            start("kwok", &kwok),
        ];
        let cluster = NodeCluster { cluster, directory, _components: components };
        NODES.iter().for_each(|name| cluster.create_node(name));
        // A new node is tainted until kube-controller-manager finds it ready.
        eventually("nodes for pods", || {
            let nodes = cluster.json(&["get", "nodes"]);
            let all = nodes["items"].as_array().unwrap();
            let are_free = all.iter().all(|node| node["spec"]["taints"].is_null());
            if are_free && all.len() == NODES.len() { Ok(()) } else { Err(nodes.to_string()) }
        });
        cluster
    }

    fn create_node(&self, name: &str) {
        let capacity = json!({"cpu": "8", "memory": "16Gi", "pods": "50"});
        self.cluster.endpoint.create(
            self.cluster.admin(),
            "/api/v1/nodes",
            &json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {
                    "name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                    "labels": {
                        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": name,
                    },
                },
                "status": {"capacity": capacity, "allocatable": capacity},
            }),
        );
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(peer(program));
        command.args(arguments).env("HOME", &self.directory).env("KUBECONFIG", &self.cluster.admin_kubeconfig);
        let output = kubectl_run(command, "");
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program} {arguments:?}: {errors}{text}");
        text.into_owned()
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.run("kubectl", arguments)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.kubectl(&[arguments, &["--output=json"]].concat())).unwrap()
    }

    /// Helm in the namespace of the release.
    fn helm(&self, arguments: &[&str]) -> String {
        self.run("helm", &[arguments, &["--namespace", NAMESPACE]].concat())
    }

    /// Status of the release, and its revision.
    fn status(&self) -> (String, u64) {
        let status: Value = serde_json::from_str(&self.helm(&["status", RELEASE, "--output=json"])).unwrap();
        (
            status["info"]["status"].as_str().unwrap_or_default().to_owned(),
            status["version"].as_u64().unwrap_or_default(),
        )
    }

    /// Names of all objects of the cluster but events, and Leases of nodes and API servers, which come and go.
    fn objects(&self) -> BTreeSet<String> {
        let list = |namespaced: &str| self.kubectl(&["api-resources", "--verbs=list", namespaced, "--output=name"]);
        let mut objects = BTreeSet::new();
        for namespaced in ["--namespaced=true", "--namespaced=false"] {
            let kinds = list(namespaced);
            let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
            let columns = "--output=custom-columns=:.kind,:.metadata.namespace,:.metadata.name";
            let text = self.kubectl(&["get", &kinds.join(","), "--all-namespaces", "--no-headers", columns]);
            objects.extend(text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        objects.retain(|object| !object.starts_with("Lease ") && !object.is_empty());
        objects
    }

    /// The pods of the release, by phase and node, without those that end.
    fn pods(&self) -> Vec<(String, String)> {
        let list = self.json(&["get", "pods", "--namespace", NAMESPACE]);
        let pods = list["items"].as_array().unwrap().iter();
        let pods = pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        pods.map(|pod| (text(&pod["status"]["phase"]), text(&pod["spec"]["nodeName"]))).collect()
    }

    /// Waits until so many pods run, and no other is left, and the Service leads to them.
    fn wait_for_pods(&self, count: usize) {
        eventually("the pods of the release", || {
            let pods = self.pods();
            let are_running = pods.iter().all(|(phase, node)| phase == "Running" && NODES.contains(&node.as_str()));
            if are_running && pods.len() == count { Ok(()) } else { Err(format!("{pods:?}")) }
        });
        let selector = format!("--selector=kubernetes.io/service-name={NAME}");
        eventually("the endpoints of the Service", || {
            let slices = self.json(&["get", "endpointslices", "--namespace", NAMESPACE, &selector]);
            let endpoints = slices["items"].as_array().into_iter().flatten();
            let endpoints: Vec<&Value> =
                endpoints.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten()).collect();
            let ready = endpoints.iter().filter(|endpoint| endpoint["conditions"]["ready"] == true).count();
            if ready == count && endpoints.len() == count { Ok(()) } else { Err(slices.to_string()) }
        });
    }

    fn deployment(&self) -> Value {
        self.json(&["get", "deployment", NAME, "--namespace", NAMESPACE])
    }
}

fn release_lives_and_ends(environment: &TestEnvironment) {
    let cluster = NodeCluster::start(environment.scratch("helm-release"));
    cluster.kubectl(&["create", "namespace", NAMESPACE]);
    let account = ["get", "serviceaccount", "default", "--namespace", NAMESPACE, "--ignore-not-found", "--output=name"];
    let root_ca =
        ["get", "configmap", "kube-root-ca.crt", "--namespace", NAMESPACE, "--ignore-not-found", "--output=name"];
    eventually("the objects of each namespace", || {
        let found = cluster.kubectl(&account) + &cluster.kubectl(&root_ca);
        if found.lines().count() == 2 { Ok(()) } else { Err(found) }
    });
    let before = cluster.objects();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/helm/narthex");
    let chart = chart.to_str().unwrap();

    // Without any value. Helm ends when all objects are ready.
    cluster.helm(&["install", RELEASE, chart, "--wait", "--timeout=80s"]);
    assert_eq!(cluster.status(), ("deployed".to_owned(), 1));
    cluster.wait_for_pods(2);
    let nodes: BTreeSet<String> = cluster.pods().into_iter().map(|(_, node)| node).collect();
    assert_eq!(nodes.len(), 2, "the pods are spread over the nodes");
    let pods = cluster.json(&["get", "pods", "--namespace", NAMESPACE]).to_string();
    assert!(pods.contains("kube-api-access-"), "admission mounts the token of the ServiceAccount: {pods}");
    let deployment = cluster.deployment();
    assert_eq!(deployment["status"]["availableReplicas"], 2, "{deployment}");
    let budget = cluster.json(&["get", "poddisruptionbudget", NAME, "--namespace", NAMESPACE]);
    assert_eq!((&budget["status"]["currentHealthy"], &budget["status"]["disruptionsAllowed"]), (&json!(2), &json!(1)));
    let kinds: BTreeSet<String> =
        cluster.objects().difference(&before).map(|object| object.split(' ').next().unwrap().to_owned()).collect();
    for kind in ["ConfigMap", "Deployment", "Pod", "Secret", "Service", "ServiceAccount", "ClusterRoleBinding"] {
        assert!(kinds.contains(kind), "{kind} is missing in {kinds:?}");
    }

    // Other values: more pods, and another configuration, so that each pod is replaced.
    let checksum =
        |deployment: &Value| deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone();
    let values = ["--set", "replicaCount=3,config.requestTimeout=30s,podDisruptionBudget.enabled=false"];
    cluster.helm(&[&["upgrade", RELEASE, chart, "--wait", "--timeout=80s"], &values[..]].concat());
    assert_eq!(cluster.status(), ("deployed".to_owned(), 2));
    cluster.wait_for_pods(3);
    let upgraded = cluster.deployment();
    assert_ne!(checksum(&upgraded), checksum(&deployment));
    let budgets = cluster.json(&["get", "poddisruptionbudgets", "--namespace", NAMESPACE]);
    assert_eq!(budgets["items"], json!([]), "what the values no longer ask for is removed");

    cluster.helm(&["rollback", RELEASE, "1", "--wait", "--timeout=80s"]);
    assert_eq!(cluster.status(), ("deployed".to_owned(), 3));
    cluster.wait_for_pods(2);
    assert_eq!(checksum(&cluster.deployment()), checksum(&deployment));

    cluster.helm(&["uninstall", RELEASE, "--wait", "--timeout=80s"]);
    eventually("everything of the release to be gone", || {
        let now = cluster.objects();
        let (left, gone): (Vec<_>, Vec<_>) = (now.difference(&before).collect(), before.difference(&now).collect());
        if left.is_empty() && gone.is_empty() { Ok(()) } else { Err(format!("left: {left:?}, gone: {gone:?}")) }
    });
    assert_eq!(cluster.helm(&["list", "--short"]).trim(), "");
}
