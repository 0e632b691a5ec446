//! Paths that no APIService claims: what kubectl asks beside its errand, and what it makes of the answers.

use crate::client::{Client, get};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_nobody_serves_may_not_be_read_and_the_rest_is_not_there() {
    let world = World::new();
    let gateway = world.gateway(&[]);
    let jane = world.user("jane", &["devs"]);
    let client = Client::http2(&world, &gateway, Some(&jane)).await;
    // kubectl asks this when an object is not there; a 404 would make it deny the kind.
    let status = client.get("/api/v1/namespaces/garden").await.refused(403, "Forbidden");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "namespaces \"garden\" is forbidden: User \"jane\" cannot get resource \"namespaces\" in API group \"\" in \
             the namespace \"garden\": "
        ),
        "{message}"
    );
    for path in ["/api/v1/namespaces", "/api/v1/namespaces/garden/pods", "/apis/apps/v1/deployments"] {
        let status = client.get(path).await.refused(404, "NotFound");
        assert_eq!(status["details"]["causes"][0]["reason"], "NoAPIService", "{path}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_of_version_2_is_there_and_empty() {
    let world = World::new();
    let gateway = world.gateway(&[]);
    let jane = world.user("jane", &[]);
    let client = Client::http1(&world, &gateway, Some(&jane)).await;
    let accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let answer = client.ask(get("/openapi/v2", &[("accept", accept)])).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/com.github.proto-openapi.spec.v2.v1.0+protobuf");
    assert_eq!(client.get("/openapi/v2").await.json()["paths"], serde_json::json!({}));
}
