//! Work queues of controllers (`k8s.io/client-go/util/workqueue`): each key is in the queue once, however often it is
//! added, is worked on by one task at a time, and is tried again after a growing pause when that fails.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::Display;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use kubeapi::Status;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::observe::metrics::{WorkQueueFailure, WorkQueueMetrics};

/// Pauses after failed attempts.
#[derive(Clone, Copy, Debug)]
pub struct BackOff {
    /// The pause after the first failure; doubled by each further one.
    pub initial: Duration,
    /// The maximum pause.
    pub max: Duration,
}

impl Default for BackOff {
    fn default() -> BackOff {
        BackOff { initial: Duration::from_secs(1), max: Duration::from_secs(60) }
    }
}

impl BackOff {
    fn pause(&self, failures: u32) -> Duration {
        self.initial.saturating_mul(1 << failures.min(16)).min(self.max)
    }
}

/// Keys to reconcile. Cheap to clone.
pub struct WorkQueue<K>(Arc<QueueShared<K>>);

struct QueueShared<K> {
    back_off: BackOff,
    metrics: Arc<WorkQueueMetrics>,
    state: Mutex<WorkQueueState<K>>,
    /// Signaled when a key becomes ready or its retry time changes.
    changed: Notify,
    /// A key left the queue.
    finished: Notify,
}

struct WorkQueueState<K> {
    is_open: bool,
    keys: HashMap<K, QueuedKey>,
    /// Keys that wait for their turn.
    ready: VecDeque<K>,
    /// Keys that failed, by the time of their next attempt.
    delayed: BTreeSet<(Instant, K)>,
    /// Keys that failed and have not succeeded since, by the time of the first failure.
    failing: BTreeSet<(Instant, K)>,
}

/// A key in the queue.
struct QueuedKey {
    phase: KeyPhase,
    /// Attempts that failed since the key was added, or since [`WorkQueue::retry_soon`].
    failures: u32,
    /// The last error, which is logged once.
    failure: String,
    /// Time of the first failure.
    failing_since: Option<Instant>,
}

impl QueuedKey {
    fn ready(since: Instant) -> QueuedKey {
        QueuedKey { phase: KeyPhase::Ready { since }, failures: 0, failure: String::new(), failing_since: None }
    }
}

enum KeyPhase {
    Ready {
        since: Instant,
    },
    Delayed {
        until: Instant,
    },
    /// `retries_soon`: as of [`WorkQueue::retry_soon`]; `added_for`: as of [`WorkQueue::add_after`].
    Running {
        began: std::time::Instant,
        is_added_again: bool,
        retries_soon: bool,
        added_for: Option<Instant>,
    },
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        WorkQueue(self.0.clone())
    }
}

impl<K: Clone + Ord + Hash + Display> WorkQueue<K> {
    /// An empty queue.
    pub fn new(back_off: BackOff, metrics: Arc<WorkQueueMetrics>) -> WorkQueue<K> {
        let state = WorkQueueState {
            is_open: true,
            keys: HashMap::new(),
            ready: VecDeque::new(),
            delayed: BTreeSet::new(),
            failing: BTreeSet::new(),
        };
        let (changed, finished) = (Notify::new(), Notify::new());
        WorkQueue(Arc::new(QueueShared { back_off, metrics, state: Mutex::new(state), changed, finished }))
    }

    /// Opens or closes the queue. A closed queue has no keys and takes none: nobody works on them. Call it while no
    /// [`run`](WorkQueue::run) is polled.
    pub fn set_open(&self, is_open: bool) {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        state.is_open = is_open;
        if is_open {
            return;
        }
        for queued in state.keys.drain().map(|(_, queued)| queued) {
            if let KeyPhase::Running { began, .. } = queued.phase {
                self.0.metrics.record_end(began, false);
            }
        }
        state.ready.clear();
        state.delayed.clear();
        state.failing.clear();
        self.0.finished.notify_waiters();
        self.note_change(state);
    }

    /// Adds a key after a pause. One that is being reconciled is added when that has succeeded; one that waits keeps its turn.
    pub fn add_after(&self, key: K, pause: Duration) {
        let mut guard = self.0.state.lock();
        let (state, until) = (&mut *guard, Instant::now() + pause);
        match state.keys.get_mut(&key).map(|queued| &mut queued.phase) {
            Some(KeyPhase::Running { added_for, .. }) => {
                *added_for = Some(added_for.map_or(until, |earlier| earlier.min(until)));
                return;
            }
            Some(_) => return,
            None if !state.is_open => return,
            None => {}
        }
        state.keys.insert(key.clone(), QueuedKey { phase: KeyPhase::Delayed { until }, ..QueuedKey::ready(until) });
        state.delayed.insert((until, key));
        self.note_change(state);
    }

    /// Adds a key. One that is being reconciled is reconciled again afterwards; one that failed keeps its pause.
    pub fn add(&self, key: K) {
        let mut state = self.0.state.lock();
        if !state.is_open {
            return;
        }
        match state.keys.get_mut(&key).map(|queued| &mut queued.phase) {
            Some(KeyPhase::Running { is_added_again: is_added_again @ false, .. }) => *is_added_again = true,
            Some(_) => return,
            None => {
                state.keys.insert(key.clone(), QueuedKey::ready(Instant::now()));
                state.ready.push_back(key);
            }
        }
        self.0.metrics.record_add();
        self.note_change(&state);
    }

    /// Resets the back-off of a key that is in the queue: it is retried within the initial pause.
    pub fn retry_soon(&self, key: &K) {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let Some(queued) = state.keys.get_mut(key) else { return };
        queued.failures = 0;
        match &mut queued.phase {
            KeyPhase::Running { retries_soon, .. } => *retries_soon = true,
            KeyPhase::Ready { .. } => {}
            KeyPhase::Delayed { until } => {
                let soon = Instant::now() + self.0.back_off.initial;
                if soon < *until {
                    state.delayed.remove(&(*until, key.clone()));
                    *until = soon;
                    state.delayed.insert((soon, key.clone()));
                    self.note_change(state);
                }
            }
        }
    }

    /// Whether there is no key, not even one that is being reconciled.
    pub fn is_empty(&self) -> bool {
        self.0.state.lock().keys.is_empty()
    }

    /// How many keys wait for their turn.
    pub fn ready_len(&self) -> usize {
        self.0.state.lock().ready.len()
    }

    /// Waits until none of some keys is in the queue.
    pub async fn wait_until_finished(&self, mut keys: Vec<K>) {
        loop {
            let finished = self.0.finished.notified();
            {
                let state = self.0.state.lock();
                keys.retain(|key| state.keys.contains_key(key));
            }
            if keys.is_empty() {
                return;
            }
            finished.await;
        }
    }

    /// Calls `reconcile` for one key after the other. Several of these can run at a time. A panic is a failure of its key.
    pub async fn run<F: Future<Output = Result<(), Status>>>(&self, reconcile: impl Fn(K) -> F) {
        loop {
            let key = self.next().await;
            // The key is given to nobody else until it is finished, and controllers read their state again.
            let result = AssertUnwindSafe(reconcile(key.clone())).catch_unwind().await;
            let result = result.unwrap_or_else(|_| Err(Status::internal_error("the controller panicked")));
            self.finish(&key, result);
        }
    }

    /// The next key whose turn it is.
    async fn next(&self) -> K {
        loop {
            let changed = self.0.changed.notified();
            let next_pause = match self.take() {
                Ok(key) => return key,
                Err(next_pause) => next_pause,
            };
            match next_pause {
                Some(until) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(until) => {}
                },
                None => changed.await,
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
            // client-go adds it again.
            self.0.metrics.record_add();
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
            queued.phase = KeyPhase::Running { began, is_added_again: false, retries_soon: false, added_for: None };
        }
        self.note_change(state);
        Ok(key)
    }

    /// Notes the result of reconciling a key.
    fn finish(&self, key: &K, result: Result<(), Status>) {
        let mut guard = self.0.state.lock();
        let (state, now) = (&mut *guard, Instant::now());
        let Some(queued) = state.keys.get_mut(key) else { return };
        let KeyPhase::Running { began, is_added_again, retries_soon, added_for } = queued.phase else { return };
        self.0.metrics.record_end(began, result.is_err());
        match (&result, queued.failing_since) {
            (Ok(()), Some(since)) => drop(state.failing.remove(&(since, key.clone()))),
            (Err(_), None) => {
                queued.failing_since = Some(now);
                state.failing.insert((now, key.clone()));
            }
            _ => {}
        }
        match result {
            Ok(()) if is_added_again => {
                *queued = QueuedKey::ready(now);
                state.ready.push_back(key.clone());
            }
            Ok(()) => {
                state.keys.remove(key);
                if let Some(until) = added_for {
                    let queued = QueuedKey { phase: KeyPhase::Delayed { until }, ..QueuedKey::ready(until) };
                    state.keys.insert(key.clone(), queued);
                    state.delayed.insert((until, key.clone()));
                }
                self.0.finished.notify_waiters();
            }
            Err(status) => {
                if retries_soon || is_added_again {
                    queued.failures = 0;
                }
                let pause = self.0.back_off.pause(queued.failures);
                queued.failures = queued.failures.saturating_add(1);
                if queued.failure != status.message {
                    let controller = self.0.metrics.name();
                    tracing::warn!(controller, %key, "reconcile failed, retried in {pause:?}: {}", status.message);
                    queued.failure = status.message;
                }
                queued.phase = KeyPhase::Delayed { until: now + pause };
                state.delayed.insert((now + pause, key.clone()));
            }
        }
        self.note_change(state);
    }

    fn note_change(&self, state: &WorkQueueState<K>) {
        let failure = state.failing.first().and_then(|(since, key)| {
            let text = format!("{key}: {}", state.keys.get(key)?.failure);
            Some(WorkQueueFailure { since: since.into_std(), text })
        });
        self.0.metrics.set_state(state.ready.len(), state.failing.len(), failure);
        self.0.changed.notify_waiters();
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
        queue.retry_soon(&"a".to_owned());
        queue.retry_soon(&"b".to_owned());
        run_for(Duration::from_millis(3_500), queue.run(attempt)).await;
        assert_eq!(attempts.borrow()[9..], [201, 202]);
        let stats = queue.0.metrics.stats();
        assert_eq!((stats.adds, stats.failures, stats.queued, stats.running, stats.failing), (11, 11, 0, 0, 1));
        assert_eq!(stats.failure.unwrap().text, "a: objects remain");
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
        queue.wait_until_finished(vec!["a".to_owned()]).await;
        queue.add("a".to_owned());
        assert!(!queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_added_after_a_pause_also_by_its_own_work() {
        let (queue, began) = (queue(), Instant::now());
        let attempts = RefCell::new(Vec::new());
        queue.add_after("a".to_owned(), Duration::from_secs(5));
        let attempt = |key: String| {
            attempts.borrow_mut().push(began.elapsed().as_secs());
            if attempts.borrow().len() < 3 {
                queue.add_after(key.clone(), Duration::from_secs(100));
                queue.add_after(key, Duration::from_secs(10));
            }
            async { Ok(()) }
        };
        run_for(Duration::from_secs(60), queue.run(attempt)).await;
        assert_eq!(*attempts.borrow(), [5, 15, 25]);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn closed_queue_has_no_keys_and_takes_none() {
        let queue = queue();
        for key in ["a", "b"] {
            queue.add(key.to_owned());
        }
        queue.add_after("c".to_owned(), Duration::from_secs(1));
        // A worker that is dropped while it has a key.
        run_for(Duration::from_secs(1), queue.run(|_| std::future::pending())).await;
        queue.set_open(false);
        assert!(queue.is_empty());
        queue.wait_until_finished(vec!["a".to_owned()]).await;
        queue.add("a".to_owned());
        queue.add_after("c".to_owned(), Duration::from_secs(1));
        assert!(queue.is_empty());
        let stats = queue.0.metrics.stats();
        assert_eq!((stats.queued, stats.running, stats.failing), (0, 0, 0));
        queue.set_open(true);
        let done = RefCell::new(Vec::new());
        queue.add("a".to_owned());
        let attempt = |key: String| {
            done.borrow_mut().push(key);
            async { Ok(()) }
        };
        run_for(Duration::from_secs(1), queue.run(attempt)).await;
        assert_eq!(*done.borrow(), ["a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn progress_made_while_a_key_is_worked_on_shortens_its_pause() {
        let (queue, began) = (queue(), Instant::now());
        let attempts = RefCell::new(Vec::new());
        queue.add("a".to_owned());
        let attempt = |key: String| {
            attempts.borrow_mut().push(began.elapsed().as_secs());
            if attempts.borrow().len() == 3 {
                queue.retry_soon(&key);
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
        let finished = queue.wait_until_finished(vec!["d".to_owned(), "x".to_owned()]);
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

    #[tokio::test(start_paused = true)]
    async fn failure_of_the_key_that_fails_for_the_longest_time_is_reported_until_it_succeeds() {
        let (queue, began) = (queue(), Instant::now());
        for key in ["a", "b"] {
            queue.add(key.to_owned());
        }
        let reconcile = |key: String| async move {
            // `a` works for long, and fails twice; `b` fails once.
            let is_late = began.elapsed() > Duration::from_secs(3);
            tokio::time::sleep(Duration::from_millis(if key == "a" { 500 } else { 1 })).await;
            match (&*key, is_late) {
                ("b", false) if began.elapsed() < Duration::from_secs(1) => remains(),
                ("a", false) => Err(Status::service_unavailable("held")),
                _ => Ok(()),
            }
        };
        let failure = || queue.0.metrics.stats().failure.map(|failure| failure.text);
        run_for(Duration::from_millis(700), queue.run(&reconcile)).await;
        assert_eq!(failure().as_deref(), Some("a: held"));
        assert_eq!(queue.0.metrics.stats().failing, 2);
        run_for(Duration::from_millis(1_500), queue.run(&reconcile)).await;
        assert_eq!((failure().as_deref(), queue.0.metrics.stats().failing), (Some("a: held"), 1));
        run_for(Duration::from_secs(10), queue.run(&reconcile)).await;
        assert_eq!((failure(), queue.0.metrics.stats().failing), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn panic_is_a_failure_of_its_key() {
        let (queue, attempts) = (queue(), Cell::new(0));
        queue.add("a".to_owned());
        let reconcile = |_| {
            attempts.set(attempts.get() + 1);
            let is_first = attempts.get() == 1;
            async move {
                assert!(!is_first, "a defect");
                Ok(())
            }
        };
        run_for(Duration::from_secs(5), queue.run(reconcile)).await;
        assert_eq!(attempts.get(), 2);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn key_added_while_it_fails_does_not_wait_for_a_long_pause() {
        let (queue, began) = (queue(), Instant::now());
        let attempts = RefCell::new(Vec::new());
        queue.add("a".to_owned());
        let reconcile = |key: String| {
            attempts.borrow_mut().push(began.elapsed().as_secs());
            if attempts.borrow().len() == 4 {
                queue.add(key);
            }
            async { remains() }
        };
        run_for(Duration::from_secs(11), queue.run(reconcile)).await;
        assert_eq!(*attempts.borrow(), [0, 1, 3, 7, 8, 10]);
    }
}
