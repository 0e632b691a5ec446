//! The recent changes of a resource: a ring from which watches are served and older lists are made.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::stored::{Stored, Views};
use crate::storage::{Key, Revision, UnixMillis};

/// A change of one object, with the object before and after.
pub struct StoredChange {
    revision: Revision,
    time: UnixMillis,
    key: Key,
    old: Option<Arc<Stored>>,
    new: Option<Arc<Stored>>,
    views: Views,
}

impl StoredChange {
    pub(super) fn new(
        revision: Revision,
        time: UnixMillis,
        key: Key,
        old: Option<Arc<Stored>>,
        new: Option<Arc<Stored>>,
    ) -> StoredChange {
        StoredChange { revision, time, key, old, new, views: Views::default() }
    }

    /// Revision of the change.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Key of the object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The object before; none for a create.
    pub fn old(&self) -> Option<&Arc<Stored>> {
        self.old.as_ref()
    }

    /// The object after; none for a delete.
    pub fn new_object(&self) -> Option<&Arc<Stored>> {
        self.new.as_ref()
    }

    /// Encodings of the event, shared by all watches.
    pub fn views(&self) -> &Views {
        &self.views
    }
}

impl fmt::Debug for StoredChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoredChange { revision, key, .. } = self;
        f.debug_struct("StoredChange").field("revision", revision).field("key", key).finish_non_exhaustive()
    }
}

/// Bounds of the history of one resource. Kubernetes keeps 100 to 102,400 events for at least 75 s
/// (`cacher/watch_cache.go`): the period of bookmarks and a quarter.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Changes older than this are dropped.
    pub age: Duration,
    /// Minimum number of changes that are kept, whatever their age.
    pub min_changes: usize,
    /// Maximum number of changes.
    pub max_changes: usize,
    /// Maximum number of bytes of values that are no longer current.
    pub max_bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        HistoryLimits { age: Duration::from_secs(300), min_changes: 100, max_changes: 102_400, max_bytes: 64 << 20 }
    }
}

/// The changes after a revision, without a gap.
pub(super) struct ChangeRing {
    changes: VecDeque<Arc<StoredChange>>,
    /// Revision after which all changes are in the ring.
    floor: Revision,
    /// Number of bytes of the old values.
    bytes: usize,
    limits: HistoryLimits,
}

/// Result of a scan of the ring.
pub(super) enum Scan<T> {
    /// The first change that was wanted.
    Found(T),
    /// No change up to this revision was wanted; there may be more.
    Partial(Revision),
    /// No change was wanted.
    Exhausted,
    /// The position is before the ring, which begins after this revision.
    Behind(Revision),
}

impl ChangeRing {
    pub(super) fn new(floor: Revision, limits: HistoryLimits) -> ChangeRing {
        ChangeRing { changes: VecDeque::new(), floor, bytes: 0, limits }
    }

    /// Revision after which the ring is complete.
    pub(super) fn floor(&self) -> Revision {
        self.floor
    }

    /// How many changes there are.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Adds a change that is newer than all others.
    pub(super) fn push(&mut self, change: Arc<StoredChange>) {
        let now = change.time;
        self.bytes += old_bytes(&change);
        self.changes.push_back(change);
        self.trim(now);
    }

    /// Drops the oldest changes until the limits hold.
    pub(super) fn trim(&mut self, now: UnixMillis) {
        let HistoryLimits { age, min_changes, max_changes, max_bytes } = self.limits;
        let oldest = now.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        while let Some(first) = self.changes.front() {
            let is_old = first.time < oldest && self.changes.len() > min_changes;
            if !is_old && self.changes.len() <= max_changes && self.bytes <= max_bytes {
                break;
            }
            self.floor = first.revision;
            self.bytes -= old_bytes(first);
            self.changes.pop_front();
        }
    }

    fn index_after(&self, revision: Revision) -> usize {
        self.changes.partition_point(|change| change.revision <= revision)
    }

    /// The first change after `position` of which `select` returns something, among the next `budget` ones.
    pub(super) fn scan<T>(
        &self,
        position: Revision,
        budget: usize,
        mut select: impl FnMut(&Arc<StoredChange>) -> Option<T>,
    ) -> Scan<T> {
        if position < self.floor {
            return Scan::Behind(self.floor);
        }
        let index = self.index_after(position);
        for change in self.changes.range(index..).take(budget) {
            if let Some(found) = select(change) {
                return Scan::Found(found);
            }
        }
        match self.changes.get(index + budget) {
            Some(next) => Scan::Partial(next.revision - 1),
            None => Scan::Exhausted,
        }
    }

    /// The change of a revision.
    pub(super) fn find(&self, revision: Revision) -> Option<&Arc<StoredChange>> {
        let change = self.changes.get(self.index_after(revision.checked_sub(1)?))?;
        (change.revision == revision).then_some(change)
    }

    /// Up to `count` changes after `floor` and up to `last`, the newest first; none if the ring begins later.
    pub(super) fn newest(&self, floor: Revision, last: Revision, count: usize) -> Option<Vec<Arc<StoredChange>>> {
        if floor < self.floor {
            return None;
        }
        let (start, end) = (self.index_after(floor), self.index_after(last));
        let start = start.max(end.saturating_sub(count)).min(end);
        Some(self.changes.range(start..end).rev().cloned().collect())
    }
}

fn old_bytes(change: &StoredChange) -> usize {
    change.old.as_ref().map_or(0, |old| old.bytes().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{KeyValue, Prefix};

    fn change(revision: Revision, time: UnixMillis, old: usize) -> Arc<StoredChange> {
        let prefix = Prefix::parse("/r/a/").unwrap();
        let key = prefix.key("", "x").unwrap();
        let value = vec![b'x'; old].into();
        let record = KeyValue { key: key.clone(), value, created: 2, revision: 2, expires: None };
        let old = Some(Arc::new(Stored::new(Arc::new(record), &prefix, &[])));
        Arc::new(StoredChange::new(revision, time, key, old, None))
    }

    fn ring(limits: HistoryLimits, changes: impl IntoIterator<Item = (Revision, UnixMillis, usize)>) -> ChangeRing {
        let mut ring = ChangeRing::new(1, limits);
        changes.into_iter().for_each(|(revision, time, old)| ring.push(change(revision, time, old)));
        ring
    }

    const LIMITS: HistoryLimits =
        HistoryLimits { age: Duration::from_millis(100), min_changes: 2, max_changes: 5, max_bytes: 100 };

    #[test]
    fn change_ring_keeps_age_count_and_bytes() {
        let floor = |changes: &[(Revision, UnixMillis, usize)]| ring(LIMITS, changes.iter().copied()).floor();
        assert_eq!(floor(&[(2, 0, 1), (3, 100, 1), (4, 100, 1)]), 1, "young enough");
        assert_eq!(floor(&[(2, 0, 1), (3, 50, 1), (4, 101, 1)]), 2, "older than the age");
        assert_eq!(floor(&[(2, 0, 1), (3, 999, 1)]), 1, "two are kept whatever their age");
        assert_eq!(floor(&[2, 3, 4, 5, 6, 7, 8].map(|revision| (revision, 0, 1))), 3, "five at most");
        assert_eq!(floor(&[(2, 0, 60), (3, 0, 30), (4, 0, 11)]), 2, "bytes");
        assert_eq!(floor(&[(2, 0, 1), (9, 0, 200)]), 9, "one that is too large itself");
    }

    #[test]
    fn change_ring_scan_finds_first_wanted_or_says_why_not() {
        let ring = ring(HistoryLimits { max_changes: 4, ..LIMITS }, [2, 4, 6, 8, 10, 12].map(|r| (r, 0, 1)));
        let scan = |position, budget, wanted: Revision| match ring
            .scan(position, budget, |c| (c.revision == wanted).then_some(c.revision))
        {
            Scan::Found(revision) => format!("found {revision}"),
            Scan::Partial(revision) => format!("partial {revision}"),
            Scan::Exhausted => "exhausted".to_owned(),
            Scan::Behind(floor) => format!("behind {floor}"),
        };
        assert_eq!(ring.floor(), 4);
        assert_eq!(scan(3, 9, 6), "behind 4");
        assert_eq!(scan(4, 9, 6), "found 6");
        assert_eq!(scan(6, 9, 6), "exhausted");
        assert_eq!(scan(4, 2, 12), "partial 9");
        assert_eq!(scan(9, 2, 12), "found 12");
        assert_eq!(scan(99, 2, 12), "exhausted");
        assert_eq!((ring.find(8).map(|c| c.revision), ring.find(9).is_none()), (Some(8), true));
    }

    #[test]
    fn change_ring_newest_first_in_parts() {
        let ring = ring(HistoryLimits { max_changes: 4, ..LIMITS }, [2, 4, 6, 8, 10].map(|r| (r, 0, 1)));
        let newest = |floor, last, count| {
            ring.newest(floor, last, count).map(|all| all.iter().map(|c| c.revision).collect::<Vec<_>>())
        };
        assert_eq!(newest(1, 10, 9), None);
        assert_eq!(newest(4, 10, 2), Some(vec![10, 8]));
        assert_eq!(newest(4, 7, 2), Some(vec![6]));
        assert_eq!(newest(10, 10, 2), Some(vec![]));
    }
}
