//! The service manager's watchdog. It is fed only while every thread of the process runs its tasks, so that a process that
//! hangs or has lost a thread is restarted.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::process::watchdog_timeout;

/// Threads report so often in each timeout.
const REPORTS: u32 = 8;
/// So often they are checked. A thread may miss a check and the process still meets the timeout.
const CHECKS: u32 = 4;

/// The threads of this process, if it has a watchdog.
static THREADS: Mutex<Vec<Arc<ThreadReport>>> = Mutex::new(Vec::new());

/// Whether a thread has reported since the last check.
struct ThreadReport {
    name: String,
    has_reported: AtomicBool,
}

/// Keeps a thread supervised; drop it on that thread when its work ends.
pub(super) struct SupervisedThread(Arc<ThreadReport>);

impl Drop for SupervisedThread {
    fn drop(&mut self) {
        // The process lacks a thread that panicked: it stays in the list and reports no more.
        if !std::thread::panicking() {
            THREADS.lock().retain(|report| !Arc::ptr_eq(report, &self.0));
        }
    }
}

/// Supervises the thread that will run `tasks`. None if the service manager has no watchdog.
pub(super) fn supervise(name: &str, tasks: &LocalSet) -> Option<SupervisedThread> {
    watchdog_timeout().map(|timeout| supervise_within(timeout, name, tasks))
}

fn supervise_within(timeout: Duration, name: &str, tasks: &LocalSet) -> SupervisedThread {
    let report = Arc::new(ThreadReport { name: name.to_owned(), has_reported: AtomicBool::new(true) });
    THREADS.lock().push(report.clone());
    let reporting = report.clone();
    tasks.spawn_local(async move {
        let mut ticks = ticks(timeout / REPORTS);
        loop {
            ticks.tick().await;
            reporting.has_reported.store(true, Ordering::Relaxed);
        }
    });
    SupervisedThread(report)
}

/// Calls `send` in each round in which all threads have reported; never, without a watchdog.
pub(super) async fn feed(send: impl Fn()) -> Infallible {
    let Some(timeout) = watchdog_timeout() else { return pending().await };
    check_threads(timeout, |silent| {
        if silent.is_empty() {
            send();
        } else {
            let threads = silent.join(", ");
            tracing::error!(threads, "threads hang or panicked; the service manager will restart the process");
        }
    })
    .await
}

/// Calls `on_check` with the names of the threads that have not reported since the last check.
async fn check_threads(timeout: Duration, on_check: impl Fn(&[String])) -> Infallible {
    let mut ticks = ticks(timeout / CHECKS);
    loop {
        ticks.tick().await;
        let silent = take_silent(&THREADS.lock());
        on_check(&silent);
    }
}

/// Names of the threads that have not reported since the last call.
fn take_silent(threads: &[Arc<ThreadReport>]) -> Vec<String> {
    let silent = threads.iter().filter(|report| !report.has_reported.swap(false, Ordering::Relaxed));
    silent.map(|report| report.name.clone()).collect()
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: the list of threads is one of the process.
    #[test]
    fn watchdog_names_threads_that_hang_or_panicked() {
        let timeout = Duration::from_millis(200);
        let (hang, hung) = std::sync::mpsc::channel::<()>();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let (start_hanging, starts_hanging) = tokio::sync::oneshot::channel::<()>();
        let run = |name: &'static str, work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let tasks = LocalSet::new();
                let _supervised = supervise_within(timeout, name, &tasks);
                tasks.block_on(&runtime, work);
            })
        };
        let worker = run(
            "worker",
            Box::pin(async move {
                starts_hanging.await.unwrap();
                hung.recv().unwrap();
                ended.await.unwrap();
            }),
        );
        let (rounds, checks) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // The test is over when nobody receives.
            runtime.block_on(async {
                tokio::select! {
                    never = check_threads(timeout, |silent| drop(rounds.send(silent.to_vec()))) => match never {},
                    () = tokio::time::sleep(Duration::from_secs(60)) => {}
                }
            });
        });
        let wait_for = |expected: &[&str]| {
            while checks.recv_timeout(Duration::from_secs(30)).unwrap() != expected {}
        };
        wait_for(&[]);
        start_hanging.send(()).unwrap();
        wait_for(&["worker"]);
        hang.send(()).unwrap();
        wait_for(&[]);
        end.send(()).unwrap();
        worker.join().unwrap();
        wait_for(&[]);
        assert!(run("panicked", Box::pin(async { panic!("expected by the test") })).join().is_err());
        wait_for(&["panicked"]);
    }
}
