//! The number of open connections to all endpoints of one APIService, across all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Connection count shared by all workers. Cheap to clone; clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Allowance(Arc<AtomicUsize>);

/// One counted connection; released when dropped.
#[derive(Debug)]
pub(super) struct Place(Allowance);

impl Allowance {
    /// Connections that are open or being opened.
    pub fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more connection, unless `most` are open already.
    pub(super) fn take(&self, most: usize) -> Option<Place> {
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_next_ones_when_it_is_given_back() {
        let (one, places) = (Allowance::default(), Allowance::default());
        let held: Vec<_> = (0..3).map_while(|_| places.clone().take(2)).collect();
        assert_eq!((held.len(), places.taken(), one.taken()), (2, 2, 0));
        assert!(places.take(2).is_none() && places.take(3).is_some());
        drop(held);
        assert_eq!(places.taken(), 0);
    }
}
