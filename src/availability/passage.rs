//! Begin implies end: what a request holds that is let through to a backend in doubt.

use std::cell::Cell;
use std::sync::Arc;

use super::board::Availability;
use super::circuit::Pass;

/// A request that is let through although its backend is in doubt. Keep it until the head of the answer is there, or
/// there will be none; what became of the request is told apart from it.
pub struct Passage {
    availability: Arc<Availability>,
    pass: Pass,
    sent: Cell<bool>,
}

impl Passage {
    pub(super) fn new(availability: &Arc<Availability>, pass: Pass) -> Passage {
        Passage { availability: availability.clone(), pass, sent: Cell::new(false) }
    }

    /// The request goes to the backend now.
    pub fn sent(&self) {
        self.sent.set(true);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.availability.give_back(self.pass, self.sent.get());
    }
}
