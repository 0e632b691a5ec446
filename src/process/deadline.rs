//! Points in time that are hardly ever reached, for next to nothing.
//!
//! Nearly every request is over long before its time is: timers of its own, set and cleared, would be a good part of
//! the work. One task a thread looks through all that wait, four times a second, and is there only while somebody waits.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// By how much a wait may last longer.
const TICK: Duration = Duration::from_millis(250);

/// Waits for `future` until `end`; `None` when the time ran out, which is seen up to [`TICK`] later. Stays on its
/// thread, inside a `LocalSet`.
pub async fn within<F: Future + Unpin>(end: Option<Instant>, future: F) -> Option<F::Output> {
    match end {
        None => Some(future.await),
        Some(end) => Within { future, end, deadline: None }.await,
    }
}

struct Within<F> {
    future: F,
    end: Instant,
    /// Once it had to wait.
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

/// All that wait on one thread.
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

/// A point in time that somebody waits for: a place among all of this thread, left when dropped.
pub struct Deadline(usize);

impl Deadline {
    /// Waits for `end`; inside a `LocalSet`.
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

    /// Whether it has been reached, as far as is known: up to [`TICK`] late. If not, `waker` is woken when it is.
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
        // At the end of a thread there may be nothing left to leave.
        let _ = WAITING.try_with(|waiting| {
            waiting.places.borrow_mut()[self.0] = State::Free;
            waiting.free.borrow_mut().push(self.0);
        });
    }
}

/// Has all that wait on this thread look again at what they wait for; for what happens seldom.
pub fn wake_waiting() {
    let wakers: Vec<Waker> = WAITING.with(|waiting| {
        let places = waiting.places.borrow();
        let waker = |state: &State| if let State::Waits { waker, .. } = state { waker.clone() } else { None };
        places.iter().filter_map(waker).collect()
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// Looks for those whose time is up, until nobody waits.
async fn watch() {
    /// Should the task be dropped with its thread's work, the next one to wait starts another.
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
    /// Wakes those whose time is up; how many wait still.
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
        // Afterwards: who is woken may look at once.
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
                // Time that is not up does not keep an answer away.
                let slow = Box::pin(tokio::time::sleep(Duration::from_secs(4)));
                assert_eq!(within(after(5), slow).await, Some(()));
                for wait in waits {
                    let (told, seconds, took) = wait.await.unwrap();
                    let seconds = Duration::from_secs(seconds);
                    assert!(told.is_none() && took >= seconds && took <= seconds + 2 * TICK, "{took:?}");
                }
                // Nobody is left, and who comes later is seen as well.
                tokio::time::sleep(TICK * 2).await;
                yield_now().await;
                assert!(WAITING.with(|waiting| !waiting.watched.get()));
                assert_eq!(within(after(1), pending::<()>()).await, None);
                assert_eq!(WAITING.with(|waiting| waiting.places.borrow().len()), 4);
            })
            .await;
    }
}
