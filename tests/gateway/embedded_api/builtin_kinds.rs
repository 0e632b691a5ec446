//! Rules of single kinds: validation, PUT of what is absent, what DELETE returns, Events in two groups.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};

async fn merge(client: &Client, path: &str, patch: &Value) -> ClientResponse {
    let headers = [("content-type", "application/merge-patch+json")];
    client.send_and_read(request(Method::PATCH, path, &headers, &patch.to_string())).await
}

#[tokio::test]
async fn events_of_both_groups_are_the_same_objects() {
    const CORE: &str = "/api/v1/namespaces/default/events";
    const NEW: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let event = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c",
        "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal", "note": "text",
        "regarding": {"kind": "ConfigMap", "name": "m", "namespace": "default"}});
    assert_eq!(send_json(&client, Method::POST, NEW, &event).await.status, 201);
    let core = client.get(&format!("{CORE}/e")).await.json();
    let fields = [&core["apiVersion"], &core["message"], &core["involvedObject"]["name"]];
    assert_eq!(fields, ["v1", "text", "m"]);
    let selected = client.get(&format!("{NEW}?fieldSelector=regarding.name%3Dm,reportingController%3Dc")).await.json();
    let item = &selected["items"][0];
    assert_eq!((&item["note"], &item["metadata"]), (&json!("text"), &core["metadata"]));
    assert_eq!(client.get(&format!("{NEW}?fieldSelector=regarding.name%3Dx")).await.json()["items"], json!([]));
    let immutable = json!({"note": "other"});
    let patched = merge(&client, &format!("{NEW}/e"), &immutable).await;
    assert_eq!(patched.assert_failure(422, "Invalid")["details"]["causes"][0]["field"], "message");
    assert_eq!(merge(&client, &format!("{CORE}/e"), &json!({"message": "other"})).await.status, 200);
    assert_eq!(client.get(&format!("{NEW}/e")).await.json()["note"], "other");
}

#[tokio::test(flavor = "multi_thread")]
async fn autoscaler_of_both_versions_is_one_object() {
    const OLD: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    const NEW: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let target = json!({"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"});
    let spec = json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 70, "scaleTargetRef": target});
    let created = send_json(&client, Method::POST, OLD, &json!({"metadata": {"name": "a"}, "spec": spec})).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let old = created.json();
    assert_eq!(
        (&old["apiVersion"], &old["spec"]["targetCPUUtilizationPercentage"]),
        (&json!("autoscaling/v1"), &json!(70))
    );
    let new = client.get(&format!("{NEW}/a")).await.json();
    let metric = json!({"type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}});
    assert_eq!((&new["apiVersion"], &new["spec"]["metrics"]), (&json!("autoscaling/v2"), &json!([metric])));
    assert_eq!(new["metadata"]["uid"], old["metadata"]["uid"]);
    let patched = merge(&client, &format!("{OLD}/a"), &json!({"spec": {"maxReplicas": 5}})).await.json();
    assert_eq!(
        (&patched["spec"]["maxReplicas"], &patched["spec"]["targetCPUUtilizationPercentage"]),
        (&json!(5), &json!(70))
    );
    let list = client.get(OLD).await.json();
    assert_eq!(
        (&list["kind"], &list["items"][0]["spec"]["maxReplicas"]),
        (&json!("HorizontalPodAutoscalerList"), &json!(5))
    );
    assert_eq!(list["items"][0]["spec"]["metrics"], Value::Null, "as v1");
    let watched = client.get(&format!("{OLD}?watch=true&timeoutSeconds=1&resourceVersion=0")).await.text();
    assert!(watched.contains("\"targetCPUUtilizationPercentage\":70"), "{watched}");
}

#[tokio::test]
async fn service_created_by_put_and_returned_by_delete() {
    const SERVICE: &str = "/api/v1/namespaces/default/services/s";
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    // A uid is that of an object that exists.
    let of_another = json!({"metadata": {"name": "s", "uid": "abc"}, "spec": {"clusterIP": "None"}});
    for path in [SERVICE.to_owned(), format!("{SERVICE}/status")] {
        let refused = send_json(&client, Method::PUT, &path, &of_another).await.assert_failure(409, "Conflict");
        let message = refused["message"].as_str().unwrap();
        let words = "Key: /registry/services/specs/default/s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
                     UID in precondition: abc, UID in object meta: ";
        assert!(message.ends_with(words), "{message}");
    }
    let mut service = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None"}});
    let created = send_json(&client, Method::PUT, SERVICE, &service).await;
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(created.json()["spec"]["clusterIPs"], json!(["None"]));
    service["spec"] = json!({"type": "NodePort"});
    let refused = send_json(&client, Method::PUT, SERVICE, &service).await.assert_failure(422, "Invalid");
    assert_eq!(
        refused["details"]["causes"][0]["message"],
        "Invalid value: \"None\": may not be set to 'None' for NodePort services"
    );
    let deleted = client.send_and_read(request(Method::DELETE, SERVICE, &[], "")).await.json();
    assert_eq!(
        (&deleted["kind"], &deleted["metadata"]["uid"]),
        (&json!("Service"), &created.json()["metadata"]["uid"])
    );
    client.get(SERVICE).await.assert_failure(404, "NotFound");
}

#[tokio::test]
async fn warnings_are_sent_with_errors() {
    const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let endpoints = json!({"metadata": {"name": "e"}, "unknown": 1, "subsets": [{"addresses": [{"ip": "x"}]}]});
    let refused = send_json(&client, Method::POST, ENDPOINTS, &endpoints).await;
    refused.assert_failure(422, "Invalid");
    let warnings: Vec<&str> =
        refused.headers.get_all("warning").iter().map(|warning| warning.to_str().unwrap()).collect();
    assert_eq!(
        warnings,
        [
            "299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\"",
            "299 - \"unknown field \\\"unknown\\\"\"",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn builtin_kind_counts_generations_as_a_kube_apiserver() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"metadata": {"name": "a", "generation": 9}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let created = send_json(&client, Method::POST, deployments, &deployment).await;
    assert_eq!(created.json()["metadata"]["generation"], 1, "{}", created.text());
    let merge = [("content-type", "application/merge-patch+json")];
    for (subresource, body, generation) in [
        ("", r#"{"spec":{"replicas":3}}"#, 2),
        ("", r#"{"metadata":{"labels":{"a":"b"}}}"#, 2),
        ("", r#"{"metadata":{"annotations":{"a":"b"}}}"#, 3),
        ("", r#"{"metadata":{"generation":7}}"#, 3),
        ("/status", r#"{"status":{"replicas":3}}"#, 3),
    ] {
        let path = format!("{deployments}/a{subresource}");
        let patched = client.send_and_read(request(Method::PATCH, &path, &merge, body)).await;
        assert_eq!(patched.json()["metadata"]["generation"], generation, "{body}: {}", patched.text());
    }
    let path = format!("{CONFIG_MAPS}/a");
    let created = send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await.json();
    let patched = client.send_and_read(request(Method::PATCH, &path, &merge, r#"{"data":{"a":"b"}}"#)).await.json();
    assert_eq!((&created["metadata"]["generation"], &patched["metadata"]["generation"]), (&Value::Null, &Value::Null));
}
