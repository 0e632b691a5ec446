//! Rules in CEL (`x-kubernetes-validations`). They are not enforced: a definition that adds one is refused, unless
//! `--allow-unenforced-rules` is given.

use std::collections::HashSet;

use super::hoisted::HoistedSpec;
use crate::kubeapi::field_error::{FieldError, FieldPath};
use crate::schema::props::JsonSchemaProps;

const WHY_REFUSED: &str = "validation rules are not enforced by this server; the flag --allow-unenforced-rules makes it \
    accept the definition, and ignore them";
/// Rules that are named, at most.
const MAX_REPORTED: usize = 10;

/// Rules of a definition.
struct FoundRules {
    /// Paths of the first of them.
    paths: Vec<String>,
    count: usize,
}

impl FoundRules {
    fn of(spec: &HoistedSpec, is_counted: &dyn Fn(&str) -> bool) -> FoundRules {
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

/// The errors of rules that the definition adds.
pub(super) fn unenforced_rule_errors(spec: &HoistedSpec, old: Option<&HoistedSpec>) -> Vec<FieldError> {
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
pub(super) fn unenforced_rule_warning(spec: &HoistedSpec) -> Option<String> {
    let found = FoundRules::of(spec, &|_| true);
    let first = found.paths.first()?;
    Some(match found.count {
        1 => format!("{first}: the rule is not enforced"),
        count => format!("{first}: the rule is not enforced, nor are {} others", count - 1),
    })
}
