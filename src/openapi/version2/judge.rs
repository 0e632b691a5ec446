//! Validates parts of a document against the schema table, and finds their references.

use serde_json::{Map, Value, json};

use super::form::{ANSWER, Kind, Message, PATH, SCHEMA};

/// Maximum length of an encoded key: a longer one cannot be parsed from YAML, in which gnostic carries values without a
/// schema.
const LONGEST_KEY: usize = 1000;

/// A violation of the schema, and its path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    place: Vec<String>,
    what: &'static str,
}

impl Wrong {
    pub(super) fn new(what: &'static str) -> Wrong {
        Wrong { place: Vec::new(), what }
    }

    fn at(mut self, key: &str) -> Wrong {
        // The key is the backend's text: shortened, and without control characters.
        self.place.push(key.chars().take(64).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect());
        self
    }
}

impl std::fmt::Display for Wrong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for key in self.place.iter().rev().take(8) {
            write!(f, "{key}: ")?;
        }
        f.write_str(self.what)
    }
}

/// Validates `value` as a `kind`, and passes every reference to `reference`, which may change it.
///
/// Unknown fields and `null` are removed. kube-openapi's types do so, and gnostic's parser rejects a document with
/// unknown fields.
pub(super) fn judge(kind: Kind, value: &mut Value, reference: &mut dyn FnMut(&mut String)) -> Result<(), Wrong> {
    match (kind, value) {
        (Kind::Text, Value::String(_)) | (Kind::Flag, Value::Bool(_)) | (Kind::Number, Value::Number(_)) => Ok(()),
        (Kind::Reference, Value::String(text)) if is_reference(text) => {
            reference(text);
            Ok(())
        }
        (Kind::Reference, Value::String(_)) => Err(Wrong::new("is not a reference into the document")),
        (Kind::Whole, Value::Number(number)) if whole(number).is_some() => Ok(()),
        (Kind::Words, Value::String(_)) => Ok(()),
        (Kind::Texts | Kind::Words, Value::Array(entries)) => match entries.iter().all(Value::is_string) {
            true => Ok(()),
            false => Err(Wrong::new("must be a list of strings")),
        },
        (Kind::Any, value) => free(value),
        (Kind::Anys, Value::Array(entries)) => entries.iter().try_for_each(free),
        (Kind::One(message), Value::Object(object)) => judge_object(message, object, reference),
        (Kind::Many(message), Value::Array(entries)) => {
            judge_all(entries, |entry| judge(Kind::One(message), entry, reference))
        }
        (Kind::Named(kind), Value::Object(object)) => {
            short_keys(object)?;
            object.iter_mut().try_for_each(|(key, value)| judge(*kind, value, reference).map_err(|wrong| wrong.at(key)))
        }
        (Kind::NamedMany(kind), Value::Array(entries)) => {
            judge_all(entries, |entry| judge(Kind::Named(kind), entry, reference))
        }
        (Kind::Choice(choose), Value::Object(object)) => match choose(object) {
            Some((_, message)) => judge_object(message, object, reference),
            None => Err(Wrong::new("is of unknown kind")),
        },
        (Kind::Choices(choose), Value::Array(entries)) => {
            judge_all(entries, |entry| judge(Kind::Choice(choose), entry, reference))
        }
        (Kind::SchemaOrFlag, Value::Bool(_)) => Ok(()),
        (Kind::SchemaOrFlag | Kind::Schemas, value @ Value::Object(_)) => judge(Kind::One(&SCHEMA), value, reference),
        (Kind::Schemas, value @ Value::Array(_)) => judge(Kind::Many(&SCHEMA), value, reference),
        (Kind::Responses, Value::Object(object)) => judge_beside(ANSWER, object, reference),
        (Kind::Paths, Value::Object(object)) => judge_beside(PATH, object, reference),
        _ => Err(Wrong::new("is of the wrong type")),
    }
}

fn judge_object(
    message: &Message,
    object: &mut Map<String, Value>,
    reference: &mut dyn FnMut(&mut String),
) -> Result<(), Wrong> {
    let known = |key: &str| message.fields.iter().find(|field| field.key == key);
    object
        .retain(|key, value| !value.is_null() && (known(key).is_some() || message.extensions > 0 && is_extension(key)));
    short_keys(object)?;
    object.iter_mut().try_for_each(|(key, value)| {
        let kind = known(key).map_or(Kind::Any, |field| field.kind);
        judge(kind, value, reference).map_err(|wrong| wrong.at(key))
    })
}

/// Validates an object with arbitrary names and extensions.
fn judge_beside(
    kind: Kind,
    object: &mut Map<String, Value>,
    reference: &mut dyn FnMut(&mut String),
) -> Result<(), Wrong> {
    short_keys(object)?;
    object.iter_mut().try_for_each(|(key, value)| {
        let kind = if is_extension(key) { Kind::Any } else { kind };
        judge(kind, value, reference).map_err(|wrong| wrong.at(key))
    })
}

fn judge_all(entries: &mut [Value], mut judge: impl FnMut(&mut Value) -> Result<(), Wrong>) -> Result<(), Wrong> {
    entries
        .iter_mut()
        .enumerate()
        .try_for_each(|(number, entry)| judge(entry).map_err(|wrong| wrong.at(&number.to_string())))
}

/// Validates a value of any type: it must be readable as YAML.
fn free(value: &Value) -> Result<(), Wrong> {
    match value {
        Value::Array(entries) => entries.iter().try_for_each(free),
        Value::Object(object) => {
            short_keys(object)?;
            object.iter().try_for_each(|(key, value)| free(value).map_err(|wrong| wrong.at(key)))
        }
        _ => Ok(()),
    }
}

fn short_keys(object: &Map<String, Value>) -> Result<(), Wrong> {
    // An escaped character takes six bytes.
    let too_long = |key: &String| {
        key.len() > LONGEST_KEY || key.len() > LONGEST_KEY / 6 && written(&json!(key)).len() > LONGEST_KEY
    };
    match object.keys().any(too_long) {
        true => Err(Wrong::new("a key is longer than 1000 bytes")),
        false => Ok(()),
    }
}

/// Whether it is a reference into the document that Go parses as a URL. With one invalid reference clients fail to read
/// the whole document.
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
pub(super) fn whole(number: &serde_json::Number) -> Option<i64> {
    let exact = |float: f64| (float.fract() == 0.0 && float.abs() <= (1_i64 << 53) as f64).then_some(float as i64);
    number.as_i64().or_else(|| number.as_f64().and_then(exact))
}

/// JSON that YAML parsers accept, too, such as gnostic's. They reject some characters unless these are escaped.
pub(super) fn written(value: &Value) -> String {
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
    use super::super::form::{DEFINITION, DOCUMENT, PARAMETER};
    use super::*;

    fn judged(kind: Kind, mut value: Value) -> Result<(Value, Vec<String>), String> {
        let mut found = Vec::new();
        judge(kind, &mut value, &mut |name| found.push(name.clone())).map_err(|wrong| wrong.to_string())?;
        Ok((value, found))
    }

    #[test]
    fn what_is_known_stays_and_the_rest_goes() {
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
        let (value, mut found) = judged(DEFINITION, schema).unwrap();
        assert_eq!(value, expected);
        found.sort();
        assert_eq!(found, ["#/definitions/Item", "#/definitions/Item", "#/definitions/Spec"]);
    }

    #[test]
    fn references_are_found_where_they_are_references() {
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
        let (_, mut found) = judged(PATH, path).unwrap();
        found.sort();
        assert_eq!(found, ["#/definitions/Thing", "#/definitions/Thing", "#/parameters/pretty", "#/responses/Bad"]);
    }

    #[test]
    fn what_is_of_another_form_is_named() {
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
                Kind::One(&DOCUMENT),
                json!({"securityDefinitions": {"a": {"type": "magic"}}}),
                "securityDefinitions: a: is of unknown kind",
            ),
        ] {
            assert_eq!(judged(kind, value).unwrap_err(), expected);
        }
    }

    #[test]
    fn what_yaml_takes_for_no_character_is_written_with_its_number() {
        assert_eq!(written(&json!({"a\u{7f}": "\u{feff}é\u{2028}😀\u{1}"})), r#"{"a\u007f":"\ufeffé\u2028😀\u0001"}"#);
    }
}
