//! What may be requested of a capacity that several claims share (`validateRequestPolicy`).

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::list_errors;
use crate::kinds::validation::items;

const MAX_VALUES: usize = 10;

/// A quantity; none if it is absent.
fn quantity(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| Quantity::parse(text).ok())
}

/// The error of a quantity.
fn invalid(path: FieldPath<'_>, value: &Quantity, why: impl Into<String>) -> FieldError {
    FieldError::invalid(path, value.to_string().as_str(), why)
}

/// Errors of a policy for requests of `capacity`.
pub(super) fn request_policy_errors(capacity: &str, policy: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let (values, range) = (items(policy, "validValues"), &policy["validRange"]);
    let field = match (values.is_empty(), range.is_null()) {
        (true, true) => return FieldErrors::new(),
        (false, false) => {
            let why = "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the same \
                       time";
            return FieldError::forbidden(path, why).into();
        }
        (false, true) => "validValues",
        (true, false) => "validRange",
    };
    let Some(default) = quantity(&policy["default"]) else {
        return FieldError::required(path.child("default"), format!("required when {field} is defined")).into();
    };
    let Ok(capacity) = Quantity::parse(capacity) else { return FieldErrors::new() };
    let path = path.child(field);
    if values.is_empty() {
        range_errors(&default, &capacity, range, &path)
    } else {
        value_errors(&default, &capacity, values, &path)
    }
}

fn value_errors(default: &Quantity, capacity: &Quantity, values: &[Value], path: &FieldPath<'_>) -> FieldErrors {
    let options: Vec<Quantity> = values.iter().filter_map(quantity).collect();
    let mut errors = FieldErrors::new();
    for (index, pair) in options.windows(2).enumerate() {
        if pair[0] > pair[1] {
            errors.push(invalid(path.index(index + 1), &pair[1], "values must be sorted in ascending order"));
        }
    }
    errors.append(list_errors(values, MAX_VALUES, path, |value, path| {
        let too_large = quantity(value).filter(|option| option > capacity);
        let why = format!("option is larger than capacity value: {capacity}");
        too_large.map(|option| invalid(*path, &option, why)).into_iter().collect()
    }));
    let is_bounded = values.len() <= MAX_VALUES;
    let mut seen = HashSet::new();
    for (index, option) in options.iter().enumerate().filter(|_| is_bounded) {
        if !seen.insert(option.value()) {
            errors.push(FieldError::duplicate(path.index(index), option.value().to_string().as_str()));
        }
    }
    if !is_bounded || !options.contains(default) {
        errors.push(invalid(*path, default, "default value is not valid according to the requestPolicy"));
    }
    errors
}

fn range_errors(default: &Quantity, capacity: &Quantity, range: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let Some(minimum) = quantity(&range["min"]) else {
        return FieldError::required(path.child("min"), "required when validRange is defined").into();
    };
    let mut errors = FieldErrors::new();
    if minimum > *capacity {
        errors.push(invalid(path.child("min"), &minimum, format!("min is larger than capacity value: {capacity}")));
    }
    if *default < minimum {
        errors.push(invalid(path.child("min"), default, format!("default is less than min: {minimum}")));
    }
    let maximum = quantity(&range["max"]);
    if let Some(maximum) = &maximum {
        let path = path.child("max");
        if minimum > *maximum {
            errors.push(invalid(path, &minimum, format!("min is larger than max: {maximum}")));
        }
        if maximum > capacity {
            errors.push(invalid(path, maximum, format!("max is larger than capacity value: {capacity}")));
        }
        if default > maximum {
            errors.push(invalid(path, default, format!("default is more than max: {maximum}")));
        }
    }
    if let Some(step) = quantity(&range["step"]) {
        let path = path.child("step");
        let first = minimum.plus(&step);
        if first > *capacity {
            let why = format!("one step {first} is larger than capacity value: {capacity}");
            errors.push(invalid(path, &step, why));
        }
        for value in [Some(default), maximum.as_ref()].into_iter().flatten() {
            // kube-apiserver divides by a step of 0 and answers with 500.
            let distance = value.value().wrapping_sub(minimum.value());
            if distance.checked_rem(step.value()) != Some(0) {
                let why = format!("value is not a multiple of a given step ({step}) from ({minimum})");
                errors.push(invalid(path, value, why));
            }
        }
    }
    errors
}
