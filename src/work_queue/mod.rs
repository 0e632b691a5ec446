//! Work queues of controllers (`k8s.io/client-go/util/workqueue`): each key is in the queue once, however often it is
//! added, is worked on by one task at a time, and is tried again after a growing pause when that fails.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use kubeapi::Status;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::observe::metrics::WorkQueueMetrics;

/// Pauses between the attempts that fail.
#[derive(Clone, Copy, Debug)]
pub struct BackOff {
    /// The first pause; doubled by each further failure.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for BackOff {
    fn default() -> BackOff {
        BackOff { first: Duration::from_secs(1), longest: Duration::from_secs(60) }
    }
}

impl BackOff {
    fn pause(&self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.min(16)).min(self.longest)
    }
}

/// What a controller has still to look at. Cheap to clone.
pub struct WorkQueue<K>(Arc<QueueShared<K>>);

struct QueueShared<K> {
    back_off: BackOff,
    metrics: Arc<WorkQueueMetrics>,
    state: Mutex<WorkQueueState<K>>,
    /// A key has a turn, or another pause.
    added: Notify,
    /// A key left the queue.
    finished: Notify,
}

struct WorkQueueState<K> {
    keys: HashMap<K, QueuedKey>,
    /// Keys that wait for their turn.
    ready: VecDeque<K>,
    /// Keys whose pause ends at a time.
    delayed: BTreeSet<(Instant, K)>,
}

/// A key in the queue.
struct QueuedKey {
    phase: KeyPhase,
    /// Attempts that failed since the key was added, or since somebody made progress.
    failures: u32,
    /// The last error, which is logged once.
    failure: String,
}

enum KeyPhase {
    Ready { since: Instant },
    Delayed { until: Instant },
    Running { began: std::time::Instant, is_added_again: bool, has_progress: bool },
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        WorkQueue(self.0.clone())
    }
}

impl<K: Clone + Ord + Hash + Display> WorkQueue<K> {
    /// An empty queue.
    pub fn new(back_off: BackOff, metrics: Arc<WorkQueueMetrics>) -> WorkQueue<K> {
        let state = WorkQueueState { keys: HashMap::new(), ready: VecDeque::new(), delayed: BTreeSet::new() };
        let (added, finished) = (Notify::new(), Notify::new());
        WorkQueue(Arc::new(QueueShared { back_off, metrics, state: Mutex::new(state), added, finished }))
    }

    /// Adds a key. One that is worked on gets another turn afterwards; one that failed keeps its pause.
    pub fn add(&self, key: K) {
        let mut state = self.0.state.lock();
        match state.keys.get_mut(&key).map(|queued| &mut queued.phase) {
            Some(KeyPhase::Running { is_added_again, .. }) => *is_added_again = true,
            Some(_) => return,
            None => {
                let phase = KeyPhase::Ready { since: Instant::now() };
                state.keys.insert(key.clone(), QueuedKey { phase, failures: 0, failure: String::new() });
                state.ready.push_back(key);
            }
        }
        self.0.metrics.record_add();
        self.note_change(&state);
    }

    /// Says that a key, if it is in the queue, may succeed now: its next attempt is at most the first pause later.
    pub fn hasten(&self, key: &K) {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let Some(queued) = state.keys.get_mut(key) else { return };
        queued.failures = 0;
        match &mut queued.phase {
            KeyPhase::Running { has_progress, .. } => *has_progress = true,
            KeyPhase::Ready { .. } => {}
            KeyPhase::Delayed { until } => {
                let soon = Instant::now() + self.0.back_off.first;
                if soon < *until {
                    state.delayed.remove(&(*until, key.clone()));
                    *until = soon;
                    state.delayed.insert((soon, key.clone()));
                    self.note_change(state);
                }
            }
        }
    }

    /// Whether there is no key, not even one that is worked on.
    pub fn is_empty(&self) -> bool {
        self.0.state.lock().keys.is_empty()
    }

    /// Waits until none of some keys is in the queue.
    pub async fn wait_until_finished(&self, keys: &[K]) {
        loop {
            let finished = self.0.finished.notified();
            if keys.iter().all(|key| !self.0.state.lock().keys.contains_key(key)) {
                return;
            }
            finished.await;
        }
    }

    /// Calls `attempt` for one key after the other. Several of these can run at a time.
    pub async fn run<F: Future<Output = Result<(), Status>>>(&self, attempt: impl Fn(K) -> F) {
        loop {
            let key = self.next().await;
            let result = attempt(key.clone()).await;
            self.finish(&key, result);
        }
    }

    /// The next key whose turn it is.
    async fn next(&self) -> K {
        loop {
            let added = self.0.added.notified();
            let next_pause = match self.take() {
                Ok(key) => return key,
                Err(next_pause) => next_pause,
            };
            match next_pause {
                Some(until) => tokio::select! {
                    () = added => {}
                    () = tokio::time::sleep_until(until) => {}
                },
                None => added.await,
            }
        }
    }

    /// The next key whose turn it is, or when the next pause ends.
    fn take(&self) -> Result<K, Option<Instant>> {
        let mut guard = self.0.state.lock();
        let (state, now) = (&mut *guard, Instant::now());
        while let Some((until, _)) = state.delayed.first().filter(|(until, _)| *until <= now) {
            let since = *until;
            let Some((_, key)) = state.delayed.pop_first() else { break };
            if let Some(queued) = state.keys.get_mut(&key) {
                queued.phase = KeyPhase::Ready { since };
            }
            state.ready.push_back(key);
        }
        let Some(key) = state.ready.pop_front() else {
            return Err(state.delayed.first().map(|(until, _)| *until));
        };
        let began = std::time::Instant::now();
        if let Some(queued) = state.keys.get_mut(&key) {
            let since = match queued.phase {
                KeyPhase::Ready { since } => since,
                _ => now,
            };
            self.0.metrics.record_start(now.saturating_duration_since(since), began);
            queued.phase = KeyPhase::Running { began, is_added_again: false, has_progress: false };
        }
        self.note_change(state);
        Ok(key)
    }

    /// Ends the turn of a key.
    fn finish(&self, key: &K, result: Result<(), Status>) {
        let mut guard = self.0.state.lock();
        let (state, now) = (&mut *guard, Instant::now());
        let Some(queued) = state.keys.get_mut(key) else { return };
        let KeyPhase::Running { began, is_added_again, has_progress } = queued.phase else { return };
        let failure = result.as_ref().err().map(|status| format!("{key}: {}", status.message));
        self.0.metrics.record_end(began, failure);
        match result {
            Ok(()) if is_added_again => {
                *queued = QueuedKey { phase: KeyPhase::Ready { since: now }, failures: 0, failure: String::new() };
                state.ready.push_back(key.clone());
            }
            Ok(()) => {
                state.keys.remove(key);
                self.0.finished.notify_waiters();
            }
            Err(status) => {
                if has_progress {
                    queued.failures = 0;
                }
                let pause = self.0.back_off.pause(queued.failures);
                queued.failures = queued.failures.saturating_add(1);
                if queued.failure != status.message {
                    let controller = self.0.metrics.name();
                    tracing::warn!(controller, %key, "not finished, tried again in {pause:?}: {}", status.message);
                    queued.failure = status.message;
                }
                queued.phase = KeyPhase::Delayed { until: now + pause };
                state.delayed.insert((now + pause, key.clone()));
            }
        }
        self.note_change(state);
    }

    fn note_change(&self, state: &WorkQueueState<K>) {
        self.0.metrics.set_depth(state.ready.len(), state.delayed.len());
        self.0.added.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    fn queue() -> WorkQueue<String> {
        WorkQueue::new(BackOff::default(), Arc::new(WorkQueueMetrics::new("namespace")))
    }

    fn remains() -> Result<(), Status> {
        Err(Status::service_unavailable("objects remain"))
    }

    async fn run_for(duration: Duration, run: impl Future<Output = ()>) {
        assert!(tokio::time::timeout(duration, run).await.is_err(), "it ended");
    }

    #[tokio::test(start_paused = true)]
    async fn key_added_often_is_attempted_by_one_task_with_growing_pauses() {
        let (queue, began) = (queue(), Instant::now());
        let attempts = RefCell::new(Vec::new());
        let attempt = |_| {
            attempts.borrow_mut().push(began.elapsed().as_secs());
            async { remains() }
        };
        for _ in 0..1_000 {
            queue.add("a".to_owned());
        }
        run_for(Duration::from_secs(200), queue.run(attempt)).await;
        assert_eq!(*attempts.borrow(), [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        queue.add("a".to_owned());
        queue.hasten(&"a".to_owned());
        queue.hasten(&"b".to_owned());
        run_for(Duration::from_millis(3_500), queue.run(attempt)).await;
        assert_eq!(attempts.borrow()[9..], [201, 202]);
        let stats = queue.0.metrics.stats();
        assert_eq!((stats.adds, stats.retries, stats.queued, stats.running, stats.delayed), (1, 11, 0, 0, 1));
        assert_eq!(stats.failure.as_deref(), Some("a: objects remain"));
    }

    #[tokio::test(start_paused = true)]
    async fn key_added_while_it_is_worked_on_is_attempted_again() {
        let (queue, attempts) = (queue(), Cell::new(0));
        queue.add("a".to_owned());
        let attempt = |key: String| {
            attempts.set(attempts.get() + 1);
            if attempts.get() == 1 {
                queue.add(key);
            }
            async { Ok(()) }
        };
        run_for(Duration::from_secs(1), queue.run(attempt)).await;
        assert_eq!(attempts.get(), 2);
        assert!(queue.is_empty());
        queue.wait_until_finished(&["a".to_owned()]).await;
        queue.add("a".to_owned());
        assert!(!queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn progress_made_while_a_key_is_worked_on_shortens_its_pause() {
        let (queue, began) = (queue(), Instant::now());
        let attempts = RefCell::new(Vec::new());
        queue.add("a".to_owned());
        let attempt = |key: String| {
            attempts.borrow_mut().push(began.elapsed().as_secs());
            if attempts.borrow().len() == 3 {
                queue.hasten(&key);
            }
            async { remains() }
        };
        run_for(Duration::from_secs(8), queue.run(attempt)).await;
        assert_eq!(*attempts.borrow(), [0, 1, 3, 4, 6]);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_share_the_queue_and_no_key_has_two_at_a_time() {
        let (queue, running) = (queue(), Rc::new(RefCell::new(Vec::new())));
        let most = Cell::new(0);
        let attempt = |key: String| {
            assert!(!running.borrow().contains(&key), "{key} has another task");
            running.borrow_mut().push(key.clone());
            most.set(most.get().max(running.borrow().len()));
            let running = running.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                running.borrow_mut().retain(|one| *one != key);
                Ok(())
            }
        };
        for key in ["a", "b", "c", "a", "d"] {
            queue.add(key.to_owned());
        }
        let (waited, absent) = ("d".to_owned(), "x".to_owned());
        let keys = [waited, absent];
        let finished = queue.wait_until_finished(&keys);
        let add_again = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            queue.add("a".to_owned());
            finished.await;
            assert_eq!(queue.0.metrics.stats().queued, 0);
        };
        tokio::select! {
            () = queue.run(&attempt) => {}
            () = queue.run(&attempt) => {}
            () = add_again => {}
        }
        assert_eq!(most.get(), 2);
    }
}
