//! A queue to a thread that may be slow; it keeps only the newest job of each key.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Receiving end; the queue holds at most one job per key. Clones share it.
pub(super) struct Waiting<K, V>(Arc<Inner<K, V>>);

/// Sending end. When the last clone is dropped, [`Waiting::next`] returns the remaining jobs and then `None`.
pub(super) struct Giver<K, V>(Arc<Open<K, V>>);

struct Inner<K, V> {
    /// Never locked while a job runs.
    orders: Mutex<Orders<K, V>>,
    more: Condvar,
}

struct Orders<K, V> {
    /// Keys with a job, ordered by their first unreceived job.
    keys: VecDeque<K>,
    newest: HashMap<K, V>,
    closed: bool,
}

struct Open<K, V>(Arc<Inner<K, V>>);

impl<K, V> Clone for Giver<K, V> {
    fn clone(&self) -> Self {
        Giver(self.0.clone())
    }
}

impl<K, V> Drop for Open<K, V> {
    fn drop(&mut self) {
        self.0.orders.lock().closed = true;
        self.0.more.notify_all();
    }
}

/// Creates an empty queue.
pub(super) fn waiting<K, V>() -> (Giver<K, V>, Waiting<K, V>) {
    let orders = Orders { keys: VecDeque::new(), newest: HashMap::new(), closed: false };
    let inner = Arc::new(Inner { orders: Mutex::new(orders), more: Condvar::new() });
    (Giver(Arc::new(Open(inner.clone()))), Waiting(inner))
}

impl<K: Clone + Eq + Hash, V> Giver<K, V> {
    /// Sends a job, replacing any earlier one of `key`. Does not block.
    pub(super) fn give(&self, key: K, order: V) {
        let inner = &self.0.0;
        let mut orders = inner.orders.lock();
        let before = orders.newest.insert(key.clone(), order);
        if before.is_none() {
            orders.keys.push_back(key);
        }
        drop(orders);
        inner.more.notify_one();
    }

    /// Removes the jobs of keys for which `stays` is false.
    pub(super) fn retain(&self, stays: impl Fn(&K) -> bool) {
        let mut orders = self.0.0.orders.lock();
        orders.keys.retain(&stays);
        orders.newest.retain(|key, _| stays(key));
    }
}

impl<K: Eq + Hash, V> Waiting<K, V> {
    /// Receives the next job; blocks. `None` when the queue is closed and empty.
    pub(super) fn next(&self) -> Option<(K, V)> {
        let mut orders = self.0.orders.lock();
        loop {
            if let Some(key) = orders.keys.pop_front() {
                // Every key in the list has a job.
                match orders.newest.remove(&key) {
                    Some(order) => return Some((key, order)),
                    None => continue,
                }
            }
            if orders.closed {
                return None;
            }
            self.0.more.wait(&mut orders);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_of_each_is_left_and_nobody_is_passed_over() {
        let (giver, waiting) = waiting();
        for number in 0..100 {
            giver.give("a", number);
            giver.give("b", number);
        }
        assert_eq!(waiting.next(), Some(("a", 99)));
        giver.give("a", 100);
        giver.give("c", 1);
        giver.retain(|key| *key != "c");
        drop(giver);
        assert_eq!([waiting.next(), waiting.next(), waiting.next()], [Some(("b", 99)), Some(("a", 100)), None]);
    }

    #[test]
    fn who_waits_is_woken_by_an_order_and_by_the_end() {
        let (giver, waiting) = waiting();
        let carried = std::thread::spawn(move || std::iter::from_fn(|| waiting.next()).collect::<Vec<_>>());
        giver.give(1, "one");
        drop(giver.clone());
        giver.give(2, "two");
        drop(giver);
        assert_eq!(carried.join().unwrap(), [(1, "one"), (2, "two")]);
    }
}
