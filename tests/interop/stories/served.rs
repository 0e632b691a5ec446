//! An extension API server with nothing but narthex and etcd behind it: whom to believe, who holds a token and what
//! users may, it asks narthex (`--serve-delegation`).

use super::TrialWith;
use super::standalone::Person;
use crate::world::{Extension, Gateway, Identity, Kubectl, World, eventually, free_port, kubeconfig};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] =
    &[("served: an extension server without a kube-apiserver", alone)];

/// What needs a cluster, and is not to be asked here.
const WITHOUT_A_CLUSTER: [&str; 2] = [
    "--enable-priority-and-fairness=false",
    "--disable-admission-plugins=NamespaceLifecycle,MutatingAdmissionPolicy,MutatingAdmissionWebhook,\
     ValidatingAdmissionPolicy,ValidatingAdmissionWebhook",
];

/// Group `devs` may all with flunders; everybody may look around.
const RULES: &str = "
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

fn alone(world: &World, kubectl: &Kubectl) {
    let name = format!("served-{}", kubectl.version.replace('.', "-"));
    let scratch = world.scratch(&name);
    let (policy, tokens) = (scratch.join("policy.yaml"), scratch.join("tokens.csv"));
    let backend_s = include_str!("../../../deploy/standalone/backend.yaml");
    std::fs::write(&policy, format!("{backend_s}{RULES}")).unwrap();
    std::fs::write(&tokens, "token-of-tina,tina,7,devs\ntoken-of-olga,olga,8,ops\n").unwrap();

    // Nobody here names the kube-apiserver that the rest of this world uses.
    let port = free_port();
    let flags = [
        ("--authorization-mode", "Static"),
        ("--authorization-policy-file", policy.to_str().unwrap()),
        ("--token-auth-file", tokens.to_str().unwrap()),
        ("--serve-delegation", "true"),
    ];
    let gateway = Gateway::begin(&world.cluster, (&name, port), &scratch, &format!("{name}-narthex"), &flags);
    let clients = &world.cluster.authorities.client;
    let server = clients.client(&format!("{name}-server"), "wardle", &[], None);
    let asks = kubeconfig::write(&scratch, "server", &gateway.door.url(), &gateway.door.authority, Some(&server));
    let extension = Extension::start_with(&world.cluster, &asks, &scratch, &name, port, &WITHOUT_A_CLUSTER);
    gateway.wait_until_available("True");

    // Through narthex, with a certificate and with a token.
    let person = |file: &str, identity: Option<&Identity>| Person {
        kubectl,
        kubeconfig: kubeconfig::write(&scratch, file, &gateway.door.url(), &gateway.door.authority, identity),
        home: scratch.clone(),
    };
    let jane = person("jane", Some(world.cluster.jane()));
    let flunder = scratch.join("flunder.yaml");
    let document =
        "apiVersion: wardle.example.com/v1alpha1\nkind: Flunder\nmetadata: {name: one, namespace: default}\n";
    std::fs::write(&flunder, document).unwrap();
    let created = jane.says(&["create", "-f", flunder.to_str().unwrap()]);
    assert_eq!(created.trim(), "flunder.wardle.example.com/one created");
    assert!(jane.says(&["get", "flunders"]).contains("one"));
    let tina = person("tina", None);
    tina.says(&["config", "set-credentials", "user", "--token=token-of-tina"]);
    assert!(tina.says(&["get", "flunders", "one", "-o", "name"]).contains("flunder.wardle.example.com/one"));
    let seen = extension.audited("/flunders/one");
    assert_eq!((&seen["user"]["username"], &seen["user"]["uid"]), (&"tina".into(), &"7".into()));

    // Whom the rules do not allow, narthex does not let through.
    let bob = clients.client(&format!("{name}-bob"), "bob", &["ops"], None);
    let refused = person("bob", Some(&bob)).answers(&["get", "flunders"]);
    assert!(refused.contains("Forbidden") && refused.contains("User \"bob\" cannot list resource"), "{refused}");

    // And where narthex is passed by, the server asks it: the same people by the same certificates and tokens.
    let straight = |who: Option<&Identity>, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers: &[(&str, &str)] = if token.is_empty() { &[] } else { &[("authorization", &bearer)] };
        let answer = extension.door.send(who, "GET", FLUNDERS, headers, b"").unwrap();
        (answer.status.as_u16(), answer.text())
    };
    assert_eq!(straight(Some(world.cluster.jane()), "").0, 200);
    let (status, text) = straight(Some(&bob), "");
    let words = r#"flunders.wardle.example.com is forbidden: User \"bob\" cannot list resource \"flunders\" in API group \"wardle.example.com\" in the namespace \"default\""#;
    assert!(status == 403 && text.contains(words), "{status} {text}");
    assert_eq!(straight(None, "token-of-tina").0, 200);
    let (status, text) = straight(None, "token-of-olga");
    assert!(status == 403 && text.contains(r#"User \"olga\" cannot list"#), "{status} {text}");
    assert_eq!(straight(None, "token-of-nobody").0, 401);
    assert_eq!(straight(Some(&world.cluster.authorities.impostor), "").0, 401);
    // A front proxy that is not narthex, by the same authority.
    let proxies = &world.cluster.authorities.request_header;
    let other = proxies.client(&format!("{name}-proxy"), "another-proxy", &[], None);
    let headers = [("x-remote-user", "jane"), ("x-remote-group", "devs")];
    assert_eq!(extension.door.send(Some(&other), "GET", FLUNDERS, &headers, b"").unwrap().status, 401);

    // The rules change: the server hears of it when what it was told is past its time.
    std::fs::write(&policy, format!("{backend_s}{}", RULES.replace("name: devs}", "name: ops}"))).unwrap();
    eventually("olga to be let in, and jane no more", || {
        let (olga, jane) = (straight(None, "token-of-olga").0, straight(Some(world.cluster.jane()), "").0);
        if (olga, jane) == (200, 403) { Ok(()) } else { Err(format!("{olga} {jane}")) }
    });
    assert!(jane.answers(&["get", "flunders"]).contains("Forbidden"));

    // The server's own permissions are what it was given, and no more.
    let server = person("server-itself", Some(&server));
    assert!(
        server
            .says(&["get", "configmap", "-n", "kube-system", "extension-apiserver-authentication", "-o", "yaml"])
            .contains("requestheader-client-ca-file")
    );
    let named =
        ["get", "configmaps", "-n", "kube-system", "--field-selector=metadata.name=extension-apiserver-authentication"];
    assert!(server.says(&named).contains("extension-apiserver-authentication"));
    assert!(server.answers(&["get", "configmaps", "-n", "kube-system"]).contains("Forbidden"));
    assert!(server.answers(&["get", "flunders"]).contains("Forbidden"));
}
