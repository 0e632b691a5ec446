//! kube-controller-manager, kube-scheduler and kwok beside the embedded API server: workloads become Pods that run on a
//! node that does not exist, and a drain asks the PodDisruptionBudget.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::environment::{Gateway, Process, TestEnvironment, eventually, free_port, kubeconfig, peer};

const WORKLOADS: [(&str, &str); 3] = [
    ("/apis/apps/v1/namespaces/default/deployments", "web"),
    ("/apis/apps/v1/namespaces/default/statefulsets", "db"),
    ("/apis/apps/v1/namespaces/default/daemonsets", "agent"),
];

pub(super) fn workloads_run_and_are_drained(environment: &TestEnvironment) {
    let directory = environment.scratch("cluster-without-machines");
    let admin = environment.cluster.admin();
    let flags = [("--controllers", "-namespace-controller")];
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &flags);
    let endpoint = &embedded.endpoint;
    let config = kubeconfig::write(&directory, "components", &endpoint.url(), &endpoint.authority, Some(admin));
    let _components = start_components(environment, &directory, &config);
    let node = json!({
        "metadata": {"name": "kwok-0", "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": "kwok-0"}},
        "status": {"capacity": {"cpu": "8", "memory": "16Gi", "pods": "50"},
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "50"}},
    });
    endpoint.create(admin, "/api/v1/nodes", &node);
    for (list, name) in WORKLOADS {
        endpoint.create(admin, list, &workload(name));
    }
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    endpoint.create(
        admin,
        "/apis/batch/v1/namespaces/default/jobs",
        &json!({"metadata": {"name": "once"}, "spec": {"template": template}}),
    );
    let scaler = json!({"metadata": {"name": "web"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    endpoint.create(admin, "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", &scaler);
    let budget =
        json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}});
    endpoint.create(admin, "/apis/policy/v1/namespaces/default/poddisruptionbudgets", &budget);
    let get = |path: &str| endpoint.get(Some(admin), path).map(|response| response.json());
    eventually("workloads run", || {
        let deployment = get(&format!("{}/web", WORKLOADS[0].0))?;
        let sets = get(&format!("{}/db", WORKLOADS[1].0))?;
        let daemons = get(&format!("{}/agent", WORKLOADS[2].0))?;
        let job = get("/apis/batch/v1/namespaces/default/jobs/once")?;
        let counts = [
            &deployment["status"]["availableReplicas"],
            &sets["status"]["readyReplicas"],
            &daemons["status"]["numberReady"],
            &job["status"]["succeeded"],
        ];
        let all = counts.map(|count| count.as_i64().unwrap_or_default());
        if all == [2, 2, 1, 1] { Ok(()) } else { Err(format!("{all:?}")) }
    });
    eventually("the budget's status", || {
        let budget = get("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web")?;
        let is_kept = budget["status"]["currentHealthy"] == 2 && budget["status"]["observedGeneration"] == 1;
        if is_kept { Ok(()) } else { Err(budget["status"].to_string()) }
    });
    let kubectl = |arguments: &[&str]| run_kubectl(&config, &directory, arguments);
    let drain = ["drain", "kwok-0", "--force", "--ignore-daemonsets", "--timeout=8s"];
    let refused = kubectl(&drain);
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(errors.contains("Cannot evict pod as it would violate the pod's disruption budget."), "{errors}");
    assert_eq!(running(&get("/api/v1/namespaces/default/pods?labelSelector=app%3Dweb").unwrap()), 2);
    // Without the budget they go, and nothing schedules their successors on a cordoned node.
    assert!(kubectl(&["delete", "poddisruptionbudget", "web"]).status.success());
    let drained = kubectl(&["drain", "kwok-0", "--force", "--ignore-daemonsets", "--timeout=60s"]);
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    eventually("successors wait for a node", || {
        let pods = get("/api/v1/namespaces/default/pods?labelSelector=app%3Dweb")?;
        let waits = pods["items"].as_array().is_some_and(|all| all.len() == 2) && running(&pods) == 0;
        if waits { Ok(()) } else { Err(pods.to_string()) }
    });
    assert!(kubectl(&["delete", "deployment", "web", "--cascade=foreground", "--timeout=60s"]).status.success());
    assert_eq!(get("/api/v1/namespaces/default/pods?labelSelector=app%3Dweb").unwrap()["items"], json!([]));
}

fn start_components(environment: &TestEnvironment, directory: &Path, config: &Path) -> [Process; 3] {
    let config = format!("--kubeconfig={}", config.display());
    let start = |name: &str, more: &[String]| {
        Process::start(name, &peer(name), [std::slice::from_ref(&config), more].concat(), directory)
    };
    let authorities = &environment.cluster.authorities;
    let elects = ["--leader-elect=false".to_owned(), "--secure-port=0".to_owned()];
    let key = format!("--service-account-private-key-file={}", authorities.service_account.0.display());
    let root = format!("--root-ca-file={}", authorities.serving.file.display());
    let port = free_port();
    let kwok = [
        "--manage-all-nodes=true".to_owned(),
        "--cidr=10.9.0.1/24".to_owned(),
        "--node-ip=127.0.0.1".to_owned(),
        format!("--node-port={port}"),
        format!("--server-address=127.0.0.1:{port}"),
    ];
    [
        start("kube-controller-manager", &[&elects[..], &[key, root]].concat()),
        start("kube-scheduler", &elects),
        start("kwok", &kwok),
    ]
}

fn workload(name: &str) -> Value {
    let labels = json!({"app": name});
    let mut spec = json!({
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    });
    if name != "agent" {
        spec["replicas"] = json!(2);
    }
    if name == "db" {
        spec["serviceName"] = json!("db");
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

/// Number of Pods of a list that run.
fn running(pods: &Value) -> usize {
    let items = pods["items"].as_array().into_iter().flatten();
    items.filter(|pod| pod["status"]["phase"] == "Running").count()
}

fn run_kubectl(config: &Path, directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(peer("kubectl"));
    command.args(arguments).env("HOME", directory).env("KUBECONFIG", config).output().unwrap()
}
