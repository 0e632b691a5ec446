//! The recent changes of a resource: a ring from which watches are served and older lists are made.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::stored::{Stored, Views};
use crate::{Key, Revision, UnixMillis};

/// A change of one object, with the object before and after.
pub struct StoredChange {
    revision: Revision,
    time: UnixMillis,
    key: Key,
    old: Option<Arc<Stored>>,
    new: Option<Arc<Stored>>,
    /// Memory of the object before, in bytes.
    old_bytes: usize,
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
        let old_bytes = old.as_ref().map_or(0, |old| old.memory_bytes());
        StoredChange { revision, time, key, old, new, old_bytes, views: Views::default() }
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
    /// Memory of the objects that are no longer current, in bytes, of all resources together. A resource takes no more
    /// than is left: half of it if it is the only one with changes, a third if there are two.
    pub max_bytes: usize,
}

/// Part of the memory that a resource may take however much the others take.
const MIN_SHARE: usize = 1024;

impl Default for HistoryLimits {
    fn default() -> Self {
        HistoryLimits { age: Duration::from_secs(300), min_changes: 100, max_changes: 102_400, max_bytes: 256 << 20 }
    }
}

/// The changes after a revision, without a gap.
pub(super) struct ChangeRing {
    changes: VecDeque<Arc<StoredChange>>,
    /// Revision after which all changes are in the ring.
    floor: Revision,
    /// Memory of the old objects, in bytes.
    bytes: usize,
    /// The same of all rings.
    total: Arc<AtomicUsize>,
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
    /// A ring without changes. `total`: memory of the old objects of all rings.
    pub(super) fn new(floor: Revision, limits: HistoryLimits, total: Arc<AtomicUsize>) -> ChangeRing {
        ChangeRing { changes: VecDeque::new(), floor, bytes: 0, total, limits }
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
        self.bytes += change.old_bytes;
        self.total.fetch_add(change.old_bytes, Ordering::Relaxed);
        // Lists of the past are rare.
        if let Some(old) = &change.old {
            old.views().clear();
        }
        self.changes.push_back(change);
        self.trim(now);
    }

    /// Drops the oldest changes until the limits hold.
    pub(super) fn trim(&mut self, now: UnixMillis) {
        let HistoryLimits { age, min_changes, max_changes, max_bytes } = self.limits;
        let min_share = max_bytes / MIN_SHARE;
        let oldest = now.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        while let Some(first) = self.changes.front() {
            let is_old = first.time < oldest && self.changes.len() > min_changes;
            let share = max_bytes.saturating_sub(self.total.load(Ordering::Relaxed)).max(min_share);
            if !is_old && self.changes.len() <= max_changes && self.bytes <= share {
                break;
            }
            self.floor = first.revision;
            self.bytes -= first.old_bytes;
            self.total.fetch_sub(first.old_bytes, Ordering::Relaxed);
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

impl Drop for ChangeRing {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeyValue, Prefix};

    /// A change whose old object takes so much memory.
    fn change(revision: Revision, time: UnixMillis, old_bytes: usize) -> Arc<StoredChange> {
        let prefix = Prefix::parse("/r/a/").unwrap();
        let key = prefix.key("", "x").unwrap();
        let value = vec![b'x'; old_bytes.saturating_sub(size_of::<Stored>())].into();
        let record = KeyValue { key: key.clone(), value, created: 2, revision: 2, expires: None };
        let old = Some(Arc::new(Stored::new(Arc::new(record), &prefix, &[])));
        Arc::new(StoredChange::new(revision, time, key, old, None))
    }

    fn ring(limits: HistoryLimits, changes: impl IntoIterator<Item = (Revision, UnixMillis)>) -> ChangeRing {
        let mut ring = ChangeRing::new(1, limits, Arc::default());
        changes.into_iter().for_each(|(revision, time)| ring.push(change(revision, time, 0)));
        ring
    }

    const LIMITS: HistoryLimits =
        HistoryLimits { age: Duration::from_millis(100), min_changes: 2, max_changes: 5, max_bytes: 1 << 20 };

    #[test]
    fn change_ring_keeps_age_and_count() {
        let floor = |changes: &[(Revision, UnixMillis)]| ring(LIMITS, changes.iter().copied()).floor();
        assert_eq!(floor(&[(2, 0), (3, 100), (4, 100)]), 1, "young enough");
        assert_eq!(floor(&[(2, 0), (3, 50), (4, 101)]), 2, "older than the age");
        assert_eq!(floor(&[(2, 0), (3, 999)]), 1, "two are kept whatever their age");
        assert_eq!(floor(&[2, 3, 4, 5, 6, 7, 8].map(|revision| (revision, 0))), 3, "five at most");
    }

    #[test]
    fn change_rings_share_their_memory() {
        let limits = HistoryLimits { max_changes: 100, max_bytes: 9_000, ..LIMITS };
        let total = Arc::new(AtomicUsize::new(0));
        let [mut busy, mut other] = [(); 2].map(|()| ChangeRing::new(1, limits, total.clone()));
        let push = |ring: &mut ChangeRing| (2..12).for_each(|revision| ring.push(change(revision, 0, 1_000)));
        push(&mut busy);
        assert_eq!((busy.len(), busy.floor()), (4, 7), "as much as is left");
        push(&mut other);
        busy.trim(0);
        assert_eq!((busy.len(), other.len(), total.load(Ordering::Relaxed)), (3, 2, 5_000), "of what is left again");
        busy.push(change(12, 0, 10_000));
        assert_eq!((busy.len(), busy.floor()), (0, 12), "one that is too large itself");
        drop(other);
        assert_eq!(total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn change_ring_counts_metadata_and_drops_encodings() {
        let prefix = Prefix::parse("/r/a/").unwrap();
        let stored = |value: String| {
            let key = prefix.key("", "x").unwrap();
            let record = KeyValue { key, value: value.into(), created: 2, revision: 2, expires: None };
            Arc::new(Stored::new(Arc::new(record), &prefix, &[]))
        };
        let finalizers = r#""a/b","#.repeat(1_000);
        let large = stored(format!(r#"{{"metadata":{{"finalizers":[{}]}}}}"#, finalizers.trim_end_matches(',')));
        let text_size = size_of::<Box<str>>() + "a/b".len();
        assert_eq!(large.memory_bytes(), size_of::<Stored>() + large.bytes().len() + 1_000 * text_size);
        let encode = |text: &'static str| large.views().get_or_encode(1, || text.into());
        assert_eq!(encode("before"), "before");
        let key = large.key().clone();
        ring(LIMITS, []).push(Arc::new(StoredChange::new(3, 0, key, Some(large.clone()), None)));
        assert_eq!(encode("after"), "after");
    }

    #[test]
    fn change_ring_scan_finds_first_wanted_or_says_why_not() {
        let ring = ring(HistoryLimits { max_changes: 4, ..LIMITS }, [2, 4, 6, 8, 10, 12].map(|r| (r, 0)));
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
        let ring = ring(HistoryLimits { max_changes: 4, ..LIMITS }, [2, 4, 6, 8, 10].map(|r| (r, 0)));
        let newest = |floor, last, count| {
            ring.newest(floor, last, count).map(|all| all.iter().map(|c| c.revision).collect::<Vec<_>>())
        };
        assert_eq!(newest(1, 10, 9), None);
        assert_eq!(newest(4, 10, 2), Some(vec![10, 8]));
        assert_eq!(newest(4, 7, 2), Some(vec![6]));
        assert_eq!(newest(10, 10, 2), Some(vec![]));
    }
}
