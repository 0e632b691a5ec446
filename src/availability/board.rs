//! What is known about each APIService, where every thread can read it without waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::condition::{Condition, ConditionStatus};

/// The availability of one APIService: for ever the same one for the same name, whatever else about the
/// APIService changes.
pub struct Availability {
    refused: AtomicBool,
    condition: ArcSwap<Condition>,
}

/// All of them, by name. Cheap to clone.
#[derive(Clone)]
pub struct Board(Arc<Entries>);

struct Entries {
    /// Locked only to look a name up, never across an await.
    by_name: Mutex<BTreeMap<String, Arc<Availability>>>,
    changes: watch::Sender<u64>,
}

impl Availability {
    /// Whether requests may be sent: unless it is known that the backend does not answer.
    pub fn is_available(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// What is known now, to keep.
    pub fn condition(&self) -> Arc<Condition> {
        self.condition.load_full()
    }
}

impl Default for Board {
    fn default() -> Board {
        Board(Arc::new(Entries { by_name: Mutex::default(), changes: watch::channel(0).0 }))
    }
}

impl Board {
    /// The availability of the APIService `name`; unknown if nobody spoke of it before.
    pub fn of(&self, name: &str) -> Arc<Availability> {
        let mut by_name = self.0.by_name.lock();
        if let Some(known) = by_name.get(name) {
            return known.clone();
        }
        let condition = ArcSwap::from_pointee(Condition::unknown(SystemTime::now()));
        let fresh = Arc::new(Availability { refused: AtomicBool::new(false), condition });
        by_name.insert(name.to_owned(), fresh.clone());
        fresh
    }

    /// Says that a condition changed since it was last asked.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Puts up what is known about `name`.
    pub(super) fn put(&self, name: &str, condition: &Condition) {
        let availability = self.of(name);
        availability.condition.store(Arc::new(condition.clone()));
        availability.refused.store(condition.status == ConditionStatus::False, Ordering::Relaxed);
        self.0.changes.send_modify(|version| *version += 1);
    }

    /// Forgets what is known about `name`. The place on the board stays: a route may hold it already for an
    /// APIService that came back under the same name.
    pub(super) fn forget(&self, name: &str) {
        self.put(name, &Condition::unknown(SystemTime::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_let_through_and_false_is_not() {
        let board = Board::default();
        let changes = board.changes();
        let one = board.of("v1.a.io");
        assert!(one.is_available());
        let refused = Condition { status: ConditionStatus::False, ..Condition::unknown(SystemTime::now()) };
        board.put("v1.a.io", &refused);
        assert!(!one.is_available() && *one.condition() == refused);
        assert!(changes.has_changed().unwrap());
        assert!(Arc::ptr_eq(&one, &board.of("v1.a.io")));
        board.forget("v1.a.io");
        assert!(one.is_available() && Arc::ptr_eq(&one, &board.of("v1.a.io")));
    }
}
