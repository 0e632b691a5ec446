//! Discovery, explain and OpenAPI documents.

use super::Scenario;
use crate::environment::Session;

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("discovery: api-resources", api_resources),
    ("discovery: api-versions", api_versions),
    ("discovery: explain", explain),
    ("discovery: documents", discovery_documents),
];

pub(super) const GATEWAY_SCENARIOS: &[(&str, Scenario)] = &[
    ("discovery: get apiservices", get_apiservices),
    ("discovery: get --raw /livez", livez),
    ("discovery: unknown group", unknown_group),
];

fn api_resources(session: &mut Session<'_>) {
    let step = session.kubectl("api-resources --api-group=wardle.example.com");
    for text in ["flunders", "fischers", "wardle.example.com/v1"] {
        assert!(step.ok().contains(text), "{text} is missing:\n{}", step.output);
    }
    session.kubectl("api-resources --api-group=wardle.example.com --namespaced=true -o name").ok();
    session.kubectl("api-resources --api-group=wardle.example.com --verbs=list,patch -o wide --cached=false").ok();
    assert!(session.run_unrecorded("api-resources").ok().contains("flunders"));
}

fn api_versions(session: &mut Session<'_>) {
    // narthex serves apiregistration.k8s.io too: only the backend's lines are compared.
    let step = session.run_unrecorded("api-versions");
    let lines: Vec<&str> = step.ok().lines().filter(|line| line.starts_with("wardle.example.com/")).collect();
    assert_eq!(lines, ["wardle.example.com/v1alpha1", "wardle.example.com/v1beta1"]);
}

fn explain(session: &mut Session<'_>) {
    for args in [
        "explain flunders",
        "explain flunders.spec --recursive",
        "explain fischers.disallowedFlunders",
        "explain flunders --api-version=wardle.example.com/v1beta1",
        // With OpenAPI v2 in protobuf.
        "explain flunders.spec -o plaintext-openapiv2",
    ] {
        session.kubectl(args).ok();
    }
    session.kubectl("explain flunders.nothing").expect_error("field \"nothing\" does not exist");
}

fn discovery_documents(session: &mut Session<'_>) {
    for version in ["v1alpha1", "v1beta1"] {
        let step = session.kubectl(&format!("get --raw /apis/wardle.example.com/{version}"));
        let document: serde_json::Value = serde_json::from_str(step.ok()).unwrap();
        assert_eq!(document["kind"], "APIResourceList");
    }
    let group = session.run_unrecorded("get --raw /apis/wardle.example.com");
    let group: serde_json::Value = serde_json::from_str(group.ok()).unwrap();
    session.record_note("the group's versions", &format!("{} {}", group["versions"], group["preferredVersion"]));
    let index = session.run_unrecorded("get --raw /openapi/v3");
    let index: serde_json::Value = serde_json::from_str(index.ok()).unwrap();
    let path = index["paths"]["apis/wardle.example.com/v1alpha1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert!(path.starts_with("/openapi/v3/apis/wardle.example.com/v1alpha1?hash="), "{path}");
    let schema: serde_json::Value =
        serde_json::from_str(session.run_unrecorded(&format!("get --raw {path}")).ok()).unwrap();
    let flunder = &schema["components"]["schemas"];
    let flunder = flunder.as_object().unwrap().iter().find(|(name, _)| name.ends_with(".v1alpha1.Flunder"));
    session.record_note("the schema of a flunder", &flunder.expect("a schema of flunders").1.to_string());
}

fn get_apiservices(session: &mut Session<'_>) {
    let step = session.kubectl("get apiservices");
    let titles: Vec<&str> = step.ok().lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(titles, ["NAME", "SERVICE", "AVAILABLE", "AGE"]);
    let wardle: Vec<&str> = step.ok().lines().filter(|line| line.contains("wardle.example.com")).collect();
    assert_eq!(wardle.len(), 2, "{}", step.output);
    for line in wardle {
        let columns: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(columns[1..3], ["wardle/wardle", "True"], "{}", step.output);
    }
    session.kubectl("wait apiservice v1alpha1.wardle.example.com --for=condition=Available --timeout=60s").ok();
    let path = "get apiservice v1beta1.wardle.example.com -o jsonpath={.status.conditions[0].reason}";
    assert_eq!(session.kubectl(path).ok(), "Passed");
    session.kubectl("delete apiservice v1beta1.wardle.example.com").expect_error("directory");
    session.kubectl("get apiservice v1beta1.wardle.example.com").ok();
}

/// The extension server would return 403; narthex has no backend to authorize with and returns 404.
fn unknown_group(session: &mut Session<'_>) {
    session.kubectl("get --raw /apis/apps/v1/deployments").expect_error("no APIService claims apps/v1");
    let namespace = session.namespace.clone();
    session
        .kubectl(&format!("get --raw /api/v1/namespaces/{namespace}"))
        .expect_error("forbidden: User \"jane\" cannot get");
    let deployment = serde_json::json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}});
    session
        .with_input("apply -f -", &deployment)
        .expect_error("no matches for kind \"Deployment\" in version \"apps/v1\"");
}

fn livez(session: &mut Session<'_>) {
    for path in ["/livez", "/readyz", "/healthz", "/version"] {
        session.kubectl(&format!("get --raw {path}")).ok();
    }
    assert!(session.kubectl("get --raw /metrics").ok().contains("apiserver_request_total"));
    let version: serde_json::Value = serde_json::from_str(session.kubectl("version -o json").ok()).unwrap();
    // kubectl compares the version with its own and warns of skew.
    let server = version["serverVersion"]["gitVersion"].as_str().unwrap();
    assert!(server.starts_with("v1.36.0+narthex-"), "{version}");
}
