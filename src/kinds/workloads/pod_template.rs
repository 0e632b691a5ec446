//! PodTemplates.

use kubeapi::field_error::{FieldErrors, FieldPath};
use serde_json::Value;

use super::container_cells;
use crate::kinds::cells::CellPrinter;
use crate::kinds::pod::{PodSpecOptions, check_pod_template, template_warnings};
use crate::kinds::service::format_labels;
use crate::kinds::validation::ValidationInput;
use crate::kinds::{GenerationRule, KindRules};

const TEMPLATE: FieldPath<'static> = FieldPath::root("template");

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::of(&["template"]),
    returns_deleted_object: true,
    validate: validate_pod_template,
    warnings: |written| {
        let is_changed = written.old.is_none_or(|old| old.get("template") != written.object.get("template"));
        if is_changed { template_warnings(written.field("template"), &TEMPLATE) } else { Vec::new() }
    },
    cells: print_pod_template,
    ..KindRules::of("", "podtemplates")
};

fn validate_pod_template(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let old = input.old.map(|_| input.old_field("template"));
    check_pod_template(input.field("template"), &PodSpecOptions::of_template(old), &TEMPLATE, &mut errors);
    errors
}

fn print_pod_template(printer: &CellPrinter<'_>) -> Vec<Value> {
    let [names, images] = container_cells(printer, "/template/spec/containers");
    let labels = printer.object.pointer("/template/metadata/labels");
    vec![printer.name(), names, images, format_labels(labels).into()]
}
