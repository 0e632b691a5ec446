//! `kubectl proxy` and `narthex proxy` with exec credential plugins, several kubeconfig files and impersonation.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use super::KubectlTestFn;
use super::proxy::LocalProxy;
use crate::environment::{Kubectl, RawResponse, TestEnvironment};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("proxy: exec credential plugin", program),
    ("proxy: several kubeconfigs merged, with impersonation", merged_kubeconfigs),
];

const NAMESPACE: &str =
    "GET /api/v1/namespaces/kube-system HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\r\n";

fn write(path: &Path, document: &Value) {
    std::fs::write(path, document.to_string()).unwrap();
}

/// A kubeconfig of the cluster with this user.
fn kubeconfig(environment: &TestEnvironment, user: &Value) -> Value {
    let text = std::fs::read_to_string(&environment.cluster.admin_kubeconfig).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    document["users"] = json!([{"name": "user", "user": user}]);
    document
}

fn program(environment: &TestEnvironment, kubectl: &Kubectl) {
    let scratch = environment.scratch(&format!("proxy-exec-{}", kubectl.version));
    let admin = environment.cluster.admin();
    for version in ["v1", "v1beta1"] {
        let version = format!("client.authentication.k8s.io/{version}");
        // The plugin records its caller and its input.
        let output = json!({"kind": "ExecCredential", "apiVersion": version, "status": {
            "clientCertificateData": std::fs::read_to_string(&admin.certificate).unwrap(),
            "clientKeyData": std::fs::read_to_string(&admin.key).unwrap(),
            "expirationTimestamp": "2100-01-01T00:00:00Z",
        }});
        write(&scratch.join("said"), &output);
        let script = "#!/bin/sh\ncd \"${0%/*}\" && printf %s \"$KUBERNETES_EXEC_INFO\" > told && cat said\n";
        std::fs::write(scratch.join("program"), script).unwrap();
        std::fs::set_permissions(scratch.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let exec = json!({"apiVersion": version, "command": "./program", "interactiveMode": "IfAvailable", "provideClusterInfo": true});
        let mut document = kubeconfig(environment, &json!({ "exec": exec }));
        let told = json!([{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a", "more": [1]}}]);
        document["clusters"][0]["cluster"]["extensions"] = told;
        let path = scratch.join("kubeconfig");
        write(&path, &document);
        let ask = |proxy: &LocalProxy| {
            let response = proxy.ask(NAMESPACE);
            assert_eq!(response.status, 200, "{}", response.body);
            let told = std::fs::read_to_string(scratch.join("told")).unwrap();
            std::fs::remove_file(scratch.join("told")).unwrap();
            let told: Value = serde_json::from_str(&told).unwrap();
            (response.body, told)
        };
        let upstream = ask(&LocalProxy::kubectl(kubectl, &path, &scratch, &[]));
        let narthex = ask(&LocalProxy::narthex(&path, &scratch, &[]));
        assert_eq!(upstream, narthex);
        assert_eq!(narthex.1["spec"]["cluster"]["config"]["audience"], "a", "{}", narthex.1);
    }
    // Plugin errors have the same text; narthex appends what to do.
    let exec = |more: Value| {
        let mut exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./program", "interactiveMode": "Never"});
        exec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        exec
    };
    for (name, exec, output) in [
        ("fails", exec(json!({"command": "sh", "args": ["-c", "exit 7"]})), "failed with exit code 7"),
        ("missing", exec(json!({"command": "no-such-program", "installHint": "get it"})), "no-such-program not found"),
        (
            "other-version",
            exec(json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./program"})),
            "returned version",
        ),
        (
            "empty",
            exec(
                json!({"command": "sh", "args": ["-c", "echo '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{}}'"]}),
            ),
            "didn't return a token or cert/key pair",
        ),
        (
            "half",
            exec(
                json!({"command": "sh", "args": ["-c", "echo '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"clientKeyData\":\"x\"}}'"]}),
            ),
            "only certificate or key, not both",
        ),
    ] {
        let path = scratch.join(name);
        write(&path, &kubeconfig(environment, &json!({ "exec": exec })));
        let first = |proxy: &LocalProxy| {
            let RawResponse { status, headers, body } = proxy.ask(NAMESPACE);
            (status, headers, body.lines().next().unwrap_or_default().to_owned())
        };
        let upstream = first(&LocalProxy::kubectl(kubectl, &path, &scratch, &[]));
        let narthex = first(&LocalProxy::narthex(&path, &scratch, &[]));
        assert!(narthex.2.contains(output), "{name}: {narthex:?}");
        assert_eq!(upstream, narthex, "{name}");
    }
}

fn merged_kubeconfigs(environment: &TestEnvironment, kubectl: &Kubectl) {
    let scratch = environment.scratch(&format!("proxy-several-{}", kubectl.version));
    let admin = environment.cluster.admin();
    std::fs::create_dir_all(scratch.join("below")).unwrap();
    for (from, to) in [(&admin.certificate, "me.crt"), (&admin.key, "me.key")] {
        std::fs::copy(from, scratch.join("below").join(to)).unwrap();
    }
    let user = json!({
        "client-certificate": "me.crt", "client-key": "me.key", "as": "joe", "as-uid": "7", "as-groups": ["dev", "system:masters"],
        "as-user-extra": {"example.com/scope": ["one", "two"]},
    });
    let (first, second) = (scratch.join("below/first"), scratch.join("second"));
    write(&first, &json!({"users": [{"name": "user", "user": user}]}));
    write(&second, &kubeconfig(environment, &json!({"token": "unused"})));
    let files = format!("{}:{}:{}", scratch.join("gone").display(), first.display(), second.display());
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let ask = |proxy: &LocalProxy| {
        let response = proxy.ask(&format!(
            "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{review}",
            review.len()
        ));
        assert_eq!(response.status, 201, "{}", response.body);
        let output: Value = serde_json::from_str(&response.body).unwrap();
        output["status"]["userInfo"].clone()
    };
    let upstream = ask(&LocalProxy::kubectl_of(kubectl, &files, &scratch));
    let narthex = ask(&LocalProxy::narthex_of(&files, &scratch));
    assert_eq!(upstream, narthex);
    assert_eq!((&narthex["username"], &narthex["uid"]), (&json!("joe"), &json!("7")));
    assert_eq!(narthex["extra"]["example.com/scope"], json!(["one", "two"]), "{narthex}");
}
