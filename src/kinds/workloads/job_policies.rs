//! When a Job has failed or succeeded: policies, and indexes of its Pods (`validatePodFailurePolicy`,
//! `validateSuccessPolicy`).

use std::collections::HashSet;

use kubeapi::GoQuoted;
use kubeapi::field_error::{BadValue, FieldError, FieldErrorKind, FieldErrors, FieldPath};
use kubeapi::names::check_qualified_name;
use serde_json::Value;

use crate::kinds::field_rules::typed_text;
use crate::kinds::pod::check_not_negative;
use crate::kinds::validation::{invalid_for, items, text};

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_PATTERNS: usize = 20;
const MAX_INDEXES_BYTES: usize = 64 << 10;

/// An error that does not show the value.
pub(super) fn invalid_unshown(path: FieldPath<'_>, why: impl Into<String>) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, path, None, why)
}

fn valid_values(supported: &[&str]) -> String {
    let quoted: Vec<String> = supported.iter().map(|one| GoQuoted(one).to_string()).collect();
    format!("valid values: [{}]", quoted.join(" "))
}

/// Errors of a text that is required and one of those supported.
fn check_action(value: &str, supported: &[&str], path: FieldPath<'_>, errors: &mut FieldErrors) {
    if value.is_empty() {
        errors.push(FieldError::required(path, valid_values(supported)));
    } else if !supported.contains(&value) {
        errors.push(FieldError::not_supported(path, value, supported));
    }
}

/// Errors of rules about Pods that failed.
pub(super) fn check_failure_policy(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let rules = items(&spec["podFailurePolicy"], "rules");
    let path = path.child("rules");
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(path, rules.len(), MAX_RULES));
    }
    let pod = &spec["template"]["spec"];
    let containers = ["containers", "initContainers"].into_iter().flat_map(|list| items(pod, list));
    let names: HashSet<&str> = containers.map(|container| text(container, "name")).collect();
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        match text(rule, "action") {
            "FailIndex" => {
                if spec["backoffLimitPerIndex"].is_null() {
                    let why = "requires the backoffLimitPerIndex to be set";
                    errors.push(FieldError::invalid(path.child("action"), "FailIndex", why));
                }
            }
            action => check_action(action, &ACTIONS, path.child("action"), errors),
        }
        let (codes, conditions) = (&rule["onExitCodes"], items(rule, "onPodConditions"));
        if !codes.is_null() {
            check_exit_codes(codes, &names, &path.child("onExitCodes"), errors);
        }
        check_patterns(conditions, &path.child("onPodConditions"), errors);
        let why = match (codes.is_null(), conditions.is_empty()) {
            (false, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (true, true) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        errors.push(invalid_unshown(path, why));
    }
}

fn check_patterns(patterns: &[Value], path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if patterns.len() > MAX_PATTERNS {
        errors.push(FieldError::too_many(path, patterns.len(), MAX_PATTERNS));
    }
    for (index, pattern) in patterns.iter().enumerate() {
        let path = path.index(index);
        let condition = text(pattern, "type");
        errors.extend(invalid_for(path.child("type"), condition, check_qualified_name(condition)));
        check_action(text(pattern, "status"), &STATUSES, path.child("status"), errors);
    }
}

fn check_exit_codes(codes: &Value, names: &HashSet<&str>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let operator = text(codes, "operator");
    check_action(operator, &OPERATORS, path.child("operator"), errors);
    if let Some(name) = codes["containerName"].as_str().filter(|name| !names.contains(name)) {
        let why = "must be one of the container or initContainer names in the pod template";
        errors.push(FieldError::invalid(path.child("containerName"), name, why));
    }
    let (values, path) = (items(codes, "values"), path.child("values"));
    if values.is_empty() {
        errors.push(FieldError::invalid(path, BadValue::from(&codes["values"]), "at least one value is required"));
    } else if values.len() > MAX_EXIT_CODES {
        errors.push(FieldError::too_many(path, values.len(), MAX_EXIT_CODES));
    }
    let (mut seen, mut last, mut is_ordered) = (HashSet::new(), i64::MIN, true);
    for (index, code) in values.iter().map(|code| code.as_i64().unwrap_or_default()).enumerate() {
        let path = path.index(index);
        if operator == "In" && code == 0 {
            errors.push(FieldError::invalid(path, code, "must not be 0 for the In operator"));
        }
        if !seen.insert(code) {
            errors.push(FieldError::duplicate(path, code));
        }
        is_ordered &= last <= code;
        last = code;
    }
    if !is_ordered {
        errors.push(FieldError::invalid(path, BadValue::from(&codes["values"]), "must be ordered"));
    }
}

/// Errors of rules about indexes that must succeed.
pub(super) fn check_success_policy(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let rules = items(&spec["successPolicy"], "rules");
    let path = path.child("rules");
    if rules.is_empty() {
        let why = "at least one rules must be specified when the successPolicy is specified";
        errors.push(FieldError::required(path, why));
    }
    if rules.len() > MAX_RULES {
        errors.push(FieldError::too_many(path, rules.len(), MAX_RULES));
    }
    // Without it, upstream's code panics.
    let Some(completions) = spec["completions"].as_i64() else { return };
    for (index, rule) in rules.iter().enumerate() {
        let path = path.index(index);
        let (indexes, count) = (rule["succeededIndexes"].as_str(), rule["succeededCount"].as_i64());
        if indexes.is_none() && count.is_none() {
            let why = "at least one of succeededCount or succeededIndexes must be specified";
            errors.push(FieldError::required(path, why));
        }
        let mut total = 0;
        if let Some(indexes) = indexes {
            let path = path.child("succeededIndexes");
            if indexes.len() > MAX_INDEXES_BYTES {
                errors.push(FieldError::too_long(path, MAX_INDEXES_BYTES));
            }
            match count_indexes(indexes, completions) {
                Ok(count) => total = count,
                Err(why) => {
                    let why = format!("error parsing succeededIndexes: {why}");
                    errors.push(FieldError::invalid(path, indexes, why));
                }
            }
        }
        let Some(count) = count else { continue };
        check_not_negative(rule, "succeededCount", &path, errors);
        let limit = |limit: i64, what: &str| {
            let why = format!("must be less than or equal to {limit} ({what})");
            FieldError::invalid(path.child("succeededCount"), count, why)
        };
        if count > completions {
            errors.push(limit(completions, "the number of specified completions"));
        }
        if indexes.is_some() && count > total {
            errors.push(limit(total, "the number of indexes in the specified succeededIndexes field"));
        }
    }
}

/// The number of indexes in a text such as `1,3-5` (`validateIndexesFormat`).
///
/// # Errors
/// Upstream's text for one that is not in order, too large or no number.
pub(super) fn count_indexes(indexes: &str, completions: i64) -> Result<i64, String> {
    let (mut last, mut total) = (None, 0);
    if indexes.is_empty() {
        return Ok(0);
    }
    for interval in indexes.split(',') {
        let (first, end) = parse_interval(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(format!("non-increasing order, previous: {last}, current: {first}"));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// The first and the last index of an interval.
pub(super) fn parse_interval(interval: &str, completions: i64) -> Result<(i64, i64), String> {
    let parts: Vec<&str> = interval.split('-').collect();
    let index = |part: &str| {
        let index: i64 =
            part.parse().map_err(|_| format!("cannot convert string to integer for index: {}", GoQuoted(part)))?;
        if index >= completions { Err(format!("too large index: {}", GoQuoted(part))) } else { Ok(index) }
    };
    match parts.as_slice() {
        [first] => index(first).map(|first| (first, first)),
        [first, last] => {
            let (first, last) = (index(first)?, index(last)?);
            if first >= last {
                return Err(format!("non-increasing order, previous: {first}, current: {last}"));
            }
            Ok((first, last))
        }
        _ => Err(format!(
            "the fragment {} violates the requirement that an index interval can have at most two parts separated by \
             '-'",
            GoQuoted(interval)
        )),
    }
}

/// A text as errors show it whose type has a name.
pub(super) fn shown_text(value: &Value) -> BadValue {
    value.as_str().map_or_else(BadValue::null, typed_text)
}
