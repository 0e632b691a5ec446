//! The keys and revisions of the store in memory. A copy takes no time, so that another thread reads one state while the
//! store goes on.

use std::iter;
use std::ops::Bound;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;

use super::super::{Key, KeyValue, Prefix, RecordChange, Revision};

/// The last record of each key that exists, and which rows the file has besides.
#[derive(Clone)]
pub(super) struct RecordIndex {
    records: RedBlackTreeMapSync<Key, Arc<KeyValue>>,
    /// The rows that hold no current record, and whether each is a deletion.
    history: RedBlackTreeMapSync<RowKey, bool>,
}

/// A row of the file, in the order of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub(super) key: Key,
    pub(super) revision: Revision,
}

/// Where the value is that a key had at a revision.
pub(super) enum ValuePlace<'i> {
    /// It is the current one.
    Current(&'i Arc<KeyValue>),
    /// In the row of this revision.
    Row(Revision),
}

/// A change of the history. Its values may be in the file.
pub(super) struct HistoryRow {
    pub(super) revision: Revision,
    pub(super) key: Key,
    /// Revision of the value before; none for a create.
    pub(super) previous: Option<Revision>,
    pub(super) is_deletion: bool,
    /// The record, if it is the current one.
    pub(super) current: Option<Arc<KeyValue>>,
}

impl RecordIndex {
    pub(super) fn new() -> RecordIndex {
        RecordIndex { records: RedBlackTreeMapSync::new_sync(), history: RedBlackTreeMapSync::new_sync() }
    }

    /// The current record of a key.
    pub(super) fn get(&self, key: &Key) -> Option<&Arc<KeyValue>> {
        self.records.get(key)
    }

    /// All current records, by key.
    pub(super) fn records(&self) -> impl Iterator<Item = &Arc<KeyValue>> {
        self.records.values()
    }

    /// The current records below a prefix, by key.
    pub(super) fn records_below<'i>(&'i self, prefix: &'i Prefix) -> impl Iterator<Item = &'i Arc<KeyValue>> {
        let range = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        self.records.range::<str, _>(range).take_while(|(key, _)| prefix.contains(key)).map(|(_, record)| record)
    }

    /// Applies a change that is in the file.
    pub(super) fn apply(&mut self, change: &RecordChange) {
        let old = change.old.as_ref().map(|old| old.revision);
        self.insert(&change.key, change.revision, old, change.new.clone());
    }

    /// Adds a row that follows all others; `record` is what it holds, `old` the revision of the record that it replaces.
    pub(super) fn insert(
        &mut self,
        key: &Key,
        revision: Revision,
        old: Option<Revision>,
        record: Option<Arc<KeyValue>>,
    ) {
        let row = |revision| RowKey { key: key.clone(), revision };
        if let Some(old) = old {
            self.history.insert_mut(row(old), false);
        }
        match record {
            Some(record) => self.records.insert_mut(key.clone(), record),
            None => {
                self.records.remove_mut(key);
                self.history.insert_mut(row(revision), true);
            }
        }
    }

    /// Forgets rows that are no longer in the file.
    pub(super) fn discard(&mut self, rows: &[RowKey]) {
        for row in rows {
            self.history.remove_mut(row);
        }
    }

    /// The keys below a prefix, not less than `from`, that existed at a revision, with the place of their values.
    pub(super) fn values_at<'i>(
        &'i self,
        prefix: &'i Prefix,
        from: Option<&str>,
        revision: Revision,
    ) -> impl Iterator<Item = ValuePlace<'i>> {
        let start = RowKey { key: Key::lower_bound(first_text(prefix, from)), revision: 0 };
        let first = start.key.clone();
        let mut records = self.records.range(first..).take_while(|(key, _)| prefix.contains(key)).peekable();
        let mut rows = self.history.range(start..).take_while(|(row, _)| prefix.contains(&row.key)).peekable();
        iter::from_fn(move || {
            loop {
                let (record, row) = (records.peek().map(|(key, _)| *key), rows.peek().map(|(row, _)| &row.key));
                let key = [record, row].into_iter().flatten().min()?;
                let mut last = None;
                while let Some((row, is_deletion)) = rows.next_if(|(row, _)| row.key == *key) {
                    if row.revision <= revision {
                        last = Some(ValuePlace::Row(row.revision)).filter(|_| !is_deletion);
                    }
                }
                if let Some((_, record)) = records.next_if(|(record, _)| *record == key)
                    && record.revision <= revision
                {
                    last = Some(ValuePlace::Current(record));
                }
                if last.is_some() {
                    return last;
                }
            }
        })
    }

    /// The changes below a prefix after a revision, by revision.
    pub(super) fn changes_after(&self, prefix: &Prefix, after: Revision) -> Vec<HistoryRow> {
        let start = RowKey { key: Key::lower_bound(prefix.as_str()), revision: 0 };
        let mut changes = Vec::new();
        let mut last: Option<(&RowKey, bool)> = None;
        for (row, is_deletion) in self.history.range(start..).take_while(|(row, _)| prefix.contains(&row.key)) {
            if row.revision > after {
                changes.push(HistoryRow {
                    revision: row.revision,
                    key: row.key.clone(),
                    previous: last
                        .filter(|(last, is_gone)| last.key == row.key && !is_gone)
                        .map(|last| last.0.revision),
                    is_deletion: *is_deletion,
                    current: None,
                });
            }
            last = Some((row, *is_deletion));
        }
        for record in self.records_below(prefix).filter(|record| record.revision > after) {
            let before = RowKey { key: record.key.clone(), revision: 0 }..self.row_of(record);
            let last = self.history.range(before).next_back();
            changes.push(HistoryRow {
                revision: record.revision,
                key: record.key.clone(),
                previous: last.filter(|(_, is_deletion)| !**is_deletion).map(|(row, _)| row.revision),
                is_deletion: false,
                current: Some(record.clone()),
            });
        }
        changes.sort_unstable_by_key(|change| change.revision);
        changes
    }

    fn row_of(&self, record: &KeyValue) -> RowKey {
        RowKey { key: record.key.clone(), revision: record.revision }
    }
}

/// The first text that may be a key below a prefix, not less than `from`.
fn first_text<'t>(prefix: &'t Prefix, from: Option<&'t str>) -> &'t str {
    from.map_or(prefix.as_str(), |from| from.max(prefix.as_str()))
}
