//! Volumes with files of several sources (`validateProjectedVolumeSource`).

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use super::paths::{check_file_mode, check_local_path, check_required};
use super::volume_files::{check_key_file, check_pod_field_file};
use crate::kinds::field_rules::label_selector_errors;
use crate::kinds::validation::{items, text};

/// Shortest and longest life of a token in seconds.
const MIN_EXPIRATION: i64 = 600;
const MAX_EXPIRATION: i64 = 1 << 32;

/// Errors of the sources of a volume.
pub(super) fn check_projected_volume(volume: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_file_mode(volume, "defaultMode", path, errors);
    let mut paths = UsedPaths { path, used: HashSet::new() };
    let sources_path = path.child("sources");
    for (index, source) in items(volume, "sources").iter().enumerate() {
        let source_path = sources_path.index(index);
        let mut count = 0;
        for field in ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"] {
            if source[field].is_null() {
                continue;
            }
            count += 1;
            let (part, part_path) = (&source[field], source_path.child(field));
            match field {
                "secret" | "configMap" => check_keys(part, &part_path, &mut paths, errors),
                "downwardAPI" => {
                    for file in items(part, "items") {
                        check_pod_field_file(file, &part_path, errors);
                        let target = text(file, "path");
                        paths.check(target, target, errors);
                    }
                }
                "serviceAccountToken" => check_token(part, path, &part_path, errors),
                _ => check_trust_bundle(part, &part_path, &mut paths, errors),
            }
        }
        count += usize::from(!source["podCertificate"].is_null());
        if count > 1 {
            let why = "may not specify more than 1 volume type per source";
            errors.push(FieldError::forbidden(source_path, why));
        }
    }
}

/// The paths of the files so far.
struct UsedPaths<'v, 'p> {
    path: &'p FieldPath<'p>,
    used: HashSet<&'v str>,
}

impl<'v> UsedPaths<'v, '_> {
    /// Notes a path; an error if another file has it.
    fn check(&mut self, target: &'v str, shown: &str, errors: &mut FieldErrors) {
        if !target.is_empty() && !self.used.insert(target) {
            errors.push(FieldError::invalid(self.path, shown, "conflicting duplicate paths"));
        }
    }
}

fn check_keys<'v>(source: &'v Value, path: &FieldPath<'_>, paths: &mut UsedPaths<'v, '_>, errors: &mut FieldErrors) {
    check_required(source, &["name"], path, errors);
    let path = path.child("items");
    for (index, file) in items(source, "items").iter().enumerate() {
        check_key_file(file, &path.index(index), errors);
        paths.check(text(file, "path"), text(source, "name"), errors);
    }
}

fn check_token(token: &Value, volume_path: &FieldPath<'_>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let seconds = token["expirationSeconds"].as_i64().unwrap_or_default();
    let expiration = path.child("expirationSeconds");
    if seconds < MIN_EXPIRATION {
        errors.push(FieldError::invalid(expiration, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > MAX_EXPIRATION {
        errors.push(FieldError::invalid(expiration, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    match text(token, "path") {
        "" => errors.push(FieldError::required(volume_path.child("path"), "")),
        target => check_local_path(target, &volume_path.child("path"), errors),
    }
}

fn check_trust_bundle<'v>(
    bundle: &'v Value,
    path: &FieldPath<'_>,
    paths: &mut UsedPaths<'v, '_>,
    errors: &mut FieldErrors,
) {
    match (bundle["name"].as_str(), bundle["signerName"].as_str()) {
        (None, None) => errors.push(FieldError::required(path, "either name or signerName must be specified")),
        (Some(""), None) => errors.push(FieldError::required(path.child("name"), "must be a valid object name")),
        (None, Some("")) => errors.push(FieldError::required(path.child("signerName"), "must be a valid signer name")),
        (None, Some(_)) => {
            errors.append(label_selector_errors(&bundle["labelSelector"], false, &path.child("labelSelector")));
        }
        _ => {}
    }
    check_required(bundle, &["path"], path, errors);
    let target = text(bundle, "path");
    check_local_path(target, &path.child("path"), errors);
    paths.check(target, target, errors);
}
