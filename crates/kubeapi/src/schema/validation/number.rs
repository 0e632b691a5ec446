//! Bounds and ranges of numbers (`pkg/validation/validate/{validator,values}.go`).

use serde_json::{Number, Value};

use super::{ValidationResult, field_of, path_text};
use crate::field_error::FieldError;
use crate::json::format_go_number;
use crate::schema::path::ValuePath;
use crate::schema::{Schema, ValueType};

/// Greatest integer that is exact as a float.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0;

/// A number as Go reads it from JSON.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum GoNumber {
    Integer(i64),
    Float(f64),
}

impl GoNumber {
    pub(super) fn of(number: &Number) -> GoNumber {
        match number.as_i64() {
            Some(integer) => GoNumber::Integer(integer),
            None => GoNumber::Float(number.as_f64().unwrap_or_default()),
        }
    }

    #[allow(clippy::cast_precision_loss)]
    pub(super) fn as_float(self) -> f64 {
        match self {
            GoNumber::Integer(integer) => integer as f64,
            GoNumber::Float(float) => float,
        }
    }

    /// Digits without an exponent.
    fn digits(self) -> String {
        match self {
            GoNumber::Integer(integer) => integer.to_string(),
            GoNumber::Float(float) => float.to_string(),
        }
    }
}

impl From<GoNumber> for Value {
    fn from(number: GoNumber) -> Value {
        match number {
            GoNumber::Integer(integer) => integer.into(),
            GoNumber::Float(float) => float.into(),
        }
    }
}

/// Whether a float is an integer, or nearly one (`IsFloat64AJSONInteger` in `go-openapi/swag`).
pub(super) fn is_whole(float: f64) -> bool {
    if !float.is_finite() || float.abs() > MAX_EXACT_INTEGER {
        return false;
    }
    let whole = if float < 0.0 { 0.0 } else { float.trunc() };
    if float == whole || float == float.trunc() {
        return true;
    }
    whole != 0.0 && (float - whole).abs() / (float.abs() + whole.abs()) < 1e-9
}

/// Checks a number against the range of its type, and against its bounds.
pub(super) fn validate_number(
    schema: &Schema,
    number: &Number,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let number = GoNumber::of(number);
    check_range(schema, number, "Checked", path, result);
    let Some(rules) = schema.validation.as_deref() else { return };
    if let Some(factor) = rules.multiple_of {
        let has_range = check_range(schema, GoNumber::Float(factor), "MultipleOf", path, result);
        let (number, factor) = comparable(number, factor, has_range);
        check_multiple(number, factor, path, result);
    }
    let mut check_bound =
        |bound: Option<f64>, name: &str, breaks: fn(f64, f64) -> bool, words: (&str, &str), is_exclusive| {
            let Some(bound) = bound else { return };
            let has_range = check_range(schema, GoNumber::Float(bound), name, path, result);
            let (number, bound) = comparable(number, bound, has_range);
            let is_equal = number == bound;
            let is_broken = match (number, bound) {
                (GoNumber::Integer(number), GoNumber::Integer(bound)) => {
                    if breaks(1.0, 0.0) {
                        number > bound
                    } else {
                        number < bound
                    }
                }
                _ => breaks(number.as_float(), bound.as_float()),
            };
            if is_broken || is_exclusive && is_equal {
                let words = if is_exclusive { words.0 } else { words.1 };
                let bound = format_go_number(&bound.into());
                result.invalid(path, &Value::from(number), format_args!("should be {words} {bound}"));
            }
        };
    let (less, greater) = (("less than", "less than or equal to"), ("greater than", "greater than or equal to"));
    check_bound(rules.minimum, "Minimum boundary", |a, b| a < b, greater, rules.is_minimum_exclusive);
    check_bound(rules.maximum, "Maximum boundary", |a, b| a > b, less, rules.is_maximum_exclusive);
}

/// A number and a bound of the same type: the bound of an integer is cut off, unless it is not in its range.
fn comparable(number: GoNumber, bound: f64, has_range: bool) -> (GoNumber, GoNumber) {
    match number {
        // Go converts a float to an integer by cutting it off.
        #[allow(clippy::cast_possible_truncation)]
        GoNumber::Integer(_) if has_range => (number, GoNumber::Integer(bound as i64)),
        _ => (GoNumber::Float(number.as_float()), GoNumber::Float(bound)),
    }
}

fn check_multiple(number: GoNumber, factor: GoNumber, path: Option<&ValuePath<'_>>, result: &mut ValidationResult<'_>) {
    let factor_text = format_go_number(&factor.into());
    if factor.as_float() <= 0.0 {
        let why = format!("factor MultipleOf declared for {} must be positive: {factor_text}", path_text(path));
        return result.add(FieldError::invalid(field_of(path), &Value::from(factor), why));
    }
    let is_multiple = match (number, factor) {
        (GoNumber::Integer(number), GoNumber::Integer(factor)) => number % factor == 0,
        _ if factor.as_float() < 1.0 => is_whole(1.0 / factor.as_float() * number.as_float()),
        _ => is_whole(number.as_float() / factor.as_float()),
    };
    if !is_multiple {
        result.invalid(path, &Value::from(number), format_args!("should be a multiple of {factor_text}"));
    }
}

/// Checks that a number is one of the schema's type and format. Returns whether it is.
fn check_range(
    schema: &Schema,
    number: GoNumber,
    what: &str,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) -> bool {
    let value_type = schema.value_type.filter(|_| !schema.is_int_or_string);
    let (type_name, format, is_in_range) = match (value_type, &*schema.format) {
        (Some(ValueType::Integer), "int32") => ("integer", "int32", number.digits().parse::<i32>().is_ok()),
        (Some(ValueType::Integer), format) => {
            let format = if format == "int64" { format } else { "" };
            ("integer", format, number.digits().parse::<i64>().is_ok())
        }
        // Go reads a float of 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        (Some(ValueType::Number), "float") => ("number", "float", (number.as_float() as f32).is_finite()),
        _ => return true,
    };
    if !is_in_range {
        let format = if format.is_empty() { "(default format)".to_owned() } else { format!("with format {format}") };
        let path = path_text(path);
        result.without_path(format!("{what} value must be of type {type_name} {format} in {path}"));
    }
    is_in_range
}
