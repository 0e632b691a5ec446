//! Single flight: concurrent calls with the same key share one result.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::DecisionKey;

/// The result of a call, or its error for the log.
type FlightResult<V> = Result<V, Arc<str>>;

/// The calls in flight.
pub struct SingleFlight<V>(Mutex<HashMap<DecisionKey, watch::Receiver<Option<FlightResult<V>>>>>);

/// RAII guard of one call. Dropping it without a result fails all waiters.
pub struct FlightGuard<V> {
    flights: Arc<SingleFlight<V>>,
    key: DecisionKey,
    answer: watch::Sender<Option<FlightResult<V>>>,
}

impl<V> Default for SingleFlight<V> {
    fn default() -> Self {
        SingleFlight(Mutex::default())
    }
}

impl<V: Clone> SingleFlight<V> {
    /// Waits for the result of the call with `key`. If none is in flight, checks `lookup` again (a call may have just
    /// finished). Then `ask` must start the call on a task that does not end with this future.
    ///
    /// # Errors
    /// Why the call failed.
    pub async fn join(
        self: &Arc<Self>,
        key: DecisionKey,
        lookup: impl FnOnce() -> Option<V>,
        ask: impl FnOnce(FlightGuard<V>),
    ) -> FlightResult<V> {
        let mut answer = {
            let mut flying = self.0.lock();
            match flying.entry(key) {
                Entry::Occupied(under_way) => under_way.get().clone(),
                Entry::Vacant(vacant) => {
                    if let Some(value) = lookup() {
                        return Ok(value);
                    }
                    let (sender, receiver) = watch::channel(None);
                    vacant.insert(receiver.clone());
                    drop(flying);
                    ask(FlightGuard { flights: self.clone(), key, answer: sender });
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

impl<V> FlightGuard<V> {
    /// Sends the result to all waiters. Store it in the cache first: a later caller starts a new call.
    pub fn complete(self, outcome: FlightResult<V>) {
        let answer = self.answer.clone();
        // The call ends before the waiters learn of it: a request that follows one of theirs must not get the old result.
        drop(self);
        answer.send_replace(Some(outcome));
    }
}

impl<V> Drop for FlightGuard<V> {
    fn drop(&mut self) {
        self.flights.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::FutureExt;

    use super::*;
    use crate::decision_cache::DigestSecret;

    #[tokio::test]
    async fn single_flight_shares_one_call_and_survives_cancellation() {
        let flights = Arc::new(SingleFlight::<u32>::default());
        let key = DigestSecret::new().unwrap().key(|digest| digest.text("x"));
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
        landing.complete(Ok(7));
        for other in others {
            assert_eq!(other.await, Ok(7));
        }
        assert_eq!(flights.count(), 0);
        // Cached meanwhile: no call is started.
        assert_eq!(flights.join(key, || Some(8), |_| panic!("it is known")).await, Ok(8));
    }

    /// Records how many calls are in flight when it is woken.
    struct CountingWaker(Arc<SingleFlight<u32>>, Mutex<Vec<usize>>);

    impl std::task::Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.1.lock().push(self.0.count());
        }
    }

    #[test]
    fn single_flight_call_is_over_when_its_waiters_learn_of_it() {
        let flights = Arc::new(SingleFlight::<u32>::default());
        let key = DigestSecret::new().unwrap().key(|digest| digest.text("x"));
        let landing = RefCell::new(None);
        let mut waiter = Box::pin(flights.join(key, || None, |guard| *landing.borrow_mut() = Some(guard)));
        let waker = Arc::new(CountingWaker(flights.clone(), Mutex::default()));
        let task = std::task::Waker::from(waker.clone());
        assert!(waiter.poll_unpin(&mut std::task::Context::from_waker(&task)).is_pending());
        landing.take().unwrap().complete(Ok(7));
        assert_eq!(*waker.1.lock(), [0]);
        assert_eq!(waiter.now_or_never(), Some(Ok(7)));
    }

    #[tokio::test]
    async fn single_flight_dropped_call_fails_waiters_and_can_be_retried() {
        let flights = Arc::new(SingleFlight::<u32>::default());
        let key = DigestSecret::new().unwrap().key(|digest| digest.text("x"));
        assert_eq!(flights.join(key, || None, drop).await, Err("the call was canceled".into()));
        let answered = flights.join(key, || None, |landing| landing.complete(Err("no".into()))).await;
        assert_eq!(answered, Err("no".into()));
        assert_eq!(flights.count(), 0);
    }
}
