//! Deadlines that are rarely reached, at low cost.
//!
//! Nearly every request finishes long before its deadline; a timer per request would be a noticeable part of its cost.
//! Instead, one task per thread checks all deadlines four times a second, and runs only while there are any.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Interval of the check: a deadline may be noticed this much late.
const TICK: Duration = Duration::from_millis(250);

/// Awaits `future` until `end`; `None` on timeout, which is noticed up to [`TICK`] late. Requires a `LocalSet`.
pub async fn within<F: Future + Unpin>(end: Option<Instant>, future: F) -> Option<F::Output> {
    match end {
        None => Some(future.await),
        Some(end) => Within { future, end, deadline: None }.await,
    }
}

struct Within<F> {
    future: F,
    end: Instant,
    /// Set when the future was pending for the first time.
    deadline: Option<Deadline>,
}

impl<F: Future + Unpin> Future for Within<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = Pin::new(&mut self.future).poll(cx) {
            return Poll::Ready(Some(output));
        }
        let end = self.end;
        if self.deadline.get_or_insert_with(|| Deadline::at(end)).is_over(cx.waker()) {
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

/// All deadlines of one thread.
#[derive(Default)]
struct Waiting {
    places: RefCell<Vec<State>>,
    free: RefCell<Vec<usize>>,
    watched: Cell<bool>,
}

enum State {
    Free,
    Waits { end: Instant, waker: Option<Waker> },
    Over,
}

thread_local! {
    static WAITING: Waiting = Waiting::default();
}

/// A deadline, registered in a slot of this thread until it is dropped.
pub struct Deadline(usize);

impl Deadline {
    /// Registers a deadline at `end`. Requires a `LocalSet`.
    pub fn at(end: Instant) -> Deadline {
        WAITING.with(|waiting| {
            if !waiting.watched.replace(true) {
                tokio::task::spawn_local(watch());
            }
            let state = State::Waits { end, waker: None };
            let mut places = waiting.places.borrow_mut();
            if let Some(at) = waiting.free.borrow_mut().pop() {
                places[at] = state;
                return Deadline(at);
            }
            places.push(state);
            Deadline(places.len() - 1)
        })
    }

    /// Whether the deadline has passed, noticed up to [`TICK`] late. If not, `waker` is woken when it has.
    pub fn is_over(&self, waker: &Waker) -> bool {
        WAITING.with(|waiting| match &mut waiting.places.borrow_mut()[self.0] {
            State::Waits { waker: Some(known), .. } => {
                known.clone_from(waker);
                false
            }
            State::Waits { waker: empty, .. } => {
                *empty = Some(waker.clone());
                false
            }
            State::Free | State::Over => true,
        })
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // While the thread ends, the slots may be gone already.
        let _ = WAITING.try_with(|waiting| {
            waiting.places.borrow_mut()[self.0] = State::Free;
            waiting.free.borrow_mut().push(self.0);
        });
    }
}

/// Wakes every future on this thread that waits with a deadline; for rare events.
pub fn wake_waiting() {
    let wakers: Vec<Waker> = WAITING.with(|waiting| {
        let places = waiting.places.borrow();
        let waker = |state: &State| if let State::Waits { waker, .. } = state { waker.clone() } else { None };
        places.iter().filter_map(waker).collect()
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// Expires deadlines until none is pending.
async fn watch() {
    /// Resets the flag if the task is dropped with its `LocalSet`, so that the next deadline starts a new task.
    struct Leaves;
    impl Drop for Leaves {
        fn drop(&mut self) {
            let _ = WAITING.try_with(|waiting| waiting.watched.set(false));
        }
    }
    let _leaves = Leaves;
    loop {
        tokio::time::sleep(TICK).await;
        if WAITING.with(|waiting| waiting.look(tokio::time::Instant::now().into_std())) == 0 {
            return;
        }
    }
}

impl Waiting {
    /// Wakes the futures whose deadline has passed; returns the number of pending deadlines.
    fn look(&self, now: Instant) -> usize {
        let mut woken = Vec::new();
        let mut waits = 0;
        for state in self.places.borrow_mut().iter_mut() {
            let State::Waits { end, waker } = state else { continue };
            if *end > now {
                waits += 1;
            } else {
                woken.extend(waker.take());
                *state = State::Over;
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
    async fn who_waits_too_long_is_told_and_nobody_else() {
        LocalSet::new()
            .run_until(async {
                assert_eq!(within(None, ready(1)).await, Some(1));
                assert_eq!(within(after(5), ready(2)).await, Some(2));
                let waits: Vec<_> = [3, 9, 6]
                    .map(|seconds| {
                        tokio::task::spawn_local(async move {
                            let began = tokio::time::Instant::now();
                            let told = within(after(seconds), pending::<()>()).await;
                            (told, seconds, began.elapsed())
                        })
                    })
                    .into();
                // A pending deadline does not delay the result.
                let slow = Box::pin(tokio::time::sleep(Duration::from_secs(4)));
                assert_eq!(within(after(5), slow).await, Some(()));
                for wait in waits {
                    let (told, seconds, took) = wait.await.unwrap();
                    let seconds = Duration::from_secs(seconds);
                    assert!(told.is_none() && took >= seconds && took <= seconds + 2 * TICK, "{took:?}");
                }
                // The task has ended; a later deadline starts it again.
                tokio::time::sleep(TICK * 2).await;
                yield_now().await;
                assert!(WAITING.with(|waiting| !waiting.watched.get()));
                assert_eq!(within(after(1), pending::<()>()).await, None);
                assert_eq!(WAITING.with(|waiting| waiting.places.borrow().len()), 4);
            })
            .await;
    }
}
