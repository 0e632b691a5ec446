//! Deadlines that are rarely reached, at low cost.
//!
//! Nearly every request finishes long before its deadline; a timer per request would be a noticeable part of its cost.
//! Instead, one task per thread checks all deadlines four times a second, and runs only while there are any.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Interval of the check: a deadline is noticed up to this much late.
const TICK: Duration = Duration::from_millis(250);

/// Awaits `future` until `end`; `None` on timeout, which is noticed up to [`TICK`] late. Requires a `LocalSet`.
pub async fn with_deadline<F: Future + Unpin>(end: Option<Instant>, future: F) -> Option<F::Output> {
    match end {
        None => Some(future.await),
        Some(end) => DeadlineFuture { future, end, deadline: None }.await,
    }
}

struct DeadlineFuture<F> {
    future: F,
    end: Instant,
    /// Set when the future was pending for the first time.
    deadline: Option<Deadline>,
}

impl<F: Future + Unpin> Future for DeadlineFuture<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = Pin::new(&mut self.future).poll(cx) {
            return Poll::Ready(Some(output));
        }
        let end = self.end;
        if self.deadline.get_or_insert_with(|| Deadline::at(end)).has_elapsed(cx.waker()) {
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

/// All deadlines of one thread.
#[derive(Default)]
struct DeadlineSlots {
    slots: RefCell<Vec<DeadlineSlot>>,
    free: RefCell<Vec<usize>>,
    timer_running: Cell<bool>,
}

enum DeadlineSlot {
    Free,
    Pending { end: Instant, waker: Option<Waker> },
    Elapsed,
}

thread_local! {
    static DEADLINE_SLOTS: DeadlineSlots = DeadlineSlots::default();
}

/// A deadline, registered in a slot of this thread until it is dropped.
pub struct Deadline(usize);

impl Deadline {
    /// Registers a deadline at `end`. Requires a `LocalSet`.
    pub fn at(end: Instant) -> Deadline {
        DEADLINE_SLOTS.with(|waiting| {
            if !waiting.timer_running.replace(true) {
                tokio::task::spawn_local(run_timer());
            }
            let state = DeadlineSlot::Pending { end, waker: None };
            let mut places = waiting.slots.borrow_mut();
            if let Some(at) = waiting.free.borrow_mut().pop() {
                places[at] = state;
                return Deadline(at);
            }
            places.push(state);
            Deadline(places.len() - 1)
        })
    }

    /// Whether the deadline has passed, noticed up to [`TICK`] late. If not, `waker` is woken when it has.
    pub fn has_elapsed(&self, waker: &Waker) -> bool {
        DEADLINE_SLOTS.with(|waiting| match &mut waiting.slots.borrow_mut()[self.0] {
            DeadlineSlot::Pending { waker: Some(known), .. } => {
                known.clone_from(waker);
                false
            }
            DeadlineSlot::Pending { waker: empty, .. } => {
                *empty = Some(waker.clone());
                false
            }
            DeadlineSlot::Free | DeadlineSlot::Elapsed => true,
        })
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // While the thread ends, the slots may be gone already.
        let _ = DEADLINE_SLOTS.try_with(|waiting| {
            waiting.slots.borrow_mut()[self.0] = DeadlineSlot::Free;
            waiting.free.borrow_mut().push(self.0);
        });
    }
}

/// Wakes every future on this thread that waits with a deadline; for rare events.
pub fn wake_pending_deadlines() {
    let wakers: Vec<Waker> = DEADLINE_SLOTS.with(|waiting| {
        let places = waiting.slots.borrow();
        let waker =
            |state: &DeadlineSlot| if let DeadlineSlot::Pending { waker, .. } = state { waker.clone() } else { None };
        places.iter().filter_map(waker).collect()
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// Expires deadlines until none is pending.
async fn run_timer() {
    /// Resets the flag if the task is dropped with its `LocalSet`, so that the next deadline starts a new task.
    struct TimerRunningReset;
    impl Drop for TimerRunningReset {
        fn drop(&mut self) {
            let _ = DEADLINE_SLOTS.try_with(|waiting| waiting.timer_running.set(false));
        }
    }
    let _leaves = TimerRunningReset;
    loop {
        tokio::time::sleep(TICK).await;
        if DEADLINE_SLOTS.with(|waiting| waiting.expire(tokio::time::Instant::now().into_std())) == 0 {
            return;
        }
    }
}

impl DeadlineSlots {
    /// Wakes the futures whose deadline has passed; returns the number of pending deadlines.
    fn expire(&self, now: Instant) -> usize {
        let mut woken = Vec::new();
        let mut waits = 0;
        for state in self.slots.borrow_mut().iter_mut() {
            let DeadlineSlot::Pending { end, waker } = state else { continue };
            if *end > now {
                waits += 1;
            } else {
                woken.extend(waker.take());
                *state = DeadlineSlot::Elapsed;
            }
        }
        // After the loop: a woken future may access the slots immediately.
        woken.into_iter().for_each(Waker::wake);
        waits
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    fn after(seconds: u64) -> Option<Instant> {
        Some(tokio::time::Instant::now().into_std() + Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_ends_only_futures_past_their_time() {
        LocalSet::new()
            .run_until(async {
                assert_eq!(with_deadline(None, ready(1)).await, Some(1));
                assert_eq!(with_deadline(after(5), ready(2)).await, Some(2));
                let waits: Vec<_> = [3, 9, 6]
                    .map(|seconds| {
                        tokio::task::spawn_local(async move {
                            let began = tokio::time::Instant::now();
                            let told = with_deadline(after(seconds), pending::<()>()).await;
                            (told, seconds, began.elapsed())
                        })
                    })
                    .into();
                // A pending deadline does not delay the result.
                let slow = Box::pin(tokio::time::sleep(Duration::from_secs(4)));
                assert_eq!(with_deadline(after(5), slow).await, Some(()));
                for wait in waits {
                    let (told, seconds, took) = wait.await.unwrap();
                    let seconds = Duration::from_secs(seconds);
                    assert!(told.is_none() && took >= seconds && took <= seconds + 2 * TICK, "{took:?}");
                }
                // The task has ended; a later deadline starts it again.
                tokio::time::sleep(TICK * 2).await;
                yield_now().await;
                assert!(DEADLINE_SLOTS.with(|waiting| !waiting.timer_running.get()));
                assert_eq!(with_deadline(after(1), pending::<()>()).await, None);
                assert_eq!(DEADLINE_SLOTS.with(|waiting| waiting.slots.borrow().len()), 4);
            })
            .await;
    }
}
