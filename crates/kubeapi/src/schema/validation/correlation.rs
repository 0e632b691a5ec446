//! Which part of the old value a part of the new one replaces (`k8s.io/apiserver/pkg/cel/common/equality.go`).

use std::collections::HashMap;

use serde_json::Value;

use crate::schema::{ListType, Schema, ValueType};

/// A value, and the one that it replaces.
#[derive(Clone, Copy)]
pub(super) struct CorrelatedValue<'v> {
    /// The new value.
    pub(super) value: &'v Value,
    /// The old value, with the schema of both.
    old: Option<(&'v Value, &'v Schema)>,
}

impl<'v> CorrelatedValue<'v> {
    /// A value that replaces `old`.
    pub(super) fn new(schema: &'v Schema, value: &'v Value, old: Option<&'v Value>) -> CorrelatedValue<'v> {
        CorrelatedValue { value, old: old.map(|old| (old, schema)) }
    }

    /// A value that replaces none.
    pub(super) fn uncorrelated(value: &'v Value) -> CorrelatedValue<'v> {
        CorrelatedValue { value, old: None }
    }

    /// A field of an object, if the old object has it, too.
    pub(super) fn field(&self, name: &str) -> Option<CorrelatedValue<'v>> {
        let (old, schema) = self.old?;
        let (value, old) = (self.value.as_object()?.get(name)?, old.as_object()?.get(name)?);
        Some(CorrelatedValue::new(schema.field(name)?, value, Some(old)))
    }

    /// The items of an array. Those of a map are correlated by their keys; those of sets and atomic lists are not.
    pub(super) fn items(&self) -> Vec<CorrelatedValue<'v>> {
        let items = self.value.as_array().into_iter().flatten();
        let Some((schema, old_items)) = self.old_map_items() else {
            return items.map(CorrelatedValue::uncorrelated).collect();
        };
        let mut by_key = HashMap::new();
        for old in old_items {
            if let Some(key) = map_key(schema, old) {
                by_key.entry(key).or_insert(old);
            }
        }
        let correlate = |value: &'v Value| {
            let old = map_key(schema, value).and_then(|key| by_key.get(&key).copied());
            match (old, &schema.items) {
                (Some(old), Some(inner)) => CorrelatedValue::new(inner, value, Some(old)),
                _ => CorrelatedValue::uncorrelated(value),
            }
        };
        items.map(correlate).collect()
    }

    fn old_map_items(&self) -> Option<(&'v Schema, &'v Vec<Value>)> {
        let (old, schema) = self.old?;
        let is_map = schema.list_type == Some(ListType::Map)
            && schema.value_type == Some(ValueType::Array)
            && !schema.list_map_keys.is_empty();
        Some((schema, old.as_array()?)).filter(|_| is_map)
    }

    /// Whether the value equals the one that it replaces. Items of maps may have another order. Fields that no schema
    /// describes never do.
    pub(super) fn is_unchanged(&self) -> bool {
        let Some((old, _)) = self.old else { return false };
        match (self.value, old) {
            (Value::Array(new_items), Value::Array(old_items)) if new_items.len() == old_items.len() => {
                match self.old_map_items() {
                    Some(_) => self.items().iter().all(CorrelatedValue::is_unchanged),
                    None => new_items == old_items,
                }
            }
            (Value::Object(new_fields), Value::Object(old_fields)) => {
                new_fields.len() == old_fields.len()
                    && new_fields.keys().all(|name| self.field(name).is_some_and(|field| field.is_unchanged()))
            }
            (new, old) => new == old,
        }
    }
}

/// The fields that identify an item of a map; none if one is absent or no scalar.
fn map_key(schema: &Schema, item: &Value) -> Option<String> {
    let mut key = String::new();
    for name in &schema.list_map_keys {
        let part = item.as_object()?.get(name)?;
        if matches!(part, Value::Null | Value::Array(_) | Value::Object(_)) {
            return None;
        }
        key.push_str(&part.to_string());
        key.push('\0');
    }
    Some(key)
}
