//! Spawning and joining of threads.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

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

/// The threads on which the long-running tasks of a gateway run.
#[derive(Clone)]
pub(super) enum TaskThreads {
    /// A thread for each kind of task.
    Own,
    /// Threads that many gateways share; those with the same number share them with each other.
    Shared(Arc<SharedThreads>, usize),
}

/// Threads that run tasks of many gateways, by kind of task and number. They are started when they are needed.
#[derive(Default)]
pub(super) struct SharedThreads {
    queues: Mutex<HashMap<(&'static str, usize), mpsc::UnboundedSender<SharedTask>>>,
}

/// Starts a task on the thread that runs it.
type SharedTask = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

impl TaskThreads {
    /// Runs the future of `begin` on the thread for tasks of the kind `name`.
    pub(super) fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        name: &'static str,
        begin: impl FnOnce() -> F + Send + 'static,
    ) -> Result<(), Problem> {
        match self {
            TaskThreads::Own => spawn_thread(name, begin).map(drop),
            TaskThreads::Shared(threads, number) => threads.spawn((name, *number), Box::new(|| Box::pin(begin()))),
        }
    }
}

impl SharedThreads {
    fn spawn(&self, key: (&'static str, usize), task: SharedTask) -> Result<(), Problem> {
        let mut queues = self.queues.lock();
        let task = match queues.get(&key) {
            Some(queue) => match queue.send(task) {
                Ok(()) => return Ok(()),
                // The thread panicked.
                Err(mpsc::error::SendError(task)) => task,
            },
            None => task,
        };
        let (queue, mut tasks) = mpsc::unbounded_channel::<SharedTask>();
        let (name, number) = key;
        spawn_thread(&format!("{name}-{number}"), async move || {
            while let Some(task) = tasks.recv().await {
                // The thread goes on when a task panics.
                tokio::task::spawn_local(task());
            }
        })?;
        // The receiver is the new thread's.
        let _ = queue.send(task);
        queues.insert(key, queue);
        Ok(())
    }
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
