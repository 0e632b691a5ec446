//! Validation of CustomResourceDefinitions (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`).

mod hoisted;
mod rules;

use serde_json::{Map, Value};

use self::hoisted::HoistedSpec;
use self::rules::{unenforced_rule_errors, unenforced_rule_warning};
use super::{ValidationInput, text};
use crate::kubeapi::field_error::FieldError;

/// The errors of a CustomResourceDefinition.
pub(super) fn validate_definition(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let mut errors = input.metadata_update_errors();
    errors.extend(input.metadata_errors());
    let spec = input.field("spec");
    let names = &spec["names"];
    let (plural, group) = (text(names, "plural"), text(spec, "group"));
    let name = input.metadata().name().to_owned();
    if name != format!("{plural}.{group}") {
        errors.push(FieldError::invalid("metadata.name", &name, "must be spec.names.plural+\".\"+spec.group"));
    }
    let hoisted = match HoistedSpec::read(spec) {
        Ok(hoisted) => hoisted,
        Err(error) => {
            errors.push(FieldError::internal("spec", error.to_string()));
            return errors;
        }
    };
    let old = input.old.map(|_| HoistedSpec::read(input.old_field("spec")).unwrap_or_default());
    if !input.settings.allows_unenforced_rules {
        errors.extend(unenforced_rule_errors(&hoisted, old.as_ref()));
    }
    errors
}

/// Warnings about a valid CustomResourceDefinition.
pub(in crate::rest) fn definition_warnings(
    _old: Option<&Map<String, Value>>,
    object: &Map<String, Value>,
) -> Vec<String> {
    let spec = object.get("spec").and_then(|spec| HoistedSpec::read(spec).ok());
    spec.as_ref().and_then(unenforced_rule_warning).into_iter().collect()
}
