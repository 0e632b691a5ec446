//! ControllerRevisions.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use crate::kinds::KindRules;
use crate::kinds::cells::{CellPrinter, integer};
use crate::kinds::field_rules::immutable_error;
use crate::kinds::validation::ValidationInput;

const DATA: FieldPath<'static> = FieldPath::root("data");

pub(super) static RULES: KindRules =
    KindRules { validate: validate_revision, cells: print_revision, ..KindRules::of("apps", "controllerrevisions") };

fn validate_revision(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    errors.append(input.metadata_errors());
    if let Some(revision) = input.field("revision").as_i64().filter(|revision| *revision < 0) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(FieldPath::root("revision"), revision, why));
    }
    let data = input.field("data");
    match (input.old, data) {
        (Some(_), data) => errors.extend(immutable_error(DATA, data, input.old_field("data"))),
        (None, Value::Null) => errors.push(FieldError::required(DATA, "data is mandatory")),
        (None, Value::Object(_)) => {}
        (None, _) => errors.push(FieldError::required(DATA, "data must be a valid JSON object")),
    }
    errors
}

fn print_revision(printer: &CellPrinter<'_>) -> Vec<Value> {
    let mut owners = ObjectMetaView::of(printer.object).owners();
    let controller = owners.find(|owner| owner.controller == Some(true)).map(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let dot = if group.is_empty() { "" } else { "." };
        format!("{}{dot}{}/{}", owner.kind.to_lowercase(), group.to_lowercase(), owner.name)
    });
    vec![
        printer.name(),
        controller.unwrap_or_else(|| "<none>".to_owned()).into(),
        integer(printer.object, "revision").into(),
        printer.age(),
    ]
}
