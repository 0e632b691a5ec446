//! Wakes watches: a change signals one notifier per worker thread, which wakes the cursors that it concerns.
//!
//! The thread of the store pays for one signal a worker, whatever the number of watches. Cursors of one namespace or
//! name sleep through the changes of others. A worker wakes its cursors in portions, between which its other tasks run.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::{Mutex, RwLock};

use super::change_log::StoredChange;
use super::select::Selection;
use crate::{Prefix, Revision};

/// Maximum number of waiting signals; beyond, all cursors of the collections are woken.
const MAX_SIGNALS: usize = 1_024;

/// Number of cursors that are woken before other tasks of the thread run. A woken cursor encodes and writes its events,
/// which takes up to 30 microseconds.
const PORTION: usize = 32;

/// Wakes the cursors of one worker thread. Cheap to clone.
#[derive(Clone, Default)]
pub struct Notifier(Arc<NotifierState>);

#[derive(Default)]
struct NotifierState {
    inbox: Mutex<Inbox>,
    interests: Mutex<Interests>,
    /// Number of cursors; without any, signals are not sent.
    cursors: AtomicUsize,
}

#[derive(Default)]
struct Inbox {
    signals: Vec<Signal>,
    waker: Option<Waker>,
    /// Whether a task dispatches signals on the worker's thread. Without it the thread of the store does.
    has_task: bool,
}

struct Signal {
    collection: u64,
    revision: Revision,
    /// Keys of the changes, by which cursors are found; none when too many signals were waiting.
    topics: Option<[Topic; 4]>,
}

/// A collection, and a number of a namespace and name, of which either may be any. Two of the same number wake each
/// other's cursors, for nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Topic {
    collection: u64,
    number: u64,
}

#[derive(Default)]
struct Interests {
    by_topic: BTreeMap<Topic, Vec<Arc<Slot>>>,
    /// Revision of each collection up to which cursors were woken.
    dispatched: HashMap<u64, Revision>,
}

/// Where the signals for one cursor arrive.
#[derive(Default)]
struct Slot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    /// Revision of the first change that has not been taken.
    first: Option<Revision>,
    waker: Option<Waker>,
}

/// Registration of a cursor, which ends when it is dropped.
pub(super) struct Interest {
    notifier: Notifier,
    slot: Arc<Slot>,
    topic: Topic,
}

/// All notifiers of the process.
#[derive(Clone, Default)]
pub(super) struct NotifierSet(Arc<RwLock<Vec<Notifier>>>);

impl NotifierSet {
    /// Adds the notifier of a worker thread.
    pub(super) fn add(&self) -> Notifier {
        let notifier = Notifier::default();
        self.0.write().push(notifier.clone());
        notifier
    }

    /// Signals changes to all workers. The ring of the collection must hold them already.
    pub(super) fn signal(&self, collection: u64, prefix: &Prefix, changes: &[Arc<StoredChange>]) {
        for notifier in self.0.read().iter().filter(|notifier| notifier.cursors() > 0) {
            notifier.signal(collection, prefix, changes);
        }
    }

    /// Wakes every cursor of a collection, which looks at the ring from its position on: the feed ended or began.
    pub(super) fn signal_all(&self, collection: u64) {
        let revision = 0;
        for notifier in self.0.read().iter() {
            notifier.push([Signal { collection, revision, topics: None }]);
        }
    }

    /// How many cursors there are.
    pub(super) fn cursors(&self) -> usize {
        self.0.read().iter().map(Notifier::cursors).sum()
    }
}

impl Notifier {
    /// Dispatches signals as long as it is polled; for a task on the worker's thread.
    pub async fn run(&self) {
        let mut task = DispatchTask { notifier: self, batch: SignalBatch::default() };
        loop {
            let signals = poll_fn(|context| {
                let mut inbox = self.0.inbox.lock();
                inbox.has_task = true;
                if inbox.signals.is_empty() {
                    inbox.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                Poll::Ready(std::mem::take(&mut inbox.signals))
            });
            task.batch = self.batch(&signals.await);
            while self.wake_portion(&mut task.batch) {
                tokio::task::yield_now().await;
            }
        }
    }

    fn cursors(&self) -> usize {
        self.0.cursors.load(Ordering::SeqCst)
    }

    /// Registers a cursor. The cursor must read the collection after that.
    pub(super) fn register(&self, collection: u64, selection: &Selection, namespace: Option<&str>) -> Interest {
        let namespace = namespace.or(selection.exact_namespace());
        let topic = Topic::new(collection, namespace, selection.exact_name());
        let slot = Arc::new(Slot::default());
        self.0.interests.lock().by_topic.entry(topic).or_default().push(slot.clone());
        self.0.cursors.fetch_add(1, Ordering::SeqCst);
        Interest { notifier: self.clone(), slot, topic }
    }

    fn signal(&self, collection: u64, prefix: &Prefix, changes: &[Arc<StoredChange>]) {
        self.push(changes.iter().filter_map(|change| {
            let (namespace, name) = change.key().split_below(prefix)?;
            let topics = [(None, None), (Some(namespace), None), (None, Some(name)), (Some(namespace), Some(name))];
            let topics = Some(topics.map(|(namespace, name)| Topic::new(collection, namespace, name)));
            Some(Signal { collection, revision: change.revision(), topics })
        }));
    }

    fn push(&self, signals: impl IntoIterator<Item = Signal>) {
        let mut inbox = self.0.inbox.lock();
        for signal in signals {
            inbox.push(signal);
        }
        if let Some(waker) = inbox.waker.take() {
            drop(inbox);
            waker.wake();
        } else if !inbox.has_task {
            let signals = std::mem::take(&mut inbox.signals);
            drop(inbox);
            let mut batch = self.batch(&signals);
            while self.wake_portion(&mut batch) {}
        }
    }

    /// Determines the cursors that signals concern.
    fn batch(&self, signals: &[Signal]) -> SignalBatch {
        let mut batch = SignalBatch::default();
        let mut first = HashMap::new();
        for signal in signals {
            let first = first.entry(signal.collection).or_insert(signal.revision);
            *first = signal.revision.min(*first);
            let last = batch.last.entry(signal.collection).or_default();
            *last = signal.revision.max(*last);
        }
        let whole = signals.iter().filter(|signal| signal.topics.is_none()).map(|signal| signal.collection);
        let whole: HashSet<_> = whole.collect();
        for collection in &whole {
            let topic = |number| Topic { collection: *collection, number };
            batch.ranges.push(TopicRange { from: topic(0), to: topic(u64::MAX), revision: first[collection] });
        }
        // Cursors that are registered from now on find the changes in the ring.
        let interests = self.0.interests.lock();
        let mut topic_set = HashSet::new();
        for signal in signals.iter().filter(|signal| !whole.contains(&signal.collection)) {
            let topics = signal.topics.iter().flatten().filter(|topic| interests.by_topic.contains_key(topic));
            for topic in topics.filter(|topic| topic_set.insert(**topic)) {
                batch.ranges.push(TopicRange { from: *topic, to: *topic, revision: signal.revision });
            }
        }
        batch
    }

    /// Wakes the next [`PORTION`] cursors of a batch. Returns whether cursors may remain.
    fn wake_portion(&self, batch: &mut SignalBatch) -> bool {
        let mut woken = Vec::with_capacity(PORTION);
        let remains = batch.take_portion(&mut self.0.interests.lock(), &mut woken);
        // Without the lock: a waker may be the last of its task.
        woken.into_iter().for_each(Waker::wake);
        remains
    }
}

/// Signals that are dispatched together: a cursor is woken once, at the first change that concerns it.
#[derive(Default)]
struct SignalBatch {
    /// Topics whose cursors were not all woken; the last is the next.
    ranges: Vec<TopicRange>,
    /// The topic that is being woken, and the number of its cursors, from the first, that were not woken.
    ///
    /// Cursors are woken from the last to the first because a dropped one is replaced by the last: what takes its place
    /// has been woken already, or has all cursors before it still to come.
    partial: Option<(Topic, usize)>,
    /// Last revision of each collection.
    last: HashMap<u64, Revision>,
}

/// Topics from the first to the last, whose cursors are woken at a revision.
struct TopicRange {
    from: Topic,
    to: Topic,
    revision: Revision,
}

impl SignalBatch {
    /// Signals the next [`PORTION`] cursors and collects their wakers. Returns whether cursors may remain.
    fn take_portion(&mut self, interests: &mut Interests, woken: &mut Vec<Waker>) -> bool {
        let mut left = PORTION;
        while let Some(range) = self.ranges.last_mut() {
            if left == 0 {
                return true;
            }
            let Some((&topic, slots)) = interests.by_topic.range(range.from..=range.to).next() else {
                self.ranges.pop();
                continue;
            };
            let partial = self.partial.take().filter(|(partial, _)| *partial == topic);
            let end = partial.map_or(slots.len(), |(_, end)| end.min(slots.len()));
            let start = end.saturating_sub(left);
            woken.extend(slots[start..end].iter().rev().filter_map(|slot| slot.signal(range.revision)));
            left -= end - start;
            if start > 0 {
                self.partial = Some((topic, start));
            } else if topic == range.to {
                self.ranges.pop();
            } else {
                range.from.number = topic.number + 1;
            }
        }
        for (collection, last) in self.last.drain() {
            let dispatched = interests.dispatched.entry(collection).or_default();
            *dispatched = last.max(*dispatched);
        }
        false
    }
}

/// The task that dispatches signals; when it is dropped, the thread of the store dispatches again.
struct DispatchTask<'n> {
    notifier: &'n Notifier,
    batch: SignalBatch,
}

impl Drop for DispatchTask<'_> {
    fn drop(&mut self) {
        loop {
            while self.notifier.wake_portion(&mut self.batch) {}
            let signals = {
                let mut inbox = self.notifier.0.inbox.lock();
                inbox.waker = None;
                // Not before the last signal: a cursor would see changes of two threads out of order.
                inbox.has_task = !inbox.signals.is_empty();
                std::mem::take(&mut inbox.signals)
            };
            if signals.is_empty() {
                return;
            }
            self.batch = self.notifier.batch(&signals);
        }
    }
}

impl Inbox {
    fn push(&mut self, signal: Signal) {
        if self.signals.len() < MAX_SIGNALS {
            self.signals.push(signal);
            return;
        }
        // The worker does not keep up: one signal for each collection, at its first revision and its last.
        let general = self.signals.iter_mut().rev().take_while(|other| other.topics.is_none());
        match general.into_iter().find(|other| other.collection == signal.collection) {
            // Cursors look at the ring anyway; the first revision stays.
            Some(_) => {}
            None => self.signals.push(Signal { topics: None, ..signal }),
        }
    }
}

impl Slot {
    /// Notes a change; returns the waker of a cursor that waits.
    fn signal(&self, revision: Revision) -> Option<Waker> {
        let mut state = self.0.lock();
        state.first.get_or_insert(revision);
        state.waker.take()
    }
}

impl Interest {
    /// Takes the revision of the first change that was signaled since the last call.
    pub(super) fn take(&self) -> Option<Revision> {
        self.slot.0.lock().first.take()
    }

    /// Revision up to which nothing concerned the cursor, if nothing was signaled since the last [`take`](Self::take).
    pub(super) fn quiet_until(&self) -> Option<Revision> {
        // In this order: what is dispatched has been signaled.
        let dispatched = self.notifier.0.interests.lock().dispatched.get(&self.topic.collection).copied()?;
        self.slot.0.lock().first.is_none().then_some(dispatched)
    }

    /// Waits until a change is signaled that was not taken.
    pub(super) async fn signaled(&self) {
        poll_fn(|context| {
            let mut state = self.slot.0.lock();
            if state.first.is_some() {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        let state = &self.notifier.0;
        state.cursors.fetch_sub(1, Ordering::SeqCst);
        let mut interests = state.interests.lock();
        if let Some(slots) = interests.by_topic.get_mut(&self.topic) {
            if let Some(place) = slots.iter().position(|slot| Arc::ptr_eq(slot, &self.slot)) {
                slots.swap_remove(place);
            }
            if slots.is_empty() {
                interests.by_topic.remove(&self.topic);
            }
        }
    }
}

impl Topic {
    fn new(collection: u64, namespace: Option<&str>, name: Option<&str>) -> Topic {
        let mut hasher = DefaultHasher::new();
        (namespace, name).hash(&mut hasher);
        Topic { collection, number: hasher.finish() }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Wake};

    use super::*;

    const COLLECTION: u64 = 7;

    /// Counts how often a cursor was woken.
    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A cursor that waits.
    struct Waiting {
        interest: Interest,
        woken: Arc<WakeCount>,
    }

    impl Waiting {
        fn new(notifier: &Notifier, namespace: Option<&str>) -> Waiting {
            let interest = notifier.register(COLLECTION, &Selection::default(), namespace);
            let waiting = Waiting { interest, woken: Arc::default() };
            let waker = Waker::from(waiting.woken.clone());
            assert!(pin!(waiting.interest.signaled()).poll(&mut Context::from_waker(&waker)).is_pending());
            waiting
        }

        fn wakes(&self) -> usize {
            self.woken.0.load(Ordering::SeqCst)
        }
    }

    fn waiting(notifier: &Notifier, count: usize) -> Vec<Waiting> {
        (0..count).map(|_| Waiting::new(notifier, None)).collect()
    }

    fn change(revision: Revision, namespace: &str) -> Signal {
        let topics = [None, Some(namespace)].map(|namespace| Topic::new(COLLECTION, namespace, None));
        let topics = Some([topics[0], topics[1], topics[0], topics[1]]);
        Signal { collection: COLLECTION, revision, topics }
    }

    fn woken(cursors: &[Waiting]) -> usize {
        cursors.iter().filter(|cursor| cursor.wakes() > 0).count()
    }

    /// Polls the task until it waits for signals; calls `between` after each poll. Returns the number of polls.
    fn dispatch(notifier: &Notifier, signals: Vec<Signal>, mut between: impl FnMut()) -> usize {
        let task_woken = Arc::new(WakeCount::default());
        let waker = Waker::from(task_woken.clone());
        let mut task = pin!(notifier.run());
        assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        notifier.push(signals);
        let mut polls = 0;
        while task_woken.0.swap(0, Ordering::SeqCst) > 0 {
            assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            polls += 1;
            between();
        }
        polls
    }

    #[test]
    fn watches_woken_in_portions_between_which_other_tasks_run() {
        let whole = Signal { topics: None, ..change(5, "a") };
        for signal in [change(5, "a"), whole] {
            let notifier = Notifier::default();
            let mut cursors = waiting(&notifier, 300);
            cursors.extend((0..300).map(|_| Waiting::new(&notifier, Some("a"))));
            let mut before = 0;
            let polls = dispatch(&notifier, vec![signal], || {
                let now = woken(&cursors);
                assert!(now - before <= PORTION, "{} woken at once", now - before);
                before = now;
            });
            assert!(polls >= 600 / PORTION, "{polls} polls");
            assert!(cursors.iter().all(|cursor| cursor.wakes() == 1 && cursor.interest.take() == Some(5)));
        }
    }

    #[test]
    fn watch_dropped_between_portions_is_not_woken_and_no_other_is_missed() {
        fastrand::seed(1);
        for _ in 0..50 {
            let notifier = Notifier::default();
            let mut cursors = waiting(&notifier, 400);
            let mut late = Vec::new();
            let mut dropped: Vec<(Arc<WakeCount>, usize)> = Vec::new();
            dispatch(&notifier, vec![change(5, "a")], || {
                dropped.iter().for_each(|(count, wakes)| {
                    assert_eq!(count.0.load(Ordering::SeqCst), *wakes, "a dropped watch was woken");
                });
                for _ in 0..fastrand::usize(..40).min(cursors.len()) {
                    let cursor = cursors.swap_remove(fastrand::usize(..cursors.len()));
                    dropped.push((cursor.woken.clone(), cursor.wakes()));
                }
                late.push(Waiting::new(&notifier, None));
            });
            assert_eq!(woken(&cursors), cursors.len());
            assert!(dropped.iter().any(|(_, wakes)| *wakes == 0), "some were dropped before they were woken");
            let watches = cursors.len() + late.len();
            assert_eq!(notifier.cursors(), watches);
            late.iter().for_each(|cursor| assert!(cursor.wakes() <= 1));
        }
    }

    #[test]
    fn watch_woken_once_for_changes_that_wait_together_at_the_first() {
        let notifier = Notifier::default();
        let (all, of_b) = (Waiting::new(&notifier, None), Waiting::new(&notifier, Some("b")));
        let of_c = Waiting::new(&notifier, Some("c"));
        dispatch(&notifier, vec![change(5, "a"), change(6, "b"), change(7, "a"), change(8, "b")], || {});
        assert_eq!((all.wakes(), all.interest.take()), (1, Some(5)));
        assert_eq!((of_b.wakes(), of_b.interest.take()), (1, Some(6)));
        assert_eq!((of_c.wakes(), of_c.interest.take()), (0, None));
        assert_eq!(of_c.interest.quiet_until(), Some(8));
    }

    #[test]
    fn quiet_revision_of_watch_waits_for_the_last_portion() {
        let notifier = Notifier::default();
        let cursors = waiting(&notifier, 2 * PORTION);
        let mut quiet = Vec::new();
        let of_b = Waiting::new(&notifier, Some("b"));
        dispatch(&notifier, vec![change(5, "a")], || quiet.push((woken(&cursors), of_b.interest.quiet_until())));
        assert_eq!(quiet.first(), Some(&(PORTION, None)));
        assert_eq!(quiet.last(), Some(&(2 * PORTION, Some(5))));
    }

    #[test]
    fn watches_woken_when_task_ends_between_portions() {
        let notifier = Notifier::default();
        let cursors = waiting(&notifier, 3 * PORTION);
        let later = Waiting::new(&notifier, Some("b"));
        {
            let mut task = pin!(notifier.run());
            let mut context = Context::from_waker(Waker::noop());
            assert!(task.as_mut().poll(&mut context).is_pending());
            notifier.push([change(5, "a")]);
            assert!(task.as_mut().poll(&mut context).is_pending());
            notifier.push([change(6, "b")]);
            assert_eq!((woken(&cursors), later.wakes()), (PORTION, 0));
        }
        assert_eq!((woken(&cursors), later.wakes()), (3 * PORTION, 1));
        assert!(cursors.iter().all(|cursor| cursor.interest.take() == Some(5)));
        // Without a task, on the thread that pushes.
        let next = waiting(&notifier, 3 * PORTION);
        notifier.push([change(7, "a")]);
        assert_eq!(woken(&next), 3 * PORTION);
    }

    #[test]
    fn signals_beyond_the_limit_wake_all_watches_of_the_collection() {
        let notifier = Notifier::default();
        let (all, of_z) = (Waiting::new(&notifier, None), Waiting::new(&notifier, Some("z")));
        let signals = (0..MAX_SIGNALS as u64).map(|number| change(5 + number, "a")).chain([change(9_000, "z")]);
        dispatch(&notifier, signals.chain([change(9_001, "a")]).collect(), || {});
        assert_eq!((all.wakes(), all.interest.take()), (1, Some(5)));
        assert_eq!((of_z.wakes(), of_z.interest.take()), (1, Some(5)));
    }
}
