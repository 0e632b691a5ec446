//! One poll task per backend: a minute between successful polls, sooner after a failed one.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local};

/// Interval between successful polls.
pub(in crate::discovery) const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Delay after the first failure; doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(500);

/// Running tasks by the key of their backend. Dropping it ends them.
#[derive(Default)]
pub(in crate::discovery) struct PollTasks(BTreeMap<String, PollTask>);

struct PollTask {
    refresh: Rc<Notify>,
    handle: AbortHandle,
}

impl Drop for PollTask {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

impl PollTasks {
    /// Starts to repeat `round` for the backend `key`, at once for the first time. A round returns whether it
    /// succeeded. `pace` is the interval between successful rounds and the maximum delay after failed ones. Must be
    /// called inside a `LocalSet`. A backend that has a task already keeps it.
    pub(in crate::discovery) fn start<R, Fut>(&mut self, key: &str, pace: Duration, round: R)
    where
        R: FnMut() -> Fut + 'static,
        Fut: Future<Output = bool> + 'static,
    {
        if self.0.contains_key(key) {
            return;
        }
        let nudge = Rc::new(Notify::new());
        let handle = spawn_local(run_polls(round, pace, nudge.clone())).abort_handle();
        self.0.insert(key.to_owned(), PollTask { refresh: nudge, handle });
    }

    /// Polls the backend `key` now, or once more if a poll is running.
    pub(in crate::discovery) fn refresh_now(&self, key: &str) {
        if let Some(task) = self.0.get(key) {
            task.refresh.notify_one();
        }
    }

    /// Ends the task of the backend `key`.
    pub(in crate::discovery) fn stop(&mut self, key: &str) {
        self.0.remove(key);
    }
}

async fn run_polls<R, Fut>(mut round: R, pace: Duration, nudge: Rc<Notify>)
where
    R: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let mut failures = 0;
    loop {
        failures = if round().await { 0 } else { failures + 1 };
        tokio::select! {
            () = tokio::time::sleep(poll_delay(pace, failures, fastrand::f64())) => {}
            () = nudge.notified() => failures = 0,
        }
    }
}

/// Delay after `failures` consecutive failed rounds; `chance` is between 0 and 1.
///
/// Jitter is a tenth after success and half after failure, so that many replicas, or many backends that came back
/// together, are not polled together.
fn poll_delay(pace: Duration, failures: u32, chance: f64) -> Duration {
    match failures.checked_sub(1) {
        None => pace.mul_f64(0.9 + 0.1 * chance),
        Some(doublings) => pace.min(FIRST_RETRY * (1 << doublings.min(16))).mul_f64(0.5 + 0.5 * chance),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_delay_doubles_to_a_minute_with_jitter() {
        let millis = |failures, chance| poll_delay(POLL_INTERVAL, failures, chance).as_millis();
        assert_eq!((millis(0, 0.0), millis(0, 1.0)), (54_000, 60_000));
        assert_eq!((millis(1, 0.0), millis(1, 1.0)), (250, 500));
        assert_eq!(millis(4, 1.0), 4_000);
        assert_eq!((millis(8, 1.0), millis(u32::MAX, 1.0)), (60_000, 60_000));
    }
}
