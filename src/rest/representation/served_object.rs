//! An object in the version in which it is sent: bytes of the store if they are that, else a value.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::kubeapi::json::write_json;
use crate::resources::ServedKind;
use crate::resources::custom::CustomVersion;
use crate::rest::custom_object;
use crate::storage::Revision;
use crate::watch_cache::Stored;

/// An object in the version in which it is sent.
pub(super) enum ServedObject<'o> {
    /// A stored object.
    Stored(StoredDocument<'o>),
    /// Another one.
    Value(Cow<'o, Value>),
}

/// A stored object with the resourceVersion that it is sent with.
#[derive(Clone, Copy)]
pub(super) struct StoredDocument<'o> {
    pub(super) stored: &'o Stored,
    pub(super) revision: Revision,
    /// Replaces the `apiVersion` at the beginning of the object.
    pub(super) api_version: Option<&'o str>,
}

impl<'o> StoredDocument<'o> {
    /// A custom object in a version of its definition, as it is but for `apiVersion`. None if it does not begin with that.
    fn in_version(stored: &'o Stored, revision: Revision, version: &'o CustomVersion) -> Option<StoredDocument<'o>> {
        let found = stored.leading_api_version()?;
        let api_version = Some(&*version.api_version).filter(|wanted| *wanted != found);
        Some(StoredDocument { stored, revision, api_version })
    }

    /// Appends the object as JSON without the newline at its end.
    fn write_json(&self, out: &mut Vec<u8>) {
        let [mut before, version, after] = self.stored.versioned_as(self.revision);
        if let (Some(api_version), Some(found)) = (self.api_version, self.stored.leading_api_version()) {
            out.extend_from_slice(b"{\"apiVersion\":\"");
            out.extend_from_slice(api_version.as_bytes());
            // The rest begins after the old version.
            let found_at = found.as_ptr().addr() - self.stored.bytes().as_ptr().addr();
            before = before.slice(found_at + found.len()..);
        }
        write_parts(out, &[before, version, after]);
    }
}

impl<'o> ServedObject<'o> {
    /// A stored custom object in the version of a kind. It is parsed only if the schemas may have changed since it was
    /// stored, and that is found out once for each version of a definition.
    pub(super) fn of_custom(
        kind: &'o ServedKind,
        version: &'o CustomVersion,
        stored: &'o Stored,
        revision: Revision,
    ) -> ServedObject<'o> {
        let unchanged = StoredDocument::in_version(stored, revision, version);
        let result = stored.schema_checks().result(version.id());
        if let (Some(true), Some(unchanged)) = (result, unchanged) {
            return ServedObject::Stored(unchanged);
        }
        let mut value: Value = serde_json::from_slice(&stored.versioned_as(revision).concat()).unwrap_or_default();
        if let Value::Object(object) = &mut value {
            custom_object::convert_from_stored(kind, object);
        }
        if result.is_none() {
            let is_same = |unchanged: StoredDocument<'_>| {
                let mut bytes = Vec::with_capacity(stored.bytes().len() + 64);
                unchanged.write_json(&mut bytes);
                bytes == write_json(&value).as_bytes()
            };
            stored.schema_checks().record(version.id(), unchanged.is_some_and(is_same));
        }
        ServedObject::Value(Cow::Owned(value))
    }

    /// Appends the object as JSON.
    pub(super) fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            ServedObject::Stored(document) => document.write_json(out),
            ServedObject::Value(value) => out.extend_from_slice(write_json(value).as_bytes()),
        }
    }

    /// Appends `metadata` as JSON.
    pub(super) fn write_metadata(&self, out: &mut Vec<u8>) {
        match self {
            ServedObject::Stored(document) => {
                write_parts(out, &document.stored.versioned_metadata_as(document.revision));
            }
            ServedObject::Value(value) => out.extend_from_slice(write_json(&value["metadata"]).as_bytes()),
        }
    }

    /// The object as a value; null if it cannot be read.
    pub(super) fn value(&self) -> Cow<'_, Value> {
        match self {
            ServedObject::Stored(document) => {
                let mut value: Value = serde_json::from_slice(document.stored.bytes()).unwrap_or_default();
                if let (Some(api_version), Value::Object(object)) = (document.api_version, &mut value) {
                    object.insert("apiVersion".to_owned(), json!(api_version));
                }
                Cow::Owned(value)
            }
            ServedObject::Value(value) => Cow::Borrowed(value),
        }
    }
}

/// Appends the parts of a stored object without the newline at its end.
fn write_parts(out: &mut Vec<u8>, parts: &[Bytes; 3]) {
    let [before, version, after] = parts;
    out.extend_from_slice(before);
    out.extend_from_slice(version);
    out.extend_from_slice(after.trim_ascii_end());
}
