//! `--authorization-mode=Static`: authorization by the RBAC objects of a file.

use std::path::PathBuf;

use http::Method;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, admin_request, get, request};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment, eventually, run_narthex};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// The sample that we ship, where the gateway can be told of changes to it.
fn write_sample(environment: &TestEnvironment) -> PathBuf {
    let path = environment.path("policy.yaml");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/standalone/policy.yaml"), &path).unwrap();
    path
}

fn start_gateway(environment: &TestEnvironment, modes: &str, policy: &std::path::Path) -> GatewayProcess {
    environment.start_gateway(&[
        &format!("--authorization-mode={modes}"),
        &format!("--authorization-policy-file={}", policy.display()),
    ])
}

async fn start_things_backend(environment: &TestEnvironment) -> Backend {
    let backend = Backend::start(environment, BackendSettings::default(), async |_| json_response(200, "{}")).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    backend
}

async fn request_status(client: &Client, method: Method, path: &str) -> u16 {
    client.send_and_read(request(method, path, &[], "")).await.status.as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_sample_policy_allows_exactly_its_rules() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = start_gateway(&environment, "Static", &write_sample(&environment));
    let people: [(&str, CertKeyPair); 4] = [
        ("dev", environment.issue_user("jane", &["devs"])),
        ("robot", environment.issue_user("system:serviceaccount:robots:robot", &[])),
        ("nobody", environment.issue_user("bob", &["ops"])),
        ("admin", environment.issue_user("root", &["system:masters"])),
    ];
    let other = "/apis/things.example.com/v1/namespaces/other/things";
    let scale = format!("{THINGS}/door/scale");
    let cases = [
        (Method::GET, THINGS.to_owned(), [200, 403, 403, 200]),
        (Method::GET, format!("{THINGS}?watch=1"), [200, 403, 403, 200]),
        (Method::GET, format!("{THINGS}/door/status"), [200, 403, 403, 200]),
        (Method::PUT, format!("{THINGS}/door/status"), [403, 403, 403, 200]),
        (Method::POST, THINGS.to_owned(), [200, 403, 403, 200]),
        (Method::DELETE, THINGS.to_owned(), [200, 403, 403, 200]),
        (Method::GET, other.to_owned(), [200, 403, 403, 200]),
        (Method::POST, other.to_owned(), [403, 403, 403, 200]),
        (Method::PUT, scale.clone(), [403, 200, 403, 200]),
        (Method::PUT, format!("{THINGS}/gate/scale"), [403, 403, 403, 200]),
        (Method::GET, "/apis".to_owned(), [200, 200, 200, 200]),
        (Method::GET, "/version".to_owned(), [200, 200, 200, 200]),
        (Method::GET, "/metrics".to_owned(), [403, 403, 403, 200]),
        (Method::GET, "/healthz".to_owned(), [200, 200, 200, 200]),
    ];
    for (number, (name, pair)) in people.iter().enumerate() {
        for client in [
            Client::http1(&environment, &gateway, Some(pair)).await,
            Client::http2(&environment, &gateway, Some(pair)).await,
        ] {
            for (method, path, expected) in &cases {
                let before = backend.received().len();
                assert_eq!(
                    request_status(&client, method.clone(), path).await,
                    expected[number],
                    "{name} {method} {path}"
                );
                if expected[number] == 403 {
                    assert_eq!(backend.received().len(), before, "{name} {method} {path} reached the backend");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_denial_messages_as_upstream() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let policy = write_sample(&environment);
    let dangling = "\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: lost}\n\
                    roleRef: {kind: ClusterRole, name: gone}\nsubjects: [{kind: User, name: eve}]\n";
    std::fs::write(&policy, std::fs::read_to_string(&policy).unwrap() + dangling).unwrap();
    let gateway = start_gateway(&environment, "Static", &policy);
    let bob = Client::http2(&environment, &gateway, Some(&environment.issue_user("bob", &[]))).await;
    let status = bob.get(&format!("{THINGS}/door")).await.assert_failure(403, "Forbidden");
    let expected = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "things.things.example.com \"door\" is forbidden: User \"bob\" cannot get resource \"things\" in API \
                    group \"things.example.com\" in the namespace \"default\"",
        "reason": "Forbidden", "details": {"name": "door", "group": "things.example.com", "kind": "things"},
        "code": 403,
    });
    assert_eq!(status, expected);
    let status = bob.get("/apis/things.example.com/v1/things").await.assert_failure(403, "Forbidden");
    assert_eq!(
        status["message"],
        "things.things.example.com is forbidden: User \"bob\" cannot list resource \"things\" in API group \
         \"things.example.com\" at the cluster scope"
    );
    let status = bob.get("/metrics").await.assert_failure(403, "Forbidden");
    assert_eq!(status["message"], "forbidden: User \"bob\" cannot get path \"/metrics\"");
    // A binding to a missing role is reported in the reason, as by kube-apiserver.
    let eve = Client::http2(&environment, &gateway, Some(&environment.issue_user("eve", &[]))).await;
    let status = eve.get("/metrics").await.assert_failure(403, "Forbidden");
    assert_eq!(
        status["message"],
        "forbidden: User \"eve\" cannot get path \"/metrics\": RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not \
         found"
    );
    gateway.wait_for_log(&["WARN", "ClusterRoleBinding \\\"lost\\\"", "gone"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_policy_file_reloaded_and_invalid_one_ignored() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let policy = write_sample(&environment);
    let gateway = start_gateway(&environment, "Static", &policy);
    let jane = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &["devs"]))).await;
    assert_eq!(request_status(&jane, Method::POST, THINGS).await, 200);
    let good = std::fs::read_to_string(&policy).unwrap();
    let less = good.replace("verbs: [create, update, patch, delete, deletecollection]", "verbs: [update]");
    assert_ne!(good, less);
    std::fs::write(&policy, &less).unwrap();
    eventually("the change to take effect", async || {
        (request_status(&jane, Method::POST, THINGS).await == 403).then_some(())
    })
    .await;
    // The connection is the same; what was good before the mistake holds on.
    std::fs::write(&policy, good.replace("verbs: [create, update", "verb: [create, update")).unwrap();
    gateway.wait_for_log(&["ERROR", "the last good policy stays", "rules[0].verb", "did you mean verbs?"]).await;
    assert_eq!(request_status(&jane, Method::POST, THINGS).await, 403);
    assert_eq!(request_status(&jane, Method::PUT, &format!("{THINGS}/door")).await, 200);
    std::fs::write(&policy, &good).unwrap();
    eventually("the mended file to take effect", async || {
        (request_status(&jane, Method::POST, THINGS).await == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_without_matching_rule_falls_through_to_next_mode() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let policy = write_sample(&environment);
    for (modes, allowed) in [("Static,AlwaysAllow", 200), ("Static,AlwaysDeny", 403)] {
        let gateway = start_gateway(&environment, modes, &policy);
        let bob = Client::http1(&environment, &gateway, Some(&environment.issue_user("bob", &[]))).await;
        assert_eq!(request_status(&bob, Method::GET, THINGS).await, allowed, "{modes}");
    }
}

#[test]
fn rbac_policy_errors_all_reported_at_start() {
    let environment = TestEnvironment::new();
    let policy = environment.path("policy.yaml");
    let text = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: a}\nrules:\n\
                - {apiGroups: [g], resources: [r]}\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
                metadata: {name: b, namespace: x}\nsubjects: [{kind: Users, name: x}]\n";
    std::fs::write(&policy, text).unwrap();
    let flags = ["--authorization-mode=Static", &format!("--authorization-policy-file={}", policy.display())];
    for command in [&["gateway"][..], &["check", "gateway"]] {
        let command = command.iter().map(|word| (*word).to_owned());
        let output = run_narthex(&command.chain(environment.gateway_arguments(&flags)).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        for mistake in [
            "policy.yaml, document 1, ClusterRole \"a\": rules[0].verbs: at least one verb is required",
            "policy.yaml, document 2, RoleBinding \"b\": subjects[0].kind: \"Users\" is not supported; use User, Group or \
             ServiceAccount",
            "policy.yaml, document 2, RoleBinding \"b\": roleRef: required: the granted role",
        ] {
            assert!(message.contains(mistake), "{mistake}\n{message}");
        }
    }
}

/// What `kubectl auth whoami`, `can-i` and `can-i --list` ask.
#[tokio::test(flavor = "multi_thread")]
async fn rbac_self_reviews_answered() {
    let environment = TestEnvironment::new();
    let gateway = start_gateway(&environment, "Static", &write_sample(&environment));
    let jane = Client::http1(&environment, &gateway, Some(&environment.issue_user("jane", &["devs"]))).await;
    let ask = async |path: &str, body: &str, kind: &str| {
        jane.send_and_read(request(Method::POST, path, &[("content-type", kind)], body)).await
    };
    const JSON: &str = "application/json";
    const SUBJECT: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let response = ask(SUBJECT, r#"{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}"#, JSON).await;
    assert_eq!(response.status, 201);
    let user = &response.json()["status"]["userInfo"];
    assert_eq!(
        (&user["username"], &user["groups"]),
        (&"jane".into(), &serde_json::json!(["devs", "system:authenticated"]))
    );
    let may = async |verb: &str, namespace: &str| {
        let body = format!(
            "kind: SelfSubjectAccessReview\napiVersion: authorization.k8s.io/v1\nspec:\n  resourceAttributes: {{verb: {verb}, \
             group: things.example.com, resource: things, namespace: {namespace}}}\n"
        );
        let response = ask(ACCESS, &body, "application/yaml").await;
        assert_eq!(response.status, 201, "{}", response.text());
        response.json()["status"].clone()
    };
    let yes = may("create", "default").await;
    assert_eq!(yes["allowed"], true);
    assert_eq!(yes["reason"], r#"RBAC: allowed by RoleBinding "devs/default" of ClusterRole "edit" to Group "devs""#);
    assert_eq!(may("create", "other").await, serde_json::json!({"allowed": false}));
    let response = ask(RULES, r#"{"spec":{"namespace":"other"}}"#, JSON).await.json();
    let rules = response["status"]["resourceRules"].as_array().unwrap();
    assert!(rules.iter().any(|rule| rule["resources"] == serde_json::json!(["things", "things/status"])));
    assert!(!rules.iter().any(|rule| rule["verbs"].to_string().contains("patch")));
    assert_eq!(response["status"]["incomplete"], false);
    // Discovery names them.
    let list = jane.get("/apis/authorization.k8s.io/v1").await.json();
    assert_eq!(list["resources"][0]["kind"], "SelfSubjectAccessReview");
    // What is no question.
    for (path, body, kind, code, reason) in [
        (ACCESS, "{}", JSON, 422, "Invalid"),
        (ACCESS, "{", JSON, 400, "BadRequest"),
        (RULES, "{}", JSON, 400, "BadRequest"),
        (SUBJECT, "k8s\0\u{b}", "application/vnd.kubernetes.protobuf", 400, "BadRequest"),
        (SUBJECT, "x", "application/cbor", 415, "UnsupportedMediaType"),
        (SUBJECT, &format!("{{\"metadata\":\"{}\"}}", "x".repeat(300_000)), JSON, 413, "RequestEntityTooLarge"),
    ] {
        ask(path, body, kind).await.assert_failure(code, reason);
    }
    // The sample policy does not permit listing them (403); with all permissions the response says that listing is
    // not supported.
    let jane = Client::http1(&environment, &gateway, Some(&environment.issue_user("jane", &["devs"]))).await;
    jane.get(ACCESS).await.assert_failure(403, "Forbidden");
    let root = Client::http1(&environment, &gateway, Some(&environment.issue_user("root", &["system:masters"]))).await;
    root.get(ACCESS).await.assert_failure(405, "MethodNotAllowed");
    root.get("/apis/authorization.k8s.io/v1/subjectaccessreviews").await.assert_failure(404, "NotFound");
}

#[tokio::test]
async fn status_names_the_mode_as_it_was_given() {
    let environment = TestEnvironment::new();
    for mode in ["RBAC", "Static"] {
        let gateway = start_gateway(&environment, mode, &write_sample(&environment));
        let report = admin_request(&gateway, get("/status.json", &[])).await.json();
        assert_eq!(report["authorizers"], serde_json::json!([mode]), "{report}");
    }
}
