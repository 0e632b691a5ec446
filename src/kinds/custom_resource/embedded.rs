//! Types and metadata of objects in an object
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta/validation.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{NameRule, check_dns1035_label};
use kubeapi::object_meta::{ObjectMetaView, validate_object_meta};
use serde_json::{Map, Value};

use kubeapi::schema::Schema;

/// The errors of embedded objects.
pub fn embedded_errors(schema: &Schema, value: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    validate(schema, value, None, &mut errors);
    errors
}

fn validate(schema: &Schema, value: &Value, path: Option<&FieldPath<'_>>, errors: &mut FieldErrors) {
    if !schema.contains_embedded_resource {
        return;
    }
    match value {
        Value::Object(fields) => {
            if schema.is_embedded_resource {
                validate_resource(fields, path, errors);
            }
            for (name, value) in fields {
                if let Some(inner) = schema.properties.get(name) {
                    validate(inner, value, Some(&Schema::child_path(path, name)), errors);
                } else if let Some(inner) = schema.field(name) {
                    validate(inner, value, Some(&Schema::key_path(path, name)), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(inner) = &schema.items else { return };
            for (index, item) in items.iter().enumerate() {
                validate(inner, item, Some(&Schema::item_path(path, index)), errors);
            }
        }
        _ => {}
    }
}

fn validate_resource(fields: &Map<String, Value>, path: Option<&FieldPath<'_>>, errors: &mut FieldErrors) {
    for name in ["apiVersion", "kind"] {
        if !fields.contains_key(name) {
            errors.push(FieldError::required(Schema::child_path(path, name), ""));
        }
    }
    let mut invalid = |name: &str, value: &Value, why: &str| {
        errors.push(FieldError::invalid(Schema::child_path(path, name), value, why));
    };
    match fields.get("apiVersion") {
        None => {}
        Some(value @ Value::String(text)) => {
            if text.is_empty() {
                invalid("apiVersion", value, "must not be empty");
            } else if text.matches('/').count() > 1 {
                invalid("apiVersion", value, &format!("unexpected GroupVersion string: {text}"));
            }
        }
        Some(value) => invalid("apiVersion", value, "must be a string"),
    }
    match fields.get("kind") {
        None => {}
        Some(value @ Value::String(text)) => {
            let sentences = check_dns1035_label(&text.to_lowercase());
            if text.is_empty() {
                invalid("kind", value, "must not be empty");
            } else if !sentences.is_empty() {
                let why = format!("may have mixed case, but should otherwise match: {}", sentences.join(","));
                invalid("kind", value, &why);
            }
        }
        Some(value) => invalid("kind", value, "must be a string"),
    }
    if let Some(Value::Object(metadata)) = fields.get("metadata") {
        // The name may be absent.
        let mut named = metadata.clone();
        if ObjectMetaView::of_metadata(&named).name().is_empty() {
            named.insert("name".to_owned(), "fakename".into());
        }
        let meta = ObjectMetaView::of_metadata(&named);
        let is_namespaced = !meta.namespace().is_empty();
        let path = Schema::child_path(path, "metadata");
        errors.append(validate_object_meta(meta, is_namespaced, NameRule::PathSegment, &path));
    }
}
