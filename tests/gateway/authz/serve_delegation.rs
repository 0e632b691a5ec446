//! `--serve-delegation`: the gateway answers the delegation requests of an extension API server.

use http::Method;
use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as reply};
use crate::support::client::{Client, ClientResponse, get, metric_value, next_chunk, request};
use crate::support::fake_review_server::{FakeReviewServer, token_review_reply};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};

pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
pub(crate) const CONFIG_MAP_NAME: &str = "extension-apiserver-authentication";
pub(crate) const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
pub(crate) const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A gateway with a policy that permits `wardle` to create reviews and group `devs` to read things.
pub(crate) fn start_gateway(environment: &TestEnvironment, more: &[&str]) -> GatewayProcess {
    let policy = environment.path("policy.yaml");
    let sample =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/standalone/backend.yaml")).unwrap();
    let reader = "\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: reader}\n\
                  rules: [{apiGroups: [wardle.example.com], resources: [flunders], verbs: [get, list]}, {apiGroups: \
                  [authorization.k8s.io], resources: [selfsubjectaccessreviews], verbs: [create]}]\n---\n\
                  apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: devs}\n\
                  roleRef: {kind: ClusterRole, name: reader}\nsubjects: [{kind: Group, name: devs}]\n---\n\
                  apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: writer}\n\
                  rules: [{apiGroups: [wardle.example.com], resources: [flunders], verbs: [create]}]\n---\n\
                  apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: bosses}\n\
                  roleRef: {kind: ClusterRole, name: writer}\nsubjects: [{kind: Group, name: bosses}]\n";
    std::fs::write(&policy, sample + reader).unwrap();
    let named = format!("--authorization-policy-file={}", policy.display());
    let flags = ["--serve-delegation", "--authorization-mode=Static", &named];
    let flags: Vec<&str> = flags.into_iter().chain(more.iter().copied()).collect();
    environment.start_gateway(&flags)
}

/// The backend, as a client of the gateway.
pub(crate) async fn connect_as_wardle(environment: &TestEnvironment, gateway: &GatewayProcess) -> Client {
    Client::http2(environment, gateway, Some(&environment.issue_user("wardle", &[]))).await
}

/// Sends an object.
pub(crate) async fn post(client: &Client, path: &str, document: &Value) -> ClientResponse {
    let kind = [("content-type", "application/json")];
    client.send_and_read(request(Method::POST, path, &kind, &document.to_string())).await
}

/// A review.
pub(crate) fn review_object(kind: &str, spec: &Value) -> Value {
    let group = if kind == "TokenReview" { "authentication.k8s.io/v1" } else { "authorization.k8s.io/v1" };
    json!({"kind": kind, "apiVersion": group, "metadata": {}, "spec": spec, "status": {}})
}

async fn review_token(client: &Client, spec: Value) -> Value {
    let read = post(client, TOKEN_REVIEWS, &review_object("TokenReview", &spec)).await;
    assert_eq!(read.status, 201, "{}", read.text());
    read.json()["status"].clone()
}

#[tokio::test]
async fn serve_delegation_auth_configmap_served_with_rbac() {
    let environment = TestEnvironment::new();
    let gateway = start_gateway(&environment, &[]);
    let client = connect_as_wardle(&environment, &gateway).await;
    let object = client.get(&format!("{CONFIG_MAPS}/{CONFIG_MAP_NAME}")).await.json();
    let pem = |name: &str| environment.read_file(name).replace("\r\n", "\n");
    assert_eq!(
        object["data"],
        json!({
            "client-ca-file": pem("client-ca.crt"),
            "requestheader-client-ca-file": pem("requestheader-ca.crt"),
            // Only the gateway's own front proxy name, not those of front proxies in front of the gateway.
            "requestheader-allowed-names": "[\"narthex-front-proxy\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
        })
    );
    let selected = format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3D{CONFIG_MAP_NAME}");
    let list = client.get(&selected).await.json();
    assert_eq!((&list["kind"], &list["items"][0]["data"]), (&json!("ConfigMapList"), &object["data"]));
    assert_eq!(list["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);

    // Users without permission, and resources that are not served.
    for groups in [&[][..], &["devs"]] {
        let anonymous = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", groups))).await;
        for path in [&selected, &format!("{CONFIG_MAPS}/{CONFIG_MAP_NAME}"), &format!("{selected}&watch=true")] {
            anonymous.get(path).await.assert_failure(403, "Forbidden");
        }
    }
    // The role of the sample names the one object.
    client.get(CONFIG_MAPS).await.assert_failure(403, "Forbidden");
    client.get(&format!("{CONFIG_MAPS}/other")).await.assert_failure(403, "Forbidden");
    let root = Client::http2(&environment, &gateway, Some(&environment.issue_user("root", &["system:masters"]))).await;
    root.get(&format!("{CONFIG_MAPS}/other")).await.assert_failure(404, "NotFound");
    root.get(&format!("/api/v1/namespaces/default/configmaps/{CONFIG_MAP_NAME}")).await.assert_failure(404, "NotFound");
    assert_eq!(root.get("/api/v1/namespaces/default/configmaps").await.json()["items"], json!([]));
    assert_eq!(root.get("/api/v1/configmaps").await.json()["items"].as_array().unwrap().len(), 1);
    let written = post(&root, CONFIG_MAPS, &json!({"kind": "ConfigMap"})).await;
    written.assert_failure(405, "MethodNotAllowed");
    root.send_and_read(request(Method::DELETE, &format!("{CONFIG_MAPS}/{CONFIG_MAP_NAME}"), &[], ""))
        .await
        .assert_failure(405, "MethodNotAllowed");
    for (query, code, reason) in [
        ("fieldSelector=data%3Dx", 400, "BadRequest"),
        ("resourceVersion=x", 400, "BadRequest"),
        ("resourceVersion=99999999999999999", 504, "Timeout"),
        ("watch=1&sendInitialEvents=true", 422, "Invalid"),
    ] {
        root.get(&format!("{CONFIG_MAPS}?{query}")).await.assert_failure(code, reason);
    }
}

#[tokio::test]
async fn serve_delegation_auth_configmap_watch_reports_changes() {
    let environment = TestEnvironment::new();
    let gateway = start_gateway(&environment, &[]);
    let client = connect_as_wardle(&environment, &gateway).await;
    let watch = async |query: &str| {
        let path = format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3D{CONFIG_MAP_NAME}&watch=true{query}");
        let response = client.send(get(&path, &[])).await.unwrap();
        assert_eq!(response.status(), 200, "{query}");
        response.into_body()
    };
    let lines = async |body: &mut hyper::body::Incoming| -> Vec<(String, Value)> {
        let chunk = next_chunk(body).await.unwrap().unwrap();
        let events = serde_json::Deserializer::from_slice(&chunk).into_iter::<Value>().map(Result::unwrap);
        events.map(|event| (event["type"].as_str().unwrap().to_owned(), event["object"].clone())).collect()
    };
    let event = async |body: &mut hyper::body::Incoming| -> (String, Value) { lines(body).await.remove(0) };
    // As client-go's reflectors ask, new and old.
    let mut streamed =
        watch("&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true").await;
    let mut initial = lines(&mut streamed).await;
    if initial.len() == 1 {
        initial.extend(lines(&mut streamed).await);
    }
    let [(kind, first), (mark_kind, mark)] = &initial[..] else { panic!("{initial:?}") };
    assert_eq!((&**kind, &first["metadata"]["name"]), ("ADDED", &json!(CONFIG_MAP_NAME)));
    assert_eq!(
        (&**mark_kind, &mark["metadata"]["annotations"]["k8s.io/initial-events-end"]),
        ("BOOKMARK", &json!("true"))
    );
    let version = first["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut listed = watch(&format!("&resourceVersion={version}")).await;

    let other = TestEnvironment::new();
    std::fs::write(
        environment.path("client-ca.crt"),
        environment.read_file("client-ca.crt") + &other.read_file("client-ca.crt"),
    )
    .unwrap();
    for body in [&mut streamed, &mut listed] {
        let (kind, object) = event(body).await;
        assert_eq!(kind, "MODIFIED");
        let pem = object["data"]["client-ca-file"].as_str().unwrap();
        assert_eq!(pem.matches("BEGIN CERTIFICATE").count(), 2);
        assert_ne!(object["metadata"]["resourceVersion"], json!(version));
    }
    // A watch from an old resource version receives the missed events.
    let mut late = watch(&format!("&resourceVersion={version}")).await;
    assert_eq!(event(&mut late).await.0, "MODIFIED");
}

#[tokio::test]
async fn serve_delegation_token_reviews_answered() {
    let environment = TestEnvironment::new();
    std::fs::write(environment.path("tokens.csv"), "static,stan,7,\"devs,system:masters\"\n").unwrap();
    let webhook = FakeReviewServer::start(&environment).await;
    webhook.set_behavior(|question| {
        let holder = json!({"username": "henry", "uid": "9", "extra": {"a": ["b"]}});
        match question["spec"]["token"].as_str().unwrap() {
            "hooked" => token_review_reply(
                json!({"authenticated": true, "user": holder, "audiences": question["spec"]["audiences"]}),
            ),
            "wrong" => token_review_reply(json!({"authenticated": false, "error": "secret words"})),
            _ => token_review_reply(json!({"authenticated": false})),
        }
    });
    let flags = [
        format!("--token-auth-file={}", environment.path("tokens.csv").display()),
        format!(
            "--authentication-token-webhook-config-file={}",
            webhook.write_kubeconfig(&environment, "hook", "/who")
        ),
        "--api-audiences=us,them".to_owned(),
        "--authentication-drop-groups=system:masters".to_owned(),
        "--anonymous-auth".to_owned(),
    ];
    let gateway = start_gateway(&environment, &flags.each_ref().map(String::as_str));
    let client = connect_as_wardle(&environment, &gateway).await;

    let read = post(&client, TOKEN_REVIEWS, &review_object("TokenReview", &json!({"token": "static"}))).await;
    let stan = json!({"username": "stan", "uid": "7", "groups": ["devs", "system:authenticated"]});
    assert_eq!(
        read.json(),
        json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {"creationTimestamp": null},
            "spec": {"token": "static"},
            "status": {"authenticated": true, "user": stan, "audiences": ["us", "them"]}})
    );
    let status = review_token(&client, json!({"token": "static", "audiences": ["others", "them"]})).await;
    assert_eq!(status, json!({"authenticated": true, "user": stan, "audiences": ["them"]}));
    let anonymous = json!({"user": {}, "error": "invalid bearer token"});
    assert_eq!(review_token(&client, json!({"token": "static", "audiences": ["others"]})).await, anonymous);
    assert_eq!(review_token(&client, json!({"token": "bad"})).await, anonymous);

    let henry = json!({"username": "henry", "uid": "9", "groups": ["system:authenticated"], "extra": {"a": ["b"]}});
    let status = review_token(&client, json!({"token": "hooked", "audiences": ["x"]})).await;
    assert_eq!(status, json!({"authenticated": true, "user": henry, "audiences": ["x"]}));
    assert_eq!(webhook.last_review().1["spec"], json!({"token": "hooked", "audiences": ["x"]}));
    let status = review_token(&client, json!({"token": "wrong"})).await;
    assert!(
        status["error"].as_str().unwrap().starts_with("invalid bearer token") && !status.to_string().contains("secret")
    );

    for (document, code, reason) in [
        (review_object("TokenReview", &json!({})), 400, "BadRequest"),
        (review_object("SubjectAccessReview", &json!({"token": "x"})), 400, "BadRequest"),
        (json!([]), 400, "BadRequest"),
    ] {
        post(&client, TOKEN_REVIEWS, &document).await.assert_failure(code, reason);
    }
    client.get(TOKEN_REVIEWS).await.assert_failure(403, "Forbidden");
    // Neither other authorized users nor anonymous requests may review tokens.
    for pair in [Some(environment.issue_user("jane", &["devs"])), None] {
        let other = Client::http2(&environment, &gateway, pair.as_ref()).await;
        let question = review_object("TokenReview", &json!({"token": "static"}));
        post(&other, TOKEN_REVIEWS, &question).await.assert_failure(403, "Forbidden");
    }
}

#[tokio::test]
async fn serve_delegation_access_reviews_answered() {
    let environment = TestEnvironment::new();
    let gateway = start_gateway(&environment, &[]);
    let client = connect_as_wardle(&environment, &gateway).await;
    let resource = json!({"namespace": "default", "verb": "list", "group": "wardle.example.com", "version": "v1alpha1",
        "resource": "flunders", "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}});
    let ask = async |user: Value, about: &str, what: &Value| {
        let mut spec = user;
        spec[about] = what.clone();
        post(&client, ACCESS_REVIEWS, &review_object("SubjectAccessReview", &spec)).await
    };
    let allowed =
        ask(json!({"user": "jane", "groups": ["devs", "system:authenticated"]}), "resourceAttributes", &resource).await;
    assert_eq!(allowed.status, 201, "{}", allowed.text());
    assert_eq!(
        allowed.json()["status"],
        json!({"allowed": true, "reason": r#"RBAC: allowed by ClusterRoleBinding "devs" of ClusterRole "reader" to Group "devs""#})
    );
    let denied = ask(json!({"user": "jane"}), "resourceAttributes", &resource).await;
    assert_eq!((denied.status.as_u16(), &denied.json()["status"]), (201, &json!({"allowed": false})));
    let path = json!({"path": "/metrics", "verb": "get"});
    let root = ask(json!({"user": "root", "groups": ["system:masters"]}), "nonResourceAttributes", &path).await;
    assert_eq!(root.json()["status"], json!({"allowed": true}));
    ask(json!({}), "resourceAttributes", &resource).await.assert_failure(422, "Invalid");

    let jane = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &["devs"]))).await;
    let spec = json!({"user": "root", "nonResourceAttributes": path});
    post(&jane, ACCESS_REVIEWS, &review_object("SubjectAccessReview", &spec)).await.assert_failure(403, "Forbidden");
    // About herself she may ask as before.
    let own = review_object("SelfSubjectAccessReview", &json!({"resourceAttributes": resource}));
    let own = post(&jane, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &own).await;
    assert_eq!(own.json()["status"]["allowed"], true);
}

/// A request may wait for a backend that asks us whether it may: that question must not wait for the request.
#[tokio::test]
async fn serve_delegation_reviews_exempt_from_inflight_limit() {
    let environment = TestEnvironment::new();
    let (release, until) = tokio::sync::watch::channel(());
    let settings = BackendSettings { names: vec!["wardle-v1alpha1.wardle.svc"], ..BackendSettings::http2() };
    let backend = Backend::start(&environment, settings, move |_| {
        let mut until = until.clone();
        async move {
            while until.changed().await.is_ok() {}
            reply(201, "{}")
        }
    })
    .await;
    environment.register_apiservice("wardle.example.com", "v1alpha1", &[&backend]);
    let gateway = start_gateway(&environment, &["--max-mutating-requests-inflight=1"]);
    let bob = Client::http2(&environment, &gateway, Some(&environment.issue_user("bob", &["bosses"]))).await;
    let flunders = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";
    let writing = tokio::spawn({
        let bob = bob.clone();
        async move { post(&bob, flunders, &json!({})).await.status }
    });
    let running = "apiserver_current_inflight_requests{request_kind=\"mutating\"}";
    eventually("the request to run", async || (metric_value(&gateway, running).await == Some(1.0)).then_some(())).await;
    post(&bob, flunders, &json!({})).await.assert_failure(429, "TooManyRequests");
    let client = connect_as_wardle(&environment, &gateway).await;
    let spec = json!({"user": "bob", "groups": ["bosses"], "nonResourceAttributes": {"path": "/x", "verb": "get"}});
    assert_eq!(post(&client, ACCESS_REVIEWS, &review_object("SubjectAccessReview", &spec)).await.status, 201);
    drop(release);
    assert_eq!(writing.await.unwrap(), 201);
}

#[tokio::test]
async fn serve_delegation_listed_in_discovery() {
    let environment = TestEnvironment::new();
    let names = async |gateway: &GatewayProcess, path: &str| -> Vec<String> {
        let root =
            Client::http2(&environment, gateway, Some(&environment.issue_user("root", &["system:masters"]))).await;
        let read = root.get(path).await;
        let list = if read.status == 200 { read.json() } else { json!({}) };
        list["resources"].as_array().into_iter().flatten().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    let serving = start_gateway(&environment, &[]);
    assert_eq!(names(&serving, "/api/v1").await, ["configmaps"]);
    assert_eq!(names(&serving, "/apis/authentication.k8s.io/v1").await, ["selfsubjectreviews", "tokenreviews"]);
    let authorization =
        ["localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"];
    assert_eq!(names(&serving, "/apis/authorization.k8s.io/v1").await, authorization);
    let root = Client::http2(&environment, &serving, Some(&environment.issue_user("root", &["system:masters"]))).await;
    assert_eq!(root.get("/api").await.json()["versions"], json!(["v1"]));

    let plain = environment.start_gateway(&[]);
    assert_eq!(names(&plain, "/api/v1").await, [""; 0]);
    assert_eq!(names(&plain, "/apis/authentication.k8s.io/v1").await, ["selfsubjectreviews"]);
    let root = Client::http2(&environment, &plain, Some(&environment.issue_user("root", &["system:masters"]))).await;
    root.get(&format!("{CONFIG_MAPS}/{CONFIG_MAP_NAME}")).await.assert_failure(404, "NotFound");
    post(&root, TOKEN_REVIEWS, &review_object("TokenReview", &json!({"token": "x"})))
        .await
        .assert_failure(404, "NotFound");
}

#[test]
fn serve_delegation_refused_without_authorizer() {
    let environment = TestEnvironment::new();
    let file = environment.path("authorization.yaml");
    let check = |authorizers: &str, more: &[&str]| {
        std::fs::write(
            &file,
            format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: {authorizers}\n"
            ),
        )
        .unwrap();
        let mut line = vec!["check".to_owned(), "gateway".to_owned(), "--serve-delegation".to_owned()];
        line.extend(environment.gateway_arguments(more));
        let output = run_narthex(&line);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let policy = format!("--authorization-policy-file={}", environment.path("none.yaml").display());
    for more in [
        &[][..],
        &["--authorization-mode=AlwaysAllow"],
        &["--authorization-mode=AlwaysDeny"],
        &["--authorization-mode=Static,AlwaysAllow", &policy],
    ] {
        let output_text = check("[]", more);
        assert!(
            output_text.contains("--serve-delegation: needs --authorization-mode Webhook or RBAC"),
            "{more:?} {output_text}"
        );
    }
    let config = format!("--authorization-config={}", file.display());
    let output_text = check("[{type: AlwaysAllow, name: alwaysallow}]", &[&config]);
    assert!(
        output_text.contains("authorizers[0].type: AlwaysAllow cannot be used with --serve-delegation"),
        "{output_text}"
    );
    // A front proxy certificate of a CA that backends are not told of.
    std::fs::write(environment.path("policy.yaml"), "").unwrap();
    let policy = format!("--authorization-policy-file={}", environment.path("policy.yaml").display());
    let other = format!("--requestheader-client-ca-file={}", environment.path("backend-ca.crt").display());
    let output_text = check("[]", &["--authorization-mode=Static", &policy, &other]);
    assert!(output_text.contains("--serve-delegation: backends cannot verify the gateway: no CA of"), "{output_text}");
}
