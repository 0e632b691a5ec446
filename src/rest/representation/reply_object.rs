//! An object to send: stored, or not.

use std::borrow::Cow;
use std::sync::Arc;

use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value};
use store::Revision;
use store::watch_cache::Stored;

use super::served_object::{ServedObject, StoredDocument};
use crate::compute::value_size;
use crate::conversion::schema_work;
use crate::kinds::custom_resource;
use crate::resources::ServedKind;
use crate::resources::builtin::stored_version::{convert_from_stored, is_stored_as_other};

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
    /// 500 for a stored value that is no object of the API, and for one to which the schema adds too much.
    pub(super) fn check_readable(&self, kind: &ServedKind) -> Result<(), Status> {
        let ReplyObject::Stored(stored, _) = self else { return Ok(()) };
        if let Some(defect) = stored.defect() {
            return Err(Status::internal_error(format_args!("{} cannot be read: {defect}", stored.key())));
        }
        if schema_work::is_sent_as_stored(kind, stored) {
            return Ok(());
        }
        let mut object: Map<String, Value> = serde_json::from_slice(stored.bytes()).unwrap_or_default();
        custom_resource::convert_from_stored(kind, &mut object)
            .map_err(|error| schema_work::defaults_status(stored, error))
    }

    /// How much work it is to encode the object in the version of a kind, in bytes. Of one that is not stored it is not known
    /// beyond the size of what is processed on the worker thread.
    pub(super) fn work(&self, kind: &ServedKind) -> usize {
        match self {
            ReplyObject::Stored(stored, _) => schema_work::stored_work(kind, stored),
            ReplyObject::Unstored(value) => value_size(value),
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

    /// The object in the version of a kind.
    pub(super) fn in_version_of<'o>(&'o self, kind: &'o ServedKind) -> ServedObject<'o> {
        match (self, kind.version.custom()) {
            (ReplyObject::Stored(stored, revision), Some(version)) => {
                ServedObject::of_custom(kind, version, stored, *revision)
            }
            (ReplyObject::Stored(stored, revision), None) if !is_stored_as_other(kind) => {
                ServedObject::Stored(StoredDocument { stored, revision: *revision, api_version: None })
            }
            (ReplyObject::Stored(stored, revision), None) => {
                let value = serde_json::from_slice(&stored.versioned_as(*revision).concat()).unwrap_or_default();
                converted(kind, value)
            }
            (ReplyObject::Unstored(value), version) => {
                let is_in_version = match version {
                    Some(version) => value["apiVersion"] == *version.api_version,
                    None => !is_stored_as_other(kind),
                };
                match is_in_version {
                    true => ServedObject::Value(Cow::Borrowed(value)),
                    false => converted(kind, value.clone()),
                }
            }
        }
    }
}

/// An object in the stored version as one of the kind.
fn converted(kind: &ServedKind, mut value: Value) -> ServedObject<'static> {
    if let Value::Object(object) = &mut value {
        convert_from_stored(kind, object);
        // It was in a request body or in the store, with all its defaults.
        let _ = custom_resource::convert_from_stored(kind, object);
    }
    ServedObject::Value(Cow::Owned(value))
}
