//! `--serve-delegation`: an extension API server with only narthex and etcd; narthex serves its CAs, TokenReviews and
//! SubjectAccessReviews.

use super::KubectlTestFn;
use super::standalone::KubectlUser;
use crate::environment::{Extension, Gateway, Identity, Kubectl, TestEnvironment, eventually, free_port, kubeconfig};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] =
    &[("serve delegation: extension server without kube-apiserver", without_kube_apiserver)];

/// Flags that turn off features that need a cluster.
pub(super) const WITHOUT_A_CLUSTER: [&str; 2] = [
    "--enable-priority-and-fairness=false",
    "--disable-admission-plugins=NamespaceLifecycle,MutatingAdmissionPolicy,MutatingAdmissionWebhook,\
     ValidatingAdmissionPolicy,ValidatingAdmissionWebhook",
];

/// Group `devs` has all verbs on flunders; authenticated users have discovery.
pub(super) const RULES: &str = "
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: flunders}
rules: [{apiGroups: [wardle.example.com], resources: [flunders], verbs: ['*']}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: flunders}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: flunders}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: devs}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:discovery}
rules: [{nonResourceURLs: [/api, /api/*, /apis, /apis/*, /openapi, /openapi/*, /version], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:discovery}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:discovery}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: system:authenticated}]
";

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";

fn without_kube_apiserver(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("served-{}", kubectl.version.replace('.', "-"));
    let scratch = environment.scratch(&name);
    let (policy, tokens) = (scratch.join("policy.yaml"), scratch.join("tokens.csv"));
    let backend_s = include_str!("../../../deploy/standalone/backend.yaml");
    std::fs::write(&policy, format!("{backend_s}{RULES}")).unwrap();
    std::fs::write(&tokens, "token-of-tina,tina,7,devs\ntoken-of-olga,olga,8,ops\n").unwrap();

    // No flag or file here refers to the environment's kube-apiserver.
    let port = free_port();
    let flags = [
        ("--authorization-mode", "Static"),
        ("--authorization-policy-file", policy.to_str().unwrap()),
        ("--token-auth-file", tokens.to_str().unwrap()),
        ("--serve-delegation", "true"),
    ];
    let gateway =
        Gateway::start_unready(&environment.cluster, (&name, port), &scratch, &format!("{name}-narthex"), &flags);
    let clients = &environment.cluster.authorities.client;
    let server = clients.client(&format!("{name}-server"), "wardle", &[], None);
    let asks =
        kubeconfig::write(&scratch, "server", &gateway.endpoint.url(), &gateway.endpoint.authority, Some(&server));
    let extension = Extension::start_with(&environment.cluster, &asks, &scratch, &name, port, &WITHOUT_A_CLUSTER);
    gateway.wait_until_available("True");

    // Through narthex, by certificate and by token.
    let user = |file: &str, identity: Option<&Identity>| KubectlUser {
        kubectl,
        kubeconfig: kubeconfig::write(&scratch, file, &gateway.endpoint.url(), &gateway.endpoint.authority, identity),
        home: scratch.clone(),
    };
    let jane = user("jane", Some(environment.cluster.jane()));
    let flunder = scratch.join("flunder.yaml");
    let document =
        "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: one, namespace: default}\n";
    std::fs::write(&flunder, document).unwrap();
    let created = jane.run(&["create", "-f", flunder.to_str().unwrap()]);
    assert_eq!(created.trim(), "flunder.wardle.example.com/one created");
    assert!(jane.run(&["get", "flunders"]).contains("one"));
    let tina = user("tina", None);
    tina.run(&["config", "set-credentials", "user", "--token=token-of-tina"]);
    assert!(tina.run(&["get", "flunders", "one", "-o", "name"]).contains("flunder.wardle.example.com/one"));
    let seen = extension.audit_event("/flunders/one");
    assert_eq!((&seen["user"]["username"], &seen["user"]["uid"]), (&"tina".into(), &"7".into()));

    // Narthex denies users without permission.
    let bob = clients.client(&format!("{name}-bob"), "bob", &["ops"], None);
    let refused = user("bob", Some(&bob)).try_run(&["get", "flunders"]);
    assert!(refused.contains("Forbidden") && refused.contains("User \"bob\" cannot list resource"), "{refused}");

    // Direct requests: the server delegates to narthex, with the same result.
    let direct = |identity: Option<&Identity>, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers: &[(&str, &str)] = if token.is_empty() { &[] } else { &[("authorization", &bearer)] };
        let response = extension.endpoint.send(identity, "GET", FLUNDERS, headers, b"").unwrap();
        (response.status.as_u16(), response.text())
    };
    assert_eq!(direct(Some(environment.cluster.jane()), "").0, 200);
    let (status, text) = direct(Some(&bob), "");
    let args = r#"flunders.wardle.example.com is forbidden: User \"bob\" cannot list resource \"flunders\" in API group \"wardle.example.com\" in the namespace \"default\""#;
    assert!(status == 403 && text.contains(args), "{status} {text}");
    assert_eq!(direct(None, "token-of-tina").0, 200);
    let (status, text) = direct(None, "token-of-olga");
    assert!(status == 403 && text.contains(r#"User \"olga\" cannot list"#), "{status} {text}");
    assert_eq!(direct(None, "invalid-token").0, 401);
    assert_eq!(direct(Some(&environment.cluster.authorities.impostor), "").0, 401);
    // A front proxy certificate of the same CA with another name is rejected.
    let proxies = &environment.cluster.authorities.request_header;
    let other = proxies.client(&format!("{name}-proxy"), "another-proxy", &[], None);
    let headers = [("x-remote-user", "jane"), ("x-remote-group", "devs")];
    assert_eq!(extension.endpoint.send(Some(&other), "GET", FLUNDERS, &headers, b"").unwrap().status, 401);

    // Changed RBAC rules are effective after the server's cache TTL.
    std::fs::write(&policy, format!("{backend_s}{}", RULES.replace("name: devs}", "name: ops}"))).unwrap();
    eventually("olga authorized and jane denied", || {
        let (olga, jane) = (direct(None, "token-of-olga").0, direct(Some(environment.cluster.jane()), "").0);
        if (olga, jane) == (200, 403) { Ok(()) } else { Err(format!("{olga} {jane}")) }
    });
    assert!(jane.try_run(&["get", "flunders"]).contains("Forbidden"));

    // The server itself has only the granted permissions.
    let server = user("server-itself", Some(&server));
    assert!(
        server
            .run(&["get", "configmap", "-n", "kube-system", "extension-apiserver-authentication", "-o", "yaml"])
            .contains("requestheader-client-ca-file")
    );
    let named =
        ["get", "configmaps", "-n", "kube-system", "--field-selector=metadata.name=extension-apiserver-authentication"];
    assert!(server.run(&named).contains("extension-apiserver-authentication"));
    assert!(server.try_run(&["get", "configmaps", "-n", "kube-system"]).contains("Forbidden"));
    assert!(server.try_run(&["get", "flunders"]).contains("Forbidden"));
}
