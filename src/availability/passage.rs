//! RAII permit for a request admitted while the circuit is not closed.

use std::cell::Cell;
use std::sync::Arc;

use super::board::Availability;
use super::circuit::Pass;

/// Permit of a request admitted while the circuit is not closed. Keep it until the response head arrives or the request
/// fails. The outcome is recorded separately.
pub struct Passage {
    availability: Arc<Availability>,
    pass: Pass,
    sent: Cell<bool>,
}

impl Passage {
    pub(super) fn new(availability: &Arc<Availability>, pass: Pass) -> Passage {
        Passage { availability: availability.clone(), pass, sent: Cell::new(false) }
    }

    /// The request is being sent to the backend.
    pub fn sent(&self) {
        self.sent.set(true);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.availability.give_back(self.pass, self.sent.get());
    }
}
