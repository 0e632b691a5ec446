//! A file that holds one object: of `apiserver.config.k8s.io`, as kube-apiserver takes it by a flag, or of our own.

use std::cell::RefCell;

use super::{Fields, Problem, Problems, documents};

/// The newest first. The older ones are the same in every field that is read here.
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

/// Reads the one object of `kind` in `text`; `place` names the file, `json` says that it is no YAML. `read` takes the
/// fields behind `apiVersion` and `kind`.
///
/// # Errors
/// All mistakes at once, fields that `read` did not ask for among them.
pub fn configuration<T>(
    place: &str,
    text: &str,
    json: bool,
    kind: &str,
    read: impl FnOnce(&mut Fields<'_>) -> T,
) -> Result<T, Problems> {
    one_object(place, text, json, &VERSIONS, kind, read)
}

/// The same of an object whose `apiVersion` is one of `versions`, the best of which comes first.
///
/// # Errors
/// As [`configuration`].
pub fn one_object<T>(
    place: &str,
    text: &str,
    json: bool,
    versions: &[&str],
    kind: &str,
    read: impl FnOnce(&mut Fields<'_>) -> T,
) -> Result<T, Problems> {
    let (found, mut problems) = documents(place, text, json);
    let [document] = &found[..] else {
        if problems.0.is_empty() {
            let message = format_args!("one {kind} is needed, and nothing else; {} found", found.len());
            problems.0.push(Problem::new(place, message));
        }
        return Err(problems);
    };
    let problems = RefCell::new(problems);
    let mut fields = Fields::new(place, &document.value, &problems);
    if fields.text("kind") != kind {
        fields.problem("kind", format_args!("{:?} does not fit; {kind} is needed", document.kind));
    }
    let version = fields.text("apiVersion");
    if !versions.contains(&version.as_str()) {
        let best = versions.first().copied().unwrap_or_default();
        fields.problem("apiVersion", format_args!("{version:?} does not fit; {best} is needed"));
    }
    let value = read(&mut fields);
    fields.end();
    problems.into_inner().or(value)
}
