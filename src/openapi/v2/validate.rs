//! Validates parts of a document against the schema table, and finds their references.

use serde_json::{Map, Value, json};

use super::schema_table::{MessageSchema, PATH, RESPONSE_OR_REFERENCE, SCHEMA, ValueKind};

/// Maximum length of an encoded key: a longer one cannot be parsed from YAML, in which gnostic carries values without a
/// schema.
const MAX_KEY: usize = 1000;

/// A violation of the schema, and its path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SchemaError {
    path: Vec<String>,
    problem: &'static str,
}

impl SchemaError {
    pub(super) fn new(what: &'static str) -> SchemaError {
        SchemaError { path: Vec::new(), problem: what }
    }

    fn in_field(mut self, key: &str) -> SchemaError {
        // The key is the backend's text: shortened, and without control characters.
        self.path.push(key.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect());
        self
    }
}

impl std::fmt::Display for SchemaError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for key in self.path.iter().rev().take(8) {
            write!(f, "{key}: ")?;
        }
        f.write_str(self.problem)
    }
}

/// Validates `value` as a `kind`, and passes every reference to `reference`, which may change it.
///
/// Unknown fields and `null` are removed. kube-openapi's types do so, and gnostic's parser rejects a document with
/// unknown fields.
pub(super) fn validate(
    kind: ValueKind,
    value: &mut Value,
    reference: &mut dyn FnMut(&mut String),
) -> Result<(), SchemaError> {
    match (kind, value) {
        (ValueKind::Text, Value::String(_))
        | (ValueKind::Flag, Value::Bool(_))
        | (ValueKind::Number, Value::Number(_)) => Ok(()),
        (ValueKind::Reference, Value::String(text)) if is_reference(text) => {
            reference(text);
            Ok(())
        }
        (ValueKind::Reference, Value::String(_)) => Err(SchemaError::new("is not a reference into the document")),
        (ValueKind::Integer, Value::Number(number)) if as_integer(number).is_some() => Ok(()),
        (ValueKind::TextOrTexts, Value::String(_)) => Ok(()),
        (ValueKind::Texts | ValueKind::TextOrTexts, Value::Array(entries)) => {
            match entries.iter().all(Value::is_string) {
                true => Ok(()),
                false => Err(SchemaError::new("must be a list of strings")),
            }
        }
        (ValueKind::Any, value) => validate_any(value),
        (ValueKind::Anys, Value::Array(entries)) => entries.iter().try_for_each(validate_any),
        (ValueKind::One(message), Value::Object(object)) => validate_object(message, object, reference),
        (ValueKind::Many(message), Value::Array(entries)) => {
            validate_all(entries, |entry| validate(ValueKind::One(message), entry, reference))
        }
        (ValueKind::Named(kind), Value::Object(object)) => {
            check_key_lengths(object)?;
            object
                .iter_mut()
                .try_for_each(|(key, value)| validate(*kind, value, reference).map_err(|wrong| wrong.in_field(key)))
        }
        (ValueKind::NamedMany(kind), Value::Array(entries)) => {
            validate_all(entries, |entry| validate(ValueKind::Named(kind), entry, reference))
        }
        (ValueKind::Choice(choose), Value::Object(object)) => match choose(object) {
            Some((_, message)) => validate_object(message, object, reference),
            None => Err(SchemaError::new("is of unknown kind")),
        },
        (ValueKind::Choices(choose), Value::Array(entries)) => {
            validate_all(entries, |entry| validate(ValueKind::Choice(choose), entry, reference))
        }
        (ValueKind::SchemaOrFlag, Value::Bool(_)) => Ok(()),
        (ValueKind::SchemaOrFlag | ValueKind::Schemas, value @ Value::Object(_)) => {
            validate(ValueKind::One(&SCHEMA), value, reference)
        }
        (ValueKind::Schemas, value @ Value::Array(_)) => validate(ValueKind::Many(&SCHEMA), value, reference),
        (ValueKind::Responses, Value::Object(object)) => {
            validate_with_extensions(RESPONSE_OR_REFERENCE, object, reference)
        }
        (ValueKind::Paths, Value::Object(object)) => validate_with_extensions(PATH, object, reference),
        _ => Err(SchemaError::new("is of the wrong type")),
    }
}

fn validate_object(
    message: &MessageSchema,
    object: &mut Map<String, Value>,
    reference: &mut dyn FnMut(&mut String),
) -> Result<(), SchemaError> {
    let field_of = |key: &str| message.fields.iter().find(|field| field.key == key);
    object.retain(|key, value| {
        !value.is_null() && (field_of(key).is_some() || message.extensions > 0 && is_extension(key))
    });
    check_key_lengths(object)?;
    object.iter_mut().try_for_each(|(key, value)| {
        let kind = field_of(key).map_or(ValueKind::Any, |field| field.kind);
        validate(kind, value, reference).map_err(|wrong| wrong.in_field(key))
    })
}

/// Validates an object with arbitrary names and extensions.
fn validate_with_extensions(
    kind: ValueKind,
    object: &mut Map<String, Value>,
    reference: &mut dyn FnMut(&mut String),
) -> Result<(), SchemaError> {
    check_key_lengths(object)?;
    object.iter_mut().try_for_each(|(key, value)| {
        let kind = if is_extension(key) { ValueKind::Any } else { kind };
        validate(kind, value, reference).map_err(|wrong| wrong.in_field(key))
    })
}

fn validate_all(
    entries: &mut [Value],
    mut judge: impl FnMut(&mut Value) -> Result<(), SchemaError>,
) -> Result<(), SchemaError> {
    entries
        .iter_mut()
        .enumerate()
        .try_for_each(|(number, entry)| judge(entry).map_err(|wrong| wrong.in_field(&number.to_string())))
}

/// Validates a value of any type: it must be readable as YAML.
fn validate_any(value: &Value) -> Result<(), SchemaError> {
    match value {
        Value::Array(entries) => entries.iter().try_for_each(validate_any),
        Value::Object(object) => {
            check_key_lengths(object)?;
            object.iter().try_for_each(|(key, value)| validate_any(value).map_err(|wrong| wrong.in_field(key)))
        }
        _ => Ok(()),
    }
}

fn check_key_lengths(object: &Map<String, Value>) -> Result<(), SchemaError> {
    // An escaped character takes six bytes.
    let too_long =
        |key: &String| key.len() > MAX_KEY || key.len() > MAX_KEY / 6 && yaml_safe_json(&json!(key)).len() > MAX_KEY;
    match object.keys().any(too_long) {
        true => Err(SchemaError::new("a key is longer than 1000 bytes")),
        false => Ok(()),
    }
}

/// Whether a text is a reference into the document that Go parses as a URL. With one invalid reference clients fail to
/// read the whole document.
fn is_reference(text: &str) -> bool {
    let escaped = text
        .split('%')
        .skip(1)
        .all(|rest| rest.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit())));
    text.starts_with("#/") && text.bytes().all(|byte| byte.is_ascii_graphic()) && escaped
}

/// Whether a key is an extension.
pub(super) fn is_extension(key: &str) -> bool {
    key.starts_with("x-")
}

/// The number as an integer, if it has no fraction.
pub(super) fn as_integer(number: &serde_json::Number) -> Option<i64> {
    let exact = |float: f64| (float.fract() == 0.0 && float.abs() <= (1_i64 << 53) as f64).then_some(float as i64);
    number.as_i64().or_else(|| number.as_f64().and_then(exact))
}

/// JSON that YAML parsers accept, too, such as gnostic's. They reject some characters unless these are escaped.
pub(super) fn yaml_safe_json(value: &Value) -> String {
    let json = value.to_string();
    let odd =
        |c: char| matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}');
    if !json.contains(odd) {
        return json;
    }
    // These characters occur only in strings.
    json.chars().fold(String::with_capacity(json.len() + 8), |mut text, c| {
        match odd(c) {
            true => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::super::schema_table::{DEFINITION, DOCUMENT, PARAMETER};
    use super::*;

    fn validated(kind: ValueKind, mut value: Value) -> Result<(Value, Vec<String>), String> {
        let mut found = Vec::new();
        validate(kind, &mut value, &mut |name| found.push(name.clone())).map_err(|wrong| wrong.to_string())?;
        Ok((value, found))
    }

    #[test]
    fn openapi_v2_unknown_fields_removed() {
        let schema = json!({
            "description": "a thing", "type": "object", "required": ["spec"], "nullable": true, "oneOf": [{}],
            "properties": {
                "spec": {"$ref": "#/definitions/Spec", "default": {}, "maxLength": 9.0},
                "$ref": {"type": "string", "enum": ["$ref", 7, null]},
                "x-odd": {"type": ["string", "null"]},
                "list": {"type": "array", "items": {"$ref": "#/definitions/Item"}},
                "map": {"additionalProperties": {"allOf": [{"$ref": "#/definitions/Item"}]}},
            },
            "default": null,
            "x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Thing"}],
        });
        let mut expected = schema.clone();
        for gone in ["nullable", "oneOf", "default"] {
            expected.as_object_mut().unwrap().remove(gone);
        }
        let (value, mut found) = validated(DEFINITION, schema).unwrap();
        assert_eq!(value, expected);
        found.sort();
        assert_eq!(found, ["#/definitions/Item", "#/definitions/Item", "#/definitions/Spec"]);
    }

    #[test]
    fn openapi_v2_references_found() {
        let path = json!({
            "parameters": [{"$ref": "#/parameters/pretty"}, {"name": "n", "in": "path", "required": true, "type": "string"}],
            "get": {
                "responses": {
                    "200": {"description": "OK", "schema": {"$ref": "#/definitions/Thing"}},
                    "default": {"$ref": "#/responses/Bad"},
                    "x-note": {"$ref": "of no meaning"},
                },
                "x-kubernetes-group-version-kind": {"group": "g", "version": "v1", "kind": "Thing"},
            },
            "post": {"parameters": [{"in": "body", "name": "body", "schema": {"$ref": "#/definitions/Thing"}}],
                "responses": {}},
        });
        let (_, mut found) = validated(PATH, path).unwrap();
        found.sort();
        assert_eq!(found, ["#/definitions/Thing", "#/definitions/Thing", "#/parameters/pretty", "#/responses/Bad"]);
    }

    #[test]
    fn openapi_v2_schema_errors_name_the_field() {
        for (kind, value, expected) in [
            (DEFINITION, json!({"type": 7}), "type: is of the wrong type"),
            (
                DEFINITION,
                json!({"properties": {"a\u{1b}": {"items": [{"$ref": 1}]}}}),
                "properties: a\u{fffd}: items: 0: $ref: is of the wrong type",
            ),
            (DEFINITION, json!({"$ref": "https://evil.dev/"}), "$ref: is not a reference into the document"),
            (DEFINITION, json!({"$ref": "#/definitions/a\u{1}"}), "$ref: is not a reference into the document"),
            (DEFINITION, json!({"$ref": "#/definitions/a%2"}), "$ref: is not a reference into the document"),
            (DEFINITION, json!({"required": [1]}), "required: must be a list of strings"),
            (DEFINITION, json!({"maxLength": 1.5}), "maxLength: is of the wrong type"),
            (DEFINITION, json!({"default": {"a".repeat(1001): 1}}), "default: a key is longer than 1000 bytes"),
            (DEFINITION, json!({"default": {"\u{1}".repeat(170): 1}}), "default: a key is longer than 1000 bytes"),
            (DEFINITION, json!([]), "is of the wrong type"),
            (PARAMETER, json!({"in": "space", "name": "x"}), "is of unknown kind"),
            (PARAMETER, json!({"$ref": "#/parameters/x"}), "is of unknown kind"),
            (PATH, json!({"get": "x"}), "get: is of the wrong type"),
            (
                PATH,
                json!({"get": {"responses": {"200": {"schema": []}}}}),
                "get: responses: 200: schema: is of the wrong type",
            ),
            (
                ValueKind::One(&DOCUMENT),
                json!({"securityDefinitions": {"a": {"type": "magic"}}}),
                "securityDefinitions: a: is of unknown kind",
            ),
        ] {
            assert_eq!(validated(kind, value).unwrap_err(), expected);
        }
    }

    #[test]
    fn openapi_v2_yaml_unsafe_characters_escaped() {
        assert_eq!(
            yaml_safe_json(&json!({"a\u{7f}": "\u{feff}é\u{2028}😀\u{1}"})),
            r#"{"a\u007f":"\ufeffé\u2028😀\u0001"}"#
        );
    }
}
