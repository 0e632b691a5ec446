//! Conversion of custom objects between versions by webhooks.

use http::Method;
use serde_json::{Value, json};

use crate::support::backend::json_response;
use crate::support::client::{Client, ClientResponse, get, metric_value, next_chunk, request};
use crate::support::conversion_webhook::{ConversionAnswer, ConversionWebhook, right_answer};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

pub(super) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/routes.example.com";
pub(crate) const V1: &str = "/apis/example.com/v1/namespaces/default/routes";
pub(crate) const V2: &str = "/apis/example.com/v2/namespaces/default/routes";

/// A CRD that stores `storage` and converts by `conversion`.
pub(crate) fn crd(storage: &str, conversion: &Value) -> Value {
    let text = json!({"type": "string"});
    let version = |name: &str, spec: Value, path: &str| {
        json!({
            "name": name, "served": true, "storage": name == storage,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": spec}}}},
            "additionalPrinterColumns": [{"name": "Spec", "type": "string", "jsonPath": path}],
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "routes.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "routes", "kind": "Route"},
            "conversion": conversion,
            "versions": [
                version("v1", json!({"hostPort": text}), ".spec.hostPort"),
                version("v2", json!({"host": text, "port": text, "scheme": {"type": "string", "default": "https"}}),
                    ".spec.port"),
            ],
        },
    })
}

pub(super) fn route(version: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("example.com/{version}"), "kind": "Route", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn route_v1(name: &str, port: u16) -> Value {
    route("v1", name, &json!({"hostPort": format!("{name}:{port}")}))
}

pub(crate) async fn create(client: &Client, path: &str, object: &Value) -> Value {
    let response = send_json(client, Method::POST, path, object).await;
    assert_eq!(response.status, 201, "{}", response.text());
    response.json()
}

/// The message of a Status 500 without reason.
pub(super) fn failure(response: &ClientResponse) -> String {
    assert_eq!(response.status, 500, "{}", response.text());
    let status = response.json();
    assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &Value::Null), "{status}");
    status["message"].as_str().unwrap().to_owned()
}

/// Creates the CRD and waits until both versions are served.
pub(crate) async fn establish(client: &Client, crd: &Value) {
    create(client, CRDS, crd).await;
    eventually("the CRD to be established", async || {
        (client.get(V1).await.status == 200 && client.get(V2).await.status == 200).then_some(())
    })
    .await;
}

/// Changes the CRD; when this returns, it is in effect.
pub(super) async fn change_crd(client: &Client, change: impl Fn(&mut Value)) {
    // Of the storage version: a watch of the other ends at once when the webhook is refused.
    let mut watch = client.send(get(&format!("{V1}?watch=1"), &[])).await.unwrap().into_body();
    let mut crd = client.get(CRD).await.json();
    change(&mut crd);
    let changed = send_json(client, Method::PUT, CRD, &crd).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    // Watches end when another CRD is in effect.
    while next_chunk(&mut watch).await.is_some() {}
}

async fn events(client: &Client, path: &str, count: usize) -> Vec<Value> {
    let mut body = client.send(get(path, &[])).await.unwrap().into_body();
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < count {
        text.extend_from_slice(&next_chunk(&mut body).await.expect("an event").unwrap());
    }
    String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_converts_what_is_read_in_another_version() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    for name in ["a", "b", "c"] {
        create(&client, V1, &route_v1(name, 80)).await;
    }
    assert_eq!(client.get(V1).await.json()["items"].as_array().unwrap().len(), 3);
    assert!(webhook.take_calls().is_empty(), "nothing is converted that needs no conversion");

    let stored = client.get(&format!("{V1}/a")).await.json();
    let mut expected = stored.clone();
    expected["apiVersion"] = json!("example.com/v2");
    expected["metadata"]["annotations"] = json!({"converted-to": "example.com/v2"});
    // Without the default of the version, as in a kube-apiserver.
    expected["spec"] = json!({"host": "a", "port": "80"});
    assert_eq!(client.get(&format!("{V2}/a")).await.json(), expected);
    let reviews = webhook.take_reviews();
    let mut sent = stored;
    sent["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(
        (&reviews[0]["apiVersion"], &reviews[0]["request"]["desiredAPIVersion"], &reviews[0]["request"]["objects"]),
        (&json!("apiextensions.k8s.io/v1"), &json!("example.com/v2"), &json!([sent]))
    );
    let received = webhook.backend.last_request();
    assert_eq!(
        (&received.method, received.uri.path_and_query().unwrap().as_str()),
        (&Method::POST, "/convert?timeout=30s")
    );
    assert_eq!(received.header_values("content-type"), ["application/json"]);

    // The first one is in the cache.
    let list = client.get(V2).await.json();
    assert_eq!((&list["kind"], &list["items"][0]), (&json!("RouteList"), &expected));
    assert_eq!(list["items"][2]["spec"]["host"], "c");
    assert_eq!(webhook.take_calls(), [2]);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = client.send_and_read(get(V2, &table)).await.json();
    assert_eq!(table["rows"][1]["cells"], json!(["b", "80"]));
    let partial = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    let partial = client.send_and_read(get(V2, &partial)).await.json();
    assert_eq!(partial["items"][0]["metadata"]["annotations"]["converted-to"], "example.com/v2");
    assert!(webhook.take_calls().is_empty());
    assert_eq!(webhook.backend.connections(), 1);
    let succeeded = r#"apiserver_conversion_webhook_request_total{result="success",failure_type=""}"#;
    assert_eq!(metric_value(&api.gateway, succeeded).await, Some(2.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_converts_writes_and_their_answers() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    let object = route("v2", "a", &json!({"host": "h", "port": "1"}));
    let created = create(&client, V2, &object).await;
    assert_eq!(
        (&created["apiVersion"], &created["spec"]),
        (&json!("example.com/v2"), &json!({"host": "h", "port": "1"}))
    );
    assert_eq!(created["metadata"]["generation"], 1);
    let path = format!("{V2}/a");
    assert_eq!(client.get(&format!("{V1}/a")).await.json()["spec"], json!({"hostPort": "h:1"}));

    let merge = [("content-type", "application/merge-patch+json")];
    let patched = client.send_and_read(request(Method::PATCH, &path, &merge, r#"{"spec":{"port":"2"}}"#)).await;
    assert_eq!(patched.json()["spec"]["port"], "2", "{}", patched.text());
    assert_eq!(client.get(&format!("{V1}/a")).await.json()["spec"], json!({"hostPort": "h:2"}));

    let read = client.get(&path).await.json();
    let mut current = send_json(&client, Method::PUT, &path, &read).await.json();
    // The default of the version is a change, although nothing of it is stored.
    assert_eq!((&current["spec"], &current["metadata"]["generation"]), (&read["spec"], &json!(3)));
    current["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let held = send_json(&client, Method::PUT, &path, &current).await.json();
    assert_eq!(held["apiVersion"], "example.com/v2");
    let dry_run = client.send_and_read(request(Method::DELETE, &format!("{path}?dryRun=All"), &[], "")).await.json();
    assert_eq!((&dry_run["apiVersion"], &dry_run["spec"]["port"]), (&json!("example.com/v2"), &json!("2")));
    let marked = client.send_and_read(request(Method::DELETE, &path, &[], "")).await.json();
    assert_eq!((&marked["apiVersion"], &marked["spec"]["port"]), (&json!("example.com/v2"), &json!("2")));
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let released =
        client.send_and_read(request(Method::PATCH, &path, &merge, r#"{"metadata":{"finalizers":null}}"#)).await;
    assert_eq!((released.status.as_u16(), client.get(&path).await.status.as_u16()), (200, 404));

    create(&client, V1, &route_v1("b", 80)).await;
    let deleted = client.send_and_read(request(Method::DELETE, V2, &[], "")).await.json();
    assert_eq!(deleted["items"][0]["spec"]["host"], "b");
    assert_eq!(client.get(V1).await.json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_converts_events_once_for_all_watches() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    let first = create(&client, V1, &route_v1("a", 80)).await;
    let initial = events(&client, &format!("{V2}?watch=1"), 1).await;
    assert_eq!((&initial[0]["type"], &initial[0]["object"]["spec"]["host"]), (&json!("ADDED"), &json!("a")));
    assert_eq!(webhook.take_calls(), [1]);

    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{V2}?watch=1&resourceVersion={version}");
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(client.send(get(&path, &[])).await.unwrap().into_body());
    }
    let mut changed = first.clone();
    changed["spec"]["hostPort"] = json!("x:81");
    assert_eq!(send_json(&client, Method::PUT, &format!("{V1}/a"), &changed).await.status, 200);
    for watch in &mut watches {
        let chunk = next_chunk(watch).await.unwrap().unwrap();
        let event: Value = serde_json::from_slice(&chunk).unwrap();
        assert_eq!((&event["type"], &event["object"]["spec"]["host"]), (&json!("MODIFIED"), &json!("x")));
    }
    assert_eq!(webhook.take_calls(), [1]);
    assert_eq!(client.send_and_read(request(Method::DELETE, &format!("{V1}/a"), &[], "")).await.status, 200);
    let chunk = next_chunk(&mut watches[0]).await.unwrap().unwrap();
    let event: Value = serde_json::from_slice(&chunk).unwrap();
    assert_eq!((&event["type"], &event["object"]["spec"]["host"]), (&json!("DELETED"), &json!("x")));
    // The state before the deletion was converted already.
    assert!(webhook.take_calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_reads_objects_of_an_earlier_storage_version() {
    let mut api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    create(&client, V1, &route_v1("a", 80)).await;
    change_crd(&client, |crd| {
        crd["spec"]["versions"][0]["storage"] = json!(false);
        crd["spec"]["versions"][1]["storage"] = json!(true);
    })
    .await;
    assert_eq!(client.get(CRD).await.json()["status"]["storedVersions"], json!(["v1", "v2"]));
    create(&client, V1, &route_v1("b", 80)).await;
    webhook.take_calls();
    let specs = async |client: &Client, path: &str| {
        let list = client.get(path).await.json();
        list["items"].as_array().unwrap().iter().map(|item| item["spec"].clone()).collect::<Vec<_>>()
    };
    let (v1, v2) = (
        [json!({"hostPort": "a:80"}), json!({"hostPort": "b:80"})],
        [json!({"host": "a", "port": "80"}), json!({"host": "b", "port": "80", "scheme": "https"})],
    );
    assert_eq!(specs(&client, V1).await, v1);
    assert_eq!(specs(&client, V2).await, v2);
    drop(client);
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    api.restart();
    let client = api.http2().await;
    webhook.take_calls();
    assert_eq!(specs(&client, V1).await, v1);
    assert_eq!(specs(&client, V2).await, v2);
    // In each version, one of the two objects is of the other version.
    assert_eq!(webhook.take_calls(), [1, 1]);

    // An update that changes nothing stores the object in the new version.
    let current = client.get(&format!("{V2}/a")).await.json();
    let migrated = send_json(&client, Method::PUT, &format!("{V2}/a"), &current).await.json();
    assert_ne!(migrated["metadata"]["resourceVersion"], current["metadata"]["resourceVersion"]);
    webhook.take_calls();
    let scheme = |spec: &Value| spec["scheme"].clone();
    assert_eq!(specs(&client, V2).await.iter().map(scheme).collect::<Vec<_>>(), ["https", "https"]);
    assert!(webhook.take_calls().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_with_wrong_response_is_an_error_of_its_version_only() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    create(&client, V1, &route_v1("a", 80)).await;
    let wrong: [(ConversionAnswer, &str); 10] = [
        (
            |right| {
                right["response"]["convertedObjects"] = json!([]);
                json_response(200, &right.to_string())
            },
            " returned 0 objects, expected 1",
        ),
        (
            |right| {
                right["response"]["convertedObjects"][0]["metadata"]["name"] = json!("z");
                json_response(200, &right.to_string())
            },
            " returned invalid object: must have the same name: a != z",
        ),
        (
            |right| {
                right["response"]["convertedObjects"][0]["apiVersion"] = json!("example.com/v1");
                json_response(200, &right.to_string())
            },
            " returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v1)",
        ),
        (
            |right| {
                right["response"]["convertedObjects"][0]["metadata"]["labels"] = json!({"a": 1});
                json_response(200, &right.to_string())
            },
            " returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
        ),
        (
            |right| {
                right["response"]["result"] = json!({"status": "Failure", "message": "no such host"});
                json_response(200, &right.to_string())
            },
            " failed: no such host",
        ),
        (
            |right| {
                right["response"]["uid"] = json!("x");
                json_response(200, &right.to_string())
            },
            ", got \"x\"",
        ),
        (|_| json_response(200, "hello"), " failed: couldn't get version/kind; json parse error: "),
        (
            |_| json_response(500, "{}"),
            " failed: an error on the server (\"unknown\") has prevented the request from succeeding",
        ),
        (
            |right| {
                let mut response = json_response(307, &right.to_string());
                response.headers_mut().insert("location", "/elsewhere".parse().unwrap());
                response
            },
            " failed: the server responded with the status code 307 but did not return more information",
        ),
        (
            |right| json_response(200, &format!("{right}{}", " ".repeat(4 << 20))),
            "?timeout=30s\": the response is larger than 31",
        ),
    ];
    for (answer, expected) in wrong {
        webhook.set_answer(answer);
        let message = failure(&client.get(&format!("{V2}/a")).await);
        assert!(message.starts_with("conversion webhook for example.com/v1, Kind=Route "), "{message}");
        assert!(message.contains(expected), "{message}: {expected}");
        assert_eq!(client.get(&format!("{V1}/a")).await.status, 200);
        webhook.set_answer(right_answer);
    }
    // A list fails as a whole, a watch with an event, and nothing of a write is stored.
    webhook.set_answer(|_| json_response(503, "{}"));
    let list = failure(&client.get(V2).await);
    let expected = "conversion webhook for example.com/v2, Kind=RouteList failed: the server is currently unable to handle \
                    the request";
    assert_eq!(list, expected);
    let error = &events(&client, &format!("{V2}?watch=1"), 1).await[0];
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(500)));
    let object = route("v2", "b", &json!({"host": "h", "port": "1"}));
    failure(&send_json(&client, Method::POST, V2, &object).await);
    failure(&client.send_and_read(request(Method::DELETE, V2, &[], "")).await);
    assert_eq!(client.get(V1).await.json()["items"].as_array().unwrap().len(), 1);
    let failed = r#"apiserver_conversion_webhook_request_total{result="failure",failure_type="conversion_webhook_partial_response_failure"}"#;
    assert_eq!(metric_value(&api.gateway, failed).await, Some(1.0));

    // Failures are not kept.
    webhook.set_answer(right_answer);
    assert_eq!(client.get(&format!("{V2}/a")).await.status, 200);
    let mut changed = client.get(&format!("{V1}/a")).await.json();
    changed["spec"]["hostPort"] = json!("x:1");
    assert_eq!(send_json(&client, Method::PUT, &format!("{V1}/a"), &changed).await.status, 200);
    let address = webhook.backend.stop().await;
    let dead = failure(&client.get(&format!("{V2}/a")).await);
    let expected = format!(
        "conversion webhook for example.com/v1, Kind=Route failed: Post \"https://{address}/convert?timeout=30s\": dial tcp \
         {address}: connect: connection refused"
    );
    assert_eq!(dead, expected);
    assert_eq!(client.get(&format!("{V1}/a")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_is_reached_by_its_service_and_old_review_version() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    let mut conversion = webhook.conversion_by_service();
    conversion["webhook"]["conversionReviewVersions"] = json!(["v9", "v1beta1", "v1"]);
    establish(&client, &crd("v1", &conversion)).await;
    create(&client, V1, &route_v1("a", 80)).await;
    let missing = failure(&client.get(&format!("{V2}/a")).await);
    let port = webhook.backend.address.port();
    let expected = format!(
        "conversion webhook for example.com/v1, Kind=Route failed: Post \
         \"https://converter.default.svc:{port}/convert?timeout=30s\": service \"converter\" not found"
    );
    assert_eq!(missing, expected);
    let service =
        json!({"metadata": {"name": "converter"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
    create(&client, "/api/v1/namespaces/default/services", &service).await;
    assert_eq!(client.get(&format!("{V2}/a")).await.json()["spec"]["host"], "a");
    assert_eq!(webhook.take_reviews()[0]["apiVersion"], "apiextensions.k8s.io/v1beta1");
    let host = webhook.backend.last_request();
    let authority = host.uri.authority().map(ToString::to_string);
    assert_eq!(authority, Some(format!("converter.default.svc:{port}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_with_invalid_ca_bundle_is_not_established() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    let invalid = webhook.conversion(&json!({"url": "https://localhost/", "caBundle": "YWJj"}));
    create(&client, CRDS, &crd("v1", &invalid)).await;
    let established = async |reason: &str| {
        eventually(reason, async || {
            let crd = client.get(CRD).await.json();
            let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.into_iter().find(|one| one["type"] == "Established")?;
            (found["reason"] == reason).then_some((found["status"].clone(), found["message"].clone()))
        })
        .await
    };
    let expected = (json!("False"), json!("The conversion webhook CABundle is invalid"));
    assert_eq!(established("InvalidCABundle").await, expected);
    assert_eq!(client.get(V1).await.status, 404);
    let mut changed = client.get(CRD).await.json();
    changed["spec"]["conversion"] = webhook.conversion_by_url();
    assert_eq!(send_json(&client, Method::PUT, CRD, &changed).await.status, 200);
    assert_eq!(established("InitialNamesAccepted").await.0, "True");
}
