//! Custom resources of tests.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use store::watch_cache::Stored;
use store::{KeyValue, Prefix};

use super::{Crd, custom_entries};
use crate::resources::ServedKind;

/// The first version of a CRD with accepted names.
pub fn served_kind(crd: &Value) -> ServedKind {
    let prefix = Prefix::parse("/registry/definitions/").unwrap();
    let key = prefix.key("", "cases.a.io").unwrap();
    let value = Bytes::from(crd.to_string());
    let stored = Stored::new(Arc::new(KeyValue { key, value, created: 2, revision: 2, expires: None }), &prefix, &[]);
    let crd: Crd = serde_json::from_value(crd.clone()).unwrap();
    custom_entries(&crd, &Arc::new(stored), None).remove(0).kind
}
