//! `anyOf`, `oneOf`, `allOf` and `not` (`pkg/validation/validate/schema_props.go`).

use serde_json::Value;

use super::correlation::CorrelatedValue;
use super::{ValidationResult, ValueValidation, path_text, validate_value};
use crate::schema::Schema;
use crate::schema::path::ValuePath;

/// Applies the schemas of a value. As in Kubernetes, they do not know what was before.
pub(super) fn validate_alternatives(
    rules: &ValueValidation,
    value: &Value,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let budget = result.budget;
    let apply = |schema: &Schema| {
        let mut of_schema = ValidationResult::new(budget);
        validate_value(schema, &CorrelatedValue::uncorrelated(value), path, &mut of_schema);
        of_schema
    };
    let failed = |result: &mut ValidationResult<'_>, why: &str| {
        result.without_path(format!("\"{}\" {why}", path_text(path)));
    };
    if !rules.any_of.is_empty() {
        let mut best: Option<ValidationResult<'_>> = None;
        let mut has_valid = false;
        for of_schema in rules.any_of.iter().map(apply) {
            has_valid = of_schema.is_valid();
            if has_valid || best.as_ref().is_none_or(|best| of_schema.matches > best.matches) {
                best = Some(of_schema);
            }
            if has_valid {
                break;
            }
        }
        if !has_valid {
            failed(result, "must validate at least one schema (anyOf)");
        }
        best.into_iter().for_each(|best| result.merge(&best));
    }
    if !rules.one_of.is_empty() {
        // Not all results are kept: there may be many, with long texts.
        let (mut valid, mut valid_count, mut best) = (None, 0, None::<ValidationResult<'_>>);
        for of_schema in rules.one_of.iter().map(apply) {
            if of_schema.is_valid() {
                valid_count += 1;
                valid = Some(of_schema);
            } else if best.as_ref().is_none_or(|best| of_schema.matches > best.matches) {
                best = Some(of_schema);
            }
        }
        match valid_count {
            1 => valid.into_iter().for_each(|valid| result.merge(&valid)),
            0 => {
                failed(result, "must validate one and only one schema (oneOf). Found none valid");
                best.into_iter().for_each(|best| result.merge(&best));
            }
            count => {
                let why = format!("must validate one and only one schema (oneOf). Found {count} valid alternatives");
                failed(result, &why);
            }
        }
    }
    if !rules.all_of.is_empty() {
        let mut valid = 0;
        for of_schema in rules.all_of.iter().map(apply) {
            valid += usize::from(of_schema.is_valid());
            result.merge(&of_schema);
        }
        if valid < rules.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            failed(result, &format!("must validate all the schemas (allOf){none}"));
        }
    }
    if let Some(not) = &rules.not
        && apply(not).is_valid()
    {
        failed(result, "must not validate the schema (not)");
    }
}
