//! Expiry: records with a time to live, by the time at which they are deleted.

use std::collections::BTreeSet;

use super::super::{Key, RecordChange, UnixMillis};

/// Maximum number of records that one transaction deletes.
pub(super) const RECORDS_PER_COMMIT: usize = 500;

/// The records that expire.
#[derive(Default)]
pub(super) struct ExpiryQueue(BTreeSet<(UnixMillis, Key)>);

impl ExpiryQueue {
    /// Updates the queue for a change: when its record expires.
    pub(super) fn record(&mut self, change: &RecordChange) {
        if let Some(expires) = change.old.as_ref().and_then(|old| old.expires) {
            self.0.remove(&(expires, change.key.clone()));
        }
        if let Some(expires) = change.new.as_ref().and_then(|new| new.expires) {
            self.0.insert((expires, change.key.clone()));
        }
    }

    /// Adds the records of a store that is opened.
    pub(super) fn insert(&mut self, expires: UnixMillis, key: Key) {
        self.0.insert((expires, key));
    }

    /// When the next record expires.
    pub(super) fn next(&self) -> Option<UnixMillis> {
        self.0.first().map(|(expires, _)| *expires)
    }

    /// Records that have expired, the oldest first; at most [`RECORDS_PER_COMMIT`].
    pub(super) fn due(&self, now: UnixMillis) -> Vec<Key> {
        let due = self.0.iter().take_while(|(expires, _)| *expires <= now);
        due.take(RECORDS_PER_COMMIT).map(|(_, key)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::super::KeyValue;
    use super::*;

    #[test]
    fn expiry_follows_the_last_time_to_live() {
        let key = Key::parse("/r/events/a").unwrap();
        let record = |revision, expires| {
            let key = key.clone();
            Some(Arc::new(KeyValue { key, value: Default::default(), created: 2, revision, expires }))
        };
        let change = |revision, old, new| RecordChange { revision, key: key.clone(), old, new };
        let mut queue = ExpiryQueue::default();
        queue.record(&change(2, None, record(2, Some(100))));
        assert_eq!((queue.next(), queue.due(99), queue.due(100)), (Some(100), vec![], vec![key.clone()]));
        queue.record(&change(3, record(2, Some(100)), record(3, Some(200))));
        assert_eq!((queue.next(), queue.due(100)), (Some(200), vec![]));
        queue.record(&change(4, record(3, Some(200)), record(4, None)));
        assert_eq!((queue.next(), queue.due(999)), (None, vec![]));
    }
}
