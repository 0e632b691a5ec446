//! Refusals in kube-apiserver's words: tools match on reasons and people know the sentences.

use serde_json::{Value, json};

use super::resource::{GROUP, Resource};
use crate::kubeapi::{Cause, Details, Status};

/// One thing wrong with one field (`k8s.io/apimachinery/pkg/util/validation/field.Error`).
pub(super) struct FieldError {
    reason: &'static str,
    field: String,
    message: String,
}

impl FieldError {
    pub(super) fn invalid(field: impl Into<String>, value: &str, why: impl AsRef<str>) -> FieldError {
        let message = format!("Invalid value: {value:?}: {}", why.as_ref());
        FieldError { reason: "FieldValueInvalid", field: field.into(), message }
    }

    pub(super) fn required(field: impl Into<String>, why: &str) -> FieldError {
        FieldError { reason: "FieldValueRequired", field: field.into(), message: format!("Required value: {why}") }
    }

    pub(super) fn forbidden(field: impl Into<String>, why: &str) -> FieldError {
        FieldError { reason: "FieldValueForbidden", field: field.into(), message: format!("Forbidden: {why}") }
    }

    pub(super) fn not_supported(field: impl Into<String>, value: &str, supported: &str) -> FieldError {
        let message = format!("Unsupported value: {value:?}: supported values: \"{supported}\"");
        FieldError { reason: "FieldValueNotSupported", field: field.into(), message }
    }

    pub(super) fn too_long(field: impl Into<String>, limit: usize) -> FieldError {
        let message = format!("Too long: may not be more than {limit} bytes");
        FieldError { reason: "FieldValueTooLong", field: field.into(), message }
    }
}

/// The JSON of a failure.
pub(super) fn value(status: &Status) -> Value {
    let mut value = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": status.message, "code": status.code,
    });
    if !status.reason.is_empty() {
        value["reason"] = json!(status.reason);
    }
    if let Some(details) = &status.details {
        value["details"] = json!(details);
    }
    value
}

pub(super) fn unauthorized() -> Status {
    plain(401, "Unauthorized", "Unauthorized")
}

pub(super) fn bad_request(message: impl Into<String>) -> Status {
    plain(400, "BadRequest", message)
}

pub(super) fn no_such_path() -> Status {
    plain(404, "NotFound", "the server could not find the requested resource")
}

pub(super) fn method_not_allowed() -> Status {
    plain(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

pub(super) fn not_acceptable(accepted: &str) -> Status {
    plain(406, "NotAcceptable", format!("only the following media types are accepted: {accepted}"))
}

pub(super) fn unsupported_media_type(accepted: &str) -> Status {
    let message =
        format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
    plain(415, "UnsupportedMediaType", message)
}

pub(super) fn too_large(message: impl Into<String>) -> Status {
    plain(413, "RequestEntityTooLarge", message)
}

pub(super) fn expired(message: impl Into<String>) -> Status {
    plain(410, "Expired", message)
}

/// A `resourceVersion` we have not reached.
pub(super) fn from_the_future(asked: u64, current: u64) -> Status {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let cause = Cause {
        reason: "ResourceVersionTooLarge".into(),
        message: "Too large resource version".into(),
        ..Cause::default()
    };
    let details = Details { causes: vec![cause], retry_after_seconds: 1, ..Details::default() };
    Status { code: 504, reason: "Timeout", message: format!("Timeout: {message}"), details: Some(Box::new(details)) }
}

pub(super) fn not_found(resource: &Resource, name: &str) -> Status {
    about(resource, name, 404, "NotFound", format!("{} {name:?} not found", resource.qualified()))
}

pub(super) fn already_exists(resource: &Resource, name: &str) -> Status {
    about(resource, name, 409, "AlreadyExists", format!("{} {name:?} already exists", resource.qualified()))
}

pub(super) fn conflict(resource: &Resource, name: &str, why: &str) -> Status {
    let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
    about(resource, name, 409, "Conflict", message)
}

/// The conflict of a stale `resourceVersion`.
pub(super) fn modified(resource: &Resource, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(resource, name, why)
}

/// Server-side apply met fields that others own; one cause a field.
pub(super) fn apply_conflict(message: String, causes: Vec<Cause>) -> Status {
    let details = Details { causes, ..Details::default() };
    Status { code: 409, reason: "Conflict", message, details: Some(Box::new(details)) }
}

/// An object, or the options of a request, that fail validation. `kind` is `Greeting` of `group`.
pub(super) fn invalid(group: &str, kind: &str, name: &str, errors: Vec<FieldError>) -> Status {
    let sentences: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
    let sentences = if let [one] = &sentences[..] { one.clone() } else { format!("[{}]", sentences.join(", ")) };
    let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
    let causes = errors
        .into_iter()
        .map(|error| Cause { reason: error.reason.into(), message: error.message, field: error.field })
        .collect();
    let details = Details { name: name.into(), group: group.into(), kind: kind.into(), causes, ..Details::default() };
    Status {
        code: 422,
        reason: "Invalid",
        message: format!("{qualified} {name:?} is invalid: {sentences}"),
        details: Some(Box::new(details)),
    }
}

/// Options such as `ListOptions` that fail validation.
pub(super) fn invalid_options(kind: &str, errors: Vec<FieldError>) -> Status {
    invalid("meta.k8s.io", kind, "", errors)
}

/// A JSON patch that does not apply.
pub(super) fn patch_does_not_apply(why: String) -> Status {
    let cause = Cause { reason: "UnexpectedServerResponse".into(), message: why, ..Cause::default() };
    let details = Details { causes: vec![cause], ..Details::default() };
    Status {
        code: 422,
        reason: "Invalid",
        message: "the server rejected our request due to an error in our request".into(),
        details: Some(Box::new(details)),
    }
}

fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Status {
    Status { code, reason, message: message.into(), details: None }
}

fn about(resource: &Resource, name: &str, code: u16, reason: &'static str, message: String) -> Status {
    let details =
        Details { name: name.into(), group: GROUP.into(), kind: resource.plural.into(), ..Details::default() };
    Status { code, reason, message, details: Some(Box::new(details)) }
}
