//! Custom resources of tests.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::{Definition, custom_entries};
use crate::resources::ServedKind;
use crate::storage::{KeyValue, Prefix};
use crate::watch_cache::Stored;

/// The first version of a definition with accepted names.
pub fn served_kind(definition: &Value) -> ServedKind {
    let prefix = Prefix::parse("/registry/definitions/").unwrap();
    let key = prefix.key("", "cases.a.io").unwrap();
    let value = Bytes::from(definition.to_string());
    let stored = Stored::new(Arc::new(KeyValue { key, value, created: 2, revision: 2, expires: None }), &prefix, &[]);
    let definition: Definition = serde_json::from_value(definition.clone()).unwrap();
    custom_entries(&definition, &Arc::new(stored), None).remove(0).kind
}
