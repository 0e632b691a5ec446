//! What is not found: a Status below the groups of a kube-apiserver, else a text. Measured on a kube-apiserver 1.36.

use http::Method;
use serde_json::json;

use super::conversion_webhooks::{V1, crd, establish};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

#[tokio::test(flavor = "multi_thread")]
async fn embedded_api_not_found_is_status_or_text_as_in_kube_apiserver() {
    let api = EmbeddedApiFixture::start(&["--access-log=errors"]);
    let client = api.http2().await;
    establish(&client, &crd("v1", &json!({"strategy": "None"}))).await;
    for path in [
        "/api/v1/foos",
        "/api/v1/namespaces/default/foos/x",
        "/api/v2",
        "/api/v2/pods",
        "/apis/coordination.k8s.io/v1/foos",
        "/apis/coordination.k8s.io/v9",
        "/apis/coordination.k8s.io/v9/leases",
        "/apis/authorization.k8s.io/v1/foos",
        "/api/v1/namespaces/default/namespaces",
        "/version/x",
    ] {
        let status = client.get(path).await.assert_failure(404, "NotFound");
        let message = "the server could not find the requested resource";
        assert_eq!((&status["message"], &status["details"]), (&json!(message), &json!({})), "{path}");
    }
    for path in [
        "/nowhere",
        "/apis/none.io",
        "/apis/none.io/",
        "/apis/none.io/v1",
        "/apis/none.io/v1/things",
        "/apis/example.com/v1/unknowns",
        "/apis/example.com/v9",
        "/apis/example.com/v9/namespaces/default/routes",
        "/apis/example.com/v1/routes/x",
    ] {
        for method in [Method::GET, Method::POST] {
            let response = send_json(&client, method, path, &json!({})).await;
            assert_eq!((response.status.as_u16(), &*response.text()), (404, "404 page not found\n"), "{path}");
            assert_eq!(response.headers["content-type"], "text/plain; charset=utf-8");
        }
    }
    let hint = "no APIService claims none.io/v1; kubectl get apiservices shows those that are registered";
    api.gateway.wait_for_log(&["path=\"/apis/none.io/v1/things\"", hint]).await;
    api.gateway.wait_for_log(&["path=\"/api/v1/foos\"", "v1 has no resource"]).await;
    client.get(&format!("{V1}/x")).await.assert_failure(404, "NotFound");
    client.get(&format!("{V1}/x/nosub")).await.assert_failure(404, "NotFound");
}
