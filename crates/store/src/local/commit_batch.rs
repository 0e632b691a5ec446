//! Changes that are written in one transaction: each is checked against the state after those before it.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::record::Row;
use super::super::{CommitCondition, CommitOutcome, Key, KeyValue, RecordChange, StoreReply};
use super::index::RecordIndex;

/// Changes that are about to be written, and the answers that wait for them.
#[derive(Default)]
pub(super) struct CommitBatch {
    pub(super) changes: Vec<Arc<RecordChange>>,
    pub(super) rows: Vec<Row>,
    /// State of the keys that the batch changes.
    pub(super) overlay: HashMap<Key, Option<Arc<KeyValue>>>,
    pub(super) answers: Vec<(StoreReply<CommitOutcome>, CommitOutcome)>,
    pub(super) bytes: usize,
}

impl CommitBatch {
    /// The record of a key after the changes of the batch.
    pub(super) fn record<'b>(&'b self, index: &'b RecordIndex, key: &Key) -> Option<&'b Arc<KeyValue>> {
        match self.overlay.get(key) {
            Some(staged) => staged.as_ref(),
            None => index.get(key),
        }
    }

    /// The first condition that is not met after the changes of the batch.
    pub(super) fn failed_condition(
        &self,
        index: &RecordIndex,
        conditions: Vec<CommitCondition>,
    ) -> Option<CommitCondition> {
        conditions.into_iter().find(|condition| match condition {
            CommitCondition::At(key, revision) => {
                self.record(index, key).is_none_or(|record| record.revision != *revision)
            }
            CommitCondition::Absent(key) => self.record(index, key).is_some(),
            CommitCondition::Empty(prefix) => {
                let staged = self.overlay.iter().filter(|(_, record)| record.is_some());
                let is_deleted = |key: &Key| matches!(self.overlay.get(key), Some(None));
                staged.map(|(key, _)| key).any(|key| prefix.contains(key))
                    || index.records_below(prefix).any(|record| !is_deleted(&record.key))
            }
        })
    }

    /// Adds a change that follows from the state after the batch.
    pub(super) fn add(&mut self, change: RecordChange, key: Key) {
        let row = Row::from_change(&change);
        self.bytes += row.value.as_ref().map_or(0, |value| value.len());
        self.overlay.insert(key, change.new.clone());
        self.rows.push(row);
        self.changes.push(Arc::new(change));
    }
}
