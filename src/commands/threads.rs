//! Spawning and joining of threads.

use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::process::Problem;

/// Spawns a thread with a current-thread runtime and runs the future of `begin` on it, supervised by the watchdog.
pub(super) fn spawn_thread<F: Future<Output = ()>>(
    name: &str,
    begin: impl FnOnce() -> F + Send + 'static,
) -> Result<JoinHandle<()>, Problem> {
    let thread = name.to_owned();
    let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let tasks = tokio::task::LocalSet::new();
            let _supervised = super::watchdog::supervise(&thread, &tasks);
            tasks.block_on(&runtime, begin());
        }
        Err(error) => tracing::error!(%error, "cannot create the async runtime of a thread"),
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| Problem::new(format!("thread {name}"), error))
}

/// Joins `threads` in the background; the receiver fires when all have ended. A panic is logged.
pub(super) fn join_all(threads: impl IntoIterator<Item = JoinHandle<()>> + Send + 'static) -> oneshot::Receiver<()> {
    let (finished, rest) = oneshot::channel();
    std::thread::spawn(move || {
        for thread in threads {
            let name = thread.thread().name().unwrap_or("a thread").to_owned();
            if thread.join().is_err() {
                tracing::error!(thread = name, "a thread panicked; this is a bug in narthex");
            }
        }
        let _ = finished.send(());
    });
    rest
}
