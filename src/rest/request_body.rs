//! The object in a request body.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::ApiRequest;
use super::target::ObjectTarget;
use super::write_options::FieldValidation;
use crate::kubeapi::json::{read_json, write_json};
use crate::kubeapi::protobuf::decode::{decode_object, read_envelope};
use crate::kubeapi::protobuf::normalize::normalize;
use crate::kubeapi::{Status, YamlError, read_bounded_yaml};
use crate::resources::builtin::{builtin_kinds, set_defaults};

/// A decoded object, and warnings about its fields.
pub(super) struct DecodedObject {
    pub(super) object: Map<String, Value>,
    pub(super) warnings: Vec<String>,
}

/// The media type of the body in lower case, without parameters; empty if there is none.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Decodes the object of a create or update.
///
/// # Errors
/// 415 for another media type, 400 for what is no object of the kind, or with strict field validation for unknown or
/// duplicate fields.
pub(super) fn decode(
    request: &ApiRequest<'_>,
    target: &ObjectTarget<'_>,
    validation: FieldValidation,
) -> Result<DecodedObject, Status> {
    let (value, duplicates) = match &*media_type(request.headers) {
        "" | "application/json" => {
            let (value, findings) = read_json(&request.body).map_err(|error| malformed(target, &error))?;
            (value, findings.messages().collect())
        }
        "application/yaml" => {
            let text = std::str::from_utf8(&request.body).map_err(|error| malformed(target, &error))?;
            let value = read_bounded_yaml(text).map_err(|error| match error {
                YamlError::Invalid(why) => malformed(target, &why),
                YamlError::TooExpensive(why) => malformed(target, &why),
            })?;
            (value, Vec::new())
        }
        "application/vnd.kubernetes.protobuf" => {
            let envelope = read_envelope(&request.body).map_err(|error| malformed(target, &error))?;
            let kinds = builtin_kinds();
            let value = decode_object(&kinds.messages, target.version.message, &envelope);
            (value.map_err(|error| malformed(target, &error))?, Vec::new())
        }
        _ => {
            return Err(Status::unsupported_media_type(
                "the body of the request was in an unknown format - accepted media types include: application/json, \
                 application/yaml, application/vnd.kubernetes.protobuf",
            ));
        }
    };
    check_object(target, value, duplicates, validation, None)
}

/// Checks the type of an object and its fields, and removes unknown fields. `patched` is set for the result of a patch.
///
/// # Errors
/// 400, or 422 for a patch, for another kind, a value of the wrong type or, with strict validation, unknown fields.
pub(super) fn check_object(
    target: &ObjectTarget<'_>,
    mut value: Value,
    mut findings: Vec<String>,
    validation: FieldValidation,
    patched: Option<&Value>,
) -> Result<DecodedObject, Status> {
    if let Some(object) = value.as_object_mut() {
        let (api_version, kind) = (target.api_version(), target.resource.kind);
        check_type(object, "apiVersion", &api_version, target)?;
        check_type(object, "kind", kind, target)?;
    }
    let unknown = normalize(&builtin_kinds().messages, target.version.message, &mut value);
    let unknown = unknown.map_err(|error| malformed(target, &error))?;
    findings.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    set_defaults(&builtin_kinds().messages, target.version.message, &mut value);
    let Value::Object(object) = value else {
        return Err(malformed(target, &"the body is not an object"));
    };
    let warnings = match validation {
        FieldValidation::Strict if !findings.is_empty() => {
            let why = format!("strict decoding error: {}", findings.join(", "));
            return Err(match patched {
                Some(patched) => strict_patch_error(patched, &why),
                None => malformed(target, &why),
            });
        }
        FieldValidation::Ignore | FieldValidation::Strict => Vec::new(),
        FieldValidation::Warn => findings,
    };
    Ok(DecodedObject { object, warnings })
}

fn strict_patch_error(patched: &Value, why: &str) -> Status {
    use crate::kubeapi::field_error::{FieldError, invalid_fields_status};
    invalid_fields_status("", "", "", &[FieldError::invalid("patch", &*write_json(patched), why)])
}

/// Sets `apiVersion` or `kind` if it is missing, else compares it with the path.
fn check_type(
    object: &mut Map<String, Value>,
    field: &str,
    expected: &str,
    target: &ObjectTarget<'_>,
) -> Result<(), Status> {
    match object.get(field).and_then(Value::as_str) {
        None | Some("") => {
            object.insert(field.to_owned(), expected.into());
            Ok(())
        }
        Some(found) if found == expected => Ok(()),
        Some(found) if field == "kind" => Err(malformed(target, &format_args!("the kind of the object is {found}"))),
        Some(found) => Err(Status::bad_request(format!(
            "the API version in the data ({found}) does not match the expected API version ({expected})"
        ))),
    }
}

/// 400 with upstream's text for a body that cannot be decoded.
fn malformed(target: &ObjectTarget<'_>, why: &dyn std::fmt::Display) -> Status {
    let (kind, version) = (target.resource.kind, target.version.version);
    Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}
