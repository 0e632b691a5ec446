//! Stored roles and bindings authorize requests, and give nobody more than their writer has.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";

async fn create(client: &Client, path: &str, object: &Value) {
    let created = send_json(client, Method::POST, path, object).await;
    assert_eq!(created.status, 201, "{}", created.text());
}

/// Sends a request as another user.
async fn send_as(client: &Client, user: &str, method: Method, path: &str, body: &Value) -> ClientResponse {
    let headers = [("impersonate-user", user), ("content-type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    client.send_and_read(request(method, path, &headers, &body)).await
}

async fn delete(client: &Client, path: &str) {
    assert_eq!(send_json(client, Method::DELETE, path, &json!({})).await.status, 200);
}

fn role(name: &str, rules: &Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user});
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role});
    json!({"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
}

fn rule(resources: &[&str], verbs: &[&str]) -> Value {
    let groups = ["", "rbac.authorization.k8s.io"];
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

/// Waits until a user gets a status for a list of ConfigMaps.
async fn wait_for_list(client: &Client, user: &str, status: u16) {
    eventually(&format!("{status} for {user}"), async || {
        let listed = send_as(client, user, Method::GET, CONFIG_MAPS, &Value::Null).await;
        (listed.status == status).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_bindings_authorize_until_they_are_gone() {
    let api = EmbeddedApiFixture::start(&["--authorization-mode=RBAC"]);
    let client = api.http2().await;
    wait_for_list(&client, "jane", 403).await;
    create(&client, ROLES, &role("reader", &json!([rule(&["configmaps"], &["list"])]))).await;
    create(&client, BINDINGS, &binding("jane", "Role", "reader", "jane")).await;
    create(&client, BINDINGS, &binding("bob", "Role", "reader", "bob")).await;
    wait_for_list(&client, "jane", 200).await;
    let elsewhere =
        send_as(&client, "jane", Method::GET, "/api/v1/namespaces/kube-system/configmaps", &Value::Null).await;
    elsewhere.assert_failure(403, "Forbidden");
    // A change of the role counts for all its bindings.
    let path = format!("{ROLES}/reader");
    let changed = role("reader", &json!([rule(&["configmaps"], &["get"])]));
    assert_eq!(send_json(&client, Method::PUT, &path, &changed).await.status, 200);
    wait_for_list(&client, "bob", 403).await;
    delete(&client, &path).await;
    eventually("the missing role to be named", async || {
        let refused = send_as(&client, "jane", Method::GET, CONFIG_MAPS, &Value::Null).await;
        let text = refused.assert_failure(403, "Forbidden")["message"].to_string();
        text.ends_with("RBAC: role.rbac.authorization.k8s.io \\\"reader\\\" not found\"").then_some(())
    })
    .await;
    create(&client, ROLES, &role("reader", &json!([rule(&["configmaps"], &["list"])]))).await;
    wait_for_list(&client, "jane", 200).await;
    delete(&client, &format!("{BINDINGS}/jane")).await;
    wait_for_list(&client, "jane", 403).await;
    wait_for_list(&client, "bob", 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_account_has_the_rights_of_its_bindings_after_a_restart() {
    let mut api = EmbeddedApiFixture::start(&["--authorization-mode=RBAC"]);
    let client = api.http2().await;
    let subject = json!({"kind": "ServiceAccount", "name": "robot"});
    let mut view = binding("robot", "ClusterRole", "view", "");
    view["subjects"] = json!([subject]);
    create(&client, BINDINGS, &view).await;
    let robot = "system:serviceaccount:default:robot";
    wait_for_list(&client, robot, 200).await;
    drop(client);
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    api.restart();
    let client = api.http2().await;
    let listed = send_as(&client, robot, Method::GET, CONFIG_MAPS, &Value::Null).await;
    assert_eq!(listed.status, 200, "the policy is there from the first request on");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_grants_what_he_does_not_have() {
    let api = EmbeddedApiFixture::start(&["--authorization-mode=RBAC"]);
    let client = api.http2().await;
    let manage = json!([rule(&["roles", "rolebindings", "configmaps"], &["create", "update", "list"])]);
    create(&client, ROLES, &role("manager", &manage)).await;
    create(&client, BINDINGS, &binding("mary", "Role", "manager", "mary")).await;
    create(&client, ROLES, &role("all", &json!([rule(&["*"], &["*"])]))).await;
    wait_for_list(&client, "mary", 200).await;
    let as_mary = async |method: Method, path: &str, body: &Value| send_as(&client, "mary", method, path, body).await;

    let own = role("own", &json!([rule(&["configmaps"], &["list"])]));
    assert_eq!(as_mary(Method::POST, ROLES, &own).await.status, 201);
    let more = role("own", &json!([rule(&["configmaps"], &["list", "delete"])]));
    let refused = as_mary(Method::PUT, &format!("{ROLES}/own"), &more).await.assert_failure(403, "Forbidden");
    let message = "roles.rbac.authorization.k8s.io \"own\" is forbidden: user \"mary\" (groups=[\"system:authenticated\"]) is \
                   attempting to grant RBAC permissions not currently held:\n\
                   {APIGroups:[\"\"], Resources:[\"configmaps\"], Verbs:[\"delete\"]}\n\
                   {APIGroups:[\"rbac.authorization.k8s.io\"], Resources:[\"configmaps\"], Verbs:[\"delete\"]}";
    assert_eq!(refused["message"], message);
    as_mary(Method::POST, ROLES, &role("other", &more["rules"])).await.assert_failure(403, "Forbidden");
    assert_eq!(as_mary(Method::POST, BINDINGS, &binding("a", "Role", "own", "eve")).await.status, 201);
    as_mary(Method::POST, BINDINGS, &binding("b", "Role", "all", "eve")).await.assert_failure(403, "Forbidden");
    as_mary(Method::POST, BINDINGS, &binding("b", "ClusterRole", "cluster-admin", "eve"))
        .await
        .assert_failure(403, "Forbidden");
    let refused = as_mary(Method::POST, BINDINGS, &binding("b", "Role", "none", "eve")).await;
    assert_eq!(
        refused.assert_failure(404, "NotFound")["message"],
        "rolebindings.rbac.authorization.k8s.io \"none\" not found"
    );

    // The verbs `bind` and `escalate` allow it.
    let bind = json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "resourceNames": ["all"],
        "verbs": ["bind"]});
    let escalate = rule(&["roles"], &["escalate"]);
    create(&client, ROLES, &role("trusted", &json!([bind, escalate]))).await;
    create(&client, BINDINGS, &binding("trusted", "Role", "trusted", "mary")).await;
    eventually("mary to be trusted", async || {
        (as_mary(Method::PUT, &format!("{ROLES}/own"), &more).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(as_mary(Method::POST, BINDINGS, &binding("b", "Role", "all", "eve")).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_role_has_the_rules_of_those_that_it_selects() {
    let api = EmbeddedApiFixture::start(&["--authorization-mode=RBAC"]);
    let client = api.http2().await;
    let roles = format!("{RBAC}/clusterroles");
    let selector = json!({"clusterRoleSelectors": [{"matchLabels": {"for": "team"}}]});
    create(&client, &roles, &json!({"metadata": {"name": "team"}, "aggregationRule": selector})).await;
    create(&client, BINDINGS, &binding("jane", "ClusterRole", "team", "jane")).await;
    wait_for_list(&client, "jane", 403).await;
    let mut part = role("part", &json!([rule(&["configmaps"], &["list"])]));
    part["metadata"]["labels"] = json!({"for": "team"});
    create(&client, &roles, &part).await;
    wait_for_list(&client, "jane", 200).await;
    delete(&client, &format!("{roles}/part")).await;
    wait_for_list(&client, "jane", 403).await;
    assert_eq!(client.get(&format!("{roles}/team")).await.json()["rules"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_roles_are_there_and_come_back_at_the_next_start() {
    let mut api = EmbeddedApiFixture::start(&["--authorization-mode=RBAC"]);
    let client = api.http2().await;
    let count = async |client: &Client, plural: &str| {
        client.get(&format!("{RBAC}/{plural}")).await.json()["items"].as_array().unwrap().len()
    };
    assert_eq!(client.get("/livez").await.status, 200);
    let counts = [("clusterroles", 69), ("clusterrolebindings", 50), ("roles", 7), ("rolebindings", 7)];
    for (plural, expected) in counts {
        assert_eq!(count(&client, plural).await, expected, "{plural}, from the first request on");
    }
    delete(&client, &format!("{RBAC}/clusterroles/view")).await;
    let path = format!("{RBAC}/clusterroles/system:basic-user");
    let mut basic = client.get(&path).await.json();
    let all = basic["rules"].clone();
    basic["rules"] = json!([rule(&["things"], &["get"])]);
    assert_eq!(send_json(&client, Method::PUT, &path, &basic).await.status, 200);
    drop(client);
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    api.restart();
    let client = api.http2().await;
    eventually("what is missing to come back", async || {
        let rules = client.get(&path).await.json()["rules"].as_array().unwrap().clone();
        let is_back = rules.len() > 1 && count(&client, "clusterroles").await == 69;
        is_back.then(|| assert_eq!(rules[0], rule(&["things"], &["get"]), "what was added stays, beside {all}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_are_not_widened_by_patch_dry_run_or_put() {
    let api = EmbeddedApiFixture::start(&["--authorization-mode=RBAC"]);
    let client = api.http2().await;
    let manage = json!([rule(&["roles", "clusterroles", "configmaps"], &["create", "update", "patch", "list"])]);
    let roles = format!("{RBAC}/clusterroles");
    create(&client, &roles, &role("manager", &manage)).await;
    let bindings = format!("{RBAC}/clusterrolebindings");
    create(&client, &bindings, &binding("mary", "ClusterRole", "manager", "mary")).await;
    create(&client, &roles, &role("own", &json!([rule(&["configmaps"], &["list"])]))).await;
    wait_for_list(&client, "mary", 200).await;
    let as_mary = async |method: Method, path: &str, body: &Value| send_as(&client, "mary", method, path, body).await;
    let more = json!([rule(&["secrets"], &["get"])]);

    let path = format!("{roles}/own");
    for media_type in ["application/merge-patch+json", "application/strategic-merge-patch+json"] {
        let headers = [("impersonate-user", "mary"), ("content-type", media_type)];
        let patch = json!({"rules": more}).to_string();
        let patched = client.send_and_read(request(Method::PATCH, &path, &headers, &patch)).await;
        patched.assert_failure(403, "Forbidden");
    }
    let dry_run = format!("{roles}?dryRun=All");
    as_mary(Method::POST, &dry_run, &role("new", &more)).await.assert_failure(403, "Forbidden");
    as_mary(Method::PUT, &format!("{roles}/new"), &role("new", &more)).await.assert_failure(403, "Forbidden");
    let selector = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let aggregated = json!({"metadata": {"name": "all"}, "aggregationRule": selector});
    let refused = as_mary(Method::POST, &roles, &aggregated).await.assert_failure(403, "Forbidden");
    let message = "clusterroles.rbac.authorization.k8s.io \"all\" is forbidden: must have cluster-admin privileges to use the \
                   aggregationRule";
    assert_eq!(refused["message"], message);
    // What a garbage collector changes needs no rights of the role.
    create(&client, &roles, &role("other", &more)).await;
    let headers = [("impersonate-user", "mary"), ("content-type", "application/merge-patch+json")];
    let finalizer = json!({"metadata": {"finalizers": ["example.com/f"]}}).to_string();
    let path = format!("{roles}/other");
    assert_eq!(client.send_and_read(request(Method::PATCH, &path, &headers, &finalizer)).await.status, 200);
    let label = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let labeled = client.send_and_read(request(Method::PATCH, &path, &headers, &label)).await;
    labeled.assert_failure(403, "Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn role_with_many_parts_is_refused_in_few_words() {
    let api = EmbeddedApiFixture::start(&["--authorization-mode=RBAC"]);
    let client = api.http2().await;
    create(&client, ROLES, &role("manager", &json!([rule(&["roles", "configmaps"], &["create", "list"])]))).await;
    create(&client, BINDINGS, &binding("mary", "Role", "manager", "mary")).await;
    wait_for_list(&client, "mary", 200).await;
    let long = "v".repeat(200_000);
    let many: Vec<String> = (0..20_000).map(|number| format!("r{number}")).collect();
    let verbs = [format!("a{long}"), format!("b{long}"), format!("c{long}")];
    let hostile = json!([{"apiGroups": ["g"], "resources": many, "verbs": verbs}]);
    let refused = send_as(&client, "mary", Method::POST, ROLES, &role("hostile", &hostile)).await;
    assert!(refused.text().len() < 300_000, "{}", refused.text().len());
    refused.assert_failure(403, "Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_optional_kinds_becomes_ready() {
    let api = EmbeddedApiFixture::start(&["--runtime-config=api/all=false"]);
    let client = api.http2().await;
    eventually("the server to be ready", async || (client.get("/livez").await.status == 200).then_some(())).await;
}
