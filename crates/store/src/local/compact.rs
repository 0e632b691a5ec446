//! Compaction: which part of the history is discarded, and when.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::record::Row;
use super::super::{Revision, UnixMillis};
use super::index::RowKey;

/// Maximum number of rows that one transaction deletes.
pub(super) const ROWS_PER_COMMIT: usize = 500;

/// Time between two marks.
pub(super) const MARK_INTERVAL: Duration = Duration::from_secs(10);

/// The superseded rows, and how old they are.
///
/// Compaction to a revision R keeps, as etcd's, of each key the last row up to R unless it is a delete. So the state at
/// every revision from R on, and the old value of every change after R, can still be read.
pub(super) struct Compaction {
    compacted: Revision,
    /// Rows that no revision from `.0` on needs: (revision that superseded the row, row), ordered by the former.
    superseded: VecDeque<(Revision, RowKey)>,
    /// The current revision at points in time: (revision, time), ordered by both.
    marks: VecDeque<(UnixMillis, Revision)>,
}

impl Compaction {
    /// A compaction to `compacted`, after which nothing is superseded yet.
    pub(super) fn new(compacted: Revision) -> Compaction {
        Compaction { compacted, superseded: VecDeque::new(), marks: VecDeque::new() }
    }

    /// Revision up to which the history was discarded.
    pub(super) fn compacted(&self) -> Revision {
        self.compacted
    }

    /// Records a new row, in the order of revisions.
    pub(super) fn record(&mut self, row: &Row) {
        let row_of = |revision| RowKey { key: row.key.clone(), revision };
        if row.previous > 0 {
            self.superseded.push_back((row.revision, row_of(row.previous)));
        }
        if row.value.is_none() {
            self.superseded.push_back((row.revision, row_of(row.revision)));
        }
    }

    /// Notes the current revision, and returns the revision up to which the history may go: older than `retention`, and
    /// not among the newest `retained` changes.
    pub(super) fn observe(
        &mut self,
        now: UnixMillis,
        current: Revision,
        retention: Duration,
        retained: u64,
    ) -> Option<Revision> {
        // A clock that was set back: marks of the future would never become old.
        while self.marks.back().is_some_and(|(time, _)| *time > now) {
            self.marks.pop_back();
        }
        self.marks.push_back((now, current));
        let before = now.saturating_sub(u64::try_from(retention.as_millis()).unwrap_or(u64::MAX));
        while self.marks.get(1).is_some_and(|(time, _)| *time <= before) {
            self.marks.pop_front();
        }
        let (_, revision) = self.marks.front().filter(|(time, _)| *time <= before)?;
        let target = (*revision).min(current.saturating_sub(retained));
        // One that was begun goes on, even when there is no newer target.
        let begun = self.superseded.front().is_some_and(|(at, _)| *at <= self.compacted);
        (target > self.compacted || begun).then_some(target.max(self.compacted))
    }

    /// The next rows that compaction to `target` deletes; at most [`ROWS_PER_COMMIT`].
    pub(super) fn next_rows(&self, target: Revision) -> Vec<RowKey> {
        let superseded = self.superseded.iter().take_while(|(at, _)| *at <= target);
        superseded.take(ROWS_PER_COMMIT).map(|(_, row)| row.clone()).collect()
    }

    /// Records that `rows` rows are deleted and `target` is saved. Returns whether there may be more.
    pub(super) fn commit(&mut self, target: Revision, rows: usize) -> bool {
        self.compacted = target;
        self.superseded.drain(..rows.min(self.superseded.len()));
        rows == ROWS_PER_COMMIT
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Key;
    use super::*;

    fn row(revision: Revision, previous: Revision, is_deleted: bool) -> Row {
        let value = (!is_deleted).then(Default::default);
        Row { revision, key: Key::parse("/r/a").unwrap(), created: 2, previous, value, expires: None }
    }

    const RETENTION: Duration = Duration::from_millis(300);

    #[test]
    fn compaction_keeps_young_and_newest_changes() {
        let mut compaction = Compaction::new(1);
        assert_eq!(compaction.observe(1_000, 50, RETENTION, 10), None, "nothing is old enough");
        assert_eq!(compaction.observe(1_299, 60, RETENTION, 10), None);
        assert_eq!(compaction.observe(1_300, 60, RETENTION, 10), Some(50));
        assert_eq!(compaction.observe(1_301, 60, RETENTION, 20), Some(40), "the newest twenty stay");
        assert_eq!(compaction.observe(1_302, 60, RETENTION, 100), None);
        assert_eq!(compaction.observe(1_600, 60, RETENTION, 0), Some(60));
    }

    #[test]
    fn compaction_survives_clock_set_back() {
        let mut compaction = Compaction::new(1);
        assert_eq!(compaction.observe(9_000, 50, RETENTION, 0), None);
        assert_eq!(compaction.observe(1_000, 60, RETENTION, 0), None);
        assert_eq!(compaction.observe(1_300, 70, RETENTION, 0), Some(60));
    }

    #[test]
    fn compaction_deletes_superseded_rows_and_tombstones() {
        let mut compaction = Compaction::new(1);
        for (revision, previous, is_deleted) in [(2, 0, false), (3, 2, false), (4, 3, true), (5, 0, false)] {
            compaction.record(&row(revision, previous, is_deleted));
        }
        let next = |compaction: &Compaction, target| -> Vec<Revision> {
            compaction.next_rows(target).iter().map(|row| row.revision).collect()
        };
        assert!(compaction.next_rows(2).is_empty());
        assert_eq!(next(&compaction, 3), [2]);
        assert_eq!(next(&compaction, 9), [2, 3, 4]);
        assert!(!compaction.commit(3, 1));
        assert_eq!((compaction.compacted(), next(&compaction, 9)), (3, vec![3, 4]));
    }

    #[test]
    fn compaction_deletes_in_bounded_transactions() {
        let mut compaction = Compaction::new(1);
        (3..3_000).for_each(|revision| compaction.record(&row(revision, revision - 1, false)));
        let rows = compaction.next_rows(2_000);
        assert_eq!(rows.len(), ROWS_PER_COMMIT);
        assert!(compaction.commit(2_000, rows.len()));
        assert_eq!(compaction.next_rows(2_000).first().map(|row| row.revision), Some(502));
    }
}
