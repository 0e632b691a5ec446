//! CustomResourceDefinitions, compared with the answers of a kube-apiserver (`tests/interop/oracle`).

use std::collections::BTreeMap;
use std::fmt::Debug;

use bytes::Bytes;
use kubeapi::field_error::FieldError;
use kubeapi::json::read_json;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::metadata;
use super::object_type::DecodeError;
use super::request_body::{BodyFindings, check_object};
use super::target::ObjectTarget;
use super::write_options::FieldValidation;
use crate::compute::WorkLimit;
use crate::kinds::{ObjectUpdate, ValidationSettings, kind_errors, object_warnings};
use crate::resources::builtin::builtin_kinds;
use crate::resources::crd_upgrade::{crd_as_v1, upgrade_stored_crd};

/// A question to the oracle, and its answer. See `tests/interop/oracle/main.go`.
#[derive(Deserialize)]
struct CrdCase {
    definition: Box<RawValue>,
    old: Option<Box<RawValue>>,
    #[serde(default)]
    stored: bool,
    #[serde(default)]
    show: bool,
    answer: CrdAnswer,
}

#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct CrdAnswer {
    decode_error: String,
    strict: Vec<String>,
    errors: Vec<CrdAnswerError>,
    unordered: bool,
    warnings: Vec<String>,
    prepared: Option<Value>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct CrdAnswerError {
    #[serde(rename = "type")]
    reason: String,
    field: String,
    text: String,
}

impl From<&FieldError> for CrdAnswerError {
    fn from(error: &FieldError) -> CrdAnswerError {
        CrdAnswerError { reason: error.kind.reason().to_owned(), field: error.field.clone(), text: error.to_string() }
    }
}

/// The target of a write.
fn target() -> ObjectTarget<'static> {
    let kind = builtin_kinds().find("apiextensions.k8s.io", "v1", "customresourcedefinitions").unwrap();
    ObjectTarget::new(kind, "", "cases.a.io", "")
}

/// Decodes a body as for a create or update; with findings of strict decoding.
fn decode(target: &ObjectTarget<'_>, text: &RawValue) -> Result<(Map<String, Value>, Vec<String>), String> {
    let document = Bytes::copy_from_slice(text.get().as_bytes());
    let (value, findings) = read_json(&document).map_err(|error| DecodeError::malformed_json(error).why)?;
    let findings = BodyFindings::Json(document, findings);
    let decoded = check_object(&target.kind, value, findings, FieldValidation::Warn).map_err(|error| error.why)?;
    Ok((decoded.object, decoded.warnings))
}

/// What Narthex answers to a write.
fn answered(crd: &RawValue, old: Option<&RawValue>) -> CrdAnswer {
    let target = target();
    let mut answer = CrdAnswer::default();
    let mut object = match decode(&target, crd) {
        Ok((object, strict)) => {
            answer.strict = strict;
            object
        }
        Err(error) => {
            answer.decode_error = error;
            return answer;
        }
    };
    let old = old.map(|old| decode(&target, old).unwrap().0);
    let old = old.map(|mut old| {
        // As for the oracle.
        let meta = old.entry("metadata").or_insert_with(|| json!({}));
        let version = meta.get("resourceVersion").cloned().unwrap_or_else(|| json!("1"));
        meta["resourceVersion"] = version.clone();
        let meta = object.entry("metadata").or_insert_with(|| json!({}));
        if meta.get("resourceVersion").is_none() {
            meta["resourceVersion"] = version;
        }
        old
    });
    match &old {
        None => {
            (target.rules.prepare_new)(&target.kind, &mut object);
            // Set with other metadata.
            object.entry("metadata").or_insert_with(|| json!({}))["generation"] = json!(1);
        }
        Some(old) => {
            metadata::fill_replacement(&target, old, &mut object);
            let update = ObjectUpdate { kind: &target.kind, subresource: "", old };
            (target.rules.prepare_replacement)(&update, &mut object);
        }
    }
    let (settings, limit) = (ValidationSettings::default(), WorkLimit::for_server());
    let errors = kind_errors((&settings, &limit), (&target.kind, ""), (old.as_ref(), &object));
    answer.errors = errors.iter().map(CrdAnswerError::from).collect();
    answer.warnings = object_warnings(&target.kind.resource, "", old.as_ref(), &object);
    answer.warnings.sort();
    answer.prepared = Some(Value::Object(object));
    answer
}

/// Compares answers; with what differs.
fn differences(expected: &mut CrdAnswer, found: &mut CrdAnswer, is_shown: bool) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    let mut compare = |what, expected: &dyn Debug, found: &dyn Debug| {
        let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
        if expected != found {
            all.push((what, format!("  expected {expected}\n  found    {found}")));
        }
    };
    compare("decodeError", &expected.decode_error, &found.decode_error);
    compare("strict", &expected.strict, &found.strict);
    if expected.unordered {
        found.errors.sort_by(|a, b| a.text.cmp(&b.text));
        expected.errors.sort_by(|a, b| a.text.cmp(&b.text));
    }
    compare("errors", &expected.errors, &found.errors);
    compare("warnings", &expected.warnings, &found.warnings);
    if is_shown {
        compare("prepared", &expected.prepared, &found.prepared);
    }
    all
}

/// Fails if a case differs that is not known, or a known one differs no longer.
fn check(cases: impl Iterator<Item = (String, CrdAnswer, CrdAnswer, bool)>, known: &[(&str, &str)]) {
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut used = vec![false; known.len()];
    let mut count = 0;
    for (name, mut expected, mut answer, is_shown) in cases {
        count += 1;
        let differences = differences(&mut expected, &mut answer, is_shown);
        let place = known.iter().position(|(part, _)| name.contains(part)).filter(|_| !differences.is_empty());
        if let Some(place) = place {
            used[place] = true;
            continue;
        }
        for (what, text) in differences {
            found.entry(what).or_default().push(format!("{name}\n{text}"));
        }
    }
    assert!(count > 900);
    for (what, all) in &found {
        println!("{what}: {}", all.len());
        all.iter().for_each(|one| println!("{one}"));
    }
    assert!(found.is_empty(), "{:?}", found.iter().map(|(what, all)| (what, all.len())).collect::<Vec<_>>());
    let unused: Vec<_> = known.iter().zip(used).filter(|(_, is_used)| !is_used).collect();
    assert!(unused.is_empty(), "{unused:?} differ no longer");
}

/// Cases that differ, by a part of them, and why.
const KNOWN_DIFFERENCES: [(&str, &str); 1] =
    [("1e400", "a number beyond those of Go is refused when JSON is read, not when the field is decoded")];

/// Schemas for which answers differ, by a part of them, and why.
const KNOWN_SCHEMA_DIFFERENCES: [(&str, &str); 3] = [
    (
        r#""item":{"anyOf":[{"type":"integer","x-kubernetes-list-map-keys":[]},{"type":"string"}],"maximum":100"#,
        "decoding drops empty lists, which Kubernetes counts among the keywords of an alternative",
    ),
    (
        r#""type":"null","x-kubernetes-list-type":"atomic"}"#,
        "the default of an unknown type is not validated by the type",
    ),
    (
        r#"{"default":2.5,"format":"float","type":"string"}"#,
        "Kubernetes validates defaults also by formats that do not apply to the type",
    ),
];

#[test]
fn crds_are_answered_as_by_kube_apiserver() {
    let cases = include_str!("../resources/testdata/definitions.jsonl").lines().filter_map(|line| {
        let case: CrdCase = serde_json::from_str(line).unwrap();
        let found = answered(&case.definition, case.old.as_deref());
        (!case.stored).then(|| (line.to_owned(), case.answer, found, case.show))
    });
    check(cases, &KNOWN_DIFFERENCES);
}

#[test]
fn stored_crds_are_read_as_by_kube_apiserver() {
    let mut count = 0;
    for line in include_str!("../resources/testdata/definitions.jsonl").lines() {
        let case: CrdCase = serde_json::from_str(line).unwrap();
        if case.stored {
            count += 1;
            let stored: Value = serde_json::from_str(case.definition.get()).unwrap();
            let is_old = stored["apiVersion"] == "apiextensions.k8s.io/v1beta1";
            assert_eq!(crd_as_v1(stored).ok(), case.answer.prepared, "{line}");
            // One in v1 was stored with its defaults.
            let bytes = Bytes::copy_from_slice(case.definition.get().as_bytes());
            let upgraded = upgrade_stored_crd(&bytes);
            let upgraded = upgraded.map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap());
            assert_eq!(upgraded, case.answer.prepared.filter(|_| is_old), "{line}");
        }
    }
    assert_eq!(count, 10);
}

#[test]
fn crds_with_a_schema_are_answered_as_by_kube_apiserver() {
    #[derive(Deserialize)]
    struct SchemaCase {
        schema: Box<RawValue>,
        answer: SchemaAnswer,
    }
    #[derive(Deserialize)]
    #[serde(default)]
    #[derive(Default)]
    struct SchemaAnswer {
        definition: Vec<CrdAnswerError>,
        unordered: bool,
    }
    let cases = include_str!("../../crates/kubeapi/src/schema/testdata/structural.jsonl").lines().map(|line| {
        let case: SchemaCase = serde_json::from_str(line).unwrap();
        let crd = format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"cases.a.io"}},
            "spec":{{"group":"a.io","scope":"Cluster","names":{{"plural":"cases","kind":"CrdCase"}},"versions":[
            {{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{}}}}}]}}}}"#,
            case.schema.get()
        );
        let mut found = answered(&RawValue::from_string(crd).unwrap(), None);
        let SchemaAnswer { definition, unordered } = case.answer;
        // Only errors are known.
        let expected = CrdAnswer { errors: definition, unordered, ..CrdAnswer::default() };
        found.warnings.clear();
        found.strict.clear();
        (line.to_owned(), expected, found, false)
    });
    check(cases, &KNOWN_SCHEMA_DIFFERENCES);
}
