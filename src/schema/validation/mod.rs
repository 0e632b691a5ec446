//! Validation of values by their schema, with the texts of a kube-apiserver (`k8s.io/kube-openapi/pkg/validation` and
//! `k8s.io/apiextensions-apiserver/pkg/apiserver/validation`).

mod format;
mod keywords;
mod list_type;
mod pattern;

use std::fmt::Display;

use serde_json::{Map, Value};

pub use self::list_type::validate_list_types;
pub use self::pattern::Pattern;

use super::{Schema, ValueType};
use crate::kubeapi::field_error::{BadValue, FieldError, FieldErrorKind};
use crate::kubeapi::json::{format_go_number, write_json};

/// Maximum number of errors that are collected.
const MAX_ERRORS: usize = 1000;

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
    /// Allowed values; empty for all.
    pub enumeration: Vec<Value>,
    /// Schemas of which each must hold.
    pub all_of: Vec<Schema>,
    /// Schemas of which one must hold.
    pub any_of: Vec<Schema>,
    /// Schemas of which exactly one must hold.
    pub one_of: Vec<Schema>,
    /// A schema that must not hold.
    pub not: Option<Box<Schema>>,
}

/// Validates a value. Errors are in the order of a kube-apiserver, except that properties are visited by name: there
/// their order is random.
pub fn validate(schema: &Schema, value: &Value) -> Vec<FieldError> {
    let mut result = ValidationResult::default();
    validate_value(schema, value, "", &mut result);
    result.errors
}

/// Errors, and how much of the schema was applied: among alternatives that all fail, the errors of the one that matches
/// best are reported.
#[derive(Default)]
struct ValidationResult {
    errors: Vec<FieldError>,
    matches: usize,
}

impl ValidationResult {
    fn add(&mut self, error: FieldError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
    }

    fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    fn merge(&mut self, other: ValidationResult) {
        other.errors.into_iter().for_each(|error| self.add(error));
        self.matches += other.matches;
    }

    /// A value that is malformed; the text repeats the path.
    fn invalid(&mut self, path: &str, value: &Value, why: impl Display) {
        self.add(FieldError::invalid(path, value, in_body(path, why)));
    }
}

/// The text of an error of kube-openapi, which names the place itself.
fn in_body(path: &str, why: impl Display) -> String {
    format!("{path} in body {why}")
}

/// An error that concerns several schemas has no path of its own (`<nil>`).
fn of_alternatives(path: &str, why: impl Display) -> FieldError {
    FieldError::invalid("<nil>", "", format!("\"{path}\" {why}"))
}

fn validate_value(schema: &Schema, value: &Value, path: &str, result: &mut ValidationResult) {
    validate_type(schema, value, path, result);
    let rules = schema.validation.as_deref();
    if value.is_null() {
        // Only type and enumeration are examined.
        if let Some(rules) = rules {
            keywords::validate_enumeration(rules, value, path, result);
        }
        return;
    }
    if let Some(rules) = rules {
        validate_alternatives(rules, value, path, result);
        if let Value::String(text) = value {
            keywords::validate_text(rules, text, path, result);
        }
    }
    if !schema.format.is_empty() {
        format::validate_format(schema, value, path, result);
    }
    if let (Some(rules), Value::Number(number)) = (rules, value) {
        keywords::validate_number(rules, number, path, result);
    }
    if let Value::Array(items) = value {
        if let Some(inner) = &schema.items {
            for (index, item) in items.iter().enumerate() {
                validate_value(inner, item, &format!("{path}[{index}]"), result);
            }
        }
        if let Some(rules) = rules {
            keywords::validate_items(rules, items, path, result);
        }
    }
    if let Some(rules) = rules {
        keywords::validate_enumeration(rules, value, path, result);
    }
    if let Value::Object(fields) = value {
        validate_fields(schema, fields, path, result);
    }
    result.matches += 1;
}

fn validate_fields(schema: &Schema, fields: &Map<String, Value>, path: &str, result: &mut ValidationResult) {
    if let Some(rules) = schema.validation.as_deref()
        && !keywords::validate_field_count(rules, fields, path, result)
    {
        return;
    }
    for name in &schema.required {
        if !fields.contains_key(name) {
            result.add(FieldError::required(child_path(path, name), ""));
        }
    }
    for (name, value) in fields {
        if let Some(inner) = schema.field(name) {
            validate_value(inner, value, &child_path(path, name), result);
        }
    }
}

fn child_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Checks the type of a value (`pkg/validation/validate/type.go`).
fn validate_type(schema: &Schema, value: &Value, path: &str, result: &mut ValidationResult) {
    let expected = match schema.value_type {
        _ if schema.is_int_or_string => "integer,string",
        None => return,
        Some(expected) => type_name(expected),
    };
    if value.is_null() {
        if !schema.is_nullable {
            result.add(type_error(path, "null", expected));
        }
        return;
    }
    let is_whole = || value.as_f64().is_some_and(|number| number.fract() == 0.0);
    let matches = match (schema.value_type, value) {
        (_, Value::String(_)) if schema.is_int_or_string => true,
        (_, Value::Number(_)) if schema.is_int_or_string => is_whole(),
        (Some(ValueType::Integer), Value::Number(_)) => is_whole(),
        (Some(expected), value) => expected == type_of(value),
        (None, _) => false,
    };
    if !matches {
        let found = match value {
            Value::Number(number) if number.is_f64() && !is_whole() => "number",
            Value::Number(_) => "integer",
            value => type_name(type_of(value)),
        };
        result.add(type_error(path, found, expected));
    }
}

fn type_error(path: &str, found: &str, expected: &str) -> FieldError {
    FieldError::type_invalid(path, found, in_body(path, format_args!("must be of type {expected}: {found:?}")))
}

fn type_of(value: &Value) -> ValueType {
    match value {
        Value::Null | Value::Object(_) => ValueType::Object,
        Value::Array(_) => ValueType::Array,
        Value::String(_) => ValueType::String,
        Value::Number(_) => ValueType::Number,
        Value::Bool(_) => ValueType::Boolean,
    }
}

fn type_name(value_type: ValueType) -> &'static str {
    match value_type {
        ValueType::Object => "object",
        ValueType::Array => "array",
        ValueType::String => "string",
        ValueType::Integer => "integer",
        ValueType::Number => "number",
        ValueType::Boolean => "boolean",
    }
}

/// Validates `anyOf`, `oneOf`, `allOf` and `not` (`pkg/validation/validate/schema_props.go`).
fn validate_alternatives(rules: &ValueValidation, value: &Value, path: &str, result: &mut ValidationResult) {
    let apply = |schema: &Schema| {
        let mut of_schema = ValidationResult::default();
        validate_value(schema, value, path, &mut of_schema);
        of_schema
    };
    let best =
        |failures: Vec<ValidationResult>| failures.into_iter().reduce(|a, b| if b.matches > a.matches { b } else { a });
    if !rules.any_of.is_empty() {
        let mut failures = Vec::new();
        let is_valid = rules.any_of.iter().any(|schema| {
            let of_schema = apply(schema);
            let is_valid = of_schema.is_valid();
            failures.push(of_schema);
            is_valid
        });
        if !is_valid {
            result.add(of_alternatives(path, "must validate at least one schema (anyOf)"));
            best(failures).into_iter().for_each(|failure| result.merge(failure));
        }
    }
    if !rules.one_of.is_empty() {
        let (valid, failures): (Vec<_>, Vec<_>) = rules.one_of.iter().map(apply).partition(ValidationResult::is_valid);
        match valid.len() {
            1 => {}
            0 => {
                let why = "must validate one and only one schema (oneOf). Found none valid";
                result.add(of_alternatives(path, why));
                best(failures).into_iter().for_each(|failure| result.merge(failure));
            }
            count => {
                let why = format!("must validate one and only one schema (oneOf). Found {count} valid alternatives");
                result.add(of_alternatives(path, why));
            }
        }
    }
    if !rules.all_of.is_empty() {
        let (valid, failures): (Vec<_>, Vec<_>) = rules.all_of.iter().map(apply).partition(ValidationResult::is_valid);
        let has_failed = !failures.is_empty();
        failures.into_iter().for_each(|failure| result.merge(failure));
        if has_failed {
            let none = if valid.is_empty() { ". None validated" } else { "" };
            result.add(of_alternatives(path, format_args!("must validate all the schemas (allOf){none}")));
        }
    }
    if let Some(not) = &rules.not
        && apply(not).is_valid()
    {
        result.add(of_alternatives(path, "must not validate the schema (not)"));
    }
}

/// A value as an error shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(_) => format_go_number(value),
        _ => write_json(value),
    }
}

/// An error of a kind that shows a value.
fn error_of(kind: FieldErrorKind, path: &str, value: impl Into<BadValue>, detail: String) -> FieldError {
    FieldError::new(kind, path, Some(value.into()), detail)
}

#[cfg(test)]
mod tests;
