//! Rules of fields that several kinds have: label selectors, conditions, percentages, references
//! (`apimachinery/pkg/apis/meta/v1/validation`, `pkg/apis/apps/validation`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::json::write_json;
use kubeapi::names::{
    check_label_value, check_percent, check_qualified_name, is_label_key, is_label_value, pattern_error,
};
use kubeapi::object_meta::validate_labels;
use serde_json::Value;

use super::validation::{invalid_for, items, text, texts};

/// Longest reason of a condition in bytes.
const MAX_REASON_BYTES: usize = 1 << 10;
/// Longest message of a condition in bytes.
const MAX_MESSAGE_BYTES: usize = 32 << 10;

pub(super) const IMMUTABLE: &str = "field is immutable";

/// A text of a type with a name of its own, which Go shows as JSON.
pub(super) fn typed_text(text: &str) -> BadValue {
    BadValue::from_json(write_json(&text.into()))
}

/// The error of a value that is present and none of the supported ones.
pub(super) fn enum_error(path: FieldPath<'_>, value: &Value, supported: &[&str]) -> Option<FieldError> {
    let value = value.as_str()?;
    (!supported.contains(&value)).then(|| FieldError::not_supported(path, typed_text(value), supported))
}

/// The errors of a text that is required and must follow a rule.
pub(super) fn required_text_errors(
    path: FieldPath<'_>,
    text: &str,
    check: impl FnOnce(&str) -> Vec<String>,
) -> Vec<FieldError> {
    if text.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    invalid_for(path, text, check(text)).collect()
}

/// The error of a negative number.
pub(super) fn negative_error(path: FieldPath<'_>, value: &Value) -> Option<FieldError> {
    let number = value.as_i64().filter(|number| *number < 0)?;
    Some(FieldError::invalid(path, number, "must be greater than or equal to 0"))
}

/// Whether two values are equal; what is absent equals what is empty (`equality.Semantic`).
pub(super) fn is_same(first: &Value, second: &Value) -> bool {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    first == second || is_empty(first) && is_empty(second)
}

/// The error of a changed field, which shows the new value.
pub(super) fn immutable_error(path: FieldPath<'_>, new: &Value, old: &Value) -> Option<FieldError> {
    (!is_same(new, old)).then(|| FieldError::invalid(path, BadValue::from(new), IMMUTABLE))
}

/// A struct of Go's internal types, which has no names for JSON: fields in order, with their names and values.
pub(super) fn internal_struct(fields: &[(&str, String)]) -> BadValue {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    BadValue::from_json(format!("{{{}}}", fields.join(",")))
}

/// A text field as JSON; an absent one is empty.
pub(super) fn text_json(object: &Value, field: &str) -> String {
    write_json(&text(object, field).into())
}

/// A label selector as JSON, with its fields in Go's order.
pub(super) fn selector_json(selector: &Value) -> String {
    if selector.is_null() {
        return "null".to_owned();
    }
    let fields = ["matchLabels", "matchExpressions"].into_iter().filter(|field| !selector[*field].is_null());
    let fields: Vec<String> = fields.map(|field| format!("\"{field}\":{}", write_json(&selector[field]))).collect();
    format!("{{{}}}", fields.join(","))
}

/// Errors of a label selector (`ValidateLabelSelector`); none for an absent one.
pub(super) fn label_selector_errors(selector: &Value, allows_any_value: bool, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
    validate_labels(labels, &path.child("matchLabels"), &mut errors);
    let expressions = path.child("matchExpressions");
    for (index, expression) in items(selector, "matchExpressions").iter().enumerate() {
        let path = expressions.index(index);
        let values = texts(expression, "values");
        let values_path = path.child("values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(values_path, why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(values_path, why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let why = "not a valid selector operator";
                errors.push(FieldError::invalid(path.child("operator"), typed_text(other), why));
            }
        }
        let key = text(expression, "key");
        errors.extend(invalid_for(path.child("key"), key, check_qualified_name(key)));
        if !allows_any_value {
            for (index, value) in values.iter().enumerate() {
                errors.extend(invalid_for(values_path.index(index), value, check_label_value(value)));
            }
        }
    }
    errors
}

/// Whether a stored label selector is invalid, so that its values may stay.
pub(super) fn is_invalid_selector(selector: &Value) -> bool {
    !label_selector_errors(selector, false, &FieldPath::root("")).is_empty()
}

/// The text of a label selector (`FormatLabelSelector`).
pub(super) fn format_label_selector(selector: &Value) -> String {
    match label_selector_text(selector) {
        None => "<error>".to_owned(),
        Some(empty) if empty.is_empty() => "<none>".to_owned(),
        Some(text) => text,
    }
}

/// A label selector as Go prints the struct (`LabelSelector.String`).
pub(super) fn selector_struct_text(selector: &Value) -> String {
    let mut labels: Vec<(&String, &Value)> = selector["matchLabels"].as_object().into_iter().flatten().collect();
    labels.sort_by_key(|(key, _)| *key);
    let label = |(key, value): (&String, &Value)| format!("{key}: {},", value.as_str().unwrap_or_default());
    let labels: String = labels.into_iter().map(label).collect();
    let expression = |expression: &Value| {
        let (key, operator) = (text(expression, "key"), text(expression, "operator"));
        let values = texts(expression, "values").join(" ");
        format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
    };
    let expressions: String = items(selector, "matchExpressions").iter().map(expression).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}"
    )
}

/// The requirements of a selector in the order of their keys; none if one of them is invalid.
pub fn label_selector_text(selector: &Value) -> Option<String> {
    let mut requirements = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        (is_label_key(key) && is_label_value(value)).then_some(())?;
        requirements.push((key.as_str(), format!("{key}={value}")));
    }
    for expression in items(selector, "matchExpressions") {
        let (key, mut values) = (text(expression, "key"), texts(expression, "values"));
        (is_label_key(key) && values.iter().all(|value| is_label_value(value))).then_some(())?;
        let is_set = match text(expression, "operator") {
            "In" | "NotIn" => !values.is_empty(),
            "Exists" | "DoesNotExist" => values.is_empty(),
            _ => false,
        };
        is_set.then_some(())?;
        values.sort_unstable();
        let values = values.join(",");
        let requirement = match text(expression, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        };
        requirements.push((key, requirement));
    }
    requirements.sort_by(|first, second| first.0.cmp(second.0));
    Some(requirements.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(","))
}

/// Errors of the conditions of a status (`ValidateConditions`).
pub(super) fn condition_errors(conditions: &[Value], path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        let condition_type = text(condition, "type");
        if !seen.insert(condition_type) {
            errors.push(FieldError::duplicate(path.child("type"), condition_type));
        }
        errors.extend(invalid_for(path.child("type"), condition_type, check_qualified_name(condition_type)));
        let status = text(condition, "status");
        let statuses = ["False", "True", "Unknown"];
        if !statuses.contains(&status) {
            errors.push(FieldError::not_supported(path.child("status"), typed_text(status), &statuses));
        }
        if let Some(generation) = condition["observedGeneration"].as_i64().filter(|generation| *generation < 0) {
            let why = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(path.child("observedGeneration"), generation, why));
        }
        if text(condition, "lastTransitionTime").is_empty() {
            errors.push(FieldError::required(path.child("lastTransitionTime"), ""));
        }
        errors.extend(reason_errors(text(condition, "reason"), path.child("reason")));
        if text(condition, "message").len() > MAX_MESSAGE_BYTES {
            errors.push(FieldError::too_long(path.child("message"), MAX_MESSAGE_BYTES));
        }
    }
    errors
}

fn reason_errors(reason: &str, path: FieldPath<'_>) -> Vec<FieldError> {
    const PATTERN: &str = "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?";
    if reason.is_empty() {
        return vec![FieldError::required(path, "")];
    }
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte);
    let is_valid = reason.starts_with(|first: char| first.is_ascii_alphabetic())
        && reason.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_')
        && reason.bytes().all(is_inner);
    let mut errors = Vec::new();
    if !is_valid {
        let rule = "a condition reason must start with alphabetic character, optionally followed by a string of \
                    alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'";
        let examples = ["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"];
        errors.push(FieldError::invalid(path, reason, pattern_error(rule, PATTERN, &examples)));
    }
    if reason.len() > MAX_REASON_BYTES {
        errors.push(FieldError::too_long(path, MAX_REASON_BYTES));
    }
    errors
}

/// Errors of a number or percentage that is not negative and at most 100% (`ValidatePositiveIntOrPercent`,
/// `IsNotMoreThan100Percent`).
pub(super) fn int_or_percent_errors(path: FieldPath<'_>, value: &Value) -> Vec<FieldError> {
    let Some(percentage) = value.as_str() else { return negative_error(path, value).into_iter().collect() };
    let sentences = check_percent(percentage);
    if !sentences.is_empty() {
        return invalid_typed(path, percentage, sentences);
    }
    // What has too many digits for Go is its largest number.
    let digits = percentage.trim_end_matches('%').trim_start_matches('0');
    let is_over = digits.len() > 3 || digits.parse::<u32>().unwrap_or(0) > 100;
    let why = "must not be greater than 100%";
    is_over.then(|| FieldError::invalid(path, typed_text(percentage), why)).into_iter().collect()
}

fn invalid_typed(path: FieldPath<'_>, text: &str, sentences: Vec<String>) -> Vec<FieldError> {
    sentences.into_iter().map(|why| FieldError::invalid(path, typed_text(text), why)).collect()
}

/// The group and the version of an apiVersion (`schema.ParseGroupVersion`).
///
/// # Errors
/// Go's text for more than one slash.
pub fn parse_group_version(api_version: &str) -> Result<(&str, &str), String> {
    match api_version.split_once('/') {
        _ if matches!(api_version, "" | "/") => Ok(("", "")),
        None => Ok(("", api_version)),
        Some((_, version)) if version.contains('/') => Err(format!("unexpected GroupVersion string: {api_version}")),
        Some(group_version) => Ok(group_version),
    }
}
