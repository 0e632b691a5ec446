//! Formats, compared with the answers of a kube-apiserver.

use serde_json::Value;

use super::{has_format, supported_format};
use crate::schema::{Schema, ValueType};

#[test]
fn formats_accept_what_kube_apiserver_accepts() {
    let mut differences = Vec::new();
    let mut count = 0;
    for line in include_str!("../../testdata/formats.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let format = case["format"].as_str().unwrap_or_default();
        let schema =
            Schema::read(&serde_json::json!({"type": case["type"].as_str().unwrap_or("string"), "format": format}));
        let schema = schema.unwrap();
        if format.is_empty() {
            continue;
        }
        let is_recognized = !supported_format(&schema).is_empty();
        if case["answer"]["recognized"] != is_recognized {
            differences.push(format!("{format} of {}: recognized: {is_recognized}", case["type"]));
        }
        if schema.value_type != Some(ValueType::String) || !is_recognized {
            continue;
        }
        for (value, accepted) in
            case["values"].as_array().unwrap().iter().zip(case["answer"]["accepted"].as_array().unwrap())
        {
            count += 1;
            if *accepted != has_format(format, value.as_str().unwrap()) {
                differences.push(format!("{format} {value}: {accepted}"));
            }
        }
    }
    // The character set of an encoded word is not examined.
    assert_eq!(differences, [r#"email "=?uf-8?q?a?= <a@b.io>": false"#]);
    assert!(count > 1000, "{count}");
}
