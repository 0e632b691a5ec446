//! Single flight: concurrent calls with the same key share one result.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Key;

/// The result of a call, or its error for the log.
type Outcome<V> = Result<V, Arc<str>>;

/// The calls in flight.
pub struct Flights<V>(Mutex<HashMap<Key, watch::Receiver<Option<Outcome<V>>>>>);

/// RAII guard of one call. Dropping it without a result fails all waiters.
pub struct Landing<V> {
    flights: Arc<Flights<V>>,
    key: Key,
    answer: watch::Sender<Option<Outcome<V>>>,
}

impl<V> Default for Flights<V> {
    fn default() -> Self {
        Flights(Mutex::default())
    }
}

impl<V: Clone> Flights<V> {
    /// Waits for the result of the call with `key`. If none is in flight, checks `known` again (a call may have just
    /// finished). Then `ask` must start the call on a task that does not end with this future.
    ///
    /// # Errors
    /// Why the call failed.
    pub async fn join(
        self: &Arc<Self>,
        key: Key,
        known: impl FnOnce() -> Option<V>,
        ask: impl FnOnce(Landing<V>),
    ) -> Outcome<V> {
        let mut answer = {
            let mut flying = self.0.lock();
            match flying.entry(key) {
                Entry::Occupied(under_way) => under_way.get().clone(),
                Entry::Vacant(vacant) => {
                    if let Some(known) = known() {
                        return Ok(known);
                    }
                    let (sender, receiver) = watch::channel(None);
                    vacant.insert(receiver.clone());
                    drop(flying);
                    ask(Landing { flights: self.clone(), key, answer: sender });
                    receiver
                }
            }
        };
        match answer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err("the call was canceled".into()),
        }
    }

    /// The number of calls in flight.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}

impl<V> Landing<V> {
    /// Sends the result to all waiters. Store it in the cache first: a later caller starts a new call.
    pub fn land(self, outcome: Outcome<V>) {
        self.answer.send_replace(Some(outcome));
    }
}

impl<V> Drop for Landing<V> {
    fn drop(&mut self) {
        self.flights.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::FutureExt;

    use super::*;
    use crate::review::Secret;

    #[tokio::test]
    async fn many_ask_once_and_one_may_leave() {
        let flights = Arc::new(Flights::<u32>::default());
        let key = Secret::new().unwrap().key(|digest| digest.text("x"));
        let landings = RefCell::new(Vec::new());
        let join = || flights.join(key, || None, |landing| landings.borrow_mut().push(landing));
        let mut first = Box::pin(join());
        assert!(first.as_mut().now_or_never().is_none());
        let mut others: Vec<_> = (0..10).map(|_| Box::pin(join())).collect();
        for other in &mut others {
            assert!(other.as_mut().now_or_never().is_none());
        }
        // The first caller is canceled; the others still get the result.
        drop(first);
        let landing = landings.borrow_mut().pop().unwrap();
        assert!(landings.borrow().is_empty());
        landing.land(Ok(7));
        for other in others {
            assert_eq!(other.await, Ok(7));
        }
        assert_eq!(flights.count(), 0);
        // Cached meanwhile: no call is started.
        assert_eq!(flights.join(key, || Some(8), |_| panic!("it is known")).await, Ok(8));
    }

    #[tokio::test]
    async fn a_question_that_is_dropped_is_no_answer_and_can_be_asked_again() {
        let flights = Arc::new(Flights::<u32>::default());
        let key = Secret::new().unwrap().key(|digest| digest.text("x"));
        assert_eq!(flights.join(key, || None, drop).await, Err("the call was canceled".into()));
        let answered = flights.join(key, || None, |landing| landing.land(Err("no".into()))).await;
        assert_eq!(answered, Err("no".into()));
        assert_eq!(flights.count(), 0);
    }
}
