//! `metav1.DeleteOptions`, from the body or the query.

use serde_json::Value;

use super::ApiRequest;
use super::compute::run_sized;
use super::request_body::media_type;
use super::write_options::dry_run;
use crate::kubeapi::Status;
use crate::kubeapi::field_error::{FieldError, invalid_options_status};
use crate::kubeapi::json::read_json;
use crate::kubeapi::protobuf::decode::{decode_object, read_envelope};
use crate::kubeapi::yaml::read_yaml;
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
        let mut options = DeleteOptions { is_dry_run: dry_run(request.query, &mut errors), ..DeleteOptions::default() };
        let mut propagation = request.query.get("propagationPolicy").map(std::borrow::Cow::into_owned);
        let mut orphans = request.query.get("orphanDependents").map(|value| value == "true");
        if let Some(body) = &body {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            for value in body["dryRun"].as_array().into_iter().flatten() {
                match value.as_str() {
                    Some("All") => options.is_dry_run = true,
                    other => errors.push(FieldError::not_supported("dryRun", other.unwrap_or_default(), &["All"])),
                }
            }
            options.uid = text(&body["preconditions"]["uid"]);
            options.resource_version = text(&body["preconditions"]["resourceVersion"]);
            propagation = text(&body["propagationPolicy"]).or(propagation);
            orphans = body["orphanDependents"].as_bool().or(orphans);
        }
        match propagation.as_deref() {
            None | Some("" | "Background") if orphans != Some(true) => {}
            None | Some("" | "Background") => return Err(unsupported_propagation("Orphan")),
            Some(policy @ ("Foreground" | "Orphan")) => return Err(unsupported_propagation(policy)),
            Some(other) => errors.push(FieldError::not_supported(
                "propagationPolicy",
                other,
                &["Background", "Foreground", "Orphan", "nil"],
            )),
        }
        if errors.is_empty() { Ok(options) } else { Err(invalid_options_status("DeleteOptions", &errors)) }
    }
}

fn unsupported_propagation(policy: &str) -> Status {
    let why = format!("{policy} is not supported: this server has no garbage collector; use Background");
    invalid_options_status("DeleteOptions", &[FieldError::invalid("propagationPolicy", policy, why)])
}

fn read_body(media_type: &str, body: &[u8]) -> Result<Option<Value>, Status> {
    if body.is_empty() {
        return Ok(None);
    }
    let malformed =
        |why: &dyn std::fmt::Display| Status::bad_request(format!("DeleteOptions in the body cannot be read: {why}"));
    let value = match media_type {
        "application/vnd.kubernetes.protobuf" => {
            let kinds = builtin_kinds();
            let message = kinds.meta_message("DeleteOptions").ok_or_else(|| malformed(&"unknown type"))?;
            let envelope = read_envelope(body).map_err(|error| malformed(&error))?;
            decode_object(&kinds.messages, message, &envelope).map_err(|error| malformed(&error))?
        }
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| malformed(&error))?;
            read_yaml(text).map_err(|error| malformed(&error))?.value
        }
        _ => read_json(body).map_err(|error| malformed(&error))?.0,
    };
    Ok(value.is_object().then_some(value))
}
