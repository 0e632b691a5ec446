//! Rules in CEL (`x-kubernetes-validations`). Their expressions are not examined, and not enforced: a CRD that adds
//! one is refused, unless `--allow-unenforced-rules` is given.

use std::cell::OnceCell;
use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::schema::props::{JsonSchemaProps, ValidationRule};
use kubeapi::schema::structural::conversion_error;

use super::hoisted::HoistedSpec;
use super::selectable::find_schema;

const WHY_REFUSED: &str = "validation rules are not enforced by this server; the flag --allow-unenforced-rules makes it \
    accept the CRD, and ignore them";
/// Rules that are named, at most.
const MAX_REPORTED: usize = 10;

/// Rules of a CRD.
struct FoundRules {
    /// Paths of the first of them.
    paths: Vec<String>,
    count: usize,
}

impl FoundRules {
    fn of(spec: &HoistedSpec<'_>, is_counted: &dyn Fn(&str) -> bool) -> FoundRules {
        let mut found = FoundRules { paths: Vec::new(), count: 0 };
        let root = FieldPath::root("spec");
        if let Some(schema) = spec.common_schema() {
            found.visit(schema, &root.child("validation").child("openAPIV3Schema"), is_counted);
        }
        let versions = root.child("versions");
        for (index, version) in spec.versions().iter().enumerate() {
            if let Some(schema) = version.own_schema() {
                found.visit(schema, &versions.index(index).child("schema").child("openAPIV3Schema"), is_counted);
            }
        }
        found
    }

    fn visit(&mut self, schema: &JsonSchemaProps, path: &FieldPath<'_>, is_counted: &dyn Fn(&str) -> bool) {
        for (index, rule) in schema.validations.iter().enumerate() {
            if !is_counted(&rule.rule) {
                continue;
            }
            self.count += 1;
            if self.paths.len() < MAX_REPORTED {
                self.paths.push(path.child("x-kubernetes-validations").index(index).to_string());
            }
        }
        let properties = path.child("properties");
        for (name, inner) in &schema.properties {
            self.visit(inner, &properties.key(name), is_counted);
        }
        if let Some(inner) = schema.additional_properties.as_ref().and_then(|values| values.schema.as_deref()) {
            self.visit(inner, &path.child("additionalProperties"), is_counted);
        }
        if let Some(inner) = schema.items.as_ref().and_then(|items| items.schema.as_deref()) {
            self.visit(inner, &path.child("items"), is_counted);
        }
        for (keyword, all) in [("allOf", &schema.all_of), ("anyOf", &schema.any_of), ("oneOf", &schema.one_of)] {
            let path = path.child(keyword);
            all.iter().enumerate().for_each(|(index, inner)| self.visit(inner, &path.index(index), is_counted));
        }
        if let Some(inner) = &schema.not {
            self.visit(inner, &path.child("not"), is_counted);
        }
    }
}

/// The errors of rules that the CRD adds.
pub(super) fn unenforced_rule_errors(spec: &HoistedSpec<'_>, old: Option<&HoistedSpec<'_>>) -> Vec<FieldError> {
    let mut stored = HashSet::new();
    if let Some(old) = old {
        old.any_schema(|schema| {
            stored.extend(schema.validations.iter().map(|rule| rule.rule.clone()));
            false
        });
    }
    let found = FoundRules::of(spec, &|rule| !stored.contains(rule));
    found.paths.into_iter().map(|path| FieldError::forbidden(path, WHY_REFUSED)).collect()
}

/// The warning about rules that are accepted and not enforced.
pub(super) fn unenforced_rule_warning(spec: &HoistedSpec<'_>) -> Option<String> {
    let found = FoundRules::of(spec, &|_| true);
    let first = found.paths.first()?;
    Some(match found.count {
        1 => format!("{first}: the rule is not enforced"),
        count => format!("{first}: the rule is not enforced, nor are {} others", count - 1),
    })
}

/// Checks the fields of rules, besides the expressions.
pub(super) fn check_rule_fields(schema: &JsonSchemaProps, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let path = path.child("x-kubernetes-validations");
    let has_structural_form = OnceCell::new();
    let has_structural_form = || *has_structural_form.get_or_init(|| conversion_error(schema).is_none());
    for (index, rule) in schema.validations.iter().enumerate() {
        let path = path.index(index);
        errors.extend(rule_text_error(rule, &path));
        let expression = &rule.message_expression;
        if !expression.is_empty() && expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            errors.push(FieldError::required(path.child("messageExpression"), why));
        }
        if let Some(reason) = rule.reason.as_deref().filter(|reason| !REASONS.contains(reason)) {
            errors.push(FieldError::not_supported(path.child("reason"), reason, &REASONS));
        }
        let (field, path) = (&rule.field_path, path.child("fieldPath"));
        if !field.is_empty() && field.trim().is_empty() {
            errors.push(FieldError::invalid(path, field, "must be non-empty if specified"));
        }
        if has_line_break(field) {
            errors.push(FieldError::invalid(path, field, "must not contain line breaks"));
        }
        if !field.is_empty() && has_structural_form() && find_schema(field, schema, true).is_err() {
            errors.push(FieldError::invalid(path, field, "must be a valid path"));
        }
    }
}

/// Reasons that a rule may give, sorted.
const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// The error of a rule or its message that is empty or has line breaks.
fn rule_text_error(rule: &ValidationRule, path: &FieldPath<'_>) -> Option<FieldError> {
    let (text, message) = (rule.rule.trim(), rule.message.trim());
    if text.is_empty() {
        return Some(FieldError::required(path.child("rule"), "rule is not specified"));
    }
    let path = path.child("message");
    if !rule.message.is_empty() && message.is_empty() {
        return Some(FieldError::invalid(path, &rule.message, "must be non-empty if specified"));
    }
    if has_line_break(message) {
        return Some(FieldError::invalid(path, &rule.message, "must not contain line breaks"));
    }
    let why = "message must be specified if rule contains line breaks";
    (has_line_break(text) && message.is_empty()).then(|| FieldError::required(path, why))
}

fn has_line_break(text: &str) -> bool {
    text.contains(['\n', '\r'])
}
