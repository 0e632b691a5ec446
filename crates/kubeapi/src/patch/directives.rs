//! Directives of strategic merge patches: `$patch`, `$retainKeys`, `$setElementOrder`, `$deleteFromPrimitiveList`
//! (`apimachinery/pkg/util/strategicpatch/patch.go`).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use super::limits::PatchWork;
use crate::json::write_json;
use crate::{format_go_value, go_type};

/// What to do with a map or list item: `delete`, `replace` or `merge`.
pub(super) const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList";

pub(super) fn unmergeable(why: impl Into<String>) -> PatchError {
    PatchError::Unmergeable(why.into())
}

pub(super) fn no_merge_key(map: &Value, key: &str) -> PatchError {
    unmergeable(format!("map: {} does not contain declared merge key: {key}", format_go_value(map)))
}

pub(super) fn unknown_patch_type(directive: &Value, map: Map<String, Value>) -> PatchError {
    let text = if directive.is_null() { "%!s(<nil>)".to_owned() } else { format_go_value(directive) };
    unmergeable(format!("unknown patch type: {text} in map: {}", format_go_value(&Value::Object(map))))
}

pub(super) fn wrong_type(expected: &str, actual: &Value) -> PatchError {
    let actual = if actual.is_null() { "%!s(<nil>)" } else { go_type(actual) };
    unmergeable(format!("expected a {expected}, but received a {actual}"))
}

/// The list that `$setElementOrder/list` orders, if the key is such a directive.
pub(super) fn ordered_list(key: &str) -> Option<Result<&str, PatchError>> {
    let rest = key.strip_prefix(SET_ELEMENT_ORDER)?;
    let malformed = || PatchError::Malformed("invalid patch format of setElementOrder list".to_owned());
    Some(rest.strip_prefix('/').ok_or_else(malformed))
}

/// The list that `$deleteFromPrimitiveList/list` deletes from, if the key is such a directive.
pub(super) fn shortened_list(key: &str) -> Option<Result<&str, PatchError>> {
    let rest = key.strip_prefix(DELETE_FROM_PRIMITIVE_LIST)?;
    let malformed = || PatchError::Malformed("invalid patch format of primitive list".to_owned());
    Some(rest.strip_prefix('/').ok_or_else(malformed))
}

/// Takes `$retainKeys` from the patch and removes other fields from the original.
pub(super) fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let keys: HashSet<&str> = keys.as_array().ok_or_else(malformed)?.iter().filter_map(Value::as_str).collect();
    let is_directive = |key: &str| key.starts_with(SET_ELEMENT_ORDER) || key.starts_with(DELETE_FROM_PRIMITIVE_LIST);
    if patch.iter().any(|(key, value)| !value.is_null() && !is_directive(key) && !keys.contains(&key.as_str())) {
        return Err(malformed());
    }
    original.retain(|key, _| keys.contains(&key.as_str()));
    Ok(())
}

/// Removes nulls from maps, at every depth.
pub(super) fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// The value without maps that have a `$patch`, at every depth; `None` if the value itself is such a map.
pub(super) fn remove_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter().filter_map(|(key, value)| Some((key, remove_directives(value)?))).collect(),
        )),
        Value::Array(items) => Some(items.into_iter().filter_map(remove_directives).collect()),
        other => Some(other),
    }
}

/// What identifies an item of a list: its merge key, or the item itself.
pub(super) fn identity(item: &Value, merge_key: Option<&str>) -> String {
    match merge_key {
        Some(key) => item.get(key).map_or_else(|| "null".to_owned(), write_json),
        None => write_json(item),
    }
}

/// Positions of items in a list by their identity; of equal ones, the first.
pub(super) fn positions(
    list: &[Value],
    merge_key: Option<&str>,
    work: &mut PatchWork,
) -> Result<HashMap<String, usize>, PatchError> {
    let mut positions = HashMap::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        let identity = identity(item, merge_key);
        // A long text counts as several items.
        work.spend(1 + identity.len() / 256)?;
        positions.entry(identity).or_insert(at);
    }
    Ok(positions)
}

/// Checks that the items of the patch list are in the order of the `$setElementOrder` list, which names each of them.
pub(super) fn check_element_order(patch: &[Value], order: &[Value], merge_key: Option<&str>) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mismatch = || {
        unmergeable(format!(
            "The order in patch list:\n{}\n doesn't match {SET_ELEMENT_ORDER} list:\n{}\n",
            format_go_value(&Value::from(patch)),
            format_go_value(&Value::from(order))
        ))
    };
    let mut rest = order.iter();
    for item in patch {
        match item.get(PATCH) {
            Some(directive) if directive == "delete" => continue,
            // As in Kubernetes, a directive after the last of the ordered items does not fit.
            Some(_) if rest.as_slice().is_empty() => return Err(mismatch()),
            Some(_) => continue,
            None => {}
        }
        if let Some(key) = merge_key {
            require_merge_keys(rest.as_slice().first().map(|_| item), key)?;
        }
        let item_identity = identity(item, merge_key);
        let mut found = false;
        for other in rest.by_ref() {
            if let Some(key) = merge_key {
                require_merge_keys([other], key)?;
            }
            if identity(other, merge_key) == item_identity {
                found = true;
                break;
            }
        }
        if !found {
            return Err(mismatch());
        }
    }
    Ok(())
}

/// Checks that all items are maps with the merge key.
pub(super) fn require_merge_keys<'v>(
    items: impl IntoIterator<Item = &'v Value>,
    merge_key: &str,
) -> Result<(), PatchError> {
    for item in items {
        match item {
            Value::Object(map) if map.contains_key(merge_key) => {}
            Value::Object(_) => return Err(no_merge_key(item, merge_key)),
            other => return Err(wrong_type("map[string]interface {}", other)),
        }
    }
    Ok(())
}

/// Orders a merged list: what `patch_order` names in its order, the rest in `server_order`, and the two merged so that
/// they keep their relative order of before where both were there.
pub(super) fn order_elements(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &HashMap<String, usize>,
    merge_key: Option<&str>,
    work: &mut PatchWork,
) -> Result<Vec<Value>, PatchError> {
    let by_patch = positions(patch_order, merge_key, work)?;
    let position = |order: &HashMap<String, usize>, item: &Value| {
        order.get(&identity(item, merge_key)).copied().unwrap_or(usize::MAX)
    };
    let (mut patched, mut others): (Vec<_>, Vec<_>) =
        merged.into_iter().partition(|item| position(&by_patch, item) != usize::MAX);
    patched.sort_by_cached_key(|item| position(&by_patch, item));
    others.sort_by_cached_key(|item| position(server_order, item));
    let mut all = Vec::with_capacity(patched.len() + others.len());
    let (mut patched, mut others) = (patched.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let takes_other = match (others.peek(), patched.peek()) {
            (None, None) => return Ok(all),
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(other), Some(patch)) => {
                let (other, patch) = (position(server_order, other), position(server_order, patch));
                patch != usize::MAX && other < patch
            }
        };
        all.extend(if takes_other { others.next() } else { patched.next() });
    }
}
