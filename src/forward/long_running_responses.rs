//! Long-running responses of one worker, so that shutdown can end each in order.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// All watches, logs and tunnels relayed by one worker.
#[derive(Clone, Default)]
pub struct LongRunningResponses(Rc<Inner>);

#[derive(Default)]
struct Inner {
    signal: Cell<DrainSignal>,
    wakers: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
}

/// What long-running responses are to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DrainSignal {
    /// Responses continue.
    #[default]
    Continue,
    /// Watches end at the next event boundary.
    AtEventBoundary,
    /// All responses end now.
    Now,
}

/// Registration of one response among the [`LongRunningResponses`]; removed on drop.
pub(super) struct LongRunningSlot {
    streams: LongRunningResponses,
    at: usize,
}

impl LongRunningResponses {
    pub(super) fn register(&self) -> LongRunningSlot {
        let mut wakers = self.0.wakers.borrow_mut();
        let at = self.0.free.borrow_mut().pop().unwrap_or_else(|| {
            wakers.push(None);
            wakers.len() - 1
        });
        LongRunningSlot { streams: self.clone(), at }
    }

    /// Ends every watch, current and later, at its next event boundary.
    pub fn drain(&self) {
        self.set_signal(DrainSignal::AtEventBoundary);
    }

    /// Ends every stream, current and later.
    pub fn stop(&self) {
        self.set_signal(DrainSignal::Now);
    }

    /// Wakes one stream to check whether it should end.
    pub(super) fn wake(&self, number: usize) {
        if let Some(Some(waker)) = self.0.wakers.borrow().get(number) {
            waker.wake_by_ref();
        }
    }

    fn set_signal(&self, signal: DrainSignal) {
        self.0.signal.set(signal.max(self.0.signal.get()));
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

impl LongRunningSlot {
    /// Id, unique among the registered streams.
    pub(super) fn id(&self) -> usize {
        self.at
    }

    /// The current signal; `waker` is woken when it changes.
    pub(super) fn poll_signal(&self, waker: &Waker) -> DrainSignal {
        let signal = self.streams.0.signal.get();
        if signal == DrainSignal::Now {
            return signal;
        }
        let mut wakers = self.streams.0.wakers.borrow_mut();
        match &mut wakers[self.at] {
            Some(known) => known.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
        signal
    }

    /// Resolves when the stream must end.
    pub(super) async fn stopped(&self) {
        std::future::poll_fn(|cx| match self.poll_signal(cx.waker()) {
            DrainSignal::Now => std::task::Poll::Ready(()),
            DrainSignal::Continue | DrainSignal::AtEventBoundary => std::task::Poll::Pending,
        })
        .await;
    }
}

impl Drop for LongRunningSlot {
    fn drop(&mut self) {
        self.streams.0.wakers.borrow_mut()[self.at] = None;
        self.streams.0.free.borrow_mut().push(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_running_slots_are_reused_and_stop_wakes_all() {
        let streams = LongRunningResponses::default();
        let first = streams.register();
        let second = streams.register();
        drop(first);
        let third = streams.register();
        assert_eq!(streams.len(), 2);
        let asked = || [second.poll_signal(Waker::noop()), third.poll_signal(Waker::noop())];
        assert_eq!(asked(), [DrainSignal::Continue; 2]);
        streams.drain();
        assert_eq!(asked(), [DrainSignal::AtEventBoundary; 2]);
        streams.stop();
        streams.drain();
        assert_eq!(asked(), [DrainSignal::Now; 2]);
        drop((second, third));
        assert!(streams.is_empty());
    }
}
