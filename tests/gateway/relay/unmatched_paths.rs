//! Paths that no APIService claims: kubectl's additional requests, and the responses it needs.

use crate::support::client::{Client, get};
use crate::support::fixtures::TestEnvironment;

#[tokio::test(flavor = "multi_thread")]
async fn unmatched_namespace_is_403_as_kubectl_expects() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &["devs"]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    // kubectl asks this when an object is not there; a 404 would make it deny the kind.
    let status = client.get("/api/v1/namespaces/garden").await.assert_failure(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "namespaces \"garden\" is forbidden: User \"jane\" cannot get resource \"namespaces\" in API group \"\" in \
             the namespace \"garden\": "
        ),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn unmatched_path_404_names_missing_apiservice() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&["--access-log=errors"]);
    let jane = environment.issue_user("jane", &["devs"]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    for (path, named) in [
        ("/api/v1/namespaces", "v1"),
        ("/api/v1/namespaces/garden/pods", "v1"),
        ("/apis/apps/v1/deployments", "apps/v1"),
        ("/apis/apps/v1", "apps/v1"),
        ("/apis/apps", "apps"),
        ("/api/v2", "v2"),
    ] {
        let status = client.get(path).await.assert_failure(404, "NotFound");
        let cause = &status["details"]["causes"][0];
        assert_eq!(cause["reason"], "NoAPIService", "{path}: {status}");
        // kubectl prints the message and no causes.
        let hint = format!("no APIService claims {named}; kubectl get apiservices shows those that are registered");
        assert_eq!(cause["message"], *hint);
        let message = format!("the server could not find the requested resource ({hint})");
        assert_eq!(status["message"], *message, "{path}");
        gateway.wait_for_log(&[&format!(" path=\"{path}\" "), &hint]).await;
    }
    let status = client.get("/nowhere").await.assert_failure(404, "NotFound");
    assert_eq!(status["message"], "the server could not find the requested resource");
}

#[tokio::test(flavor = "multi_thread")]
async fn version_reports_kubernetes_release() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http1(&environment, &gateway, Some(&jane)).await;
    for path in ["/version", "/version/"] {
        let version = client.get(path).await.json();
        assert_eq!((&version["major"], &version["minor"]), (&"1".into(), &"36".into()), "{version}");
        let expected = concat!("v1.36.0+narthex-", env!("CARGO_PKG_VERSION"));
        assert_eq!(version["gitVersion"], expected, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_empty_without_apiservices() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http1(&environment, &gateway, Some(&jane)).await;
    let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let response = client.send_and_read(get("/openapi/v2", &[("accept", accept)])).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.headers["content-type"], "application/com.github.proto-openapi.spec.v2.v1.0+protobuf");
    assert_eq!(client.get("/openapi/v2").await.json()["paths"], serde_json::json!({}));
}
