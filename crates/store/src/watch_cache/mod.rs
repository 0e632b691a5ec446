//! The watch cache: the objects of each resource in memory, their recent history, and watches as positions in it.
//!
//! It answers every read of the API server (like `k8s.io/apiserver/pkg/storage/cacher`). A collection is fed by the
//! store; readers take its snapshot without waiting.

mod change_log;
mod collection;
mod collections;
mod cursor;
mod declared_field;
mod freshness;
mod list;
mod notify;
mod request_recorder;
mod rollback;
mod schema_checks;
mod select;
mod snapshot;
mod stored;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

pub use change_log::{HistoryLimits, StoredChange};
pub use collection::{CollectionSettings, ResourceCollection, ValueUpgrade};
pub use collections::Collections;
pub use cursor::{WatchCursor, WatchEvent, WatchQuery, WatchStart};
pub use declared_field::DeclaredField;
pub use list::{ContinuePosition, ListQuery, ListRevision, StoredList};
pub use notify::Notifier;
pub use request_recorder::{RequestRecorder, StoreOperation};
pub use schema_checks::SchemaChecks;
pub use select::{Selection, WatchEventKind};
pub use snapshot::Snapshot;
pub use stored::{ObjectMetadata, OwnerReference, SortedPairs, Stored, Views};

use crate::{CommitCondition, KeyError, Revision};

/// Error of a read or write, which the REST layer answers as a `Status`.
#[derive(Clone, Debug)]
pub enum Error {
    /// A watch begins before the history, or fell behind it. 410 `Expired`.
    Expired {
        /// Revision of the watch.
        requested: Revision,
        /// Oldest revision that a watch can begin after.
        oldest: Revision,
    },
    /// The revision of a list is older than the history. 410 `Expired`.
    ListExpired,
    /// A list without pages has too many objects that only the history has. 410 `Expired`.
    ListTooLarge,
    /// The revision of a continue token is older than the history. 410 `Expired`; `metadata.continue` is a token for
    /// `next`, which goes on at the latest revision.
    ContinueExpired {
        /// Where an inconsistent list goes on.
        next: ContinuePosition,
    },
    /// The requested revision was not reached in time. 504 with cause `ResourceVersionTooLarge`, retry after 1 s.
    TooLargeResourceVersion {
        /// Revision asked for.
        requested: Revision,
        /// Revision of the collection.
        current: Revision,
    },
    /// The start of a continue token is not below the list. 400.
    InvalidContinue,
    /// The object has another revision, exists already, or does not exist: what is there now.
    Conflict {
        /// The current object.
        current: Option<Arc<Stored>>,
    },
    /// A condition on other keys is not met: a namespace changed or has objects, for example.
    ConditionFailed(CommitCondition),
    /// A field selector names a field that the resource does not declare. 400 `field label not supported: …`.
    UnsupportedField(String),
    /// Namespace or name cannot be part of a key. 400 or 404.
    InvalidKey(KeyError),
    /// The store refused: [`crate::Error::TooLarge`] is 413, the others are 503.
    Store(crate::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Expired { requested, oldest } => write!(f, "too old resource version: {requested} ({oldest})"),
            Error::ListExpired => f.write_str("The resourceVersion for the provided list is too old."),
            Error::ListTooLarge => f.write_str(
                "The list at the provided resourceVersion is too large for one response: use limit, or list without a \
                 resourceVersion.",
            ),
            Error::ContinueExpired { .. } => {
                f.write_str("The provided continue parameter is too old to display a consistent list result.")
            }
            Error::TooLargeResourceVersion { requested, current } => {
                write!(f, "Too large resource version: {requested}, current: {current}")
            }
            Error::InvalidContinue => f.write_str("continue key is not valid"),
            Error::Conflict { current: Some(current) } => write!(f, "object has revision {}", current.revision()),
            Error::Conflict { current: None } => f.write_str("object does not exist"),
            Error::ConditionFailed(CommitCondition::At(key, revision)) => {
                write!(f, "{key} has no longer revision {revision}")
            }
            Error::ConditionFailed(CommitCondition::Absent(key)) => write!(f, "{key} exists"),
            Error::ConditionFailed(CommitCondition::Empty(prefix)) => write!(f, "there are objects below {prefix}"),
            Error::UnsupportedField(field) => write!(f, "field label not supported: {field}"),
            Error::InvalidKey(error) => error.fmt(f),
            Error::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Error::Store(error)
    }
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Error::InvalidKey(error)
    }
}
