//! The object in a request body.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use kubeapi::Status;
use kubeapi::json::{
    JsonFindings, is_costly_beyond, json_size, number_too_large, read_untyped_json, strict_messages, write_json,
};
use kubeapi::object_meta::ObjectMetaView;
use kubeapi::protobuf::decode::{decode_object, read_envelope};
use kubeapi::protobuf::normalize::normalize;
use kubeapi::schema::unknown_field_message;
use kubeapi::yaml::read_yaml;
use serde_json::{Map, Value};
use store::MAX_VALUE_BYTES;

use super::api_server::ApiServer;
use super::metadata::{self, deduplicate_owners};
use super::namespace;
use super::object_type::{DecodeError, check_custom_number, check_type};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use super::write_options::FieldValidation;
use crate::compute::run_sized;
use crate::kinds::custom_resource::{self, CustomDecodeError};
use crate::kinds::rules;
use crate::resources::builtin::stored_version::convert_to_stored;
use crate::resources::builtin::{builtin_kinds, set_defaults};
use crate::resources::{ObjectFormat, ServedKind};

/// A decoded object, and warnings about its fields.
pub(super) struct DecodedObject {
    pub(super) object: Map<String, Value>,
    pub(super) warnings: Vec<String>,
}

impl DecodedObject {
    /// The object without owner references that occur twice, with a warning about them.
    pub(super) fn with_unique_owners(mut self, is_patched: bool) -> DecodedObject {
        self.warnings.extend(deduplicate_owners(&mut self.object, is_patched));
        self
    }
}

/// What reading a body found, besides its value.
pub(super) enum BodyFindings {
    /// Texts about duplicate fields.
    Texts(Vec<String>),
    /// Duplicate fields of a JSON document.
    Json(Bytes, JsonFindings),
}

impl BodyFindings {
    /// The first number of the body that is too large for a float.
    fn too_large(&self) -> Option<&str> {
        match self {
            BodyFindings::Json(_, findings) => findings.too_large.as_deref(),
            BodyFindings::Texts(_) => None,
        }
    }

    /// The texts of strict decoding about the findings and unknown fields.
    fn messages(self, unknown: &[String]) -> Vec<String> {
        match self {
            BodyFindings::Json(document, findings) => strict_messages(&document, &findings, unknown),
            BodyFindings::Texts(mut texts) => {
                texts.extend(unknown.iter().map(|path| unknown_field_message(path)));
                texts
            }
        }
    }
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
    decode_body(request, target, validation, false).await
}

/// As [`decode`], for an object that will be created: a UID is left out. Defaults of Jobs tell by it what is stored from what
/// is new.
///
/// # Errors
/// As [`decode`].
pub(super) async fn decode_new(
    request: &ApiRequest<'_>,
    target: &ObjectTarget<'_>,
    validation: FieldValidation,
) -> Result<DecodedObject, Status> {
    decode_body(request, target, validation, true).await
}

async fn decode_body(
    request: &ApiRequest<'_>,
    target: &ObjectTarget<'_>,
    validation: FieldValidation,
    is_new: bool,
) -> Result<DecodedObject, Status> {
    let (kind, media_type, body) = (target.kind.clone(), media_type(request.headers), request.body.clone());
    run_sized(body.len(), move || {
        let (mut value, findings) = read_value(&media_type, &body, &kind)?;
        if is_new && let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|field, uid| field != "uid" || !uid.is_string());
        }
        let decoded = check_object(&kind, value, findings, validation);
        Ok(decoded.map_err(|error| error.body_status(&kind, &body))?.with_unique_owners(false))
    })
    .await?
}

/// Decodes the body of a subresource that is created and has a kind of its own, and checks that it is for the object of
/// the path, if that names one, and that the request may create it there.
///
/// # Errors
/// As [`decode`]; 400 for another name, 403 without permission or in a namespace that is being deleted.
pub(super) async fn decode_subresource(
    api: &ApiServer,
    request: &ApiRequest<'_>,
    (target, kind): (&ObjectTarget<'_>, &ServedKind),
    validation: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Map<String, Value>, Status> {
    let own = ObjectTarget::new(kind.clone(), target.namespace, target.name.clone(), "");
    let decoded = decode(request, &own, validation).await?;
    warnings.extend(decoded.warnings);
    let mut object = decoded.object;
    metadata::set_namespace(&own, &mut object)?;
    if !target.name.is_empty() && ObjectMetaView::of_map(&object).name() != target.name {
        let kind = &kind.resource.kind;
        return Err(Status::bad_request(format!("name in URL does not match name in {kind} object")));
    }
    request.creation.check().await?;
    namespace::check_active(api, target, &object).await?;
    Ok(object)
}

/// Reads a body as a value.
fn read_value(media_type: &str, body: &Bytes, kind: &ServedKind) -> Result<(Value, BodyFindings), Status> {
    let malformed = |error: DecodeError| error.body_status(kind, body);
    match media_type {
        "" | "application/json" => {
            let read = read_untyped_json(body);
            let (value, findings) = read.map_err(|error| malformed(DecodeError::malformed_json(error)))?;
            Ok((value, BodyFindings::Json(body.clone(), findings)))
        }
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
            let document = read_yaml(text).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
            let duplicates = document.strict_error().into_iter().collect();
            Ok((document.value, BodyFindings::Texts(duplicates)))
        }
        "application/vnd.kubernetes.protobuf" => {
            // kube-apiserver panics at such a body for a custom resource, and closes the connection.
            let message = kind.version.message().ok_or_else(unsupported_body)?;
            let envelope = read_envelope(body).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
            let value = decode_object(&builtin_kinds().messages, message, &envelope);
            Ok((value.map_err(|error| malformed(DecodeError::of_kind(kind, error)))?, BodyFindings::Texts(Vec::new())))
        }
        _ => Err(unsupported_body()),
    }
}

/// 415 with Kubernetes' text for a body that is not decoded.
pub(super) fn unsupported_body() -> Status {
    Status::unsupported_media_type(
        "the body of the request was in an unknown format - accepted media types include: application/json, \
         application/yaml, application/vnd.kubernetes.protobuf",
    )
}

/// Checks the type of an object and its fields, removes unknown fields, and converts it to the stored version.
///
/// # Errors
/// For another kind, a value of the wrong type or, with strict validation, unknown fields.
pub(super) fn check_object(
    kind: &ServedKind,
    mut value: Value,
    findings: BodyFindings,
    validation: FieldValidation,
) -> Result<DecodedObject, DecodeError> {
    let too_large = findings.too_large().map(str::to_owned);
    if let Some(number) = &too_large {
        check_custom_number(kind, &value, number)?;
    }
    check_type(kind, &mut value)?;
    let unknown = match &kind.version.format {
        ObjectFormat::Custom(version) => custom_resource::decode(version, &mut value).map_err(|error| match error {
            CustomDecodeError::Malformed(why) => DecodeError::of_kind(kind, why),
            CustomDecodeError::TooLarge => DecodeError::too_large(),
        })?,
        &ObjectFormat::Builtin(message, _) => {
            // What is not written in a body is added to it: empty structs, and defaults.
            let given_size = json_size(&value);
            let unknown = normalize(&builtin_kinds().messages, message, &mut value);
            let unknown = unknown.map_err(|error| match &too_large {
                Some(number) => DecodeError::of_kind(kind, error.to_string().replace(&placeholder(), number)),
                None => DecodeError::of_kind(kind, error),
            })?;
            // A field that is unknown was removed.
            if let Some(number) = too_large.filter(|_| contains_placeholder(&value)) {
                return Err(DecodeError::of_kind(kind, number_too_large(&number)));
            }
            set_defaults(&builtin_kinds().messages, message, &mut value);
            if json_size(&value) > given_size + MAX_VALUE_BYTES {
                return Err(DecodeError::too_large());
            }
            unknown
        }
    };
    // Those of a custom resource are found one after the other, not in the order of the document.
    let findings = match kind.version.custom() {
        Some(_) => {
            let unknown = unknown.iter().map(|path| unknown_field_message(path));
            findings.messages(&[]).into_iter().chain(unknown).collect()
        }
        None => findings.messages(&unknown),
    };
    // Before copies are made of it. Others are validated first, as upstream.
    if is_costly_beyond(&value, MAX_VALUE_BYTES) {
        return Err(DecodeError::too_large());
    }
    let Value::Object(mut object) = value else {
        return Err(DecodeError::of_kind(kind, "the body is not an object"));
    };
    (rules(&kind.resource).convert_body)(&mut object);
    convert_to_stored(kind, &mut object);
    let warnings = match validation {
        FieldValidation::Strict if !findings.is_empty() => {
            let why = format!("strict decoding error: {}", findings.join(", "));
            return Err(DecodeError::of_kind(kind, why));
        }
        FieldValidation::Ignore | FieldValidation::Strict => Vec::new(),
        FieldValidation::Warn => findings.iter().flat_map(|finding| warning_lines(finding)).collect(),
    };
    Ok(DecodedObject { object, warnings })
}

/// What stands for a number that is too large, as errors show it.
fn placeholder() -> String {
    write_json(&f64::MAX.into())
}

fn contains_placeholder(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.as_f64() == Some(f64::MAX),
        Value::Array(items) => items.iter().any(contains_placeholder),
        Value::Object(fields) => fields.values().any(contains_placeholder),
        _ => false,
    }
}

/// The lines of a finding that can be headers: those of YAML come after a heading.
fn warning_lines(finding: &str) -> impl Iterator<Item = String> {
    let lines = finding.strip_prefix("yaml: unmarshal errors:\n").unwrap_or(finding);
    lines.lines().map(|line| line.trim().to_owned())
}
