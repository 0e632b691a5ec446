//! The address of a webhook in a client configuration (`k8s.io/apiserver/pkg/util/webhook/validation.go`).

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::go_url::GoUrl;
use kubeapi::names::{check_dns1123_subdomain, check_port_number};

/// The errors of the address of a webhook (`ValidateWebhookURL`).
pub(super) fn webhook_url_errors(text: &str, path: &FieldPath<'_>) -> Vec<FieldError> {
    const FORM: &str = "; desired format: https://host[/path]";
    let url = match GoUrl::parse(text) {
        Ok(url) => url,
        Err(error) => return vec![FieldError::required(path, format!("url must be a valid URL: {error}{FORM}"))],
    };
    let mut errors = Vec::new();
    if url.scheme != "https" {
        let why = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(FieldError::invalid(path, &url.scheme, why));
    }
    if url.host.is_empty() {
        errors.push(FieldError::invalid(path, "", format!("host must be specified{FORM}")));
    }
    if let Some(user) = &url.user {
        errors.push(FieldError::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !url.fragment.is_empty() {
        errors.push(FieldError::invalid(path, &url.fragment, "fragments are not permitted in the URL"));
    }
    if !url.raw_query.is_empty() {
        errors.push(FieldError::invalid(path, &url.raw_query, "query parameters are not permitted in the URL"));
    }
    errors
}

/// The errors of the Service of a webhook (`ValidateWebhookService`). Kubernetes calls it with name and namespace
/// interchanged.
pub(super) fn webhook_service_errors(
    (namespace, name): (&str, &str),
    url_path: Option<&str>,
    port: i64,
    path: &FieldPath<'_>,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if namespace.is_empty() {
        errors.push(FieldError::required(path.child("name"), ""));
    }
    if name.is_empty() {
        errors.push(FieldError::required(path.child("namespace"), ""));
    }
    if let Some(why) = check_port_number(port) {
        errors.push(FieldError::invalid(path.child("port"), port, format!("port is not valid: {why}")));
    }
    let Some(text) = url_path.filter(|text| !matches!(*text, "" | "/")) else { return errors };
    let path = path.child("path");
    let value = BadValue::from(text);
    let invalid = |why: String| FieldError::invalid(path, value.clone(), why);
    if text == "//" {
        errors.push(invalid("segment[0] may not be empty".to_owned()));
        return errors;
    }
    if !text.starts_with('/') {
        errors.push(invalid("must start with a '/'".to_owned()));
    }
    // Kubernetes cuts off the first byte, whatever it is.
    let segments = text.get(1..).unwrap_or_default();
    for (index, segment) in segments.strip_suffix('/').unwrap_or(segments).split('/').enumerate() {
        if segment.is_empty() {
            errors.push(invalid(format!("segment[{index}] may not be empty")));
            continue;
        }
        let sentences = check_dns1123_subdomain(segment);
        errors.extend(sentences.into_iter().map(|why| invalid(format!("segment[{index}]: {why}"))));
    }
    errors
}
