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
    let orders = CoalescingState { keys: VecDeque::new(), jobs: HashMap::new(), closed: false };
    let inner = Arc::new(CoalescingQueue { state: Mutex::new(orders), available: Condvar::new() });
    (CoalescingSender(Arc::new(SenderGuard(inner.clone()))), CoalescingReceiver(inner))
}

impl<K: Clone + Eq + Hash, V> CoalescingSender<K, V> {
    /// Sends a job, replacing any earlier one of `key`. Does not block.
    pub(in crate::discovery) fn send(&self, key: K, order: V) {
        let inner = &self.0.0;
        let mut orders = inner.state.lock();
        let before = orders.jobs.insert(key.clone(), order);
        if before.is_none() {
            orders.keys.push_back(key);
        }
        drop(orders);
        inner.available.notify_one();
    }

    /// Removes the jobs of keys for which `stays` is false.
    pub(in crate::discovery) fn retain(&self, stays: impl Fn(&K) -> bool) {
        let mut orders = self.0.0.state.lock();
        orders.keys.retain(&stays);
        orders.jobs.retain(|key, _| stays(key));
    }
}

impl<K: Eq + Hash, V> CoalescingReceiver<K, V> {
    /// Receives the next job; blocks. `None` when the queue is closed and empty.
    pub(in crate::discovery) fn recv(&self) -> Option<(K, V)> {
        let mut orders = self.0.state.lock();
        loop {
            if let Some(key) = orders.keys.pop_front() {
                // Every key in the list has a job.
                match orders.jobs.remove(&key) {
                    Some(order) => return Some((key, order)),
                    None => continue,
                }
            }
            if orders.closed {
                return None;
            }
            self.0.available.wait(&mut orders);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coalescing_queue_keeps_newest_of_each_key_in_order() {
        let (giver, waiting) = coalescing_queue();
        for number in 0..100 {
            giver.send("a", number);
            giver.send("b", number);
        }
        assert_eq!(waiting.recv(), Some(("a", 99)));
        giver.send("a", 100);
        giver.send("c", 1);
        giver.retain(|key| *key != "c");
        drop(giver);
        assert_eq!([waiting.recv(), waiting.recv(), waiting.recv()], [Some(("b", 99)), Some(("a", 100)), None]);
    }

    #[test]
    fn coalescing_queue_wakes_receiver_on_send_and_close() {
        let (giver, waiting) = coalescing_queue();
        let carried = std::thread::spawn(move || std::iter::from_fn(|| waiting.recv()).collect::<Vec<_>>());
        giver.send(1, "one");
        drop(giver.clone());
        giver.send(2, "two");
        drop(giver);
        assert_eq!(carried.join().unwrap(), [(1, "one"), (2, "two")]);
    }
}
