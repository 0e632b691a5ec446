//! Structural schemas, compared with the answers of a kube-apiserver (`tests/interop/oracle`).

use serde::Deserialize;
use serde_json::Value;

use super::{conversion_error, validate_structural};
use crate::field_error::FieldPath;
use crate::schema::PatternBudget;
use crate::schema::props::JsonSchemaProps;

#[derive(Deserialize)]
struct Case {
    schema: Value,
    answer: Answer,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct Answer {
    conversion_error: String,
    structural: Vec<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerError {
    text: String,
}

/// Cases that differ: decoding drops empty lists, so that `x-kubernetes-list-map-keys: []` is not noticed among the types
/// of an int-or-string.
const EMPTY_LISTS: [&str; 1] =
    [r#""item":{"anyOf":[{"type":"integer","x-kubernetes-list-map-keys":[]},{"type":"string"}],"maximum":100"#];

#[test]
fn structural_rules_are_those_of_kube_apiserver() {
    let mut differences = Vec::new();
    let mut cases = 0;
    for line in include_str!("../testdata/structural.jsonl").lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let schema = JsonSchemaProps::deserialize(&case.schema).unwrap();
        cases += 1;
        let expected: Vec<&str> = case.answer.structural.iter().map(|error| &*error.text).collect();
        let converted = conversion_error(&schema).unwrap_or_default();
        let found: Vec<String> = match converted {
            "" => validate_structural(&schema, &FieldPath::root("schema"), &mut PatternBudget::default())
                .iter()
                .map(ToString::to_string)
                .collect(),
            _ => Vec::new(),
        };
        let expected_texts = expected.iter().map(ToString::to_string).collect();
        let differs = (converted, &found) != (&*case.answer.conversion_error, &expected_texts);
        if differs != EMPTY_LISTS.iter().any(|part| line.contains(part)) {
            let expected = (&case.answer.conversion_error, expected);
            differences.push(format!("{}\n  expected {expected:?}\n  found    {:?}", case.schema, (converted, found)));
        }
    }
    assert!(cases > 1000);
    assert!(differences.is_empty(), "{} of {cases}\n{}", differences.len(), differences.join("\n"));
}
