//! A CRD with different schemas per version, converted by a webhook of kube-apiserver.

use base64::Engine as _;
use serde_json::{Value, json};

use super::Scenario;
use crate::environment::{Session, eventually, start_conversion_webhook};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[("cluster: conversion webhook", conversion_webhook)];

/// Converts a duration: a string in `v1`, a number of minutes in `v2`.
fn convert(mut object: Value, version: &str) -> Result<Value, &'static str> {
    let spec = object["spec"].take();
    object["spec"] = match (spec["every"].as_str(), spec["minutes"].as_u64()) {
        (_, Some(13)) => return Err("refused: thirteen minutes"),
        (Some(text), _) if version.ends_with("/v2") => {
            json!({"minutes": text.trim_end_matches('m').parse::<u64>().map_err(|_| "not minutes")?})
        }
        (_, Some(minutes)) if version.ends_with("/v1") => json!({"every": format!("{minutes}m")}),
        _ => spec,
    };
    object["apiVersion"] = version.into();
    Ok(object)
}

fn conversion_webhook(session: &mut Session<'_>) {
    let authority = &session.environment.cluster.authorities.backend;
    let identity = authority.server(&format!("converter-{}", session.namespace), &["127.0.0.1"]);
    let port = start_conversion_webhook(&identity, convert);
    let bundle = base64::engine::general_purpose::STANDARD.encode(std::fs::read(&authority.file).unwrap());
    let group = format!("{}.example.com", session.namespace);
    let version = |name: &str, storage: bool, field: &str, kind: &str| {
        let spec = json!({"type": "object", "required": [field], "properties": {field: {"type": kind}}});
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": schema}})
    };
    let client = json!({"url": format!("https://127.0.0.1:{port}/convert"), "caBundle": bundle});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("pots.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"plural": "pots", "singular": "pot", "kind": "Pot"},
            "versions": [version("v1", true, "every", "string"), version("v2", false, "minutes", "integer")],
            "conversion": {"strategy": "Webhook",
                "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}}},
    });
    session.with_input("create -f -", &definition).ok();
    eventually("both versions", || {
        let steps = ["v1", "v2"].map(|version| session.run_unrecorded(&format!("get pots.{version}.{group}")));
        let errors: String = steps.iter().map(|step| step.errors.as_str()).collect();
        if steps.iter().all(|step| step.success) { Ok(()) } else { Err(errors) }
    });
    let pot = |name: &str, version: &str, spec: Value| json!({"apiVersion": format!("{group}/{version}"), "kind": "Pot", "metadata": {"name": name}, "spec": spec});
    session.with_input("apply -f -", &pot("green", "v1", json!({"every": "3m"}))).ok();
    session.with_input("apply --server-side -f -", &pot("black", "v2", json!({"minutes": 5}))).ok();
    let minutes = session.kubectl(&format!("get pots.v2.{group} -o jsonpath={{.items[*].spec.minutes}}"));
    assert_eq!(minutes.ok(), "5 3");
    let every = session.kubectl(&format!("get pots.v1.{group} -o jsonpath={{.items[*].spec.every}}"));
    assert_eq!(every.ok(), "5m 3m");
    session.with_input("apply -f -", &pot("green", "v2", json!({"minutes": 4}))).ok();
    session.kubectl(&format!("get pots.v1.{group} green -o yaml")).ok();
    session.with_input("create -f -", &pot("odd", "v2", json!({"minutes": 13}))).expect_error("thirteen minutes");
    session.with_input("create -f -", &pot("odd", "v2", json!({"minutes": "many"}))).expect_error("minutes");
    session.kubectl(&format!("delete pots.v2.{group} --all")).ok();
    session.kubectl(&format!("delete customresourcedefinition pots.{group}")).ok();
}
