//! PodDisruptionBudgets (`pkg/registry/policy/poddisruptionbudget/strategy.go`, `pkg/apis/policy/validation/validation.go`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::json::write_json;
use serde_json::{Value, json};

use super::cells::{CellPrinter, integer};
use super::field_rules::{
    condition_errors, enum_error, int_or_percent_errors, internal_struct, is_invalid_selector, label_selector_errors,
    negative_error, selector_json,
};
use super::validation::{ValidationInput, items};
use super::{GenerationRule, KindRules, Object};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    allows_unconditional_update: false,
    convert_body: strip_beta_label,
    validate: |input| match input.subresource {
        "status" => status_errors(input.field("status")),
        _ => validate_budget(input),
    },
    cells: print_budget,
    ..KindRules::of("policy", "poddisruptionbudgets")
};

/// The label that `policy/v1beta1` used in the selectors of everything and of nothing.
const BETA_LABEL: &str = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";

/// Drops the label of `policy/v1beta1` from a selector, unless it selects nothing by it (`StripPDBV1beta1Label`).
fn strip_beta_label(object: &mut Object) {
    let Some(selector) = object.get_mut("spec").and_then(|spec| spec.get_mut("selector")) else { return };
    if *selector == json!({"matchExpressions": [{"key": BETA_LABEL, "operator": "Exists"}]}) {
        return;
    }
    if let Some(expressions) = selector.get_mut("matchExpressions").and_then(Value::as_array_mut) {
        expressions.retain(|expression| expression["key"] != BETA_LABEL);
    }
    if let Some(selector) = selector.as_object_mut() {
        selector.retain(|_, value| *value != json!([]));
    }
}

/// Validates a PodDisruptionBudget. Its metadata have no rules but those of every object.
fn validate_budget(input: &ValidationInput<'_>) -> FieldErrors {
    const SPEC: FieldPath<'static> = FieldPath::root("spec");
    let spec = input.field("spec");
    let mut errors = FieldErrors::new();
    let limits = [("minAvailable", &spec["minAvailable"]), ("maxUnavailable", &spec["maxUnavailable"])];
    if limits.iter().all(|(_, limit)| !limit.is_null()) {
        let json = |field: &str| write_json(&spec[field]);
        let value = internal_struct(&[
            ("MinAvailable", json("minAvailable")),
            ("Selector", selector_json(&spec["selector"])),
            ("MaxUnavailable", json("maxUnavailable")),
            ("UnhealthyPodEvictionPolicy", json("unhealthyPodEvictionPolicy")),
        ]);
        errors.push(FieldError::invalid(SPEC, value, "minAvailable and maxUnavailable cannot be both set"));
    }
    for (field, limit) in limits.into_iter().filter(|(_, limit)| !limit.is_null()) {
        errors.extend(int_or_percent_errors(SPEC.child(field), limit));
    }
    let allows_any_value = is_invalid_selector(&input.old_field("spec")["selector"]);
    errors.append(label_selector_errors(&spec["selector"], allows_any_value, &SPEC.child("selector")));
    let policies = ["AlwaysAllow", "IfHealthyBudget"];
    let policy = &spec["unhealthyPodEvictionPolicy"];
    errors.extend(enum_error(SPEC.child("unhealthyPodEvictionPolicy"), policy, &policies));
    errors
}

fn status_errors(status: &Value) -> FieldErrors {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    let mut errors = condition_errors(items(status, "conditions"), &STATUS.child("conditions"));
    let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    errors.extend(counts.into_iter().filter_map(|field| negative_error(STATUS.child(field), &status[field])));
    errors
}

fn print_budget(printer: &CellPrinter<'_>) -> Vec<Value> {
    let limit = |field: &str| match printer.object.pointer("/spec").map(|spec| &spec[field]) {
        Some(Value::String(percentage)) => percentage.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "N/A".to_owned(),
    };
    let status = printer.object.get("status").unwrap_or(&Value::Null);
    let allowed = integer(status, "disruptionsAllowed");
    vec![printer.name(), limit("minAvailable").into(), limit("maxUnavailable").into(), allowed.into(), printer.age()]
}
