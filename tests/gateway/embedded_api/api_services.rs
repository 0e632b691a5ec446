//! APIServices in the store of the embedded API server: they are routes, and their conditions are written back.

use http::Method;
use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, ClientResponse, admin_request, get, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};
use crate::support::fixtures::{TestEnvironment, eventually};

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.io";
/// What the backend serves.
const THINGS: &str = "/apis/things.io/v1/things";

fn api_service(environment: &TestEnvironment) -> Value {
    use base64::Engine;
    let bundle = base64::engine::general_purpose::STANDARD.encode(environment.read_file("backend-ca.crt"));
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.things.io"},
        "spec": {"group": "things.io", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
            "caBundle": bundle, "service": {"namespace": "default", "name": "things-v1"}},
    })
}

/// Its backend is on this machine, named by a URL: endpoints cannot be loopback addresses.
fn api_service_with_url(environment: &TestEnvironment, backend: &Backend) -> Value {
    let mut object = api_service(environment);
    object["spec"].as_object_mut().unwrap().remove("service");
    object["metadata"]["annotations"] = json!({"narthex.dev/url": format!("https://{}", backend.address), "narthex.dev/server-name": "things-v1.default.svc"});
    object
}

async fn create(client: &Client, path: &str, object: &Value) {
    let response = send_json(client, Method::POST, path, object).await;
    assert_eq!(response.status, 201, "{}", response.text());
}

async fn start_backend(environment: &TestEnvironment) -> Backend {
    let settings = BackendSettings { names: vec!["things-v1.default.svc"], ..BackendSettings::default() };
    Backend::start(environment, settings, |_| async { json_response(200, r#"{"kind":"ThingList","items":[]}"#) }).await
}

/// The `Available` condition: status and reason.
fn condition(object: &Value) -> (String, String) {
    let condition = &object["status"]["conditions"][0];
    let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

async fn wait_for_condition(client: &Client, expected: (&str, &str)) {
    let expected = (expected.0.to_owned(), expected.1.to_owned());
    let look = async || (condition(&client.get(API_SERVICE).await.json()) == expected).then_some(());
    eventually("the condition", look).await;
}

async fn wait_for_status(client: &Client, path: &str, code: u16) -> ClientResponse {
    eventually("the status", async || Some(client.get(path).await).filter(|response| response.status == code)).await
}

#[tokio::test]
async fn stored_api_service_is_a_route_until_it_is_deleted() {
    let mut api = EmbeddedApiFixture::start(&["--allow-url-backends"]);
    let backend = start_backend(&api.environment).await;
    let client = api.http2().await;
    assert_eq!(client.get(THINGS).await.status, 404);
    create(&client, API_SERVICES, &api_service_with_url(&api.environment, &backend)).await;
    wait_for_status(&client, THINGS, 200).await;
    assert_eq!(backend.last_request().header_values("x-remote-user"), ["admin"]);
    wait_for_condition(&client, ("True", "Passed")).await;
    let look = async || client.get("/apis").await.text().contains("things.io").then_some(());
    eventually("the group in discovery", look).await;

    drop(client);
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    api.restart();
    let client = api.http2().await;
    // The routes are there with the first request.
    assert_eq!(client.get(THINGS).await.status, 200);

    assert_eq!(send_json(&client, Method::DELETE, API_SERVICE, &json!({})).await.status, 200);
    let gone = wait_for_status(&client, THINGS, 404).await;
    assert_eq!(gone.text(), "404 page not found\n");
}

#[tokio::test]
async fn stored_api_service_condition_follows_its_service() {
    let api = EmbeddedApiFixture::start(&["--allow-url-backends"]);
    let backend = start_backend(&api.environment).await;
    let client = api.http2().await;
    create(&client, API_SERVICES, &api_service(&api.environment)).await;
    wait_for_condition(&client, ("False", "ServiceNotFound")).await;
    assert_eq!(client.get(API_SERVICE).await.json()["spec"]["service"]["port"], 443);
    let refused = client.get(THINGS).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    let mut service = json!({"metadata": {"name": "things-v1"},
        "spec": {"ports": [{"name": "https", "port": 8443}]}});
    create(&client, SERVICES, &service).await;
    wait_for_condition(&client, ("False", "ServicePortError")).await;
    service = client.get(&format!("{SERVICES}/things-v1")).await.json();
    service["spec"]["ports"][0]["port"] = json!(443);
    assert_eq!(send_json(&client, Method::PUT, &format!("{SERVICES}/things-v1"), &service).await.status, 200);
    wait_for_condition(&client, ("False", "EndpointsNotFound")).await;
    let slice = json!({
        "metadata": {"name": "things-v1-0", "labels": {"kubernetes.io/service-name": "things-v1"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": 8443}],
        "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": false}}],
    });
    create(&client, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice).await;
    wait_for_condition(&client, ("False", "MissingEndpoints")).await;
    let mut object = client.get(API_SERVICE).await.json();
    let with_url = api_service_with_url(&api.environment, &backend);
    object["metadata"]["annotations"] = with_url["metadata"]["annotations"].clone();
    object["spec"] = with_url["spec"].clone();
    let replaced = send_json(&client, Method::PUT, API_SERVICE, &object).await;
    assert_eq!(replaced.status, 200, "{}", replaced.text());
    wait_for_condition(&client, ("True", "Passed")).await;
    // A replacement keeps the status; the status subresource keeps the rest.
    let mut object = client.get(API_SERVICE).await.json();
    object["spec"]["versionPriority"] = json!(16);
    object["status"] = json!({});
    let replaced = send_json(&client, Method::PUT, API_SERVICE, &object).await.json();
    assert_eq!((&replaced["spec"]["versionPriority"], &*condition(&replaced).0), (&json!(16), "True"), "{replaced}");
    let path = format!("{API_SERVICES}/v1.things.io/status");
    let mut object = client.get(&path).await.json();
    object["spec"]["versionPriority"] = json!(17);
    let replaced = send_json(&client, Method::PUT, &path, &object).await.json();
    assert_eq!(replaced["spec"]["versionPriority"], 16, "{replaced}");
}

#[tokio::test]
async fn invalid_api_services_refused_with_upstream_texts() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let valid = api_service(&api.environment);
    for (pointer, value, message) in [
        ("/metadata/name", json!("x"), "metadata.name: Invalid value: \"x\": must be `spec.version+\".\"+spec.group`"),
        (
            "/spec/versionPriority",
            json!(0),
            "spec.versionPriority: Invalid value: 0: must be positive and less than 1000",
        ),
        ("/spec/service/name", json!(""), "spec.service.name: Required value"),
        (
            "/spec/insecureSkipTLSVerify",
            json!(true),
            "spec.insecureSkipTLSVerify: Invalid value: true: may not be true",
        ),
    ] {
        let mut object = valid.clone();
        object["spec"]["insecureSkipTLSVerify"] = json!(false);
        *object.pointer_mut(pointer).unwrap() = value;
        let refused = send_json(&client, Method::POST, API_SERVICES, &object).await;
        let status = refused.assert_failure(422, "Invalid");
        assert!(status["message"].as_str().unwrap().contains(message), "{status}");
    }
}

#[tokio::test]
async fn api_service_with_invalid_annotations_refused_with_all_fields() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let mut object = api_service(&api.environment);
    create(&client, API_SERVICES, &object).await;
    let annotations = json!({"narthex.dev/request-timout": "1s", "narthex.dev/retry": "always"});
    let expected = json!([
        {"reason": "FieldValueInvalid", "field": "metadata.annotations[narthex.dev/request-timout]",
            "message": "Invalid value: \"1s\": unknown annotation, did you mean narthex.dev/request-timeout?"},
        {"reason": "FieldValueInvalid", "field": "metadata.annotations[narthex.dev/retry]",
            "message": "Invalid value: \"always\": is neither \"safe\" nor \"never\""},
    ]);
    object["metadata"]["annotations"] = annotations.clone();
    let dry_run = format!("{API_SERVICES}?dryRun=All");
    for path in [API_SERVICES, &*dry_run] {
        let refused = send_json(&client, Method::POST, path, &object).await.assert_failure(422, "Invalid");
        assert_eq!(refused["details"]["causes"], expected);
    }
    let patch = json!({"metadata": {"annotations": annotations}, "spec": {"versionPriority": 16}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let patched = client.send_and_read(request(Method::PATCH, API_SERVICE, &headers, &patch)).await;
    assert_eq!(patched.assert_failure(422, "Invalid")["details"]["causes"], expected);
    assert_eq!(client.get(API_SERVICE).await.json()["spec"]["versionPriority"], 15);
}

#[tokio::test]
async fn registry_errors_of_stored_objects_name_the_embedded_api_server() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let mut object = api_service(&api.environment);
    // Accepted as by kube-apiserver.
    object["spec"]["caBundle"] = json!("YWJj");
    create(&client, API_SERVICES, &object).await;
    eventually("the metric", async || {
        let metrics = admin_request(&api.gateway, get("/metrics", &[])).await.text();
        metrics.contains(r#"narthex_registry_errors{source="embedded API server"} 1"#).then_some(())
    })
    .await;
    let problems = admin_request(&api.gateway, get("/status.json", &[])).await.json()["registryProblems"].to_string();
    assert!(problems.contains(r#"embedded API server, APIService \"v1.things.io\""#), "{problems}");
    assert!(!problems.contains("kube-apiserver"), "{problems}");
}

#[tokio::test]
async fn served_groups_have_local_api_services() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let list = client.get(API_SERVICES).await.json();
    let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|one| one["metadata"]["name"].clone()).collect();
    for name in ["v1.", "v1.apps", "v1.coordination.k8s.io", "v1.discovery.k8s.io"] {
        assert!(names.contains(&json!(name)), "{name}: {names:?}");
    }
    let core = client.get(&format!("{API_SERVICES}/v1.")).await.json();
    assert_eq!(condition(&core), ("True".into(), "Local".into()));
    assert_eq!((&core["spec"]["groupPriorityMinimum"], &core["spec"]["versionPriority"]), (&json!(18_000), &json!(1)));
}

/// Nothing behind the gateway authorizes again.
#[tokio::test]
async fn users_without_a_role_may_use_discovery_alone() {
    let policy = "kind: ClusterRole\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: read}\n\
                  rules: [{verbs: [get, list], apiGroups: [''], resources: [configmaps]}]\n---\n\
                  kind: ClusterRoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: read}\n\
                  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: read}\n\
                  subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: devs}]\n";
    let api = EmbeddedApiFixture::start_with(|environment| {
        std::fs::write(environment.path("policy.yaml"), policy).unwrap();
        vec![format!("--authorization-policy-file={}", environment.path("policy.yaml").display())]
    });
    let connect = async |groups: &[&str]| {
        Client::http2(&api.environment, &api.gateway, Some(&api.environment.issue_user("jane", groups))).await
    };
    let (stranger, developer) = (connect(&[]).await, connect(&["devs"]).await);
    for path in ["/api", "/apis", "/openapi/v3", "/version", "/readyz"] {
        assert_eq!(stranger.get(path).await.status, 200, "{path}");
    }
    for path in [CONFIG_MAPS, API_SERVICES, "/api/v1/namespaces/default/secrets", "/metrics"] {
        stranger.get(path).await.assert_failure(403, "Forbidden");
    }
    assert_eq!(developer.get(CONFIG_MAPS).await.status, 200);
    developer.get("/api/v1/secrets").await.assert_failure(403, "Forbidden");
    let written = send_json(&developer, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await;
    written.assert_failure(403, "Forbidden");
}
