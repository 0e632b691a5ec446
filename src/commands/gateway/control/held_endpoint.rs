//! The endpoint of the delegate, held between polls so that its connections stay open.

use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// How long an endpoint is held. The delegate is polled every few seconds, and a TLS handshake costs more than what is
/// read; but only a new connection shows a new certificate of the delegate.
const HOLD_TIME: Duration = Duration::from_secs(60);

/// Holds one endpoint at a time, for at most [`HOLD_TIME`] and a sweep of the pool.
pub(super) struct HeldEndpoint<E> {
    held: Option<(Instant, Rc<E>)>,
    /// The endpoint that was held before. It is not held again: the pool is about to close its connections.
    released: Weak<E>,
}

impl<E> Default for HeldEndpoint<E> {
    fn default() -> HeldEndpoint<E> {
        HeldEndpoint { held: None, released: Weak::new() }
    }
}

impl<E> HeldEndpoint<E> {
    /// Holds `endpoint`, which gets a request at `now`, in place of another one.
    pub(super) fn hold(&mut self, endpoint: &Rc<E>, now: Instant) {
        let is_released = std::ptr::eq(self.released.as_ptr(), Rc::as_ptr(endpoint));
        let is_held = self.held.as_ref().is_some_and(|(_, held)| Rc::ptr_eq(held, endpoint));
        if !is_released && !is_held {
            self.held = Some((now, endpoint.clone()));
        }
    }

    /// Releases the endpoint if it was held long enough at `now`. Call it before each sweep of the pool.
    pub(super) fn release(&mut self, now: Instant) {
        if let Some((_, endpoint)) = self.held.take_if(|(since, _)| now.duration_since(*since) >= HOLD_TIME) {
            self.released = Rc::downgrade(&endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_endpoint_released_after_its_time_and_not_held_again() {
        let (begin, mut delegate) = (Instant::now(), HeldEndpoint::default());
        let (first, second) = (Rc::new(1), Rc::new(2));
        delegate.hold(&first, begin);
        delegate.hold(&first, begin + HOLD_TIME / 2);
        delegate.release(begin + HOLD_TIME / 2);
        assert_eq!(Rc::strong_count(&first), 2);
        delegate.release(begin + HOLD_TIME);
        // A request before the sweep.
        delegate.hold(&first, begin + HOLD_TIME);
        assert_eq!(Rc::strong_count(&first), 1);
        delegate.hold(&second, begin + HOLD_TIME);
        assert_eq!(Rc::strong_count(&second), 2);
        let third = Rc::new(3);
        delegate.hold(&third, begin + HOLD_TIME);
        assert_eq!([&second, &third].map(Rc::strong_count), [1, 2]);
    }
}
