//! Errors in kube-apiserver's words: tools match the reasons, and people know the messages.

use super::resource::{ExampleResource, GROUP};
use crate::kubeapi::{GoQuoted, Status, StatusCause, StatusDetails};

/// A field has an invalid value (`k8s.io/apimachinery/pkg/util/validation/field.Error`).
pub(super) fn invalid_field(field: impl Into<String>, value: &str, why: &str) -> StatusCause {
    cause("FieldValueInvalid", field, format!("Invalid value: {}: {why}", GoQuoted(value)))
}

/// A required field is missing.
pub(super) fn required_field(field: impl Into<String>, why: &str) -> StatusCause {
    cause("FieldValueRequired", field, format!("Required value: {why}"))
}

/// A field is not allowed.
pub(super) fn forbidden_field(field: impl Into<String>, why: &str) -> StatusCause {
    cause("FieldValueForbidden", field, format!("Forbidden: {why}"))
}

/// A field has none of the supported values.
pub(super) fn unsupported_field(field: impl Into<String>, value: &str, supported: &[&str]) -> StatusCause {
    let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
    let message = format!("Unsupported value: {}: supported values: {}", GoQuoted(value), supported.join(", "));
    cause("FieldValueNotSupported", field, message)
}

/// A field is too long.
pub(super) fn too_long_field(field: impl Into<String>, limit: usize) -> StatusCause {
    cause("FieldValueTooLong", field, format!("Too long: may not be more than {limit} bytes"))
}

/// Options such as `ListOptions` that fail validation.
pub(super) fn invalid_options(kind: &str, causes: Vec<StatusCause>) -> Status {
    Status::invalid("meta.k8s.io", kind, "", causes)
}

/// An object that fails validation.
pub(super) fn invalid_object(resource: &ExampleResource, name: &str, causes: Vec<StatusCause>) -> Status {
    Status::invalid(GROUP, resource.kind, name, causes)
}

pub(super) fn not_found(resource: &ExampleResource, name: &str) -> Status {
    Status::object_not_found(GROUP, resource.plural, name)
}

pub(super) fn already_exists(resource: &ExampleResource, name: &str) -> Status {
    Status::already_exists(GROUP, resource.plural, name)
}

pub(super) fn conflict(resource: &ExampleResource, name: &str, why: &str) -> Status {
    Status::conflict(GROUP, resource.plural, name, why)
}

/// The conflict of a stale `resourceVersion`.
pub(super) fn modified_conflict(resource: &ExampleResource, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(resource, name, why)
}

/// A conflict of server-side apply with other managers; one cause per field.
pub(super) fn apply_conflict(message: String, causes: Vec<StatusCause>) -> Status {
    Status::new(409, "Conflict", message).with_details(StatusDetails { causes, ..StatusDetails::default() })
}

pub(super) fn method_not_allowed() -> Status {
    Status::method_not_allowed("the server does not allow this method on the requested resource")
}

pub(super) fn unsupported_media_type(accepted: &str) -> Status {
    let why = "the body of the request was in an unknown format - accepted media types include";
    Status::unsupported_media_type(format!("{why}: {accepted}"))
}

/// A `resourceVersion` higher than the current one.
pub(super) fn resource_version_too_large(asked: u64, current: u64) -> Status {
    Status::resource_version_too_large(asked, current)
}

/// A JSON patch that does not apply.
pub(super) fn patch_does_not_apply(why: impl Into<String>) -> Status {
    let message = "the server rejected our request due to an error in our request";
    Status::new(422, "Invalid", message).with_cause("UnexpectedServerResponse", why)
}

fn cause(reason: &str, field: impl Into<String>, message: String) -> StatusCause {
    StatusCause { reason: reason.into(), message, field: field.into() }
}
