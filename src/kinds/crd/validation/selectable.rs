//! Selectable fields, and paths of fields in schemas (`ValidFieldPath` in `pkg/apiserver/schema/cel/validation.go`).

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::schema::props::JsonSchemaProps;
use kubeapi::schema::structural::conversion_error;

use super::hoisted::SelectableFieldPath;
use super::options::MAX_SELECTABLE_FIELDS;

/// The errors of selectable fields. `spec_path` is that of the object with the fields.
pub(super) fn selectable_field_errors(
    fields: &[SelectableFieldPath],
    schema: &JsonSchemaProps,
    allows_many: bool,
    spec_path: &FieldPath<'_>,
) -> FieldErrors {
    if let Some(why) = conversion_error(schema) {
        return FieldError::invalid(spec_path.child("schema.openAPIV3Schema"), "", why).into();
    }
    let path = spec_path.child("selectableFields");
    let mut errors = FieldErrors::new();
    let mut unique = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let path = path.index(index);
        let (path, json_path) = (path.child("jsonPath"), &field.json_path);
        if json_path.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        let found = match find_schema(json_path, schema, false) {
            Ok(found) => found,
            Err(why) => {
                errors.push(FieldError::invalid(path, json_path, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if found.names.first().is_some_and(|name| name == "metadata") {
            errors.push(FieldError::invalid(path, json_path, "must not point to fields in metadata"));
        }
        if !found.schema.is_some_and(|schema| matches!(&*schema.value_type, "string" | "boolean" | "integer")) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                       formats are allowed.";
            errors.push(FieldError::invalid(path, json_path, why));
        }
        if !unique.insert(found.names) {
            errors.push(FieldError::duplicate(path, json_path));
        }
    }
    if unique.len() > MAX_SELECTABLE_FIELDS && !allows_many {
        errors.push(FieldError::too_many(path, unique.len(), MAX_SELECTABLE_FIELDS));
    }
    errors
}

/// What a path of a field leads to.
pub(super) struct FoundField<'s> {
    names: Vec<String>,
    schema: Option<&'s JsonSchemaProps>,
}

/// Follows a path such as `.spec.a` or, with `allows_keys`, `.spec['a']`.
///
/// # Errors
/// Go's text about a path that is malformed or leads nowhere.
pub(super) fn find_schema<'s>(
    json_path: &str,
    schema: &'s JsonSchemaProps,
    allows_keys: bool,
) -> Result<FoundField<'s>, String> {
    let mut found = FoundField { names: Vec::new(), schema: Some(schema) };
    let mut tokens = tokens(json_path).into_iter();
    while let Some(token) = tokens.next() {
        let mut next = || tokens.next().ok_or_else(|| "unexpected end of JSON path".to_owned());
        match token {
            "[" if !allows_keys => return Err("array notation is not allowed".to_owned()),
            "[" => {
                let quoted = next()?;
                let inner = quoted.strip_prefix('\'').and_then(|inner| inner.strip_suffix('\''));
                let inner = inner.ok_or_else(|| format!("expected single quoted string but got {quoted}"))?;
                found.enter(unescape(inner).map_err(|why| format!("invalid string literal: {why}"))?)?;
                match next()? {
                    "]" => {}
                    other => return Err(format!("expected ] but got {other}")),
                }
            }
            "." => found.enter(next()?.to_owned())?,
            other => return Err(format!("expected [ or . but got: {other}")),
        }
    }
    Ok(found)
}

impl FoundField<'_> {
    fn enter(&mut self, name: String) -> Result<(), String> {
        let schema =
            self.schema.filter(|schema| !schema.properties.is_empty() || schema.additional_properties.is_some());
        let missing = || "does not refer to a valid field".to_owned();
        let schema = schema.ok_or_else(missing)?;
        self.schema = match schema.properties.is_empty() {
            false => Some(schema.properties.get(&name).ok_or_else(missing)?),
            true => schema.additional_properties.as_ref().and_then(|values| values.schema.as_deref()),
        };
        self.names.push(name);
        Ok(())
    }
}

/// The tokens of a path: dots, brackets, quoted texts, and what is between them.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = match rest.strip_prefix('\'') {
            Some(inner) => {
                let mut quotes = inner.match_indices('\'').map(|(at, _)| at);
                quotes.find(|at| !inner[..*at].ends_with('\\')).map_or(rest.len(), |at| at + 2)
            }
            None => match rest.find(['.', '[', ']']) {
                Some(0) => 1,
                Some(at) => at,
                None => rest.len(),
            },
        };
        let (token, after) = rest.split_at(end);
        tokens.push(token);
        rest = after;
    }
    tokens
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        out.push(match chars.next() {
            Some('a') => '\x07',
            Some('b') => '\x08',
            Some('f') => '\x0c',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\x0b',
            Some(c @ ('\'' | '\\')) => c,
            Some(other) => return Err(format!("invalid escape char \\{other}")),
            None => '\\',
        });
    }
    Ok(out)
}
