//! A queue to a thread that may be slow; it keeps only the newest job of each key.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Receiving end; the queue holds at most one job per key. Clones share it.
pub(in crate::discovery) struct CoalescingReceiver<K, V>(Arc<CoalescingQueue<K, V>>);

/// Sending end. When the last clone is dropped, [`CoalescingReceiver::recv`] returns the remaining jobs and then `None`.
pub(in crate::discovery) struct CoalescingSender<K, V>(Arc<SenderGuard<K, V>>);

struct CoalescingQueue<K, V> {
    /// Never locked while a job runs.
    state: Mutex<CoalescingState<K, V>>,
    available: Condvar,
}

struct CoalescingState<K, V> {
    /// Keys with a job, ordered by their first unreceived job.
    keys: VecDeque<K>,
    jobs: HashMap<K, V>,
    closed: bool,
}

struct SenderGuard<K, V>(Arc<CoalescingQueue<K, V>>);

impl<K, V> Clone for CoalescingSender<K, V> {
    fn clone(&self) -> Self {
        CoalescingSender(self.0.clone())
    }
}

impl<K, V> Drop for SenderGuard<K, V> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.available.notify_all();
    }
}

/// Creates an empty queue.
pub(in crate::discovery) fn coalescing_queue<K, V>() -> (CoalescingSender<K, V>, CoalescingReceiver<K, V>) {
    let state = CoalescingState { keys: VecDeque::new(), jobs: HashMap::new(), closed: false };
    let inner = Arc::new(CoalescingQueue { state: Mutex::new(state), available: Condvar::new() });
    (CoalescingSender(Arc::new(SenderGuard(inner.clone()))), CoalescingReceiver(inner))
}

impl<K: Clone + Eq + Hash, V> CoalescingSender<K, V> {
    /// Sends a job, replacing any earlier one of `key`. Does not block.
    pub(in crate::discovery) fn send(&self, key: K, job: V) {
        let inner = &self.0.0;
        let mut state = inner.state.lock();
        let replaced = state.jobs.insert(key.clone(), job);
        if replaced.is_none() {
            state.keys.push_back(key);
        }
        drop(state);
        inner.available.notify_one();
    }

    /// Removes the jobs of keys for which `keep` is false.
    pub(in crate::discovery) fn retain(&self, keep: impl Fn(&K) -> bool) {
        let mut state = self.0.0.state.lock();
        state.keys.retain(&keep);
        state.jobs.retain(|key, _| keep(key));
    }
}

impl<K: Eq + Hash, V> CoalescingReceiver<K, V> {
    /// Receives the next job; blocks. `None` when the queue is closed and empty.
    pub(in crate::discovery) fn recv(&self) -> Option<(K, V)> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(key) = state.keys.pop_front() {
                // Every key in the list has a job.
                match state.jobs.remove(&key) {
                    Some(job) => return Some((key, job)),
                    None => continue,
                }
            }
            if state.closed {
                return None;
            }
            self.0.available.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coalescing_queue_keeps_newest_of_each_key_in_order() {
        let (sender, receiver) = coalescing_queue();
        for number in 0..100 {
            sender.send("a", number);
            sender.send("b", number);
        }
        assert_eq!(receiver.recv(), Some(("a", 99)));
        sender.send("a", 100);
        sender.send("c", 1);
        sender.retain(|key| *key != "c");
        drop(sender);
        assert_eq!([receiver.recv(), receiver.recv(), receiver.recv()], [Some(("b", 99)), Some(("a", 100)), None]);
    }

    #[test]
    fn coalescing_queue_wakes_receiver_on_send_and_close() {
        let (sender, receiver) = coalescing_queue();
        let received = std::thread::spawn(move || std::iter::from_fn(|| receiver.recv()).collect::<Vec<_>>());
        sender.send(1, "one");
        drop(sender.clone());
        sender.send(2, "two");
        drop(sender);
        assert_eq!(received.join().unwrap(), [(1, "one"), (2, "two")]);
    }
}
