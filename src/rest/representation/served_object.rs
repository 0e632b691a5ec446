//! An object in the version in which it is sent: bytes of the store if they are that, else a value.

use std::borrow::Cow;

use bytes::Bytes;
use kubeapi::json::{json_size, write_json};
use serde_json::{Value, json};
use store::Revision;
use store::watch_cache::Stored;

use crate::kinds::custom_resource;
use crate::resources::ServedKind;
use crate::resources::custom::CustomVersion;

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
    /// A custom object in a version of its CRD, as it is but for `apiVersion`. None if it does not begin with that.
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
    /// stored, and that is found out once for each version of a CRD.
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
            if result == Some(true) {
                // It does not begin with the version.
                object.insert("apiVersion".to_owned(), json!(version.api_version));
            } else if let Err(error) = custom_resource::convert_from_stored(kind, object) {
                // In a list, which goes on; a single object is refused before.
                tracing::error!(object = %stored.key(), "object sent without some defaults: {error}");
            }
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

    /// Bytes of JSON that a stored object has by its schemas; 0 if it is sent as it is stored.
    pub(super) fn converted_size(&self) -> usize {
        match self {
            ServedObject::Value(Cow::Owned(value)) => json_size(value),
            _ => 0,
        }
    }

    /// Appends the object as JSON.
    pub(super) fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            ServedObject::Stored(document) => document.write_json(out),
            ServedObject::Value(value) => out.extend_from_slice(write_json(value).as_bytes()),
        }
    }

    /// Appends the object as an item of a list of a built-in kind: without `apiVersion` and `kind`, as a kube-apiserver,
    /// whose lists say the kind of their items themselves.
    pub(super) fn write_untyped_json(&self, out: &mut Vec<u8>) {
        let parts = match self {
            ServedObject::Stored(StoredDocument { stored, revision, api_version: None })
                if *revision == stored.revision() =>
            {
                stored.versioned_without_type()
            }
            _ => None,
        };
        if let Some([first, second, third, version, after]) = parts {
            out.extend_from_slice(&first);
            out.extend_from_slice(&second);
            return write_parts(out, &[third, version, after]);
        }
        let mut json = Vec::new();
        self.write_json(&mut json);
        let mut value: Value = serde_json::from_slice(&json).unwrap_or_default();
        if let Value::Object(object) = &mut value {
            object.remove("apiVersion");
            object.remove("kind");
        }
        out.extend_from_slice(write_json(&value).as_bytes());
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
