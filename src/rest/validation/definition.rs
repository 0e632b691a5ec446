//! Validation of CustomResourceDefinitions (`k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`).

use super::{ValidationInput, text};
use crate::kubeapi::field_error::FieldError;
use crate::resources::custom::Definition;

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
    let value = serde_json::Value::Object(input.object.clone());
    if let Err(error) = serde_json::from_value::<Definition>(value) {
        errors.push(FieldError::internal("spec", error.to_string()));
    }
    errors
}
