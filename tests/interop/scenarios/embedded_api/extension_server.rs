//! The real sample-apiserver and narthex alone: APIServices are stored by the embedded API server, and the server
//! delegates authentication and authorization to it.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;

use crate::environment::{Extension, Gateway, Kubectl, TestEnvironment, eventually, free_port, kubeconfig};
use crate::scenarios::cluster_registry::own_address;
use crate::scenarios::serve_delegation::{RULES, WITHOUT_A_CLUSTER};
use crate::scenarios::standalone::KubectlUser;

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";

pub(super) fn serves_behind_stored_api_services(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("stored-{}", kubectl.version.replace('.', "-"));
    let scratch = environment.scratch(&name);
    let (policy, tokens) = (scratch.join("policy.yaml"), scratch.join("tokens.csv"));
    let backend_rights = include_str!("../../../../deploy/standalone/backend.yaml");
    std::fs::write(&policy, format!("{backend_rights}{RULES}")).unwrap();
    std::fs::write(&tokens, "token-of-tina,tina,7,devs\ntoken-of-olga,olga,8,ops\n").unwrap();
    let flags = [
        ("--authorization-policy-file", policy.to_str().unwrap()),
        ("--token-auth-file", tokens.to_str().unwrap()),
        ("--serve-delegation", "true"),
        ("--allow-url-backends", "true"),
    ];
    let cluster = &environment.cluster;
    let mut gateway = Gateway::start_embedded_api(cluster, &scratch, &name, &flags);
    let (url, authority) = (gateway.endpoint.url(), gateway.endpoint.authority.clone());
    let write_kubeconfig =
        |file: &str, identity| kubeconfig::write(&scratch, &format!("{name}-{file}"), &url, &authority, identity);
    let server = cluster.authorities.client.client(&format!("{name}-server"), "wardle", &[], None);
    let server_kubeconfig = write_kubeconfig("server", Some(&server));
    let more = [WITHOUT_A_CLUSTER.as_slice(), &["--bind-address=0.0.0.0"]].concat();
    let extension = Extension::start_with(cluster, &server_kubeconfig, &scratch, &name, free_port(), &more);

    let user = |kubeconfig: PathBuf| KubectlUser { kubectl, kubeconfig, home: scratch.clone() };
    let admin = user(write_kubeconfig("admin", Some(cluster.admin())));
    let tina = user(write_kubeconfig("tina", None));
    tina.run(&["config", "set-credentials", "user", "--token=token-of-tina"]);
    let manifests = scratch.join("manifests.json");
    std::fs::write(&manifests, registration(&name, extension.endpoint.port, &cluster.authorities.backend.file))
        .unwrap();
    admin.run(&["apply", "-f", manifests.to_str().unwrap()]);
    wait_until_available(&admin);
    let listed = admin.run(&["get", "apiservices"]);
    let row = |version: &str| listed.lines().find(|line| line.starts_with(version)).unwrap_or_default().to_owned();
    let (by_service, by_url) = (row("v1alpha1.wardle.example.com"), row("v1beta1.wardle.example.com"));
    assert!(by_service.contains(&format!("{name}/{name}")) && by_service.contains("True"), "{listed}");
    assert!(by_url.contains("True"), "{listed}");

    // With the rights of a policy file, by token, by both backends.
    let flunder = scratch.join("flunder.json");
    let document = json!({"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": "one", "namespace": "default"}});
    std::fs::write(&flunder, document.to_string()).unwrap();
    assert_eq!(tina.run(&["create", "-f", flunder.to_str().unwrap()]).trim(), "flunder.wardle.example.com/one created");
    let get_by_url = ["get", "flunders.v1beta1.wardle.example.com", "one", "-o", "jsonpath={.apiVersion}"];
    assert_eq!(tina.run(&get_by_url), "wardle.example.com/v1beta1");
    let seen = extension.audit_event("v1beta1/namespaces/default/flunders/one");
    assert_eq!(seen["user"]["username"], "tina");

    // Direct requests: the server delegates authentication and authorization to narthex.
    assert_delegated(&extension, "default");

    // Everything is there after a kill: the registration, the rights, and what the server stored itself.
    gateway.process.signal(Signal::KILL);
    gateway.restart();
    let found = eventually("the flunder after the kill", || {
        let found = tina.try_run(&["get", "flunders", "one", "-o", "name"]);
        if found.starts_with("flunder.") { Ok(found) } else { Err(found) }
    });
    assert_eq!(found, "flunder.wardle.example.com/one");
    wait_until_available(&admin);
    // The server has no cached decision about another namespace.
    assert_delegated(&extension, "kube-public");
    let deleted = tina.run(&["delete", "flunder", "one"]);
    assert!(deleted.starts_with(r#"flunder.wardle.example.com "one" deleted"#), "{deleted}");
    assert!(tina.try_run(&["get", "flunder", "one"]).contains(r#"flunders.wardle.example.com "one" not found"#));
    tina.run(&["create", "-f", flunder.to_str().unwrap()]);

    // Without its APIService a version is not served; the other is.
    admin.run(&["delete", "apiservice", "v1alpha1.wardle.example.com"]);
    eventually("v1alpha1 not served", || {
        let response = gateway.endpoint.get(Some(cluster.admin()), FLUNDERS)?;
        if response.status == 404 { Ok(()) } else { Err(format!("{} {}", response.status, response.text())) }
    });
    assert_eq!(tina.run(&get_by_url), "wardle.example.com/v1beta1");
}

fn wait_until_available(admin: &KubectlUser) {
    for version in ["v1alpha1", "v1beta1"] {
        let api_service = format!("apiservice/{version}.wardle.example.com");
        admin.run(&["wait", "--for=condition=Available", &api_service, "--timeout=60s"]);
    }
}

/// Asserts what the server answers to direct requests: tina may list flunders, olga may not, nobody else is known.
fn assert_delegated(extension: &Extension, namespace: &str) {
    let path = format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders");
    let direct = |token: &str| {
        let bearer = format!("Bearer {token}");
        let response = extension.endpoint.send(None, "GET", &path, &[("authorization", &bearer)], b"").unwrap();
        (response.status.as_u16(), response.text())
    };
    assert_eq!(direct("token-of-tina").0, 200);
    let (status, text) = direct("token-of-olga");
    let refusal = format!(
        r#"User \"olga\" cannot list resource \"flunders\" in API group \"wardle.example.com\" in the namespace \"{namespace}\""#
    );
    assert!(status == 403 && text.contains(&refusal), "{status} {text}");
    assert_eq!(direct("invalid-token").0, 401);
}

/// A List of what registers the server: v1alpha1 by a Service with an EndpointSlice, v1beta1 by a URL.
fn registration(name: &str, port: u16, authority: &Path) -> String {
    use base64::Engine as _;
    let authority = base64::engine::general_purpose::STANDARD.encode(std::fs::read(authority).unwrap());
    let api_service = |version: &str, annotations: serde_json::Value, service: serde_json::Value| {
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.wardle.example.com"), "annotations": annotations},
            "spec": {"group": "wardle.example.com", "version": version, "groupPriorityMinimum": 1000,
                "versionPriority": 15, "caBundle": authority, "service": service}})
    };
    let url = json!({"narthex.dev/url": format!("https://127.0.0.1:{port}")});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": name},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("{name}-1"), "namespace": name,
                "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": [own_address()], "conditions": {"ready": true}}]},
        api_service("v1alpha1", json!({}), json!({"namespace": name, "name": name})),
        api_service("v1beta1", url, serde_json::Value::Null),
    ]})
    .to_string()
}
