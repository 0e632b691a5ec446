//! Commits as transactions of etcd, with the shapes of a kube-apiserver (`client/v3/kubernetes/client.go` of etcd).

use bytes::Bytes;
use store::{CommitCondition, CommitOutcome, Expect, Key, Mutation, Revision};

use crate::convert::{self, etcd_revision, range_of_key, range_of_prefix};
use crate::messages::{
    Compare, Compared, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnOperation, TxnRequest, TxnResponse,
    compare_target,
};

/// A commit of one key.
pub(crate) struct Commit {
    pub(crate) key: Key,
    pub(crate) expect: Expect,
    /// The new value; none for a deletion.
    pub(crate) value: Option<Bytes>,
    pub(crate) conditions: Vec<CommitCondition>,
}

impl Commit {
    pub(crate) fn new(key: &Key, expect: Expect, mutation: &Mutation, conditions: Vec<CommitCondition>) -> Commit {
        let value = match mutation {
            Mutation::Put { value, .. } => Some(value.clone()),
            Mutation::Delete => None,
        };
        Commit { key: key.clone(), expect, value, conditions }
    }

    /// Revision of the key that is expected; 0 if it is not to exist.
    pub(crate) fn expected(&self) -> Revision {
        match self.expect {
            Expect::Absent => 0,
            Expect::At(revision) => revision,
        }
    }

    /// Whether no state of the key meets the expectation. etcd takes revision 0 for a key that does not exist, and
    /// deletes what does not exist with success and without a revision of its own.
    pub(crate) fn is_never_met(&self) -> bool {
        self.expect == Expect::At(0) || self.expect == Expect::Absent && self.value.is_none()
    }

    /// A condition that is never met, for the same reason.
    fn impossible_condition(&self) -> Option<&CommitCondition> {
        self.conditions.iter().find(|condition| matches!(condition, CommitCondition::At(_, 0)))
    }

    /// The transaction. If a comparison fails, it reads the key and what the conditions are about.
    pub(crate) fn transaction(&self, lease: i64) -> TxnRequest {
        self.transaction_that(!self.is_never_met() && self.impossible_condition().is_none(), lease)
    }

    /// The transaction without the change: whether it would be made now.
    pub(crate) fn inquiry(&self) -> TxnRequest {
        self.transaction_that(false, 0)
    }

    fn transaction_that(&self, changes: bool, lease: i64) -> TxnRequest {
        let key = convert::bytes(self.key.as_str());
        let read = |range| RequestOp { request: Some(TxnOperation::Range(range)) };
        let change = match self.value.clone() {
            _ if !changes => TxnOperation::Range(range_of_key(&self.key)),
            Some(value) => TxnOperation::Put(PutRequest { key, value, lease }),
            None => TxnOperation::DeleteRange(DeleteRangeRequest { key }),
        };
        let mut compare = vec![is_at(range_of_key(&self.key), self.expected())];
        let mut failure = vec![read(range_of_key(&self.key))];
        for condition in &self.conditions {
            // A range without keys compares as a key that does not exist.
            let (range, revision) = match condition {
                CommitCondition::At(key, revision) => (range_of_key(key), *revision),
                CommitCondition::Absent(key) => (range_of_key(key), 0),
                CommitCondition::Empty(prefix) => (range_of_prefix(prefix), 0),
            };
            compare.push(is_at(range.clone(), revision));
            failure.push(read(RangeRequest { limit: 1, ..range }));
        }
        TxnRequest { compare, success: vec![RequestOp { request: Some(change) }], failure }
    }

    /// What a transaction made of the commit.
    pub(crate) fn outcome(&self, response: &TxnResponse) -> CommitOutcome {
        if response.succeeded && !self.is_never_met() && self.impossible_condition().is_none() {
            return CommitOutcome::Committed(convert::header_revision(response.header.as_ref()));
        }
        let first_record = |index: usize| {
            let range = response.responses.get(index)?.range.as_ref()?;
            range.kvs.first()
        };
        if !response.succeeded {
            let failed = self.conditions.iter().enumerate().find(|(index, condition)| {
                let found = first_record(index + 1).map(|kv| convert::revision(kv.mod_revision));
                match condition {
                    CommitCondition::At(_, revision) => found != Some(*revision),
                    CommitCondition::Absent(_) | CommitCondition::Empty(_) => found.is_some(),
                }
            });
            if let Some((_, condition)) = failed {
                return CommitOutcome::ConditionFailed(condition.clone());
            }
        } else if let Some(condition) = self.impossible_condition() {
            return CommitOutcome::ConditionFailed(condition.clone());
        }
        CommitOutcome::Conflict(first_record(0).and_then(convert::record))
    }
}

fn is_at(range: RangeRequest, revision: Revision) -> Compare {
    Compare {
        result: 0,
        target: compare_target::MOD,
        key: range.key,
        range_end: range.range_end,
        compared: Some(Compared::ModRevision(etcd_revision(revision))),
    }
}
