//! Stored statuses of the APIServices of a kube-apiserver, for the status writer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::process::Lately;

/// Stored status of one APIService of the kube-apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// `metadata.resourceVersion` of the APIService.
    pub version: String,
    /// `status.conditions`, all of them.
    pub conditions: Vec<Value>,
}

/// Stored statuses by name of the APIService. Cheap to clone.
#[derive(Clone)]
pub struct Statuses(Arc<Inner>);

struct Inner {
    /// Locked for a single lookup or change, never across an await.
    by_name: Mutex<BTreeMap<String, Arc<Written>>>,
    lately: Mutex<Lately<Arc<str>>>,
    changes: watch::Sender<u64>,
}

impl Default for Statuses {
    fn default() -> Statuses {
        Statuses(Arc::new(Inner { by_name: Mutex::default(), lately: Mutex::default(), changes: watch::channel(0).0 }))
    }
}

impl Statuses {
    /// Stored status of the APIService `name`. `None` if it is not in the kube-apiserver.
    pub fn of(&self, name: &str) -> Option<Arc<Written>> {
        self.0.by_name.lock().get(name).cloned()
    }

    /// Subscribes to changes. The value is a version.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    pub(super) fn put(&self, name: &str, written: Written) {
        let mut by_name = self.0.by_name.lock();
        if by_name.get(name).is_none_or(|known| **known != written) {
            by_name.insert(name.to_owned(), Arc::new(written));
            drop(by_name);
            self.changed(Some(name));
        }
    }

    pub(super) fn remove(&self, name: &str) {
        if self.0.by_name.lock().remove(name).is_some() {
            self.changed(Some(name));
        }
    }

    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.by_name.lock().retain(|name, _| keep(name));
        self.changed(None);
    }

    /// Returns the current version, and the names of the statuses that changed after `version` of
    /// [`Statuses::changes`]. No names if `version` is too old: all may have changed.
    pub fn changed_since(&self, version: u64) -> (u64, Option<BTreeSet<Arc<str>>>) {
        let lately = self.0.lately.lock();
        (*self.0.changes.borrow(), lately.since(version).map(|names| names.cloned().collect()))
    }

    /// Records a change of one name, or of all.
    fn changed(&self, name: Option<&str>) {
        let mut lately = self.0.lately.lock();
        self.0.changes.send_modify(|version| {
            *version += 1;
            match name {
                Some(name) => lately.note(*version, name.into()),
                None => lately.settle(*version),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_another_is_a_change() {
        let statuses = Statuses::default();
        let mut changes = statuses.changes();
        let one = Written { version: "1".to_owned(), conditions: Vec::new() };
        statuses.put("a", one.clone());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        statuses.put("a", one.clone());
        statuses.remove("b");
        assert!(!changes.has_changed().unwrap());
        assert_eq!(statuses.changed_since(0), (1, Some(BTreeSet::from(["a".into()]))));
        assert_eq!(*statuses.of("a").unwrap(), one);
        statuses.retain(|name| name != "a");
        assert!(statuses.of("a").is_none() && changes.has_changed().unwrap());
        assert_eq!(statuses.changed_since(1), (2, None));
    }
}
