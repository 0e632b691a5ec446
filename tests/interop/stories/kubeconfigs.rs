//! Kubeconfigs as people have them, by `kubectl proxy` and by `narthex proxy`: programs that give credentials, several
//! files, somebody else's name.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use super::TrialWith;
use super::proxy::Door;
use crate::world::{Kubectl, Said, World};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[
    ("proxy: a program of the kubeconfig gives the credentials", program),
    ("proxy: several kubeconfigs are one, and act for somebody else", several),
];

const NAMESPACE: &str =
    "GET /api/v1/namespaces/kube-system HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\r\n";

fn write(path: &Path, document: &Value) {
    std::fs::write(path, document.to_string()).unwrap();
}

/// A kubeconfig of the cluster with this user.
fn kubeconfig(world: &World, user: &Value) -> Value {
    let text = std::fs::read_to_string(&world.cluster.admin_kubeconfig).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    document["users"] = json!([{"name": "user", "user": user}]);
    document
}

fn program(world: &World, kubectl: &Kubectl) {
    let scratch = world.scratch(&format!("proxy-exec-{}", kubectl.version));
    let admin = world.cluster.admin();
    for version in ["v1", "v1beta1"] {
        let version = format!("client.authentication.k8s.io/{version}");
        // It says who asked, and what it was told.
        let said = json!({"kind": "ExecCredential", "apiVersion": version, "status": {
            "clientCertificateData": std::fs::read_to_string(&admin.certificate).unwrap(),
            "clientKeyData": std::fs::read_to_string(&admin.key).unwrap(),
            "expirationTimestamp": "2100-01-01T00:00:00Z",
        }});
        write(&scratch.join("said"), &said);
        let script = "#!/bin/sh\ncd \"${0%/*}\" && printf %s \"$KUBERNETES_EXEC_INFO\" > told && cat said\n";
        std::fs::write(scratch.join("program"), script).unwrap();
        std::fs::set_permissions(scratch.join("program"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let exec = json!({"apiVersion": version, "command": "./program", "interactiveMode": "IfAvailable", "provideClusterInfo": true});
        let mut document = kubeconfig(world, &json!({ "exec": exec }));
        let told = json!([{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a", "more": [1]}}]);
        document["clusters"][0]["cluster"]["extensions"] = told;
        let path = scratch.join("kubeconfig");
        write(&path, &document);
        let ask = |door: &Door| {
            let answer = door.ask(NAMESPACE);
            assert_eq!(answer.status, 200, "{}", answer.body);
            let told = std::fs::read_to_string(scratch.join("told")).unwrap();
            std::fs::remove_file(scratch.join("told")).unwrap();
            let told: Value = serde_json::from_str(&told).unwrap();
            (answer.body, told)
        };
        let theirs = ask(&Door::kubectl(kubectl, &path, &scratch, &[]));
        let ours = ask(&Door::narthex(&path, &scratch, &[]));
        assert_eq!(theirs, ours);
        assert_eq!(ours.1["spec"]["cluster"]["config"]["audience"], "a", "{}", ours.1);
    }
    // What goes wrong is said in the same words, to which ours adds what to do.
    let exec = |more: Value| {
        let mut exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./program", "interactiveMode": "Never"});
        exec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        exec
    };
    for (name, exec, said) in [
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
        write(&path, &kubeconfig(world, &json!({ "exec": exec })));
        let first = |door: &Door| {
            let Said { status, headers, body } = door.ask(NAMESPACE);
            (status, headers, body.lines().next().unwrap_or_default().to_owned())
        };
        let theirs = first(&Door::kubectl(kubectl, &path, &scratch, &[]));
        let ours = first(&Door::narthex(&path, &scratch, &[]));
        assert!(ours.2.contains(said), "{name}: {ours:?}");
        assert_eq!(theirs, ours, "{name}");
    }
}

fn several(world: &World, kubectl: &Kubectl) {
    let scratch = world.scratch(&format!("proxy-several-{}", kubectl.version));
    let admin = world.cluster.admin();
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
    write(&second, &kubeconfig(world, &json!({"token": "nobody's"})));
    let files = format!("{}:{}:{}", scratch.join("gone").display(), first.display(), second.display());
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let ask = |door: &Door| {
        let answer = door.ask(&format!(
            "POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: localhost:PORT\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{review}",
            review.len()
        ));
        assert_eq!(answer.status, 201, "{}", answer.body);
        let said: Value = serde_json::from_str(&answer.body).unwrap();
        said["status"]["userInfo"].clone()
    };
    let theirs = ask(&Door::kubectl_of(kubectl, &files, &scratch));
    let ours = ask(&Door::narthex_of(&files, &scratch));
    assert_eq!(theirs, ours);
    assert_eq!((&ours["username"], &ours["uid"]), (&json!("joe"), &json!("7")));
    assert_eq!(ours["extra"]["example.com/scope"], json!(["one", "two"]), "{ours}");
}
