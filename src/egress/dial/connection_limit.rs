//! The number of open connections to all endpoints of one APIService, across all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Connection count shared by all workers. Cheap to clone; clones share the count.
#[derive(Clone, Debug, Default)]
pub struct ConnectionCounter(Arc<AtomicUsize>);

/// One counted connection; released when dropped.
#[derive(Debug)]
pub(in crate::egress) struct ConnectionSlot(ConnectionCounter);

impl ConnectionCounter {
    /// Connections that are open or being opened.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more connection, unless `limit` are open already.
    pub(in crate::egress) fn try_acquire(&self, limit: usize) -> Option<ConnectionSlot> {
        let more = |taken: usize| (taken < limit).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ConnectionSlot(self.clone()))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limit_slot_is_reusable_after_drop() {
        let (one, places) = (ConnectionCounter::default(), ConnectionCounter::default());
        let held: Vec<_> = (0..3).map_while(|_| places.clone().try_acquire(2)).collect();
        assert_eq!((held.len(), places.count(), one.count()), (2, 2, 0));
        assert!(places.try_acquire(2).is_none() && places.try_acquire(3).is_some());
        drop(held);
        assert_eq!(places.count(), 0);
    }
}
