//! Long-running responses of one worker, so that shutdown can end each in order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// All watches, logs and tunnels relayed by one worker.
#[derive(Clone, Default)]
pub struct Streams(Rc<Inner>);

#[derive(Default)]
struct Inner {
    leave: Cell<Leave>,
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

/// What long-running responses are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leave {
    /// Continue.
    #[default]
    No,
    /// Watches end at the next event boundary.
    Soon,
    /// All end now.
    Now,
}

/// Registration of one response among the [`Streams`]; removed on drop.
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

    /// Ends every watch, current and later, at its next event boundary.
    pub fn finish(&self) {
        self.ask(Leave::Soon);
    }

    /// Ends every stream, current and later.
    pub fn end(&self) {
        self.ask(Leave::Now);
    }

    /// Wakes one stream to check whether it should end.
    pub(super) fn wake(&self, number: usize) {
        if let Some(Some(waker)) = self.0.wakers.borrow().get(number) {
            waker.wake_by_ref();
        }
    }

    fn ask(&self, leave: Leave) {
        self.0.leave.set(leave.max(self.0.leave.get()));
        for waker in self.0.wakers.borrow().iter().flatten() {
            waker.wake_by_ref();
        }
    }

    /// Number of streams.
    pub fn len(&self) -> usize {
        self.0.wakers.borrow().len() - self.0.free.borrow().len()
    }

    /// Whether there are no streams.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Place {
    /// Id, unique among the registered streams.
    pub(super) fn number(&self) -> usize {
        self.at
    }

    /// The current signal; `waker` is woken when it changes.
    pub(super) fn asked(&self, waker: &Waker) -> Leave {
        let asked = self.streams.0.leave.get();
        if asked == Leave::Now {
            return asked;
        }
        let mut wakers = self.streams.0.wakers.borrow_mut();
        match &mut wakers[self.at] {
            Some(known) => known.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
        asked
    }

    /// Resolves when the stream must end.
    pub(super) async fn ending(&self) {
        std::future::poll_fn(|cx| match self.asked(cx.waker()) {
            Leave::Now => std::task::Poll::Ready(()),
            Leave::No | Leave::Soon => std::task::Poll::Pending,
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
        let asked = || [second.asked(Waker::noop()), third.asked(Waker::noop())];
        assert_eq!(asked(), [Leave::No; 2]);
        streams.finish();
        assert_eq!(asked(), [Leave::Soon; 2]);
        streams.end();
        streams.finish();
        assert_eq!(asked(), [Leave::Now; 2]);
        drop((second, third));
        assert!(streams.is_empty());
    }
}
