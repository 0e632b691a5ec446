//! Removals in the background: one for each namespace and CRD, however often its deletion is asked for.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use kubeapi::Status;

/// Pause after the first attempt that leaves something; doubled by each further one. After an object was removed by
/// somebody else, the next attempt is this long later.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is removed with all its objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RemovalTarget {
    /// A namespace, by name.
    Namespace(String),
    /// A CustomResourceDefinition, by uid: another one may have its name before its removal has ended.
    Crd(String),
}

/// The removals that go on. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Removals(Arc<Mutex<HashMap<RemovalTarget, RunningRemoval>>>);

#[derive(Default)]
struct RunningRemoval {
    /// Told that an object was removed by somebody else.
    progress: Arc<Notify>,
    /// The removal was asked for since its last attempt began.
    is_requested: bool,
}

/// The entry of a removal, which ends with its task, however that ends.
struct RemovalEntry {
    removals: Removals,
    target: RemovalTarget,
    progress: Arc<Notify>,
}

impl Drop for RemovalEntry {
    fn drop(&mut self) {
        let mut running = self.removals.0.lock();
        // The target may be removed again already, by another task.
        if running.get(&self.target).is_some_and(|removal| Arc::ptr_eq(&removal.progress, &self.progress)) {
            running.remove(&self.target);
        }
    }
}

impl Removals {
    /// Calls `attempt` on this thread until it succeeds, with growing pauses. A removal that goes on already is not
    /// started again.
    pub(super) fn start<F>(&self, target: RemovalTarget, attempt: impl Fn() -> F + 'static)
    where
        F: Future<Output = Result<(), Status>> + 'static,
    {
        let progress = {
            let mut running = self.0.lock();
            if let Some(removal) = running.get_mut(&target) {
                removal.is_requested = true;
                return;
            }
            running.entry(target.clone()).or_default().progress.clone()
        };
        let entry = RemovalEntry { removals: self.clone(), target, progress };
        tokio::task::spawn_local(entry.run(attempt));
    }

    /// Says that an object of a target was removed: what is left may be removable now.
    pub(super) fn note_progress(&self, target: &RemovalTarget) {
        if let Some(removal) = self.0.lock().get(target) {
            removal.progress.notify_one();
        }
    }

    /// Whether nothing is being removed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl RemovalEntry {
    async fn run<F>(self, attempt: impl Fn() -> F)
    where
        F: Future<Output = Result<(), Status>>,
    {
        let (mut pause, mut logged) = (FIRST_PAUSE, String::new());
        loop {
            if let Some(removal) = self.removals.0.lock().get_mut(&self.target) {
                removal.is_requested = false;
            }
            match attempt().await {
                Ok(()) if self.is_finished() => return,
                Ok(()) => continue,
                Err(status) if status.message != logged => {
                    let removed = &self.target;
                    tracing::warn!(?removed, "removal goes on, tried again in {pause:?}: {}", status.message);
                    logged = status.message;
                }
                Err(_) => {}
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = self.progress.notified() => {
                    pause = FIRST_PAUSE;
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Ends the entry unless the removal was asked for again: another object may have the name by now.
    fn is_finished(&self) -> bool {
        let mut running = self.removals.0.lock();
        if running.get(&self.target).is_some_and(|removal| removal.is_requested) {
            return false;
        }
        running.remove(&self.target);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use tokio::task::LocalSet;
    use tokio::time::Instant;

    use super::*;

    fn target() -> RemovalTarget {
        RemovalTarget::Namespace("a".to_owned())
    }

    fn remains() -> Result<(), Status> {
        Err(Status::service_unavailable("objects remain"))
    }

    #[tokio::test(start_paused = true)]
    async fn removal_asked_for_often_is_attempted_by_one_task_with_growing_pauses() {
        let (removals, began) = (Removals::default(), Instant::now());
        let attempts = Rc::new(RefCell::new(Vec::new()));
        let run = async {
            for _ in 0..1_000 {
                let attempts = attempts.clone();
                removals.start(target(), move || {
                    attempts.borrow_mut().push(began.elapsed().as_secs());
                    async { remains() }
                });
            }
            tokio::time::sleep(Duration::from_secs(200)).await;
            assert_eq!(*attempts.borrow(), [0, 1, 3, 7, 15, 31, 63, 123, 183]);
            removals.note_progress(&target());
            tokio::time::sleep(Duration::from_millis(3_500)).await;
            assert_eq!(attempts.borrow()[9..], [201, 202]);
        };
        LocalSet::new().run_until(run).await;
    }

    #[tokio::test(start_paused = true)]
    async fn removal_asked_for_while_it_ends_is_attempted_again() {
        let (removals, attempts) = (Removals::default(), Rc::new(Cell::new(0)));
        let run = async {
            let again = (removals.clone(), attempts.clone());
            removals.start(target(), move || {
                let (removals, attempts) = again.clone();
                async move {
                    attempts.set(attempts.get() + 1);
                    if attempts.get() == 1 {
                        removals.start(target(), || async { remains() });
                    }
                    Ok(())
                }
            });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(attempts.get(), 2);
            assert!(removals.is_empty());
            // One that was removed can be removed again.
            removals.start(target(), || async { remains() });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!removals.is_empty());
        };
        LocalSet::new().run_until(run).await;
        assert!(removals.is_empty(), "the task is gone");
    }
}
