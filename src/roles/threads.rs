//! The threads of a process: how they begin, and that they are over.

use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::process::Problem;

/// A thread with a runtime of its own, for the tasks that `begin` begins there.
pub(super) fn thread<F: Future<Output = ()>>(
    name: &str,
    begin: impl FnOnce() -> F + Send + 'static,
) -> Result<JoinHandle<()>, Problem> {
    let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => tokio::task::LocalSet::new().block_on(&runtime, begin()),
        Err(error) => tracing::error!(%error, "no runtime for a thread"),
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|error| Problem::new(format!("thread {name}"), error))
}

/// Comes when all of `threads` are over. One that panicked is told.
pub(super) fn over(threads: impl IntoIterator<Item = JoinHandle<()>> + Send + 'static) -> oneshot::Receiver<()> {
    let (finished, rest) = oneshot::channel();
    std::thread::spawn(move || {
        for thread in threads {
            let name = thread.thread().name().unwrap_or("a thread").to_owned();
            if thread.join().is_err() {
                tracing::error!(thread = name, "a thread panicked; this is a defect of ours");
            }
        }
        let _ = finished.send(());
    });
    rest
}
