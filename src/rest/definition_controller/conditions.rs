//! Conditions of a CustomResourceDefinition (`pkg/apihelpers/helpers.go` of apiextensions-apiserver).

use crate::resources::custom::definition::{Definition, DefinitionCondition};
use crate::rest::metadata;

/// A condition as it should be, without a time.
pub(super) fn condition(
    condition_type: &str,
    is_true: bool,
    reason: &str,
    message: impl Into<String>,
) -> DefinitionCondition {
    DefinitionCondition {
        condition_type: condition_type.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        last_transition_time: None,
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: None,
    }
}

/// Sets a condition. Its time is now if the status is another one than before.
pub(super) fn set_condition(definition: &mut Definition, mut wanted: DefinitionCondition) {
    let conditions = definition.status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|one| one.condition_type == wanted.condition_type) {
        Some(found) => {
            wanted.last_transition_time = match found.status == wanted.status {
                true => found.last_transition_time.clone(),
                false => Some(metadata::now()),
            };
            *found = wanted;
        }
        None => {
            wanted.last_transition_time = Some(metadata::now());
            conditions.push(wanted);
        }
    }
}
