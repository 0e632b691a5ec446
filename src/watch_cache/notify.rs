//! Wakes watches: a change signals one notifier per worker thread, which wakes the cursors that it concerns.
//!
//! The thread of the store pays for one signal a worker, whatever the number of watches. Cursors of one namespace or
//! name sleep through the changes of others.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::{Mutex, RwLock};

use super::change_log::StoredChange;
use super::select::Selection;
use crate::storage::{Prefix, Revision};

/// Maximum number of waiting signals; beyond, all cursors of the collections are woken.
const MAX_SIGNALS: usize = 4_096;

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
    topics: Option<[u64; 4]>,
}

#[derive(Default)]
struct Interests {
    by_topic: HashMap<u64, Vec<Arc<Slot>>>,
    /// Revision of each collection up to which cursors were woken.
    dispatched: HashMap<u64, Revision>,
}

/// Where the signals for one cursor arrive.
struct Slot {
    collection: u64,
    state: Mutex<SlotState>,
}

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
    topic: u64,
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
        let _guard = TaskGuard(self);
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
            self.dispatch(signals.await);
        }
    }

    fn cursors(&self) -> usize {
        self.0.cursors.load(Ordering::SeqCst)
    }

    /// Registers a cursor. The cursor must read the collection after that.
    pub(super) fn register(&self, collection: u64, selection: &Selection, namespace: Option<&str>) -> Interest {
        let namespace = namespace.or(selection.exact_namespace());
        let topic = topic(collection, namespace, selection.exact_name());
        let slot = Arc::new(Slot { collection, state: Mutex::default() });
        self.0.interests.lock().by_topic.entry(topic).or_default().push(slot.clone());
        self.0.cursors.fetch_add(1, Ordering::SeqCst);
        Interest { notifier: self.clone(), slot, topic }
    }

    fn signal(&self, collection: u64, prefix: &Prefix, changes: &[Arc<StoredChange>]) {
        self.push(changes.iter().filter_map(|change| {
            let (namespace, name) = change.key().split_below(prefix)?;
            let topics = [(None, None), (Some(namespace), None), (None, Some(name)), (Some(namespace), Some(name))];
            let topics = Some(topics.map(|(namespace, name)| topic(collection, namespace, name)));
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
            self.dispatch(signals);
        }
    }

    fn dispatch(&self, signals: Vec<Signal>) {
        let mut interests = self.0.interests.lock();
        let Interests { by_topic, dispatched } = &mut *interests;
        for signal in signals {
            match signal.topics {
                Some(topics) => {
                    let slots = topics.iter().filter_map(|topic| by_topic.get(topic)).flatten();
                    slots.for_each(|slot| slot.wake(signal.revision));
                }
                None => {
                    let slots = by_topic.values().flatten().filter(|slot| slot.collection == signal.collection);
                    slots.for_each(|slot| slot.wake(signal.revision));
                }
            }
            let dispatched = dispatched.entry(signal.collection).or_default();
            *dispatched = signal.revision.max(*dispatched);
        }
    }
}

/// Guard of the task that dispatches signals; when it is dropped, the thread of the store dispatches again.
struct TaskGuard<'n>(&'n Notifier);

impl Drop for TaskGuard<'_> {
    fn drop(&mut self) {
        let signals = {
            let mut inbox = self.0.0.inbox.lock();
            inbox.has_task = false;
            inbox.waker = None;
            std::mem::take(&mut inbox.signals)
        };
        self.0.dispatch(signals);
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
    fn wake(&self, revision: Revision) {
        let waker = {
            let mut state = self.state.lock();
            state.first.get_or_insert(revision);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Interest {
    /// Takes the revision of the first change that was signaled since the last call.
    pub(super) fn take(&self) -> Option<Revision> {
        self.slot.state.lock().first.take()
    }

    /// Revision up to which nothing concerned the cursor, if nothing was signaled since the last [`take`](Self::take).
    pub(super) fn quiet_until(&self) -> Option<Revision> {
        // In this order: what is dispatched has been signaled.
        let dispatched = self.notifier.0.interests.lock().dispatched.get(&self.slot.collection).copied()?;
        self.slot.state.lock().first.is_none().then_some(dispatched)
    }

    /// Waits until a change is signaled that was not taken.
    pub(super) async fn signaled(&self) {
        poll_fn(|context| {
            let mut state = self.slot.state.lock();
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

/// Number of a collection, namespace and name. Two of the same number wake each other's cursors, for nothing.
fn topic(collection: u64, namespace: Option<&str>, name: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (collection, namespace, name).hash(&mut hasher);
    hasher.finish()
}
