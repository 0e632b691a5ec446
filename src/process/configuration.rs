//! Parses a file that holds one configuration object: of `apiserver.config.k8s.io`, as kube-apiserver reads it, or of
//! Narthex.

use std::cell::RefCell;

use super::{FieldReader, Problem, Problems, parse_documents};

/// Accepted versions, newest first. Older ones are equal in every field that is read here.
const API_VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

/// Parses the single `apiserver.config.k8s.io` object of `kind` in `text`. `location` names the file, `json`
/// selects JSON instead of YAML. `read` reads the fields other than `apiVersion` and `kind`.
///
/// # Errors
/// All problems at once, including fields that `read` did not read.
pub fn parse_configuration<T>(
    location: &str,
    text: &str,
    json: bool,
    kind: &str,
    read: impl FnOnce(&mut FieldReader<'_>) -> T,
) -> Result<T, Problems> {
    parse_single_object(location, text, json, &API_VERSIONS, kind, read)
}

/// Like [`parse_configuration`], for an object with an `apiVersion` out of `versions`, the preferred one first.
///
/// # Errors
/// See [`parse_configuration`].
pub fn parse_single_object<T>(
    location: &str,
    text: &str,
    json: bool,
    versions: &[&str],
    kind: &str,
    read: impl FnOnce(&mut FieldReader<'_>) -> T,
) -> Result<T, Problems> {
    let (found, mut problems) = parse_documents(location, text, json);
    let [document] = &found[..] else {
        if problems.0.is_empty() {
            let message = format_args!("expected exactly one {kind}, found {}", found.len());
            problems.0.push(Problem::new(location, message));
        }
        return Err(problems);
    };
    let problems = RefCell::new(problems);
    let mut fields = FieldReader::new(location, &document.value, &problems);
    if fields.string("kind") != kind {
        fields.add_problem("kind", format_args!("{:?} does not fit; {kind} is needed", document.kind));
    }
    let version = fields.string("apiVersion");
    if !versions.contains(&version.as_str()) {
        let best = versions.first().copied().unwrap_or_default();
        fields.add_problem("apiVersion", format_args!("{version:?} does not fit; {best} is needed"));
    }
    let value = read(&mut fields);
    fields.finish();
    problems.into_inner().into_result(value)
}
