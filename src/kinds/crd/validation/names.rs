//! Names of a custom resource.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1035_label;

use crate::resources::custom::CrdNames;

/// The errors of names that are required in the specification.
pub(super) fn missing_name_errors(names: &CrdNames, path: &FieldPath<'_>) -> FieldErrors {
    let all = [
        ("plural", &names.plural),
        ("singular", &names.singular),
        ("kind", &names.kind),
        ("listKind", &names.list_kind),
    ];
    let missing = all.into_iter().filter(|(_, name)| name.is_empty());
    missing.map(|(field, _)| FieldError::required(path.child(field), "")).collect()
}

/// The errors of names, in the specification or in the status (`ValidateCustomResourceDefinitionNames`).
pub(super) fn name_errors(names: &CrdNames, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut check = |path: FieldPath<'_>, name: &str, label: &str, prefix: &str| {
        let sentences = check_dns1035_label(label);
        if !sentences.is_empty() {
            errors.push(FieldError::invalid(path, name, format!("{prefix}{}", sentences.join(","))));
        }
    };
    for (field, name) in [("plural", &names.plural), ("singular", &names.singular)] {
        if !name.is_empty() {
            check(path.child(field), name, name, "");
        }
    }
    for (field, name) in [("kind", &names.kind), ("listKind", &names.list_kind)] {
        if !name.is_empty() {
            let prefix = "may have mixed case, but should otherwise match: ";
            check(path.child(field), name, &name.to_lowercase(), prefix);
        }
    }
    let short_names = path.child("shortNames");
    for (index, name) in names.short_names.iter().flatten().enumerate() {
        check(short_names.index(index), name, name, "");
    }
    if !names.kind.is_empty() && names.kind == names.list_kind {
        let why = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(path.child("listKind"), &names.list_kind, why));
    }
    let categories = path.child("categories");
    for (index, name) in names.categories.iter().flatten().enumerate() {
        let sentences = check_dns1035_label(name);
        if !sentences.is_empty() {
            errors.push(FieldError::invalid(categories.index(index), name, sentences.join(",")));
        }
    }
    errors
}
