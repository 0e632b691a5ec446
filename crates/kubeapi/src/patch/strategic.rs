//! Strategic merge patch (`apimachinery/pkg/util/strategicpatch/patch.go`): a merge patch whose lists are merged by the
//! merge keys of a schema, with directives.

use serde_json::{Map, Value};

use super::PatchError;
use super::directives::{
    PATCH, check_element_order, discard_nulls, identity, no_merge_key, order_elements, ordered_list, positions,
    remove_directives, require_merge_keys, retain_keys, shortened_list, unknown_patch_type, unmergeable, wrong_type,
};
use super::limits::{PatchWork, check_memory};
use crate::format_go_value;
use crate::json::{json_kind, read_json};
use crate::schema::{MergeStrategy, Schema, ValueType};

/// How the fields of an object are merged.
pub trait MergeSchema {
    /// How a field is merged. `None` for an unknown one: objects are merged, anything else is replaced.
    fn merge_field(&self, name: &str) -> Option<FieldMerge<'_>>;
}

/// How a field is merged.
#[derive(Clone, Copy, Default)]
pub struct FieldMerge<'s> {
    /// The extension `x-kubernetes-patch-strategy`, without `retainKeys`.
    pub strategy: MergeStrategy,
    /// The extension `x-kubernetes-patch-merge-key`: the field that identifies an item of a list of objects.
    pub merge_key: Option<&'s str>,
    /// How the fields of the object, or of each item of the list, are merged.
    pub child: Option<&'s dyn MergeSchema>,
}

impl MergeSchema for Schema {
    fn merge_field(&self, name: &str) -> Option<FieldMerge<'_>> {
        let schema = self.field(name)?;
        let child = if schema.value_type == Some(ValueType::Array) { schema.items.as_deref() } else { Some(schema) };
        Some(FieldMerge {
            strategy: schema.merge_strategy,
            merge_key: schema.merge_key.as_deref(),
            child: child.map(|child| child as &dyn MergeSchema),
        })
    }
}

/// A strategic merge patch that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategicPatch {
    /// The object to merge, with directives.
    pub fields: Map<String, Value>,
}

impl StrategicPatch {
    /// Reads a patch, and returns the texts of strict errors: `duplicate field "spec.a"`.
    ///
    /// # Errors
    /// [`PatchError::Malformed`] for what is no object.
    pub fn parse(bytes: &[u8]) -> Result<(StrategicPatch, Vec<String>), PatchError> {
        let (value, findings) = read_json(bytes).map_err(|error| PatchError::Malformed(error.to_string()))?;
        check_memory(&value)?;
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Null => Map::new(),
            other => {
                let kind = json_kind(&other);
                let why = format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}");
                return Err(PatchError::Malformed(why));
            }
        };
        Ok((StrategicPatch { fields }, findings.messages().collect()))
    }

    /// Merges the patch into an object.
    ///
    /// # Errors
    /// [`PatchError`] for a directive that is malformed or does not fit the object, [`PatchError::TooLarge`] for one that
    /// names the same items over and over.
    pub fn apply(
        &self,
        document: Map<String, Value>,
        schema: &dyn MergeSchema,
    ) -> Result<Map<String, Value>, PatchError> {
        merge_maps(document, self.fields.clone(), Some(schema), &mut PatchWork::of_strategic_patch())
    }
}

fn lookup<'s>(schema: Option<&'s dyn MergeSchema>, name: &str) -> FieldMerge<'s> {
    schema.and_then(|schema| schema.merge_field(name)).unwrap_or_default()
}

fn merge_maps(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Option<&dyn MergeSchema>,
    work: &mut PatchWork,
) -> Result<Map<String, Value>, PatchError> {
    match patch.get(PATCH) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => {
            patch.remove(PATCH);
            return Ok(patch);
        }
        Some(Value::String(directive)) if directive == "delete" => return Ok(Map::new()),
        Some(other) => return Err(unknown_patch_type(&other.clone(), patch)),
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, schema, work)?;
    for (key, mut value) in patch {
        if let Some(list) = shortened_list(&key) {
            let list = list?;
            if value.is_null() {
                original.remove(list);
            } else if let (Some(Value::Array(items)), Value::Array(deleted)) = (original.get_mut(list), value) {
                *items = delete_from_list(std::mem::take(items), &deleted, work)?;
            }
            continue;
        }
        if value.is_null() {
            original.remove(&key);
            continue;
        }
        let field = lookup(schema, &key);
        let merged = match (original.get_mut(&key), value) {
            (Some(Value::Object(_)), Value::Object(changes)) if field.strategy == MergeStrategy::Replace => {
                Some(Value::Object(changes))
            }
            (Some(Value::Object(current)), Value::Object(changes)) => {
                Some(Value::Object(merge_maps(std::mem::take(current), changes, field.child, work)?))
            }
            (Some(Value::Array(current)), Value::Array(changes)) => {
                Some(Value::Array(merge_field_lists(std::mem::take(current), changes, field, work)?))
            }
            (_, other) => {
                value = other;
                discard_nulls(&mut value);
                remove_directives(value)
            }
        };
        match merged {
            Some(value) => drop(original.insert(key, value)),
            None => drop(original.remove(&key)),
        }
    }
    Ok(original)
}

/// Merges the lists that have a `$setElementOrder`, and removes list and directive from the patch.
fn merge_ordered_lists(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Option<&dyn MergeSchema>,
    work: &mut PatchWork,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|key| ordered_list(key).is_some()).cloned().collect();
    for directive in directives {
        let (Some(order), Some(list)) = (patch.remove(&directive), ordered_list(&directive)) else { continue };
        let Value::Array(order) = order else { return Err(wrong_type("[]interface {}", &order)) };
        let list = list?;
        let take = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type("[]interface {}", &other)),
        };
        let current = take(original.remove(list))?;
        let changes = take(patch.remove(list))?;
        let field = lookup(schema, list);
        check_element_order(changes.as_deref().unwrap_or_default(), &order, field.merge_key)?;
        let is_empty = [&current, &changes].into_iter().all(|list| list.as_ref().is_none_or(Vec::is_empty));
        let server_order = positions(current.as_deref().unwrap_or_default(), field.merge_key, work)?;
        check_element_types(current.as_deref().unwrap_or_default(), changes.as_deref().unwrap_or_default())?;
        let merged = match (current, changes) {
            (None, None) => continue,
            (Some(current), None) => current,
            (None, Some(changes)) => changes.into_iter().filter_map(remove_directives).collect(),
            (Some(current), Some(changes)) => merge_field_lists(current, changes, field, work)?,
        };
        if is_empty {
            return Err(unmergeable("no elements in any of the given slices"));
        }
        if let Some(key) = field.merge_key {
            require_merge_keys(merged.iter().chain(&order), key)?;
        }
        let ordered = order_elements(merged, &order, &server_order, field.merge_key, work)?;
        original.insert(list.to_owned(), ordered.into());
    }
    Ok(())
}

fn merge_field_lists(
    original: Vec<Value>,
    patch: Vec<Value>,
    field: FieldMerge<'_>,
    work: &mut PatchWork,
) -> Result<Vec<Value>, PatchError> {
    if field.strategy == MergeStrategy::Merge { merge_lists(original, patch, field, work) } else { Ok(patch) }
}

fn merge_lists(
    original: Vec<Value>,
    patch: Vec<Value>,
    field: FieldMerge<'_>,
    work: &mut PatchWork,
) -> Result<Vec<Value>, PatchError> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    check_element_types(&original, &patch)?;
    let is_of_maps = original.first().or(patch.first()).is_some_and(Value::is_object);
    if !is_of_maps {
        let server_order = positions(&original, None, work)?;
        let mut identities = std::collections::HashSet::new();
        let merged: Vec<Value> = original
            .into_iter()
            .chain(patch.iter().cloned())
            .filter(|item| identities.insert(identity(item, None)))
            .collect();
        return order_elements(merged, &patch, &server_order, None, work);
    }
    let Some(key) = field.merge_key else {
        return Err(unmergeable("cannot merge lists without merge key for struct"));
    };
    let (mut merged, patch) = apply_item_directives(original, patch, key)?;
    require_merge_keys(&patch, key)?;
    if let Some(position) = merged.iter().position(|item| !item.is_object()).filter(|_| !patch.is_empty()) {
        return Err(unmergeable(format!("value for key {position} is not a map")));
    }
    let server_order = positions(&merged, Some(key), work)?;
    let mut places = server_order.clone();
    for item in &patch {
        let index = places.get(&identity(item, Some(key))).copied();
        match (index.and_then(|at| merged.get_mut(at)), item) {
            (Some(Value::Object(current)), Value::Object(changes)) => {
                let current = std::mem::take(current);
                let item = Value::Object(merge_maps(current, changes.clone(), field.child, work)?);
                if let Some(element) = index.and_then(|at| merged.get_mut(at)) {
                    *element = item;
                }
            }
            _ => {
                places.insert(identity(item, Some(key)), merged.len());
                let mut item = item.clone();
                discard_nulls(&mut item);
                merged.push(item);
            }
        }
    }
    require_merge_keys(&merged, key)?;
    order_elements(merged, &patch, &server_order, Some(key), work)
}

/// Applies the items of the patch that have a `$patch`; returns the changed original and the other items.
fn apply_item_directives(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut is_replaced = false;
    let mut deleted = std::collections::HashSet::new();
    for item in patch {
        match item.get(PATCH).map(|directive| directive.as_str()) {
            None => plain.push(item),
            Some(Some("delete")) => {
                if item.get(key).is_none() {
                    return Err(no_merge_key(&item, key));
                }
                deleted.insert(identity(&item, Some(key)));
            }
            Some(Some("replace")) => is_replaced = true,
            Some(Some("merge")) => return Err(unmergeable("merging lists cannot yet be specified in the patch")),
            Some(_) => {
                let Value::Object(map) = item else { continue };
                return Err(unknown_patch_type(&map.get(PATCH).cloned().unwrap_or_default(), map));
            }
        }
    }
    if is_replaced {
        return Ok((plain, Vec::new()));
    }
    if !deleted.is_empty() {
        original.retain(|item| item.get(key).is_none() || !deleted.contains(&identity(item, Some(key))));
    }
    Ok((original, plain))
}

fn delete_from_list(items: Vec<Value>, deleted: &[Value], work: &mut PatchWork) -> Result<Vec<Value>, PatchError> {
    check_element_types(&items, deleted)?;
    positions(&items, None, work)?;
    let deleted = positions(deleted, None, work)?;
    Ok(items.into_iter().filter(|item| !deleted.contains_key(&identity(item, None))).collect())
}

/// Checks that all items of two lists have one type, which is no list.
fn check_element_types(a: &[Value], b: &[Value]) -> Result<(), PatchError> {
    let mut first = None;
    for item in a.iter().chain(b) {
        let kind = match item {
            Value::Number(number) if number.is_f64() => "float",
            other => json_kind(other),
        };
        match first {
            None if kind == "array" => {
                return Err(PatchError::Rejected("lists of lists are not supported".to_owned()));
            }
            None => first = Some(kind),
            Some(first) if first == kind => {}
            Some(_) => {
                let lists = format_go_value(&Value::Array(vec![Value::from(a), Value::from(b)]));
                return Err(unmergeable(format!("list element types are not identical: {lists}")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "strategic/tests.rs"]
mod tests;
