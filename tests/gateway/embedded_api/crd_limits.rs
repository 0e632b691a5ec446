//! CustomResourceDefinitions whose schemas are deep, large or expensive.

use http::Method;
use serde_json::{Map, Value, json};

use crate::support::client::{Client, ClientResponse};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn crd(plural: &str, spec: &Value) -> Value {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.limits.example.com")},
        "spec": {
            "group": "limits.example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": plural.to_uppercase()},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn objects(plural: &str) -> String {
    format!("/apis/limits.example.com/v1/namespaces/default/{plural}")
}

/// Creates a CRD and waits until its objects are served.
async fn establish(client: &Client, plural: &str, spec: &Value) {
    let created = send_json(client, Method::POST, CRDS, &crd(plural, spec)).await;
    assert_eq!(created.status, 201, "{}", created.text());
    eventually("objects to be served", async || (client.get(&objects(plural)).await.status == 200).then_some(())).await;
}

async fn create(client: &Client, plural: &str, name: &str, spec: &Value) -> ClientResponse {
    let object = json!({"apiVersion": "limits.example.com/v1", "kind": plural.to_uppercase(), "metadata": {"name": name},
        "spec": spec});
    send_json(client, Method::POST, &objects(plural), &object).await
}

/// A schema with so many objects in each other, and a value for it.
fn nested(levels: usize) -> (Value, Value) {
    let leaf = (json!({"type": "integer", "maximum": 5}), json!(5));
    (0..levels).fold(leaf, |(schema, value), _| {
        (json!({"type": "object", "properties": {"a": schema}}), json!({"a": value, "unknown": true}))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_with_deep_schema_is_applied_or_refused_as_a_whole() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let (schema, value) = nested(55);
    establish(&client, "deeps", &schema).await;
    let created = create(&client, "deeps", "a", &value).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let mut innermost = &created.json()["spec"];
    for _ in 0..55 {
        assert_eq!(innermost.as_object().unwrap().keys().collect::<Vec<_>>(), ["a"], "unknown fields are pruned");
        innermost = &innermost["a"];
    }
    assert_eq!(*innermost, 5);
    let wrong: Value = serde_json::from_str(&value.to_string().replace('5', "6")).unwrap();
    let refused = create(&client, "deeps", "b", &wrong).await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("should be less than or equal to 5"), "{}", refused.text());

    // With more levels than JSON may have here.
    for levels in [100, 1000] {
        let refused = send_json(&client, Method::POST, CRDS, &crd("abysses", &nested(levels).0)).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains("exceeded max depth"), "{}", refused.text());
    }
    assert_eq!(client.get(&format!("{CRDS}/abysses.limits.example.com")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_with_10000_properties_of_a_megabyte_is_applied() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let description = "d".repeat(50);
    let property = |number: usize| {
        let schema = json!({"type": "string", "maxLength": 5, "description": description});
        (format!("p{number:04}"), schema)
    };
    let properties: Map<String, Value> = (0..10_000).map(property).collect();
    let spec = json!({"type": "object", "properties": properties});
    assert!(spec.to_string().len() > 1_000_000);
    establish(&client, "wides", &spec).await;
    let mut value: Map<String, Value> = (0..10_000).map(|number| (format!("p{number:04}"), json!("x"))).collect();
    value.insert("unknown".to_owned(), json!("x"));
    let created = create(&client, "wides", "a", &Value::Object(value.clone())).await;
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(created.json()["spec"].as_object().unwrap().len(), 10_000);
    value.insert("p7777".to_owned(), json!("too long"));
    let refused = create(&client, "wides", "b", &Value::Object(value.clone())).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let status = refused.json();
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!((causes.len(), &causes[0]["field"]), (1, &json!("spec.p7777")), "{status}");
    // All fields are wrong: not all errors are in the answer.
    let wrong: Map<String, Value> = (0..10_000).map(|number| (format!("p{number:04}"), json!(1))).collect();
    let refused = create(&client, "wides", "c", &Value::Object(wrong)).await;
    assert_eq!(refused.json()["details"]["causes"].as_array().unwrap().len(), 256);

    let index = client.get("/openapi/v3").await.json();
    let path = index["paths"]["apis/limits.example.com/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    let document = client.get(&path).await.json();
    let schema = &document["components"]["schemas"]["com.example.limits.v1.WIDES"]["properties"]["spec"];
    assert_eq!(schema["properties"].as_object().unwrap().len(), 10_000);

    // Larger than a stored object may be.
    let spec = json!({"type": "object", "description": "d".repeat(1_600_000)});
    let refused = send_json(&client, Method::POST, CRDS, &crd("larges", &spec)).await;
    assert_eq!(refused.status, 413, "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_with_patterns_that_would_explode_elsewhere() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for (pattern, why) in [
        ("(a{1000}){1000}", "invalid repeat count: `{1000}`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        (r"(\pL{300}){3}", "expression needs too much memory"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
    ] {
        let spec = json!({"type": "string", "pattern": pattern});
        let refused = send_json(&client, Method::POST, CRDS, &crd("patterns", &spec)).await;
        assert_eq!(refused.status, 422, "{pattern}: {}", refused.text());
        let message = refused.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("must be a valid regular expression, but isn't: "), "{message}");
        assert!(message.contains(why), "{message}");
    }
    let nested = format!("{}a{}", "(".repeat(1001), ")".repeat(1001));
    let spec = json!({"type": "string", "pattern": nested});
    let refused = send_json(&client, Method::POST, CRDS, &crd("patterns", &spec)).await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("expression nests too deeply"), "{}", refused.text());

    // Exponential for a matcher that tries one way after the other.
    let spec = json!({"type": "object", "properties": {
        "nested": {"type": "string", "pattern": "^(a+)+$"},
        "either": {"type": "string", "pattern": "^(a|aa)+$"},
        "optional": {"type": "string", "pattern": format!("^{}{}$", "a?".repeat(500), "a".repeat(500))},
    }});
    establish(&client, "patterns", &spec).await;
    let long = "a".repeat(100_000);
    for (field, right) in [("nested", &*long), ("either", &long), ("optional", &"a".repeat(700))] {
        let created = create(&client, "patterns", field, &json!({field: right})).await;
        assert_eq!(created.status, 201, "{field}: {}", created.text());
        let refused = create(&client, "patterns", "wrong", &json!({field: format!("{right}b")})).await;
        assert_eq!(refused.status, 422, "{field}");
    }
}
