//! The real sample-apiserver and metrics-server with narthex alone, as their projects document them: a ServiceAccount
//! with a token of `kubectl create token`, bound to `system:auth-delegator` and
//! `extension-apiserver-authentication-reader`, an APIService with a Service, and no flag that turns something off.

use std::path::Path;

use serde_json::json;

use crate::environment::{Extension, Gateway, Kubectl, TestEnvironment, free_port, kubeconfig};
use crate::scenarios::cluster_registry::own_address;
use crate::scenarios::metrics_server;
use crate::scenarios::standalone::KubectlUser;

/// Objects of an extension API server, with names in capitals.
const MANIFESTS: &str = include_str!("../../fixtures/extension-servers.yaml");

pub(super) fn delegate_to_the_embedded_api_server(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("alone-{}", kubectl.version.replace('.', "-"));
    let scratch = environment.scratch(&name);
    let cluster = &environment.cluster;
    let gateway = Gateway::start_embedded_api(cluster, &scratch, &name, &[]);
    let endpoint = &gateway.endpoint;
    let user = |user: &str, identity| KubectlUser {
        kubectl,
        kubeconfig: kubeconfig::write(&scratch, user, &endpoint.url(), &endpoint.authority, identity),
        home: scratch.clone(),
    };
    let admin = user("admin", Some(cluster.admin()));
    // A user that authenticates with a token of the ServiceAccount `namespace/account`.
    let account = |namespace: &str, account: &str| {
        let token = admin.run(&["create", "token", account, "--namespace", namespace]);
        let user = user(account, None);
        user.run(&["config", "set-credentials", "user", &format!("--token={}", token.trim())]);
        user
    };
    let ports = [free_port(), free_port()];
    let manifests = scratch.join("manifests.yaml");
    std::fs::write(&manifests, registrations(&name, &cluster.authorities.backend.file, ports)).unwrap();
    admin.run(&["create", "-f", manifests.to_str().unwrap()]);

    let flags = ["--bind-address=0.0.0.0"];
    let server = account(&name, "apiserver");
    let extension = Extension::start_with(cluster, &server.kubeconfig, &scratch, &name, ports[0], &flags);
    let metrics = account("kube-system", "metrics-server");
    let _metrics_server =
        metrics_server::start_with(cluster, &metrics.kubeconfig, &scratch, "kube-system", ports[1], &[]);
    for version in ["v1alpha1.wardle.example.com", "v1beta1.wardle.example.com", "v1beta1.metrics.k8s.io"] {
        admin.run(&["wait", "--for=condition=Available", &format!("apiservice/{version}"), "--timeout=60s"]);
    }

    let bob = cluster.authorities.client.client(&format!("{name}-bob"), "bob", &["ops"], None);
    let (jane, bob, robot) = (user("jane", Some(cluster.jane())), user("bob", Some(&bob)), account("default", "robot"));
    let flunder = json!({"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": "one", "namespace": "default"}});
    let file = scratch.join("flunder.json");
    std::fs::write(&file, flunder.to_string()).unwrap();
    let file = file.to_str().unwrap();
    assert_forbidden(&bob, &["create", "-f", file], "create");
    assert_eq!(jane.run(&["create", "-f", file]).trim(), "flunder.wardle.example.com/one created");
    let get = ["get", "flunders", "--output=name"];
    for user in [&jane, &robot] {
        assert_eq!(user.run(&get).trim(), "flunder.wardle.example.com/one");
        assert_forbidden(user, &[&get[..], &["--namespace=kube-system"]].concat(), "list");
    }
    assert_forbidden(&robot, &["delete", "flunder", "one"], "delete");
    assert_forbidden(&bob, &get, "list");
    // The server's admission knows the namespaces of narthex.
    let elsewhere = scratch.join("elsewhere.json");
    std::fs::write(&elsewhere, flunder.to_string().replace("default", "nowhere")).unwrap();
    let refused = admin.try_run(&["create", "-f", elsewhere.to_str().unwrap()]);
    assert!(refused.contains(r#"namespaces "nowhere" not found"#), "{refused}");

    assert_delegated(&extension, &admin.run(&["create", "token", "robot"]));
    assert_reviewed(&server, &scratch);

    assert_forbidden(&bob, &["get", "nodes.metrics.k8s.io"], "list");
    assert_eq!(robot.try_run(&["get", "nodes.metrics.k8s.io"]).trim(), "No resources found");

    // Both servers asked narthex, as their ServiceAccounts.
    let log = gateway.process.log();
    let answered = |account: &str, path: &str, status: u16| {
        let (account, path) = (format!("system:serviceaccount:{account}\""), format!("path=\"{path}"));
        let status = format!(" status={status} ");
        log.lines().any(|line| line.contains(&account) && line.contains(&path) && line.contains(&status))
    };
    let wardle = format!("{name}:apiserver");
    for account in [&*wardle, "kube-system:metrics-server"] {
        let configuration = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
        assert!(answered(account, configuration, 200), "{account} read no ConfigMap");
        assert!(answered(account, "/apis/authorization.k8s.io/v1/subjectaccessreviews", 201), "{account}");
    }
    assert!(answered(&wardle, "/apis/authentication.k8s.io/v1/tokenreviews", 201));
    let errors = extension.process.log();
    let informers = errors.lines().filter(|line| line.contains("Failed to watch") || line.contains("failed to list"));
    assert_eq!(informers.collect::<Vec<_>>(), [""; 0], "each informer of admission is filled");
}

fn assert_forbidden(user: &KubectlUser<'_>, args: &[&str], verb: &str) {
    let refused = user.try_run(args);
    assert!(
        refused.contains("Forbidden") && refused.contains(&format!("cannot {verb} resource")),
        "{args:?}: {refused}"
    );
}

/// Asserts what sample-apiserver answers to direct requests with the token of the ServiceAccount `robot`.
fn assert_delegated(extension: &Extension, token: &str) {
    let direct = |namespace: &str, token: &str| {
        let path = format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders");
        let bearer = format!("Bearer {token}");
        extension.endpoint.send(None, "GET", &path, &[("authorization", &bearer)], b"").unwrap().status.as_u16()
    };
    let token = token.trim();
    assert_eq!([direct("default", token), direct("kube-public", token), direct("default", "invalid")], [200, 403, 401]);
}

/// The server may create SubjectAccessReviews, which `system:auth-delegator` allows, and no LocalSubjectAccessReviews
/// but in the namespace where a RoleBinding allows it.
fn assert_reviewed(server: &KubectlUser<'_>, scratch: &Path) {
    let review = |kind: &str, namespace: &str, account: &str| {
        let mut document = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "metadata": {}, "spec": {
            "user": format!("system:serviceaccount:default:{account}"),
            "resourceAttributes":
                {"namespace": namespace, "verb": "list", "group": "wardle.example.com", "resource": "flunders"}}});
        if kind.starts_with("Local") {
            document["metadata"]["namespace"] = namespace.into();
        }
        let file = scratch.join("review.json");
        std::fs::write(&file, document.to_string()).unwrap();
        server.try_run(&["create", "-f", file.to_str().unwrap(), "--output=jsonpath={.status.allowed}"])
    };
    for kind in ["SubjectAccessReview", "LocalSubjectAccessReview"] {
        assert_eq!([review(kind, "default", "robot"), review(kind, "default", "default")], ["true", "false"], "{kind}");
    }
    assert_eq!(review("SubjectAccessReview", "kube-public", "robot"), "false");
    let refused = review("LocalSubjectAccessReview", "kube-public", "robot");
    assert!(refused.contains("Forbidden"), "{refused}");
}

/// The manifests, with the address of the servers on this machine.
fn registrations(name: &str, authority: &Path, ports: [u16; 2]) -> String {
    use base64::Engine as _;
    let authority = base64::engine::general_purpose::STANDARD.encode(std::fs::read(authority).unwrap());
    let [wardle, metrics] = ports.map(|port| port.to_string());
    let text = MANIFESTS.replace("NAME", name).replace("CA_BUNDLE", &authority).replace("ADDRESS", &own_address());
    text.replace("WARDLE_PORT", &wardle).replace("METRICS_PORT", &metrics)
}
