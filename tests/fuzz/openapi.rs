//! OpenAPI documents of backends, and merging them.

use narthex::openapi::merge_documents;
use serde_json::{Map, Value, json};

use crate::fuzz_bytes;

const KEYS: &[&str] = &[
    "$ref",
    "type",
    "items",
    "properties",
    "additionalProperties",
    "allOf",
    "enum",
    "default",
    "required",
    "get",
    "post",
    "parameters",
    "responses",
    "200",
    "default",
    "schema",
    "in",
    "name",
    "x-kubernetes-group-version-kind",
    "group",
    "kind",
    "version",
    "Thing",
    "Other",
    "Thing_v2",
    "maximum",
    "maxLength",
    "description",
    "x-y",
    "/apis/a.io/v1/x",
    "/apis/b.io/v1/x",
];
const TEXTS: &[&str] = &[
    "#/definitions/Thing",
    "#/definitions/Other",
    "#/parameters/Thing",
    "#/definitions/",
    "#",
    "object",
    "string",
    "query",
    "body",
    "path",
    "\u{7f}\u{2028}",
    "",
    "a.io",
    "v1",
];

/// Bytes as a tree of such words; at most `depth` levels.
fn tree(bytes: &mut std::slice::Iter<'_, u8>, depth: usize) -> Value {
    let Some(byte) = bytes.next() else { return json!({}) };
    let word = |words: &[&str]| words[usize::from(byte >> 3) % words.len()].to_owned();
    match byte % 8 {
        0..4 if depth > 0 => {
            let mut fields = Map::new();
            for _ in 0..=byte >> 6 {
                let key = bytes.next().map_or(0, |byte| usize::from(*byte) % KEYS.len());
                fields.insert(KEYS[key].to_owned(), tree(bytes, depth - 1));
            }
            Value::Object(fields)
        }
        4 if depth > 0 => Value::Array((0..byte >> 6).map(|_| tree(bytes, depth - 1)).collect()),
        5 => [json!(null), json!(true), json!(-1), json!(1.5), json!(u64::MAX), json!(1e300)]
            [usize::from(byte >> 4) % 6]
            .clone(),
        _ => Value::String(word(TEXTS)),
    }
}

#[test]
fn merged_documents() {
    fuzz_bytes(|bytes| {
        let mut bytes = bytes.iter();
        let documents: Vec<Vec<u8>> = (0..2)
            .map(|_| {
                let mut document = json!({"swagger": "2.0"});
                for section in ["paths", "definitions", "parameters"] {
                    document[section] = json!({"Thing": tree(&mut bytes, 3), "Other": tree(&mut bytes, 2),
                        "/apis/a.io/v1/x": tree(&mut bytes, 3)});
                }
                document.to_string().into_bytes()
            })
            .collect();
        let sources = [(Some("/apis/a.io/v1/"), &documents[0][..]), (None, &documents[1][..])];
        for sources in [&sources[..], &sources[..1], &sources[1..]] {
            let Ok((json, binary)) = merge_documents(sources) else { continue };
            let document: Value = serde_json::from_str(&json).unwrap();
            let own = |path: &String| path.starts_with("/apis/a.io/v1/");
            assert!(
                sources.len() > 1 || sources[0].0.is_none() || document["paths"].as_object().unwrap().keys().all(own)
            );
            // What we believe, we believe again, and it is the same.
            let again = merge_documents(&[(None, json.as_bytes())]).unwrap();
            let described = |json: &str| {
                let mut document: Value = serde_json::from_str(json).unwrap();
                document.as_object_mut().unwrap().remove("info");
                document
            };
            assert_eq!(described(&json), described(&again.0));
            assert!(!binary.is_empty());
        }
    });
}

#[test]
fn arbitrary_documents() {
    fuzz_bytes(|bytes| drop(merge_documents(&[(None, bytes)])));
}
