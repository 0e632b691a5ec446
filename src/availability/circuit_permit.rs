//! RAII permit for a request admitted while the circuit is not closed.

use std::cell::Cell;
use std::sync::Arc;

use super::availability_map::Availability;
use super::circuit::CircuitTicket;

/// Permit of a request admitted while the circuit is not closed. Keep it until the response head arrives or the request
/// fails. The outcome is recorded separately.
pub struct CircuitPermit {
    availability: Arc<Availability>,
    pass: CircuitTicket,
    sent: Cell<bool>,
}

impl CircuitPermit {
    pub(super) fn new(availability: &Arc<Availability>, pass: CircuitTicket) -> CircuitPermit {
        CircuitPermit { availability: availability.clone(), pass, sent: Cell::new(false) }
    }

    /// The request is being sent to the backend.
    pub fn mark_sent(&self) {
        self.sent.set(true);
    }
}

impl Drop for CircuitPermit {
    fn drop(&mut self) {
        self.availability.release(self.pass, self.sent.get());
    }
}
