//! The long-running answers of one worker, so that the end of the process can end each in good order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// All watches, logs and tunnels one worker relays.
#[derive(Clone, Default)]
pub struct Streams(Rc<Inner>);

#[derive(Default)]
struct Inner {
    ending: Cell<bool>,
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

/// One answer's place among the [`Streams`]; it leaves when dropped.
pub(super) struct Place {
    streams: Streams,
    at: usize,
}

impl Streams {
    pub(super) fn enter(&self) -> Place {
        let mut wakers = self.0.wakers.borrow_mut();
        let at = self.0.free.borrow_mut().pop().unwrap_or_else(|| {
            wakers.push(None);
            wakers.len() - 1
        });
        Place { streams: self.clone(), at }
    }

    /// Asks every stream, now and later, to end at its next good point.
    pub fn end(&self) {
        self.0.ending.set(true);
        for waker in self.0.wakers.borrow().iter().flatten() {
            waker.wake_by_ref();
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.wakers.borrow().len() - self.0.free.borrow().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Place {
    /// Whether the stream should end; `waker` is woken when that changes.
    pub(super) fn should_end(&self, waker: &Waker) -> bool {
        if self.streams.0.ending.get() {
            return true;
        }
        let mut wakers = self.streams.0.wakers.borrow_mut();
        match &mut wakers[self.at] {
            Some(known) => known.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
        false
    }

    /// Resolves when the stream should end.
    pub(super) async fn ending(&self) {
        std::future::poll_fn(|cx| {
            if self.should_end(cx.waker()) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.streams.0.wakers.borrow_mut()[self.at] = None;
        self.streams.0.free.borrow_mut().push(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_ending_wakes_everyone() {
        let streams = Streams::default();
        let first = streams.enter();
        let second = streams.enter();
        drop(first);
        let third = streams.enter();
        assert_eq!(streams.len(), 2);
        assert!(!second.should_end(Waker::noop()) && !third.should_end(Waker::noop()));
        streams.end();
        assert!(second.should_end(Waker::noop()) && third.should_end(Waker::noop()));
        drop((second, third));
        assert!(streams.is_empty());
    }
}
