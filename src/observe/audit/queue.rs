//! Where events wait for a sink: bounded in number and bytes, so that a sink that is stuck costs events, never time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::event::Event;

/// The events of one sink. Those that were taken count until they are [`Queue::done`].
pub(super) struct Queue {
    held: Mutex<Held>,
    most_events: usize,
    most_bytes: usize,
    dropped: AtomicU64,
    /// Called when the first event comes to wait, and when `enough` do.
    enough: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Held {
    waiting: VecDeque<Arc<Event>>,
    events: usize,
    bytes: usize,
}

/// Events on their way out, which take their room until this is dropped.
pub(super) struct Taken {
    pub(super) events: Vec<Arc<Event>>,
    bytes: usize,
    queue: Arc<Queue>,
}

impl Queue {
    pub(super) fn new(
        most_events: usize,
        most_bytes: usize,
        enough: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Queue> {
        let (held, dropped) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Queue { held, most_events, most_bytes, dropped, enough, wake: Box::new(wake) })
    }

    /// Appends `event`, or says that there is no room for it.
    pub(super) fn push(&self, event: &Arc<Event>) -> bool {
        let bytes = event.weight();
        let mut held = self.held.lock();
        if held.events >= self.most_events || held.bytes + bytes > self.most_bytes {
            drop(held);
            self.dropped.fetch_add(1, Relaxed);
            return false;
        }
        held.waiting.push_back(event.clone());
        held.events += 1;
        held.bytes += bytes;
        let wakes = held.waiting.len() == 1 || held.waiting.len() == self.enough;
        drop(held);
        if wakes {
            (self.wake)();
        }
        true
    }

    /// The first events that wait, at most so many and so many bytes, but one if there is one.
    pub(super) fn take(self: &Arc<Queue>, most: usize, most_bytes: usize) -> Taken {
        let mut taken = Taken { events: Vec::new(), bytes: 0, queue: self.clone() };
        let mut held = self.held.lock();
        while taken.events.len() < most
            && let Some(event) = held.waiting.front()
            && (taken.events.is_empty() || taken.bytes + event.weight() <= most_bytes)
        {
            taken.bytes += event.weight();
            taken.events.extend(held.waiting.pop_front());
        }
        drop(held);
        taken
    }

    /// How many wait to be taken.
    pub(super) fn waiting(&self) -> usize {
        self.held.lock().waiting.len()
    }

    /// How many are not done with.
    pub(super) fn held(&self) -> usize {
        self.held.lock().events
    }

    /// How many found no room so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut held = self.queue.held.lock();
        held.events -= self.events.len();
        held.bytes -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_counted_and_what_is_taken_still_takes_room() {
        let woken = Arc::new(AtomicU64::new(0));
        let waking = woken.clone();
        let queue = Queue::new(4, usize::MAX, 2, move || {
            waking.fetch_add(1, Relaxed);
        });
        let event = Event::for_test();
        for n in 0..6 {
            assert_eq!(queue.push(&event), n < 4);
        }
        // For the first, and when there are two.
        assert_eq!((queue.dropped(), woken.load(Relaxed), queue.waiting()), (2, 2, 4));
        let taken = queue.take(3, usize::MAX);
        assert_eq!((taken.events.len(), queue.waiting(), queue.held()), (3, 1, 4));
        assert!(!queue.push(&event));
        drop(taken);
        assert!(queue.push(&event));
        assert_eq!(queue.take(9, usize::MAX).events.len(), 2);
        assert_eq!(queue.held(), 0);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let event = Event::for_test();
        let queue = Queue::new(100, 2 * event.weight(), 50, || {});
        assert_eq!([queue.push(&event), queue.push(&event), queue.push(&event)], [true, true, false]);
        assert_eq!(queue.take(9, 1).events.len(), 1);
        assert_eq!(queue.take(9, 1).events.len(), 1);
        assert_eq!(queue.take(9, 1).events.len(), 0);
    }
}
