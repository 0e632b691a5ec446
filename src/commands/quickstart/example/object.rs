//! Objects: decoding, validation, metadata.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::api_errors;
use super::resource::{ExampleResource, FieldType, METADATA, SchemaField};
use crate::kubeapi::field_error::FieldPath;
use crate::kubeapi::names::NameRule;
use crate::kubeapi::object_meta::{ObjectMetaView, validate_object_meta};
use crate::kubeapi::{Status, StatusCause};

/// Size limit of an object, the same as etcd's.
const MAX_OBJECT_BYTES: usize = 1536 * 1024;
const MAX_TEXT_BYTES: usize = 1024;

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
    let metadata = ObjectMetaView::of(object);
    let errors =
        validate_object_meta(metadata, resource.namespaced, NameRule::DnsSubdomain, &FieldPath::root("metadata"));
    let mut errors: Vec<StatusCause> = errors.iter().map(StatusCause::from).collect();
    let texts = |pointer| object.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
    for (field, value) in texts("/spec") {
        if value.as_str().is_some_and(|text| text.len() > MAX_TEXT_BYTES) {
            errors.push(api_errors::too_long_field(format!("spec.{field}"), MAX_TEXT_BYTES));
        }
    }
    if !errors.is_empty() {
        return Err(api_errors::invalid_object(resource, name(object), errors));
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
        assert!(
            name.starts_with("hello-") && name.len() == 11 && crate::kubeapi::names::is_dns_subdomain(&name),
            "{name}"
        );
        assert_eq!(generate_name(&"é".repeat(40)).chars().count(), 29 + 5);
    }
}
