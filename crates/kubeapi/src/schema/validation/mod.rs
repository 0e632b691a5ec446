//! Validation of values by their schema, with the texts of a kube-apiserver (`k8s.io/kube-openapi/pkg/validation` and
//! `k8s.io/apiextensions-apiserver/pkg/apiserver/validation`).

mod alternatives;
mod budget;
mod correlation;
mod enumeration;
mod format;
mod keywords;
mod list_type;
mod number;
mod pattern;
mod value_type;

use std::collections::HashSet;
use std::fmt::Display;

use serde_json::{Map, Value};

pub use self::budget::StepBudget;
pub use self::enumeration::Enumeration;
pub use self::format::is_text_format;
pub use self::list_type::validate_list_types;
pub use self::pattern::{Pattern, PatternBudget};

use self::budget::{BYTES_PER_STEP, VALUE_STEPS};
use self::correlation::CorrelatedValue;
use super::path::ValuePath;
use super::{AdditionalProperties, Schema};
use crate::GoQuoted;
use crate::field_error::{BadValue, FieldError, FieldErrors};

/// What a value must be like, besides its type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueValidation {
    /// The keyword `maximum`.
    pub maximum: Option<f64>,
    /// The keyword `exclusiveMaximum`.
    pub is_maximum_exclusive: bool,
    /// The keyword `minimum`.
    pub minimum: Option<f64>,
    /// The keyword `exclusiveMinimum`.
    pub is_minimum_exclusive: bool,
    /// The keyword `multipleOf`.
    pub multiple_of: Option<f64>,
    /// The keyword `maxLength`, in characters.
    pub max_length: Option<i64>,
    /// The keyword `minLength`, in characters.
    pub min_length: Option<i64>,
    /// The keyword `pattern`.
    pub pattern: Option<Pattern>,
    /// The keyword `maxItems`.
    pub max_items: Option<i64>,
    /// The keyword `minItems`.
    pub min_items: Option<i64>,
    /// The keyword `uniqueItems`.
    pub has_unique_items: bool,
    /// The keyword `maxProperties`.
    pub max_properties: Option<i64>,
    /// The keyword `minProperties`.
    pub min_properties: Option<i64>,
    /// The keyword `enum`.
    pub enumeration: Enumeration,
    /// Schemas of which each must hold.
    pub all_of: Vec<Schema>,
    /// Schemas of which one must hold.
    pub any_of: Vec<Schema>,
    /// Schemas of which exactly one must hold.
    pub one_of: Vec<Schema>,
    /// A schema that must not hold.
    pub not: Option<Box<Schema>>,
}

/// Validates a value. `old` is the value that it replaces: parts that did not change have no errors. Errors are in the
/// order of a kube-apiserver, except that fields are visited by name: there their order is random.
///
/// Schemas may have many alternatives for each value, so that the work is not bounded by the size of both. It ends when the
/// budget does: the result then says nothing, and the caller asks the budget.
pub fn validate(schema: &Schema, value: &Value, old: Option<&Value>, budget: &dyn StepBudget) -> FieldErrors {
    let mut result = ValidationResult::new(budget);
    let value = CorrelatedValue::new(schema, value, old);
    validate_correlated(schema, &value, None, &mut result);
    result.errors
}

/// Errors, and how much of the schema was applied: among alternatives that all fail, the errors of the one that matches
/// best are reported.
struct ValidationResult<'b> {
    errors: FieldErrors,
    /// The errors that are kept.
    reported: HashSet<FieldError>,
    matches: usize,
    /// Steps of the whole validation, also in alternatives.
    budget: &'b dyn StepBudget,
}

impl<'b> ValidationResult<'b> {
    fn new(budget: &'b dyn StepBudget) -> ValidationResult<'b> {
        ValidationResult { errors: FieldErrors::new(), reported: HashSet::new(), matches: 0, budget }
    }

    /// Adds an error that is not there yet. Its texts may be long, and each alternative may have it.
    fn add(&mut self, error: FieldError) {
        if !self.budget.spend(VALUE_STEPS + error.text_size() / BYTES_PER_STEP) {
            return;
        }
        if self.errors.is_full() || self.reported.insert(error.clone()) {
            self.errors.push(error);
        }
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    fn merge(&mut self, other: &ValidationResult<'_>) {
        other.errors.iter().for_each(|error| self.add(error.clone()));
        self.errors.omit(other.errors.omitted());
        self.matches += other.matches;
    }

    /// A value that is malformed; the text repeats the path.
    fn invalid(&mut self, path: Option<&ValuePath<'_>>, value: impl Into<BadValue>, why: impl Display) {
        self.add(FieldError::invalid(field_of(path), value, in_body(path, why)));
    }

    /// A value of the wrong type.
    fn type_invalid(&mut self, path: Option<&ValuePath<'_>>, found: &str, expected: impl Display) {
        let why = in_body(path, format_args!("must be of type {expected}: {}", GoQuoted(found)));
        self.add(FieldError::type_invalid(field_of(path), found, why));
    }

    /// An error that has no path of its own.
    fn without_path(&mut self, why: impl Into<String>) {
        self.add(FieldError::invalid(ROOT_FIELD, "", why));
    }
}

/// Field of an error of the whole value.
const ROOT_FIELD: &str = "<nil>";

/// The path as texts have it; empty for the whole value.
fn path_text(path: Option<&ValuePath<'_>>) -> String {
    path.map_or_else(String::new, ToString::to_string)
}

/// The field of an error.
fn field_of(path: Option<&ValuePath<'_>>) -> String {
    let text = path_text(path);
    match text.strip_prefix('.').unwrap_or(&text) {
        "" => ROOT_FIELD.to_owned(),
        field => field.to_owned(),
    }
}

/// The text of an error of kube-openapi, which names the place itself.
fn in_body(path: Option<&ValuePath<'_>>, why: impl Display) -> String {
    format!("{} in body {why}", path_text(path))
}

/// Validates a value, unless it is as before
/// (`k8s.io/apiextensions-apiserver/pkg/apiserver/validation/ratcheting.go`).
fn validate_correlated(
    schema: &Schema,
    value: &CorrelatedValue<'_>,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    if !value.is_unchanged() {
        validate_value(schema, value, path, result);
    }
}

/// Applies all keywords. The counts of matches are those of `pkg/validation/validate/schema.go`.
fn validate_value(
    schema: &Schema,
    correlated: &CorrelatedValue<'_>,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let value = correlated.value;
    let text_size = value.as_str().map_or(0, str::len);
    if !result.budget.spend(VALUE_STEPS + text_size / BYTES_PER_STEP) {
        return;
    }
    let rules = schema.validation.as_deref();
    value_type::validate_type(schema, value, path, result);
    if value.is_null() {
        // Only type and enumeration are examined.
        if let Some(rules) = rules {
            enumeration::validate_enumeration(&rules.enumeration, value, path, result);
        }
        return;
    }
    // Alternatives and enumeration are counted, also where there are none.
    result.matches += 4;
    if let Some(rules) = rules {
        alternatives::validate_alternatives(rules, value, path, result);
    }
    match value {
        Value::String(text) => {
            result.matches += 1;
            if let Some(rules) = rules {
                keywords::validate_text(rules, text, path, result);
            }
            format::validate_format(schema, text, path, result);
        }
        Value::Number(number) => {
            result.matches += 2;
            number::validate_number(schema, number, path, result);
        }
        Value::Array(items) => {
            result.matches += 2;
            if let Some(inner) = &schema.items {
                for (index, item) in correlated.items().iter().enumerate() {
                    validate_correlated(inner, item, Some(&ValuePath::item(path, index)), result);
                }
            }
            if let Some(rules) = rules {
                keywords::validate_items(rules, items, path, result);
            }
        }
        _ => {}
    }
    if let Some(rules) = rules {
        enumeration::validate_enumeration(&rules.enumeration, value, path, result);
    }
    if let Value::Object(fields) = value {
        result.matches += 1;
        validate_fields(schema, correlated, fields, path, result);
    }
}

fn validate_fields(
    schema: &Schema,
    correlated: &CorrelatedValue<'_>,
    fields: &Map<String, Value>,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    if let Some(rules) = schema.validation.as_deref() {
        keywords::validate_field_count(rules, fields, path, result);
    }
    let mut validate_field = |name: &str, value, inner, path: &ValuePath<'_>, is_root: bool| {
        // Both versions of the type of the root are set by the server.
        let is_compared = !(is_root && matches!(name, "apiVersion" | "kind"));
        let child = correlated.field(name).filter(|_| is_compared).unwrap_or(CorrelatedValue::uncorrelated(value));
        validate_correlated(inner, &child, Some(path), result);
    };
    if let Some(AdditionalProperties::Schema(inner)) = &schema.additional_properties {
        for (name, value) in fields.iter().filter(|(name, _)| !schema.properties.contains_key(*name)) {
            validate_field(name, value, inner, &ValuePath::key(path, name), path.is_none());
        }
    }
    if !schema.properties.is_empty() {
        for (name, value) in fields {
            if let Some(inner) = schema.properties.get(name) {
                validate_field(name, value, inner, &ValuePath::property(path, name), path.is_none());
            }
        }
    }
    if !result.budget.spend(schema.required.len()) {
        return;
    }
    for name in &schema.required {
        if !fields.contains_key(name) {
            if result.errors.is_full() {
                // Others are not counted: the schema may require as many fields as the value has items.
                result.errors.omit(1);
                break;
            }
            result.add(FieldError::required(field_of(Some(&ValuePath::key(path, name))), ""));
        }
    }
}

#[cfg(test)]
mod tests;
