//! How many requests of one APIService are under way, and no more than allowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The count of one APIService, shared by all threads and by all routes it ever has.
#[derive(Clone, Default)]
pub struct Inflight(Arc<AtomicUsize>);

/// A request under way; leaves when it is dropped.
pub struct Place(Inflight);

impl Inflight {
    /// Takes a place if fewer than `most` are taken; 0 is no limit.
    pub fn enter(&self, most: usize) -> Option<Place> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        // The guard first: whoever is turned away gives the place back too.
        let place = Place(self.clone());
        (most == 0 || before < most).then_some(place)
    }

    /// How many are under way now.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
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
    fn places_are_given_back() {
        let inflight = Inflight::default();
        let one = inflight.enter(1);
        assert!(one.is_some() && inflight.enter(1).is_none());
        assert_eq!(inflight.count(), 1);
        assert!(inflight.enter(0).is_some());
        drop(one);
        assert!(inflight.enter(1).is_some());
        assert_eq!(inflight.count(), 0);
    }
}
