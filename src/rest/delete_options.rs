//! `metav1.DeleteOptions`, from the body or the query.

use kubeapi::Status;
use kubeapi::field_error::{FieldError, invalid_options_status};
use kubeapi::json::read_json;
use kubeapi::list_options::{is_true, parse_int64};
use kubeapi::protobuf::decode::{decode_object, read_envelope};
use kubeapi::protobuf::normalize::normalize;
use kubeapi::yaml::read_yaml;
use serde_json::Value;

use super::object_type::{DecodeError, check_options_type};
use super::request::ApiRequest;
use super::request_body::{media_type, unsupported_body};
use super::write_options::dry_run;
use crate::compute::run_sized;
use crate::resources::builtin::builtin_kinds;

/// Options of a deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub(super) is_dry_run: bool,
    /// Precondition: the object's uid.
    pub(super) uid: Option<String>,
    /// Precondition: the object's resourceVersion.
    pub(super) resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the options. As in Kubernetes, a body replaces the query.
    ///
    /// # Errors
    /// 400 for a malformed body; 422 for values that are not supported. `Foreground` and `Orphan` are refused by name:
    /// there is no garbage collector.
    pub(super) async fn parse(request: &ApiRequest<'_>) -> Result<DeleteOptions, Status> {
        let (media_type, body) = (media_type(request.headers), request.body.clone());
        let body = run_sized(body.len(), move || read_body(&media_type, &body)).await??;
        let mut errors = Vec::new();
        let mut options = DeleteOptions::default();
        let mut propagation = request.query.get("propagationPolicy").map(std::borrow::Cow::into_owned);
        let mut orphans = request.query.get("orphanDependents").map(|value| is_true(&value));
        if let Some(seconds) = request.query.get("gracePeriodSeconds") {
            parse_int64(&seconds)?;
        }
        let pairs = request.query.pairs().filter(|(key, _)| key == "dryRun");
        let mut dry_run_values: Vec<String> = pairs.map(|(_, value)| value.into_owned()).collect();
        if let Some(body) = &body {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            dry_run_values.extend(body["dryRun"].as_array().into_iter().flatten().filter_map(text));
            options.uid = text(&body["preconditions"]["uid"]);
            options.resource_version = text(&body["preconditions"]["resourceVersion"]);
            propagation = text(&body["propagationPolicy"]).or(propagation);
            orphans = body["orphanDependents"].as_bool().or(orphans);
        }
        if let (Some(policy), Some(_)) = (&propagation, orphans) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", policy.as_str(), why));
        }
        match propagation.as_deref() {
            _ if !errors.is_empty() => {}
            None | Some("" | "Background") if orphans != Some(true) => {}
            None | Some("" | "Background") => return Err(unsupported_propagation("Orphan")),
            Some(policy @ ("Foreground" | "Orphan")) => return Err(unsupported_propagation(policy)),
            Some(other) => errors.push(FieldError::not_supported(
                "propagationPolicy",
                other,
                &["Foreground", "Background", "Orphan", "nil"],
            )),
        }
        options.is_dry_run = dry_run(dry_run_values.iter().map(String::as_str), &mut errors);
        if errors.is_empty() { Ok(options) } else { Err(invalid_options_status("DeleteOptions", errors)) }
    }
}

fn unsupported_propagation(policy: &str) -> Status {
    let why = format!("{policy} is not supported: this server has no garbage collector; use Background");
    invalid_options_status("DeleteOptions", FieldError::invalid("propagationPolicy", policy, why))
}

fn read_body(media_type: &str, body: &[u8]) -> Result<Option<Value>, Status> {
    if body.is_empty() {
        return Ok(None);
    }
    let malformed = |error: DecodeError| Status::bad_request(error.why);
    let kinds = builtin_kinds();
    let message = kinds.meta_message("DeleteOptions");
    let message = message.ok_or_else(|| Status::internal_error("DeleteOptions has no schema"))?;
    let mut value = match media_type {
        "application/vnd.kubernetes.protobuf" => {
            let envelope = read_envelope(body).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
            let decoded = decode_object(&kinds.messages, message, &envelope);
            decoded.map_err(|error| malformed(DecodeError::unrecognized(error)))?
        }
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
            read_yaml(text).map_err(|error| malformed(DecodeError::unrecognized(error)))?.value
        }
        "" | "application/json" => read_json(body).map_err(|error| malformed(DecodeError::malformed_json(error)))?.0,
        _ => return Err(unsupported_body()),
    };
    check_options_type(&value).map_err(malformed)?;
    // A field of the wrong type must not be passed over: it may be `dryRun`.
    normalize(&kinds.messages, message, &mut value).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
    Ok(value.is_object().then_some(value))
}
