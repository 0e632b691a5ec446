//! CustomResourceDefinitions that are refused, and those that are accepted with a warning.

use http::Method;
use serde_json::{Value, json};

use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition(schema: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    })
}

fn schema_with_rule() -> Value {
    json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.a > 0"}],
    }}})
}

/// Fields and messages of the causes of a Status.
fn causes(status: &Value) -> Vec<(&str, &str)> {
    let causes = status["details"]["causes"].as_array().unwrap().iter();
    causes.map(|cause| (cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn definition_with_rules_refused_without_flag() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let refused = send_json(&client, Method::POST, DEFINITIONS, &definition(&schema_with_rule())).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let path = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";
    let why = "Forbidden: validation rules are not enforced by this server; the flag --allow-unenforced-rules makes it \
               accept the definition, and ignore them";
    assert_eq!(causes(&refused.json()), [(path, why)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn definition_with_rules_accepted_with_flag_and_warning() {
    let api = EmbeddedApiFixture::start(&["--allow-unenforced-rules"]);
    let client = api.http2().await;
    let created = send_json(&client, Method::POST, DEFINITIONS, &definition(&schema_with_rule())).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let warnings: Vec<_> = created.headers.get_all("warning").iter().collect();
    let warning = "299 - \"spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]: the rule is not \
                   enforced\"";
    assert_eq!(warnings, [warning]);
}
