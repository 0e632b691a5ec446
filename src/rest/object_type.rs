//! `apiVersion` and `kind` of a body, and errors of its decoding (`transformDecodeError` in
//! `k8s.io/apiserver/pkg/endpoints/handlers/rest.go`).

use std::sync::Arc;

use kubeapi::Status;
use kubeapi::field_error::{FieldError, invalid_fields_status};
use kubeapi::json::{json_kind, number_too_large, write_json};
use serde_json::{Map, Value};
use store::MAX_VALUE_BYTES;

use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;
use crate::resources::builtin::event_conversion::stored_resource;

/// Bytes of a body that an error repeats.
const SUMMARY_BYTES: usize = 30;

/// Go's name of the type that upstream reads `apiVersion` and `kind` into.
const TYPE_META: &str =
    "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// Why a body is no object of the kind that the path names.
#[derive(Debug)]
pub(super) struct DecodeError {
    /// What is known of the type of the body.
    found: FoundType,
    /// The cause in Kubernetes' words.
    pub(super) why: String,
}

/// The type of a body that cannot be decoded.
#[derive(Debug)]
enum FoundType {
    Unrecognized,
    /// Kind and version.
    Recognized(String, String),
    /// The same kind in another version.
    OtherVersion,
    /// The right one, of an object that cannot be stored.
    TooLarge,
}

impl DecodeError {
    /// An error of a body whose kind cannot be read.
    pub(super) fn unrecognized(why: impl std::fmt::Display) -> DecodeError {
        DecodeError { found: FoundType::Unrecognized, why: why.to_string() }
    }

    /// An error of a body that is not JSON.
    pub(super) fn malformed_json(why: impl std::fmt::Display) -> DecodeError {
        DecodeError::unrecognized(format_args!("couldn't get version/kind; json parse error: {why}"))
    }

    /// An error of an object of the same kind in another version.
    fn other_version(kind: &ServedKind, api_version: &str) -> DecodeError {
        let expected = kind.api_version();
        let why =
            format!("the API version in the data ({api_version}) does not match the expected API version ({expected})");
        DecodeError { found: FoundType::OtherVersion, why }
    }

    /// An error of an object of the right kind.
    pub(super) fn of_kind(kind: &ServedKind, why: impl std::fmt::Display) -> DecodeError {
        let found = FoundType::Recognized(kind.resource.kind.to_string(), kind.version.version.to_string());
        DecodeError { found, why: why.to_string() }
    }

    /// An error of an object that is too large with what is added to it.
    pub(super) fn too_large() -> DecodeError {
        DecodeError { found: FoundType::TooLarge, why: format!("limit is {MAX_VALUE_BYTES}") }
    }

    /// 400 for the body of a create or update; 413 for an object that is too large.
    pub(super) fn body_status(&self, kind: &ServedKind, body: &[u8]) -> Status {
        let (expected, why) = (&kind.resource.kind, &self.why);
        Status::bad_request(match &self.found {
            FoundType::TooLarge => return Status::request_entity_too_large(why),
            FoundType::OtherVersion => why.clone(),
            FoundType::Recognized(found, version) => {
                format!("{found} in version {version:?} cannot be handled as a {expected}: {why}")
            }
            FoundType::Unrecognized => {
                let summary = summarize(body);
                format!("the object provided is unrecognized (must be of type {expected}): {why} ({summary})")
            }
        })
    }

    /// 422 for the result of a patch, as JSON; 413 if it is too large.
    pub(super) fn patch_status(&self, patched: &str) -> Status {
        if matches!(self.found, FoundType::TooLarge) {
            return Status::request_entity_too_large(&self.why);
        }
        invalid_fields_status("", "", "", FieldError::invalid("patch", patched, &*self.why))
    }
}

/// Sets `apiVersion` and `kind` if they are missing, else compares them with those of the path.
///
/// # Errors
/// For another type, and for what is no object.
pub(super) fn check_type(kind: &ServedKind, value: &mut Value) -> Result<(), DecodeError> {
    if kind.version.custom().is_some() {
        return check_custom_type(kind, value);
    }
    let Value::Object(object) = value else { return check_is_object(value) };
    let api_version = type_field(object, "apiVersion", &kind.api_version())?;
    let found = type_field(object, "kind", &kind.resource.kind)?;
    if api_version == kind.api_version() && found == kind.resource.kind {
        return Ok(());
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    if version.contains('/') {
        return Err(DecodeError::unrecognized(format_args!("unexpected GroupVersion string: {api_version}")));
    }
    let other = builtin_kinds().find_kind(group, version, &found);
    if other
        .as_ref()
        .is_some_and(|other| Arc::ptr_eq(stored_resource(&other.resource), stored_resource(&kind.resource)))
    {
        return Err(DecodeError::other_version(kind, &api_version));
    }
    let why = match other {
        Some(_) => format!(
            "converting ({version}.{found}) to ({}.{}): unknown conversion",
            internal_package(&kind.resource.group),
            kind.resource.kind
        ),
        None => unregistered(&found, &api_version),
    };
    let version = version.to_owned();
    Err(DecodeError { found: FoundType::Recognized(found, version), why })
}

/// Refuses a number in a custom object that no float can hold. Only after `apiVersion` and `kind` it is read whole.
///
/// # Errors
/// With Go's text; none for another kind of object, whose fields have types of their own.
pub(super) fn check_custom_number(kind: &ServedKind, value: &Value, number: &str) -> Result<(), DecodeError> {
    let Value::Object(object) = value else { return Ok(()) };
    let text = |field: &str| match object.get(field) {
        None | Some(Value::Null) => Some(""),
        Some(value) => value.as_str(),
    };
    let (Some(_), Some(api_version), Some(found)) = (kind.version.custom(), text("apiVersion"), text("kind")) else {
        return Ok(());
    };
    let version = api_version.rsplit('/').next().filter(|version| !version.is_empty());
    let found = if found.is_empty() { &kind.resource.kind } else { found };
    let found = FoundType::Recognized(found.to_owned(), version.unwrap_or(&kind.version.version).to_owned());
    Err(DecodeError { found, why: number_too_large(number) })
}

/// Checks `apiVersion` of a custom object, and that it has a kind. The kind itself is a matter of validation.
fn check_custom_type(kind: &ServedKind, value: &mut Value) -> Result<(), DecodeError> {
    check_is_object(value)?;
    let Value::Object(object) = value else { return Err(missing_kind(value)) };
    let had = ["apiVersion", "kind"].map(|field| object.get(field).cloned());
    let api_version = type_field(object, "apiVersion", "")?;
    if type_field(object, "kind", "")?.is_empty() {
        // The document as it was.
        for (field, had) in ["apiVersion", "kind"].into_iter().zip(had) {
            match had {
                Some(had) => drop(object.insert(field.to_owned(), had)),
                None => drop(object.remove(field)),
            }
        }
        return Err(missing_kind(value));
    }
    if api_version.matches('/').count() > 1 {
        return Err(DecodeError::unrecognized(format_args!("unexpected GroupVersion string: {api_version}")));
    }
    if api_version == kind.api_version() { Ok(()) } else { Err(DecodeError::other_version(kind, &api_version)) }
}

fn missing_kind(document: &Value) -> DecodeError {
    DecodeError::unrecognized(format_args!("Object 'Kind' is missing in '{}'", write_json(document)))
}

/// Checks that a body is `DeleteOptions` or says no kind.
///
/// # Errors
/// For another kind, and for what is no object.
pub(super) fn check_options_type(value: &Value) -> Result<(), DecodeError> {
    let Value::Object(object) = value else { return check_is_object(value) };
    let text = |field: &str| object.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (kind, version) = (text("kind").unwrap_or("DeleteOptions"), text("apiVersion").unwrap_or("v1"));
    if kind == "DeleteOptions" {
        return Ok(());
    }
    Err(DecodeError::unrecognized(unregistered(kind, version)))
}

fn unregistered(kind: &str, api_version: &str) -> String {
    format!("no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/runtime/scheme.go:111\"")
}

fn check_is_object(value: &Value) -> Result<(), DecodeError> {
    match json_kind(value) {
        "null" | "object" => Ok(()),
        found => Err(DecodeError::malformed_json(format_args!(
            "json: cannot unmarshal {found} into Go value of type {TYPE_META}"
        ))),
    }
}

fn type_field(object: &mut Map<String, Value>, field: &str, default: &str) -> Result<String, DecodeError> {
    match object.get(field) {
        Some(Value::String(found)) if !found.is_empty() => Ok(found.clone()),
        None | Some(Value::Null | Value::String(_)) => {
            object.insert(field.to_owned(), default.into());
            Ok(default.to_owned())
        }
        Some(other) => Err(DecodeError::malformed_json(format_args!(
            "json: cannot unmarshal {} into Go struct field .{field} of type string",
            json_kind(other)
        ))),
    }
}

/// Go's package of the unversioned types of a group.
fn internal_package(group: &str) -> &str {
    match group.split('.').next() {
        None | Some("") => "core",
        Some(first) => first,
    }
}

/// The beginning of a body: text if it begins with `{`, else in hexadecimal.
fn summarize(body: &[u8]) -> String {
    let beginning = body.get(..SUMMARY_BYTES).unwrap_or(body);
    let mut text = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(beginning).into_owned(),
        Some(_) => beginning.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > SUMMARY_BYTES {
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::summarize;

    #[test]
    fn summary_of_body_is_text_or_hexadecimal_and_cut_off() {
        assert_eq!(summarize(b""), "<empty>");
        assert_eq!(summarize(b"{x"), "{x");
        assert_eq!(summarize(b"nul"), "6e756c");
        assert_eq!(summarize(&[b'{'; 31]), format!("{} ...", "{".repeat(30)));
    }
}
