//! Stored statuses of the APIServices of a kube-apiserver, for the status writer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::process::ChangeLog;

/// Stored status of one APIService of the kube-apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredStatus {
    /// `metadata.resourceVersion` of the APIService.
    pub version: String,
    /// `status.conditions`, all of them.
    pub conditions: Vec<Value>,
}

/// Stored statuses by name of the APIService. Cheap to clone.
#[derive(Clone)]
pub struct ApiServiceStatuses(Arc<Inner>);

struct Inner {
    /// Locked for a single lookup or change, never across an await.
    by_name: Mutex<BTreeMap<String, Arc<StoredStatus>>>,
    change_log: Mutex<ChangeLog<Arc<str>>>,
    changes: watch::Sender<u64>,
}

impl Default for ApiServiceStatuses {
    fn default() -> ApiServiceStatuses {
        ApiServiceStatuses(Arc::new(Inner {
            by_name: Mutex::default(),
            change_log: Mutex::default(),
            changes: watch::channel(0).0,
        }))
    }
}

impl ApiServiceStatuses {
    /// Stored status of the APIService `name`. `None` if it is not in the kube-apiserver.
    pub fn get(&self, name: &str) -> Option<Arc<StoredStatus>> {
        self.0.by_name.lock().get(name).cloned()
    }

    /// Subscribes to changes. The value is a version.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    pub(super) fn put(&self, name: &str, status: StoredStatus) {
        let mut by_name = self.0.by_name.lock();
        if by_name.get(name).is_none_or(|stored| **stored != status) {
            by_name.insert(name.to_owned(), Arc::new(status));
            drop(by_name);
            self.record_change(Some(name));
        }
    }

    pub(super) fn remove(&self, name: &str) {
        if self.0.by_name.lock().remove(name).is_some() {
            self.record_change(Some(name));
        }
    }

    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.by_name.lock().retain(|name, _| keep(name));
        self.record_change(None);
    }

    /// Returns the current version, and the names of the statuses that changed after `version` of
    /// [`ApiServiceStatuses::subscribe`]. No names if `version` is too old: all may have changed.
    pub fn changed_since(&self, version: u64) -> (u64, Option<BTreeSet<Arc<str>>>) {
        let change_log = self.0.change_log.lock();
        (*self.0.changes.borrow(), change_log.changes_since(version).map(|names| names.cloned().collect()))
    }

    /// Records a change of one name, or of all.
    fn record_change(&self, name: Option<&str>) {
        let mut change_log = self.0.change_log.lock();
        self.0.changes.send_modify(|version| {
            *version += 1;
            match name {
                Some(name) => change_log.record(*version, name.into()),
                None => change_log.reset(*version),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_service_statuses_report_only_real_changes() {
        let statuses = ApiServiceStatuses::default();
        let mut changes = statuses.subscribe();
        let one = StoredStatus { version: "1".to_owned(), conditions: Vec::new() };
        statuses.put("a", one.clone());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        statuses.put("a", one.clone());
        statuses.remove("b");
        assert!(!changes.has_changed().unwrap());
        assert_eq!(statuses.changed_since(0), (1, Some(BTreeSet::from(["a".into()]))));
        assert_eq!(*statuses.get("a").unwrap(), one);
        statuses.retain(|name| name != "a");
        assert!(statuses.get("a").is_none() && changes.has_changed().unwrap());
        assert_eq!(statuses.changed_since(1), (2, None));
    }
}
