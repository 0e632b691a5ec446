//! Access and ownership: decisions of RBAC, service account tokens, collection of dependents, deletion of a namespace.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use crate::client::{ApiClient, ObjectRequest, send_all};
use crate::fixtures::{BenchEnvironment, ChildProcess, Proxy, interop_peer};
use crate::kube_apiserver;
use crate::operations::per_thousand;
use crate::{ApiServerKind, Options, Results, cpu, memory};

const JSON: &str = "application/json";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/bench/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/bench/rolebindings";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const ACCOUNTS: &str = "/api/v1/namespaces/bench/serviceaccounts";
const CONFIG_MAPS: &str = "/api/v1/namespaces/bench/configmaps";

/// The controllers that both have.
const CONTROLLERS: &str = "garbage-collector-controller,namespace-controller";
/// Objects created at once.
const AT_ONCE: u64 = 32;
/// Numbers of roles with which decisions are measured.
const ROLE_COUNTS: [u64; 2] = [10, 5_000];
/// How long what is deleted may take.
const DELETION_TIMEOUT: Duration = Duration::from_secs(1_800);

/// One round of one server with RBAC and controllers.
pub(crate) async fn measure(
    environment: &BenchEnvironment,
    kind: ApiServerKind,
    options: &Options,
    results: &mut Results,
) {
    let server = match kind {
        ApiServerKind::Narthex => environment.start_embedded_api_with(false, "RBAC"),
        ApiServerKind::KubeApiserver => start_with_controllers(environment),
    };
    tokio::time::sleep(Duration::from_secs(10)).await;
    results.add(kind, "memory at rest with controllers", "MiB", memory(&server) / 1024.0);
    let (directory, port) = (environment.directory(), server.port);
    let admin = ApiClient::connect(directory, port, &environment.admin_token).await;
    let run = Run { kind, server: &server, admin: &admin, options };
    run.measure_tokens(environment, results).await;
    run.measure_decisions(results).await;
    run.measure_collection(results).await;
    run.measure_namespace(results).await;
}

/// kube-apiserver with RBAC and etcd, and kube-controller-manager with [`CONTROLLERS`] beside them.
fn start_with_controllers(environment: &BenchEnvironment) -> Proxy {
    let proxy = kube_apiserver::start_control_plane_with(environment, "RBAC");
    environment.write_kubeconfig("controllers", proxy.port, &environment.admin_token);
    let kubeconfig = environment.directory().join("controllers.kubeconfig");
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(interop_peer("kube-controller-manager").expect("kube-controller-manager is built"));
    command.args([
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--controllers={CONTROLLERS}"),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        // Its limit of requests a second would be what is measured.
        "--kube-api-qps=100000".to_owned(),
        "--kube-api-burst=100000".to_owned(),
    ]);
    let log = std::fs::File::create(environment.directory().join("controllers.log")).expect("a log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    proxy.beside(ChildProcess::spawn(&mut command))
}

struct Run<'a> {
    kind: ApiServerKind,
    server: &'a Proxy,
    admin: &'a ApiClient,
    options: &'a Options,
}

impl Run<'_> {
    async fn create(&self, path: &str, object: &Value) -> Value {
        let request = ObjectRequest::new(Method::POST, path).body(JSON, object.to_string());
        serde_json::from_slice(&self.admin.clone().send(&request).await).expect("an object")
    }

    /// Requests with one token, with as many tokens as requests, and with a token of a file.
    async fn measure_tokens(&self, environment: &BenchEnvironment, results: &mut Results) {
        let count = self.options.objects;
        self.create(ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
        self.create(CONFIG_MAPS, &json!({"metadata": {"name": "read"}})).await;
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
        self.create(ROLES, &json!({"metadata": {"name": "read"}, "rules": rules})).await;
        let subjects = json!([{"kind": "ServiceAccount", "name": "robot", "namespace": "bench"}]);
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "read"});
        self.create(BINDINGS, &json!({"metadata": {"name": "read"}, "subjects": subjects, "roleRef": role})).await;
        let before = cpu(self.server);
        let mut tokens = Vec::new();
        for _ in 0..count {
            let issued = self.create(&format!("{ACCOUNTS}/robot/token"), &json!({"spec": {}})).await;
            tokens.push(issued["status"]["token"].as_str().expect("a token").to_owned());
        }
        let each = (cpu(self.server) - before) * 1000.0 / count as f64;
        results.add(self.kind, "token: issue, CPU per 1,000", "ms", each);
        let path = format!("{CONFIG_MAPS}/read");
        let get = move |_| ObjectRequest::new(Method::GET, path.clone());
        per_thousand(self.admin, self.kind, self.server, "get with a token of a file", count, get.clone(), results)
            .await;
        let robot = ApiClient::connect(environment.directory(), self.server.port, &tokens[0]).await;
        robot.clone().send(&get(0)).await;
        per_thousand(&robot, self.kind, self.server, "get with one token", count, get.clone(), results).await;
        let before = cpu(self.server);
        for token in &tokens[1..] {
            robot.with_token(token).send(&get(0)).await;
        }
        let each = (cpu(self.server) - before) * 1000.0 / (count - 1) as f64;
        results.add(self.kind, "get with a token that is new, CPU per 1,000", "ms", each);
    }

    /// Reviews of users who have one binding each.
    async fn measure_decisions(&self, results: &mut Results) {
        let mut made = 0;
        for count in ROLE_COUNTS {
            let first = made;
            let role = move |number: u64| {
                let name = format!("role-{}", first + number);
                let rules = json!([{"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": [name], "verbs": ["get"]}]);
                ObjectRequest::new(Method::POST, ROLES)
                    .body(JSON, json!({"metadata": {"name": name}, "rules": rules}).to_string())
            };
            send_all(self.admin, count - made, AT_ONCE, role).await;
            let binding = move |number: u64| {
                let name = format!("role-{}", first + number);
                let user = format!("user-{}", first + number);
                let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]);
                let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
                let binding = json!({"metadata": {"name": name}, "subjects": subjects, "roleRef": role});
                ObjectRequest::new(Method::POST, BINDINGS).body(JSON, binding.to_string())
            };
            send_all(self.admin, count - made, AT_ONCE, binding).await;
            made = count;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let review = move |number: u64| {
                let number = number * 7919 % count;
                let attributes = json!({"namespace": "bench", "verb": "get", "group": "apps", "resource": "deployments",
                    "name": format!("role-{number}")});
                let review = json!({"spec": {"user": format!("user-{number}"), "resourceAttributes": attributes}});
                ObjectRequest::new(Method::POST, REVIEWS).body(JSON, review.to_string())
            };
            let answer: Value = serde_json::from_slice(&self.admin.clone().send(&review(1)).await).expect("a review");
            assert_eq!(answer["status"]["allowed"], true, "{answer}");
            let name = format!("review with {count} roles");
            per_thousand(self.admin, self.kind, self.server, &name, self.options.objects, review, results).await;
        }
    }

    /// An owner of [`Options::many`] dependents is deleted.
    async fn measure_collection(&self, results: &mut Results) {
        let count = self.options.many;
        for policy in ["Background", "Foreground"] {
            let owner = self.create(CONFIG_MAPS, &json!({"metadata": {"name": "owner"}})).await;
            let uid = owner["metadata"]["uid"].as_str().expect("a uid").to_owned();
            let dependent = move |number: u64| {
                let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid,
                    "blockOwnerDeletion": true}]);
                let metadata = json!({"name": format!("dependent-{number}"), "labels": {"of": "owner"}, "ownerReferences": owners});
                ObjectRequest::new(Method::POST, CONFIG_MAPS).body(JSON, json!({"metadata": metadata}).to_string())
            };
            send_all(self.admin, count, AT_ONCE, dependent).await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            let name = format!("collection of {count} dependents, {policy}");
            results.add(self.kind, &format!("{name}: memory before"), "MiB", memory(self.server) / 1024.0);
            let delete = ObjectRequest::new(Method::DELETE, format!("{CONFIG_MAPS}/owner"))
                .body(JSON, json!({"propagationPolicy": policy}).to_string());
            let probe = ObjectRequest::new(Method::GET, format!("{CONFIG_MAPS}?labelSelector=of%3Downer&limit=1"));
            self.delete_until_empty(&name, &delete, &probe, results).await;
            results.add(self.kind, &format!("{name}: memory after"), "MiB", memory(self.server) / 1024.0);
        }
    }

    /// A namespace with [`Options::many`] objects is deleted.
    async fn measure_namespace(&self, results: &mut Results) {
        let count = self.options.many;
        self.create("/api/v1/namespaces", &json!({"metadata": {"name": "full"}})).await;
        let create = |number: u64| {
            let object = json!({"metadata": {"name": format!("object-{number}")}});
            ObjectRequest::new(Method::POST, "/api/v1/namespaces/full/configmaps").body(JSON, object.to_string())
        };
        send_all(self.admin, count, AT_ONCE, create).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let delete = ObjectRequest::new(Method::DELETE, "/api/v1/namespaces/full");
        let probe = ObjectRequest::new(Method::GET, "/api/v1/namespaces?fieldSelector=metadata.name%3Dfull");
        let name = format!("deletion of a namespace of {count}");
        self.delete_until_empty(&name, &delete, &probe, results).await;
    }

    /// Time and CPU from a deletion until a list is empty.
    async fn delete_until_empty(
        &self,
        name: &str,
        delete: &ObjectRequest,
        probe: &ObjectRequest,
        results: &mut Results,
    ) {
        let (before, began) = (cpu(self.server), Instant::now());
        let mut admin = self.admin.clone();
        admin.send(delete).await;
        loop {
            let list: Value = serde_json::from_slice(&admin.send(probe).await).expect("a list");
            if list["items"].as_array().is_some_and(Vec::is_empty) {
                break;
            }
            assert!(began.elapsed() < DELETION_TIMEOUT, "{name}: not at an end");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        results.add(self.kind, &format!("{name}: time"), "ms", began.elapsed().as_secs_f64() * 1000.0);
        results.add(self.kind, &format!("{name}: CPU"), "ms", cpu(self.server) - before);
    }
}
