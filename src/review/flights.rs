//! One question at a time: whoever asks what is being asked already waits for the same answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Key;

/// An answer, or why there is none; the text is for the log.
type Outcome<V> = Result<V, Arc<str>>;

/// The questions that are under way.
pub struct Flights<V>(Mutex<HashMap<Key, watch::Receiver<Option<Outcome<V>>>>>);

/// The duty to answer one question. Dropped without an answer it tells those who wait that there is none.
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
    /// Waits for the answer to the question `key`. If nobody asks it now, `known` is looked at once more (it may
    /// just have been answered), and then `ask` must see to it that it is asked, somewhere that does not end
    /// with this future.
    ///
    /// # Errors
    /// Why there is no answer.
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
            _ => Err("the question was given up".into()),
        }
    }

    /// How many questions are under way.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}

impl<V> Landing<V> {
    /// Answers everybody who waits. Keep the answer first, if it is to be kept: whoever comes now asks anew.
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
        // Who asked first goes away; the others still get their answer.
        drop(first);
        let landing = landings.borrow_mut().pop().unwrap();
        assert!(landings.borrow().is_empty());
        landing.land(Ok(7));
        for other in others {
            assert_eq!(other.await, Ok(7));
        }
        assert_eq!(flights.count(), 0);
        // Known meanwhile: nobody asks.
        assert_eq!(flights.join(key, || Some(8), |_| panic!("it is known")).await, Ok(8));
    }

    #[tokio::test]
    async fn a_question_that_is_dropped_is_no_answer_and_can_be_asked_again() {
        let flights = Arc::new(Flights::<u32>::default());
        let key = Secret::new().unwrap().key(|digest| digest.text("x"));
        assert_eq!(flights.join(key, || None, drop).await, Err("the question was given up".into()));
        let answered = flights.join(key, || None, |landing| landing.land(Err("no".into()))).await;
        assert_eq!(answered, Err("no".into()));
        assert_eq!(flights.count(), 0);
    }
}
