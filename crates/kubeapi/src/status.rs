//! `metav1.Status`, the body of every error response, and of a deletion.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::go_quote::GoQuoted;
use super::retry_after::RetryAfter;

/// Maximum number of causes of an invalid object.
const MAX_CAUSES: usize = 256;
/// Maximum size of those causes in bytes, unless the first alone is larger. The message repeats them.
const MAX_CAUSES_SIZE: usize = 256 << 10;

/// A failure, or a success without an object, in the form of Kubernetes clients
/// (`k8s.io/apimachinery/pkg/apis/meta/v1.Status`).
///
/// [`encode`](super::encode()) adds `kind`, `apiVersion`, `metadata` and `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code, also the field `code`.
    pub code: u16,
    /// A `metav1.StatusReason`, for example `Forbidden`; empty if there is none. [`Status::reason_text`] may differ.
    pub reason: &'static str,
    /// Human-readable message, with advice where there is any.
    pub message: String,
    /// Details of the failure.
    pub details: Option<Box<StatusDetails>>,
    /// Whether the header `Retry-After` repeats [`StatusDetails::retry_after_seconds`]. Set by constructors of this
    /// file only.
    pub(super) sends_retry_after: bool,
    /// `metadata.continue`: with an expired page, the token that goes on at the latest version.
    pub continue_token: Option<Box<str>>,
    /// Reason that is none of this crate's, for example of an admission webhook.
    foreign_reason: Option<Box<str>>,
}

impl Status {
    /// A failure with any code and reason. Prefer the specific constructors.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Status {
        Status {
            code,
            reason,
            message: message.into(),
            details: None,
            sends_retry_after: false,
            continue_token: None,
            foreign_reason: None,
        }
    }

    /// 200 without an object, as after a deletion. Kubernetes sends no `code` in its body.
    pub fn success(details: StatusDetails) -> Status {
        Status::new(200, "", "").with_details(details)
    }

    /// 422: the patch does not apply, with client-go's text for a failure that names no field
    /// (`NewGenericServerResponse`).
    pub fn request_rejected() -> Status {
        Status::new(422, "Invalid", "the server rejected our request due to an error in our request")
            .with_details(StatusDetails::default())
    }

    /// 400: the request is invalid.
    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", message)
    }

    /// 401: credentials are missing or invalid, with Kubernetes' exact text.
    pub fn unauthorized() -> Status {
        Status::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: refused for another reason, or the user lacks the permission for a path.
    pub fn forbidden(message: impl fmt::Display) -> Status {
        Status::new(403, "Forbidden", format!("forbidden: {message}")).with_details(StatusDetails::default())
    }

    /// 404: the path or resource is not served, with client-go's text.
    pub fn not_found() -> Status {
        Status::new(404, "NotFound", "the server could not find the requested resource")
            .with_details(StatusDetails::default())
    }

    /// 404: the object does not exist, with Kubernetes' exact text.
    pub fn object_not_found(group: &str, resource: &str, name: &str) -> Status {
        Status::new(404, "NotFound", format!("{} {} not found", qualified(group, resource), GoQuoted(name)))
            .with_details(StatusDetails::for_resource(group, resource, name))
    }

    /// 403: the object may not be written, with Kubernetes' text (`NewForbidden` in `apimachinery/pkg/api/errors`).
    pub fn object_forbidden(group: &str, resource: &str, name: &str, why: impl fmt::Display) -> Status {
        let quoted = if name.is_empty() { String::new() } else { format!(" {}", GoQuoted(name)) };
        let message = format!("{}{quoted} is forbidden: {why}", qualified(group, resource));
        Status::new(403, "Forbidden", message).with_details(StatusDetails::for_resource(group, resource, name))
    }

    /// 421: the connection is for another server than the requested host (RFC 9110, section 15.5.20).
    pub fn misdirected_request(message: impl Into<String>) -> Status {
        Status::new(421, "MisdirectedRequest", message)
    }

    /// 405: the method is not allowed. `message` names the allowed methods, or the server to use instead.
    pub fn method_not_allowed(message: impl Into<String>) -> Status {
        Status::new(405, "MethodNotAllowed", message).with_details(StatusDetails::default())
    }

    /// 406: none of the accepted media types is supported.
    pub fn not_acceptable(message: impl Into<String>) -> Status {
        Status::new(406, "NotAcceptable", message)
    }

    /// 408: the request did not arrive in time.
    pub fn request_timeout(message: impl Into<String>) -> Status {
        Status::new(408, "Timeout", message)
    }

    /// 409: the object was changed meanwhile, with Kubernetes' text.
    pub fn conflict(group: &str, resource: &str, name: &str, why: impl fmt::Display) -> Status {
        let resource_of = qualified(group, resource);
        Status::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {resource_of} {}: {why}", GoQuoted(name)),
        )
        .with_details(StatusDetails::for_resource(group, resource, name))
    }

    /// 409: the object already exists, with Kubernetes' exact text.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Status {
        Status::new(409, "AlreadyExists", format!("{} {} already exists", qualified(group, resource), GoQuoted(name)))
            .with_details(StatusDetails::for_resource(group, resource, name))
    }

    /// 410: the resource version has expired.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, "Expired", message)
    }

    /// 413: the request body is too large, with Kubernetes' text.
    pub fn request_entity_too_large(message: impl fmt::Display) -> Status {
        Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: {message}"))
    }

    /// 414: the URL is too long.
    pub fn uri_too_long(message: impl Into<String>) -> Status {
        Status::new(414, "URITooLong", message)
    }

    /// 431: the request header is too large.
    pub fn request_header_fields_too_large(message: impl Into<String>) -> Status {
        Status::new(431, "RequestHeaderFieldsTooLarge", message)
    }

    /// 415: the media type of the request body is not supported.
    pub fn unsupported_media_type(message: impl Into<String>) -> Status {
        Status::new(415, "UnsupportedMediaType", message)
    }

    /// 422: fields of the object are invalid.
    ///
    /// The message names each error once (`NewInvalid` in `apimachinery/pkg/api/errors`). Causes and message are bounded:
    /// of many errors the first are listed, and the others counted.
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<StatusCause>) -> Status {
        Status::invalid_with_omitted(group, kind, name, causes, 0)
    }

    /// 422: fields of the object are invalid, with more causes than are listed: `omitted` says how many were left out
    /// before. Otherwise as [`Status::invalid`].
    pub fn invalid_with_omitted(
        group: &str,
        kind: &str,
        name: &str,
        mut causes: Vec<StatusCause>,
        omitted: usize,
    ) -> Status {
        let mut size = 0;
        let fits = |cause: &&StatusCause| {
            let is_first = size == 0;
            size += cause.field.len() + cause.message.len() + cause.reason.len();
            is_first || size <= MAX_CAUSES_SIZE
        };
        let count = causes.iter().take(MAX_CAUSES).take_while(fits).count();
        let omitted = omitted + causes.len() - count;
        causes.truncate(count);
        let mut distinct = HashSet::with_capacity(causes.len());
        let unique = causes.iter().filter(|cause| distinct.insert((&*cause.field, &*cause.message)));
        let mut errors: Vec<String> = unique.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        if omitted > 0 {
            errors.push(format!("and at least {omitted} more"));
        }
        let all = match &errors[..] {
            [] => String::new(),
            [only] => format!(": {only}"),
            _ => format!(": [{}]", errors.join(", ")),
        };
        let mut details = StatusDetails::for_resource(group, kind, name);
        details.causes = causes;
        Status::new(422, "Invalid", format!("{} {} is invalid{all}", qualified(group, kind), GoQuoted(name)))
            .with_details(details)
    }

    /// 429: a limit is reached, with the delay before a retry.
    pub fn too_many_requests(message: impl Into<String>, retry_after: RetryAfter) -> Status {
        Status::new(429, "TooManyRequests", message).with_retry_after(retry_after)
    }

    /// 500: an internal error. Clients see `message`: it must not contain internal addresses or errors of libraries.
    pub fn internal_error(message: impl fmt::Display) -> Status {
        Status::new(500, "InternalError", format!("Internal error occurred: {message}"))
            .with_cause("", message.to_string())
    }

    /// 501: not supported here.
    pub fn not_implemented(message: impl Into<String>) -> Status {
        Status::new(501, "NotImplemented", message)
    }

    /// 502: a backend's response is invalid. `metav1` has no such reason; clients use `InternalError` for an unknown
    /// 5xx.
    pub fn bad_gateway(message: impl Into<String>) -> Status {
        Status::new(502, "InternalError", message)
    }

    /// 503: temporarily unavailable.
    pub fn service_unavailable(message: impl Into<String>) -> Status {
        Status::new(503, "ServiceUnavailable", message)
    }

    /// 503 while not all registered APIServices are known, with Kubernetes' text and delay, also in the header
    /// (`k8s.io/apiserver/pkg/util/notfoundhandler`).
    pub fn paths_not_installed() -> Status {
        const MESSAGE: &str =
            "the request has been made before all known HTTP paths have been installed, please try again";
        Status::service_unavailable(MESSAGE).with_retry_after(RetryAfter::PathsNotInstalled)
    }

    /// 504 for a resource version that is newer than the `current` one, with Kubernetes' text and the header
    /// (`NewTooLargeResourceVersionError` in `k8s.io/apiserver/pkg/storage/errors.go`).
    pub fn resource_version_too_large(requested: u64, current: u64) -> Status {
        Status::timeout(format_args!("Too large resource version: {requested}, current: {current}"))
            .with_cause("ResourceVersionTooLarge", "Too large resource version")
            .with_retry_after(RetryAfter::ResourceVersionTooLarge)
    }

    /// 504: no response in time, with Kubernetes' text.
    pub fn timeout(message: impl fmt::Display) -> Status {
        Status::new(504, "Timeout", format!("Timeout: {message}")).with_details(StatusDetails::default())
    }

    /// Replaces the details.
    #[must_use]
    pub fn with_details(mut self, details: StatusDetails) -> Status {
        self.details = Some(Box::new(details));
        self
    }

    /// Sets the resource in the details: group, plural, and the name of an object or the empty text.
    #[must_use]
    pub fn with_resource(mut self, group: &str, resource: &str, name: &str) -> Status {
        let details = self.details_mut();
        details.group = group.to_owned();
        details.kind = resource.to_owned();
        details.name = name.to_owned();
        self
    }

    /// Adds a cause: a machine-readable reason, and a human-readable message.
    #[must_use]
    pub fn with_cause(mut self, reason: impl Into<String>, message: impl Into<String>) -> Status {
        let cause = StatusCause { reason: reason.into(), message: message.into(), field: String::new() };
        self.details_mut().causes.push(cause);
        self
    }

    /// Sets the delay before a retry in the details, and in the header where a kube-apiserver sends it.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: RetryAfter) -> Status {
        self.details_mut().retry_after_seconds = retry_after.seconds();
        self.sends_retry_after = retry_after.is_in_header();
        self
    }

    /// The delay before a retry in seconds, if known.
    pub fn retry_after(&self) -> Option<u32> {
        self.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0)
    }

    /// Value of the header `Retry-After` in seconds, with 429 and where a kube-apiserver sends it, else `None`.
    pub fn retry_after_header(&self) -> Option<u32> {
        self.retry_after().filter(|_| self.sends_retry_after)
    }

    /// Sets `metadata.continue`.
    #[must_use]
    pub fn with_continue(mut self, token: impl Into<Box<str>>) -> Status {
        self.continue_token = Some(token.into());
        self
    }

    /// Replaces the reason by one that this crate does not know, for example of an admission webhook.
    #[must_use]
    pub fn with_foreign_reason(mut self, reason: impl Into<Box<str>>) -> Status {
        self.foreign_reason = Some(reason.into());
        self
    }

    /// The reason to send.
    pub fn reason_text(&self) -> &str {
        self.foreign_reason.as_deref().unwrap_or(self.reason)
    }

    /// `status` in the body: `Success` or `Failure`.
    pub fn outcome(&self) -> &'static str {
        if self.code < 400 { "Success" } else { "Failure" }
    }

    /// `code` in the body; 0 for a success.
    pub(super) fn body_code(&self) -> u16 {
        if self.code < 400 { 0 } else { self.code }
    }

    fn details_mut(&mut self) -> &mut StatusDetails {
        self.details.get_or_insert_default()
    }
}

impl StatusDetails {
    /// Details of a resource: group, plural, and the name of an object or the empty text.
    pub fn for_resource(group: &str, resource: &str, name: &str) -> StatusDetails {
        StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..StatusDetails::default()
        }
    }
}

/// The API type `metav1.StatusDetails`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// Name of the resource, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Group of the resource, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Resource (Kubernetes puts the plural here), or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Causes of the failure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Delay before a retry in seconds; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// The API type `metav1.StatusCause`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// A `metav1.CauseType`, or the reason of a condition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field the cause is about, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// `resource.group`, or `resource` alone for the core group.
pub(super) fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_retry_after_only_when_set() {
        assert_eq!(Status::too_many_requests("x", RetryAfter::Overloaded).retry_after(), Some(1));
        assert_eq!(Status::service_unavailable("x").retry_after(), None);
        assert_eq!(Status::service_unavailable("x").with_cause("a", "b").retry_after(), None);
    }

    #[test]
    fn status_retry_after_header_only_where_upstream_sends_it() {
        assert_eq!(Status::too_many_requests("x", RetryAfter::Overloaded).retry_after_header(), Some(1));
        assert_eq!(Status::paths_not_installed().retry_after_header(), Some(5));
        assert_eq!(Status::resource_version_too_large(2, 1).retry_after_header(), Some(1));
        for status in [Status::service_unavailable("x"), Status::bad_gateway("x"), Status::timeout("x")] {
            let status = status.with_retry_after(RetryAfter::TransientFault);
            assert_eq!((status.retry_after(), status.retry_after_header()), (Some(1), None));
        }
    }

    #[test]
    fn status_success_and_foreign_reason() {
        let status = Status::success(StatusDetails::for_resource("g", "things", "x"));
        assert_eq!((status.outcome(), status.body_code(), status.reason_text()), ("Success", 0, ""));
        let status = Status::forbidden("no").with_foreign_reason("PolicyViolation");
        assert_eq!(
            (status.outcome(), status.reason, status.reason_text()),
            ("Failure", "Forbidden", "PolicyViolation")
        );
    }

    #[test]
    fn status_invalid_message_for_one_or_several_causes() {
        let cause = |field: &str| StatusCause {
            reason: "FieldValueRequired".into(),
            message: "Required value".into(),
            field: field.into(),
        };
        let one = Status::invalid("g", "Thing", "x", vec![cause("spec.a")]);
        assert_eq!(one.message, r#"Thing.g "x" is invalid: spec.a: Required value"#);
        let two = Status::invalid("g", "Thing", "x", vec![cause("spec.a"), cause("spec.b")]);
        assert_eq!(two.message, r#"Thing.g "x" is invalid: [spec.a: Required value, spec.b: Required value]"#);
    }

    #[test]
    fn status_invalid_lists_the_first_causes_and_counts_the_others() {
        let cause = |at: usize, size: usize| StatusCause {
            reason: "FieldValueInvalid".into(),
            message: "x".repeat(size),
            field: format!("spec.a[{at}]"),
        };
        let many = Status::invalid("g", "Thing", "x", (0..90_000).map(|at| cause(at, 1)).collect());
        assert_eq!(many.details.as_ref().unwrap().causes.len(), 256);
        assert!(many.message.ends_with(", spec.a[255]: x, and at least 89744 more]"), "{}", many.message);
        // A value that each error repeats.
        let large =
            Status::invalid_with_omitted("g", "Thing", "x", (0..200).map(|at| cause(at, 16 << 10)).collect(), 7);
        let kept = large.details.as_ref().unwrap().causes.len();
        assert_eq!(kept, 15);
        assert!(large.message.len() < 257 << 10 && large.message.ends_with("and at least 192 more]"));
        let single = Status::invalid("g", "Thing", "x", vec![cause(0, 1 << 20)]);
        assert_eq!(single.details.as_ref().unwrap().causes.len(), 1);
    }
}
