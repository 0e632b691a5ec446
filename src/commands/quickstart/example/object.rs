//! Objects: decoding, validation, metadata.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::api_errors;
use super::resource::{ExampleResource, FieldType, METADATA, SchemaField};
use crate::kubeapi::Status;

/// Size limit of an object, the same as etcd's.
const MAX_OBJECT_BYTES: usize = 1536 * 1024;
const MAX_TEXT_BYTES: usize = 1024;
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// A decoded object: only known fields, of the right types.
#[derive(Debug)]
pub(super) struct DecodedExample {
    pub(super) object: Value,
    /// Paths of unknown fields, for example `spec.volume`.
    pub(super) unknown: Vec<String>,
}

/// Decodes `body` as an object of `resource`. Fields of a wrong type, another kind or another version are rejected with
/// 400; `null` counts as absent; a missing kind and version are filled in.
pub(super) fn decode(resource: &ExampleResource, body: Value) -> Result<DecodedExample, Status> {
    let kind = resource.kind;
    let unfit = |kind: &str, why: String| {
        let version = resource.version;
        Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {}: {why}", resource.kind))
    };
    let Value::Object(mut fields) = body else {
        return Err(unfit(kind, format!("json: cannot unmarshal {} into Go value of type {kind}", json_type(&body))));
    };
    let mut text = |name: &str| match fields.remove(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(unfit(kind, mismatch(&other, &format!("TypeMeta.{name}"), "string"))),
    };
    let (api_version, body_kind) = (text("apiVersion")?, text("kind")?);
    if !api_version.is_empty() && api_version != resource.group_version() {
        let expected = resource.group_version();
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({expected})"
        )));
    }
    if !body_kind.is_empty() && body_kind != kind {
        let version = resource.group_version();
        let why = format!("no kind {body_kind:?} is registered for version {version:?} at this path");
        return Err(unfit(&body_kind, why));
    }
    let mut reader = ObjectDecoder { root: kind, unknown: Vec::new() };
    let top = [
        ("metadata", FieldType::Object(METADATA)),
        ("spec", FieldType::Object(resource.spec)),
        ("status", FieldType::Object(resource.status)),
    ];
    let mut object = Map::new();
    for (name, shape) in top {
        if let Some(value) = fields.remove(name)
            && let Some(value) = reader.read(value, shape, name).map_err(|why| unfit(kind, why))?
        {
            object.insert(name.to_owned(), value);
        }
    }
    reader.unknown.extend(fields.into_iter().map(|(name, _)| name));
    object.insert("apiVersion".into(), resource.group_version().into());
    object.insert("kind".into(), kind.into());
    object.entry("metadata").or_insert_with(|| json!({}));
    Ok(DecodedExample { object: Value::Object(object), unknown: reader.unknown })
}

struct ObjectDecoder {
    root: &'static str,
    unknown: Vec<String>,
}

impl ObjectDecoder {
    /// The value without unknown fields; `None` for null.
    fn read(&mut self, value: Value, shape: FieldType, path: &str) -> Result<Option<Value>, String> {
        let wrong = |value: &Value, expected: &str| Err(mismatch(value, &format!("{}.{path}", self.root), expected));
        Ok(Some(match (shape, value) {
            (_, Value::Null) => return Ok(None),
            (FieldType::Text, value @ Value::String(_)) | (FieldType::Flag, value @ Value::Bool(_)) => value,
            (FieldType::Integer, value) if value.is_i64() => value,
            (FieldType::Time, value) => match value.as_str().map(str::parse::<Timestamp>) {
                Some(Ok(_)) => value,
                _ => return wrong(&value, "Time"),
            },
            (FieldType::Texts, Value::Array(texts)) => {
                if let Some(odd) = texts.iter().find(|text| !text.is_string()) {
                    return wrong(odd, "string");
                }
                Value::Array(texts)
            }
            (FieldType::Map, Value::Object(texts)) => {
                if let Some(odd) = texts.values().find(|text| !text.is_string()) {
                    return wrong(odd, "string");
                }
                Value::Object(texts)
            }
            (FieldType::Records, Value::Array(records)) => {
                if let Some(odd) = records.iter().find(|record| !record.is_object()) {
                    return wrong(odd, "object");
                }
                Value::Array(records)
            }
            (FieldType::Object(fields), Value::Object(values)) => self.read_fields(fields, values, path)?,
            (FieldType::Text, value) => return wrong(&value, "string"),
            (FieldType::Flag, value) => return wrong(&value, "bool"),
            (FieldType::Integer, value) => return wrong(&value, "int64"),
            (FieldType::Texts, value) => return wrong(&value, "[]string"),
            (FieldType::Map, value) => return wrong(&value, "map[string]string"),
            (FieldType::Records, value) => return wrong(&value, "[]object"),
            (FieldType::Object(_), value) => return wrong(&value, "object"),
        }))
    }

    fn read_fields(&mut self, fields: &[SchemaField], values: Map<String, Value>, path: &str) -> Result<Value, String> {
        let mut kept = Map::new();
        for (name, value) in values {
            let path = format!("{path}.{name}");
            match fields.iter().find(|field| field.name == name) {
                None => self.unknown.push(path),
                Some(field) => {
                    if let Some(value) = self.read(value, field.shape, &path)? {
                        kept.insert(name, value);
                    }
                }
            }
        }
        Ok(Value::Object(kept))
    }
}

fn mismatch(value: &Value, path: &str, expected: &str) -> String {
    format!("json: cannot unmarshal {} into Go struct field {path} of type {expected}", json_type(value))
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Rejects an object with invalid values with 422, and one that is too large with 413.
pub(super) fn validate(resource: &ExampleResource, object: &Value) -> Result<(), Status> {
    let mut errors = Vec::new();
    let (object_name, object_namespace) = (name(object), namespace(object));
    if object_name.is_empty() {
        errors.push(api_errors::required_field("metadata.name", "name or generateName is required"));
    } else if !is_dns_subdomain(object_name) {
        errors.push(api_errors::invalid_field("metadata.name", object_name, NOT_A_SUBDOMAIN));
    }
    if resource.namespaced && !is_dns_label(object_namespace) {
        errors.push(api_errors::invalid_field("metadata.namespace", object_namespace, NOT_A_LABEL));
    }
    let texts = |pointer| object.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    for (key, value) in texts("/metadata/labels") {
        errors.extend(label_key_error(key).map(|why| api_errors::invalid_field("metadata.labels", key, why)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(label_value_error(value).map(|why| api_errors::invalid_field("metadata.labels", value, why)));
    }
    let mut annotations = 0;
    for (key, value) in texts("/metadata/annotations") {
        let why = label_key_error(&key.to_ascii_lowercase());
        errors.extend(why.map(|why| api_errors::invalid_field("metadata.annotations", key, why)));
        annotations += key.len() + value.as_str().map_or(0, str::len);
    }
    if annotations > MAX_ANNOTATIONS_BYTES {
        errors.push(api_errors::too_long_field("metadata.annotations", MAX_ANNOTATIONS_BYTES));
    }
    for finalizer in strings(object, "/metadata/finalizers") {
        errors.extend(
            label_key_error(finalizer).map(|why| api_errors::invalid_field("metadata.finalizers", finalizer, why)),
        );
    }
    for (field, value) in texts("/spec") {
        if value.as_str().is_some_and(|text| text.len() > MAX_TEXT_BYTES) {
            errors.push(api_errors::too_long_field(format!("spec.{field}"), MAX_TEXT_BYTES));
        }
    }
    if !errors.is_empty() {
        return Err(api_errors::invalid_object(resource, object_name, errors));
    }
    let bytes = serde_json::to_vec(object).map_or(0, |bytes| bytes.len());
    if bytes > MAX_OBJECT_BYTES {
        return Err(Status::request_entity_too_large(format!("limit is {MAX_OBJECT_BYTES}")));
    }
    Ok(())
}

/// `metadata.name`, or an empty string.
pub(super) fn name(object: &Value) -> &str {
    metadata_text(object, "name")
}

/// `metadata.namespace`, or an empty string.
pub(super) fn namespace(object: &Value) -> &str {
    metadata_text(object, "namespace")
}

/// A text field of the metadata, or an empty string.
pub(super) fn metadata_text<'o>(object: &'o Value, field: &str) -> &'o str {
    object.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// The strings of the list at `pointer`, or none.
pub(super) fn strings<'o>(object: &'o Value, pointer: &str) -> impl Iterator<Item = &'o str> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Sets a field of the metadata, or removes it with `None`.
pub(super) fn set_metadata(object: &mut Value, field: &str, value: Option<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        match value {
            Some(value) => metadata.insert(field.to_owned(), value),
            None => metadata.remove(field),
        };
    }
}

/// The current time in Kubernetes' format: UTC, whole seconds.
pub(super) fn now() -> String {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// `prefix` and five random characters without vowels, as in Kubernetes.
pub(super) fn generate_name(prefix: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut end = prefix.len().min(58);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = prefix[..end].to_owned();
    name.extend((0..5).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])));
    name
}

const NOT_A_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
    '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation \
    is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const NOT_A_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
    must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const NOT_A_LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' \
    or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
    used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const NOT_A_QUALIFIED_NAME: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start \
    and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Whether `name` is an RFC 1123 label.
pub(super) fn is_dns_label(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 63 && starts_and_ends_with(name, plain) && name.bytes().all(|byte| plain(byte) || byte == b'-')
}

fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|part| {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            starts_and_ends_with(part, plain) && part.bytes().all(|byte| plain(byte) || byte == b'-')
        })
}

/// Why `key` is not a qualified name, if it is not.
pub(super) fn label_key_error(key: &str) -> Option<&'static str> {
    let (prefix, name) = key.split_once('/').unwrap_or(("prefix", key));
    if !is_dns_subdomain(prefix) {
        Some("prefix part must be a lowercase RFC 1123 subdomain")
    } else if name.len() > 63 {
        Some("name part must be no more than 63 bytes")
    } else if name.is_empty() {
        Some("name part must be non-empty")
    } else if !is_word(name) {
        Some(NOT_A_QUALIFIED_NAME)
    } else {
        None
    }
}

/// Why `value` is not a valid label value, if it is not.
pub(super) fn label_value_error(value: &str) -> Option<&'static str> {
    if value.len() > 63 {
        Some("must be no more than 63 bytes")
    } else if !value.is_empty() && !is_word(value) {
        Some(NOT_A_LABEL_VALUE)
    } else {
        None
    }
}

fn is_word(text: &str) -> bool {
    starts_and_ends_with(text, |byte| byte.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn starts_and_ends_with(text: &str, plain: impl Fn(u8) -> bool) -> bool {
    matches!(text.as_bytes(), [first, .., last] if plain(*first) && plain(*last))
        || matches!(text.as_bytes(), [only] if plain(*only))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::quickstart::example::resource::RESOURCES;

    #[test]
    fn decode_drops_and_lists_unknown_fields() {
        let body = json!({"metadata": {"name": "a", "color": "red"}, "spec": {"message": "hi", "volume": 11}, "x": 1});
        let decoded = decode(&RESOURCES[0], body).unwrap();
        assert_eq!(decoded.unknown, ["metadata.color", "spec.volume", "x"]);
        let expected = json!({"apiVersion": "example.narthex.dev/v1", "kind": "Greeting",
            "metadata": {"name": "a"}, "spec": {"message": "hi"}});
        assert_eq!(decoded.object, expected);
    }

    #[test]
    fn decode_rejects_wrong_types_with_path() {
        let message = |body| decode(&RESOURCES[0], body).unwrap_err().message;
        assert_eq!(
            message(json!({"spec": {"message": 1}})),
            "Greeting in version \"v1\" cannot be handled as a Greeting: json: cannot unmarshal number into Go struct \
             field Greeting.spec.message of type string"
        );
        assert!(message(json!({"metadata": {"labels": {"a": 1}}})).contains("Greeting.metadata.labels of type string"));
        assert!(message(json!({"spec": {"to": "x"}})).ends_with("Greeting.spec.to of type []string"));
        assert!(message(json!([])).contains("cannot unmarshal array"));
        assert!(message(json!({"kind": "Door"})).starts_with("Door in version \"v1\" cannot be handled as a Greeting"));
        assert!(message(json!({"apiVersion": "v1"})).contains("does not match the expected API version"));
    }

    #[test]
    fn validate_names_and_labels_as_upstream() {
        let object = |name: &str, value: &str| json!({"metadata": {"name": name, "namespace": "default", "labels": {"a": value}}});
        assert!(validate(&RESOURCES[0], &object("hello.world-1", "Warm_1")).is_ok());
        let status = validate(&RESOURCES[0], &object("Bad_Name", "")).unwrap_err();
        assert_eq!((status.code, status.reason), (422, "Invalid"));
        assert!(status.message.starts_with(
            "Greeting.example.narthex.dev \"Bad_Name\" is invalid: metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain"
        ));
        assert!(validate(&RESOURCES[0], &object("a", "-x")).is_err());
        let long = json!({"metadata": {"name": "a"}, "spec": {"leadsTo": "x".repeat(1025)}});
        assert!(validate(&RESOURCES[1], &long).unwrap_err().message.contains("spec.leadsTo: Too long"));
    }

    #[test]
    fn generate_name_keeps_prefix() {
        let name = generate_name("hello-");
        assert!(name.starts_with("hello-") && name.len() == 11 && is_dns_subdomain(&name), "{name}");
        assert_eq!(generate_name(&"é".repeat(40)).chars().count(), 29 + 5);
    }
}
