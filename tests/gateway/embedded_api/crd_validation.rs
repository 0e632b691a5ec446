//! CustomResourceDefinitions that are refused, and those that are accepted with a warning.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{admin_request, get, metric_value};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::{eventually, run_narthex};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn crd(schema: &Value) -> Value {
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
async fn crd_with_rules_refused_without_flag() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let refused = send_json(&client, Method::POST, CRDS, &crd(&schema_with_rule())).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let path = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";
    let why = "Forbidden: validation rules are not enforced by this server; the flag --allow-unenforced-rules makes it \
               accept the CRD, and ignore them";
    assert_eq!(causes(&refused.json()), [(path, why)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_that_is_wrong_refused_with_all_causes() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let mut wrong = crd(&json!({"type": "object", "properties": {
        "a": {"type": "string", "pattern": "(", "default": 5},
        "b": {"properties": {}},
    }}));
    wrong["metadata"]["name"] = json!("bars.example.com");
    wrong["spec"]["scope"] = json!("Global");
    wrong["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "A", "type": "text", "jsonPath": "a"}]);
    let refused = send_json(&client, Method::POST, CRDS, &wrong).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    let status = refused.json();
    assert_eq!(
        causes(&status),
        [
            ("metadata.name", r#"Invalid value: "bars.example.com": must be spec.names.plural+"."+spec.group"#),
            ("spec.scope", r#"Unsupported value: "Global": supported values: "Cluster", "Namespaced""#),
            (
                "spec.validation.openAPIV3Schema.properties[a].pattern",
                "Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
            ),
            (
                "spec.validation.openAPIV3Schema.properties[b].type",
                "Required value: must not be empty for specified object fields",
            ),
            (
                "spec.additionalPrinterColumns[0].type",
                r#"Invalid value: "text": must be one of boolean,date,integer,number,string"#,
            ),
            (
                "spec.additionalPrinterColumns[0].JSONPath",
                r#"Invalid value: "a": must be a simple json path starting with ."#,
            ),
        ]
    );
    assert!(status["message"].as_str().unwrap().starts_with(
        "CustomResourceDefinition.apiextensions.k8s.io \"bars.example.com\" is invalid: [metadata.name: Invalid value: "
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_keeps_scope_and_kind_once_established() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let path = format!("{CRDS}/foos.example.com");
    let created = send_json(&client, Method::POST, CRDS, &crd(&json!({"type": "object"}))).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let mut stored = eventually("the CRD to be established", async || {
        let object = client.get(&path).await.json();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True").then_some(object)
    })
    .await;
    stored["spec"]["scope"] = json!("Cluster");
    stored["spec"]["names"]["kind"] = json!("Other");
    let refused = send_json(&client, Method::PUT, &path, &stored).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert_eq!(
        causes(&refused.json()),
        [
            ("spec.scope", "Invalid value: \"Cluster\": field is immutable"),
            ("spec.names.kind", "Invalid value: \"Other\": field is immutable"),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_without_approval_refused_in_group_of_the_community() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let mut protected = crd(&json!({"type": "object"}));
    protected["metadata"]["name"] = json!("foos.example.k8s.io");
    protected["spec"]["group"] = json!("example.k8s.io");
    let refused = send_json(&client, Method::POST, CRDS, &protected).await;
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert_eq!(causes(&refused.json())[0].0, "metadata.annotations[api-approved.kubernetes.io]");
    protected["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a test"});
    assert_eq!(send_json(&client, Method::POST, CRDS, &protected).await.status, 201);
    eventually("the condition about the approval", async || {
        let object = client.get(&format!("{CRDS}/foos.example.k8s.io")).await.json();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.iter().find(|one| one["type"] == "KubernetesAPIApprovalPolicyConformant")?;
        assert_eq!((&found["status"], &found["reason"]), (&json!("False"), &json!("UnapprovedAnnotation")));
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_with_rules_accepted_with_flag_and_warning() {
    let api = EmbeddedApiFixture::start(&["--allow-unenforced-rules"]);
    let client = api.http2().await;
    let created = send_json(&client, Method::POST, CRDS, &crd(&schema_with_rule())).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let warnings: Vec<_> = created.headers.get_all("warning").iter().collect();
    let warning = "299 - \"spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]: the rule is not \
                   enforced\"";
    assert_eq!(warnings, [warning]);
    let unenforced = eventually("the status to name the CRD", async || {
        let report = admin_request(&api.gateway, get("/status.json", &[])).await.json();
        Some(report["storage"]["unenforcedCrds"].clone()).filter(|names| *names != json!([]))
    });
    assert_eq!(unenforced.await, json!(["foos.example.com"]));
    assert_eq!(metric_value(&api.gateway, "narthex_unenforced_crds").await, Some(1.0));
    let output = run_narthex(&["status".to_owned(), format!("--admin-address={}", api.gateway.admin)]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("rules (x-kubernetes-validations) are not enforced: foos.example.com"), "{text}");
}
