//! An object to send: stored, or not.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::kubeapi::Status;
use crate::kubeapi::json::write_json;
use crate::kubeapi::object_meta::ObjectMetaView;
use crate::resources::ServedKind;
use crate::resources::builtin::event_conversion::{convert_from_stored, is_stored_as_other};
use crate::rest::custom_object;
use crate::storage::Revision;
use crate::watch_cache::Stored;

/// An object to send.
#[derive(Clone, Debug)]
pub(in crate::rest) enum ReplyObject {
    /// A stored object, with the revision that is its resourceVersion.
    Stored(Arc<Stored>, Revision),
    /// An object that is not stored: of a dry run, just removed, or of a bookmark.
    Unstored(Value),
}

impl ReplyObject {
    /// A stored object as it is.
    pub(in crate::rest) fn stored(stored: Arc<Stored>) -> ReplyObject {
        let revision = stored.revision();
        ReplyObject::Stored(stored, revision)
    }

    /// Checks that the object can be sent.
    ///
    /// # Errors
    /// 500 for a stored value that is no object of the API.
    pub(super) fn check_readable(&self) -> Result<(), Status> {
        match self {
            ReplyObject::Stored(stored, _) => match stored.defect() {
                Some(defect) => Err(Status::internal_error(format_args!("{} cannot be read: {defect}", stored.key()))),
                None => Ok(()),
            },
            ReplyObject::Unstored(_) => Ok(()),
        }
    }

    /// How much work it is to parse or encode the object, in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            ReplyObject::Stored(stored, _) => stored.bytes().len(),
            // Was in a request body, which is bounded.
            ReplyObject::Unstored(value) => value.to_string().len(),
        }
    }

    /// `metadata.resourceVersion`; empty if there is none.
    pub(super) fn resource_version(&self) -> String {
        match self {
            ReplyObject::Stored(_, revision) => revision.to_string(),
            ReplyObject::Unstored(value) => match value {
                Value::Object(object) => ObjectMetaView::of_map(object).resource_version().to_owned(),
                _ => String::new(),
            },
        }
    }

    /// The object in the version of a kind, if that is not the stored one.
    pub(super) fn in_version_of(&self, kind: &ServedKind) -> Cow<'_, ReplyObject> {
        let is_as_stored = match (self, kind.version.custom()) {
            (_, None) => !is_stored_as_other(&kind.resource),
            (ReplyObject::Stored(..), Some(_)) => false,
            (ReplyObject::Unstored(value), Some(version)) => value["apiVersion"] == *version.api_version,
        };
        if is_as_stored {
            return Cow::Borrowed(self);
        }
        let mut value = match self {
            ReplyObject::Stored(stored, revision) => {
                serde_json::from_slice(&stored.versioned_as(*revision).concat()).unwrap_or_default()
            }
            ReplyObject::Unstored(value) => value.clone(),
        };
        if let Value::Object(object) = &mut value {
            convert_from_stored(&kind.resource, object);
            custom_object::convert_from_stored(kind, object);
        }
        Cow::Owned(ReplyObject::Unstored(value))
    }

    /// Appends the object as JSON.
    pub(super) fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            ReplyObject::Stored(stored, revision) => write_parts(out, &stored.versioned_as(*revision)),
            ReplyObject::Unstored(value) => out.extend_from_slice(write_json(value).as_bytes()),
        }
    }

    /// Appends `metadata` as JSON.
    pub(super) fn write_metadata(&self, out: &mut Vec<u8>) {
        match self {
            ReplyObject::Stored(stored, revision) => write_parts(out, &stored.versioned_metadata_as(*revision)),
            ReplyObject::Unstored(value) => out.extend_from_slice(write_json(&value["metadata"]).as_bytes()),
        }
    }

    /// The object as a value; null if it cannot be read.
    pub(super) fn value(&self) -> Value {
        match self {
            ReplyObject::Stored(stored, _) => serde_json::from_slice(stored.bytes()).unwrap_or_default(),
            ReplyObject::Unstored(value) => value.clone(),
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
