//! The object in a request body.

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::ApiRequest;
use super::compute::run_sized;
use super::target::{ObjectTarget, ServedKind};
use super::write_options::FieldValidation;
use crate::kubeapi::Status;
use crate::kubeapi::json::{read_json, write_json};
use crate::kubeapi::protobuf::decode::{decode_object, read_envelope};
use crate::kubeapi::protobuf::normalize::normalize;
use crate::kubeapi::yaml::read_yaml;
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

/// Decodes the object of a create or update, on a compute thread if it is large.
///
/// # Errors
/// 415 for another media type, 400 for what is no object of the kind, or with strict field validation for unknown or
/// duplicate fields.
pub(super) async fn decode(
    request: &ApiRequest<'_>,
    target: &ObjectTarget<'_>,
    validation: FieldValidation,
) -> Result<DecodedObject, Status> {
    let (kind, media_type, body) = (target.kind(), media_type(request.headers), request.body.clone());
    run_sized(body.len(), move || {
        let (value, duplicates) = read_value(&media_type, &body, kind)?;
        check_object(kind, value, duplicates, validation, None)
    })
    .await?
}

/// Reads a body as a value, with texts about duplicate fields.
fn read_value(media_type: &str, body: &[u8], kind: ServedKind) -> Result<(Value, Vec<String>), Status> {
    match media_type {
        "" | "application/json" => {
            let (value, findings) = read_json(body).map_err(|error| malformed(kind, &error))?;
            Ok((value, findings.messages().collect()))
        }
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| malformed(kind, &error))?;
            let document = read_yaml(text).map_err(|error| malformed(kind, &error))?;
            let duplicates = document.strict_error().into_iter().collect();
            Ok((document.value, duplicates))
        }
        "application/vnd.kubernetes.protobuf" => {
            let envelope = read_envelope(body).map_err(|error| malformed(kind, &error))?;
            let value = decode_object(&builtin_kinds().messages, kind.version.message, &envelope);
            Ok((value.map_err(|error| malformed(kind, &error))?, Vec::new()))
        }
        _ => Err(Status::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// Checks the type of an object and its fields, and removes unknown fields. `patched` is set for the result of a patch.
///
/// # Errors
/// 400, or 422 for a patch, for another kind, a value of the wrong type or, with strict validation, unknown fields.
pub(super) fn check_object(
    kind: ServedKind,
    mut value: Value,
    mut findings: Vec<String>,
    validation: FieldValidation,
    patched: Option<&Value>,
) -> Result<DecodedObject, Status> {
    if let Some(object) = value.as_object_mut() {
        check_type(object, "apiVersion", &kind.api_version(), kind)?;
        check_type(object, "kind", kind.resource.kind, kind)?;
    }
    let unknown = normalize(&builtin_kinds().messages, kind.version.message, &mut value);
    let unknown = unknown.map_err(|error| malformed(kind, &error))?;
    findings.extend(unknown.iter().map(|path| format!("unknown field {path:?}")));
    set_defaults(&builtin_kinds().messages, kind.version.message, &mut value);
    let Value::Object(object) = value else {
        return Err(malformed(kind, &"the body is not an object"));
    };
    let warnings = match validation {
        FieldValidation::Strict if !findings.is_empty() => {
            let why = format!("strict decoding error: {}", findings.join(", "));
            return Err(match patched {
                Some(patched) => strict_patch_error(patched, &why),
                None => malformed(kind, &why),
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
fn check_type(object: &mut Map<String, Value>, field: &str, expected: &str, kind: ServedKind) -> Result<(), Status> {
    match object.get(field).and_then(Value::as_str) {
        None | Some("") => {
            object.insert(field.to_owned(), expected.into());
            Ok(())
        }
        Some(found) if found == expected => Ok(()),
        Some(found) if field == "kind" => Err(malformed(kind, &format_args!("the kind of the object is {found}"))),
        Some(found) => Err(Status::bad_request(format!(
            "the API version in the data ({found}) does not match the expected API version ({expected})"
        ))),
    }
}

/// 400 with Kubernetes' text for a body that cannot be decoded.
fn malformed(kind: ServedKind, why: &dyn std::fmt::Display) -> Status {
    let (kind, version) = (kind.resource.kind, kind.version.version);
    Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}
