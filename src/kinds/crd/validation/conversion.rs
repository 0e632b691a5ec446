//! Conversion webhooks: the fields of `spec.conversion` (`k8s.io/apiserver/pkg/util/webhook/validation.go`).

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1035_label;

use super::hoisted::{ClientConfigField, ConversionField};
use super::options::ValidationRules;
use crate::kinds::webhook_address::{webhook_service_errors, webhook_url_errors};
use crate::resources::webhook_config::ca_bundle_error;

/// Versions of `ConversionReview` that a server understands.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The errors of the field `conversion`.
pub(super) fn conversion_errors(
    conversion: Option<&ConversionField>,
    rules: &ValidationRules,
    path: &FieldPath<'_>,
) -> FieldErrors {
    let Some(conversion) = conversion else { return FieldErrors::new() };
    let mut errors = FieldErrors::new();
    match &*conversion.strategy {
        "" => errors.push(FieldError::required(path.child("strategy"), "")),
        "None" | "Webhook" => {}
        other => errors.push(FieldError::not_supported(path.child("strategy"), other, &["None", "Webhook"])),
    }
    let webhook = conversion.webhook.as_ref();
    let client = webhook.and_then(|webhook| webhook.client_config.as_ref());
    let versions = webhook.and_then(|webhook| webhook.conversion_review_versions.as_deref()).unwrap_or_default();
    let (client_path, versions_path) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if conversion.strategy == "Webhook" {
        match client {
            None => errors.push(FieldError::required(client_path, "required when strategy is set to Webhook")),
            Some(client) => errors.append(client_errors(client, rules, &client_path)),
        }
        errors.append(review_version_errors(versions, rules.requires_review_version, &versions_path));
    } else {
        let why = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.push(FieldError::forbidden(client_path, why));
        }
        if !versions.is_empty() {
            errors.push(FieldError::forbidden(versions_path, why));
        }
    }
    errors
}

/// Whether a server understands one of the versions.
pub(super) fn recognizes_review_version(versions: &[String]) -> bool {
    versions.iter().any(|version| REVIEW_VERSIONS.contains(&&**version))
}

fn review_version_errors(versions: &[String], is_one_required: bool, path: &FieldPath<'_>) -> FieldErrors {
    if versions.is_empty() {
        return FieldError::required(path, "").into();
    }
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            errors.push(FieldError::invalid(path.index(index), version, "duplicate version"));
            continue;
        }
        let sentences = check_dns1035_label(version);
        errors.extend(sentences.into_iter().map(|why| FieldError::invalid(path.index(index), version, why)));
    }
    if is_one_required && !recognizes_review_version(versions) {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(FieldError::invalid(path, versions, why));
    }
    errors
}

fn client_errors(client: &ClientConfigField, rules: &ValidationRules, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = match (&client.url, &client.service) {
        (Some(url), None) => webhook_url_errors(url, &path.child("url")).into(),
        (None, Some(service)) => {
            let names = (&*service.namespace, &*service.name);
            webhook_service_errors(names, service.path.as_deref(), service.port.into(), &path.child("service"))
        }
        _ => FieldError::required(path, "exactly one of url or service is required").into(),
    };
    if !client.ca_bundle.is_empty() && !rules.allows_invalid_ca_bundle {
        errors.extend(bundle_error(&client.ca_bundle).map(|why| {
            let why = format!("unable to load root certificates: {why}");
            FieldError::invalid(path.child("caBundle"), &client.ca_bundle, why)
        }));
    }
    errors
}

/// Whether certificates in base64 can be used.
pub(super) fn is_valid_ca_bundle(bundle: &str) -> bool {
    bundle_error(bundle).is_none()
}

fn bundle_error(bundle: &str) -> Option<String> {
    ca_bundle_error(&STANDARD.decode(bundle).unwrap_or_default())
}
