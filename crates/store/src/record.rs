//! Records, changes of records, and the checksum that a stored row has.

use std::sync::Arc;

use bytes::Bytes;

use super::{Key, Revision};

/// Milliseconds since 1970-01-01 UTC.
pub type UnixMillis = u64;

/// A key with its value at one revision (etcd's `mvccpb.KeyValue`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Key,
    /// The value; shared, never copied.
    pub value: Bytes,
    /// Revision of the change that made the key.
    pub created: Revision,
    /// Revision of the last change of the key.
    pub revision: Revision,
    /// Time at which the store deletes the key.
    pub expires: Option<UnixMillis>,
}

/// A change of one key: create, update or delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange {
    /// Revision of the change.
    pub revision: Revision,
    /// The key.
    pub key: Key,
    /// The record before; none for a create.
    pub old: Option<Arc<KeyValue>>,
    /// The record after; none for a delete.
    pub new: Option<Arc<KeyValue>>,
}

impl RecordChange {
    /// The change that `value` makes at `revision`; a missing value is a delete.
    pub(super) fn new(
        key: &Key,
        revision: Revision,
        old: Option<Arc<KeyValue>>,
        value: Option<(Bytes, Option<UnixMillis>)>,
    ) -> RecordChange {
        let created = old.as_ref().map_or(revision, |old| old.created);
        let new =
            value.map(|(value, expires)| Arc::new(KeyValue { key: key.clone(), value, created, revision, expires }));
        RecordChange { revision, key: key.clone(), old, new }
    }
}

/// A row of a store's file: what one change made of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) revision: Revision,
    pub(super) key: Key,
    pub(super) created: Revision,
    /// Revision of the previous row of the key; 0 if the change creates the key.
    pub(super) previous: Revision,
    /// The value; none for a delete.
    pub(super) value: Option<Bytes>,
    pub(super) expires: Option<UnixMillis>,
}

impl Row {
    pub(super) fn from_change(change: &RecordChange) -> Row {
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        Row {
            revision: change.revision,
            key: change.key.clone(),
            created: new.or(old).map_or(change.revision, |record| record.created),
            previous: old.map_or(0, |old| old.revision),
            value: new.map(|new| new.value.clone()),
            expires: new.and_then(|new| new.expires),
        }
    }

    /// The record that the row holds; none for a delete.
    pub(super) fn record(&self) -> Option<Arc<KeyValue>> {
        let Row { key, value, created, revision, expires, .. } = self;
        let value = value.clone()?;
        Some(Arc::new(KeyValue { key: key.clone(), value, created: *created, revision: *revision, expires: *expires }))
    }

    /// CRC-32 of all that the row holds, each text after its length.
    pub(super) fn checksum(&self) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        for number in [self.revision, self.created, self.previous, self.expires.unwrap_or(0)] {
            crc.update(&number.to_le_bytes());
        }
        crc.update(&(self.key.as_str().len() as u64).to_le_bytes());
        crc.update(self.key.as_str().as_bytes());
        crc.update(&[u8::from(self.value.is_none())]);
        crc.update(self.value.as_deref().unwrap_or_default());
        crc.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_checksum_depends_on_every_field() {
        let row = Row {
            revision: 7,
            key: Key::parse("/r/a").unwrap(),
            created: 3,
            previous: 5,
            value: Some(Bytes::from_static(b"x")),
            expires: None,
        };
        let others = [
            Row { revision: 8, ..row.clone() },
            Row { key: Key::parse("/r/b").unwrap(), ..row.clone() },
            Row { created: 4, ..row.clone() },
            Row { previous: 6, ..row.clone() },
            Row { value: Some(Bytes::from_static(b"y")), ..row.clone() },
            Row { value: None, ..row.clone() },
            Row { value: Some(Bytes::new()), ..row.clone() },
            Row { expires: Some(1), ..row.clone() },
            Row { key: Key::parse("/r/ax").unwrap(), value: Some(Bytes::new()), ..row.clone() },
            row,
        ];
        let distinct: std::collections::HashSet<_> = others.iter().map(Row::checksum).collect();
        assert_eq!(distinct.len(), others.len());
    }
}
