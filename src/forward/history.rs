//! State of an APIService on one worker that survives changes of its endpoints: the retry budget and the watches.
//!
//! Requests in flight to an endpoint that is no longer listed are finished there; watches are drained. An endpoint that
//! shuts down ends its watches itself, one that is gone never will, and one that is merely not ready may do either. So
//! each endpoint gets a grace period; then its watches end a few at a time, cleanly between two events, and the clients
//! resume at another endpoint. Only watches of this APIService end: those of others on the same connections stay.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::streams::{Place, Streams};
use crate::egress::Address;

/// Grace period for an endpoint to end its watches itself.
const GRACE: Duration = Duration::from_secs(10);
/// One of this many watches ends each second, so that clients do not resume all at once.
const SHARE: usize = 10;

/// State of one APIService on one worker.
pub struct History {
    pub(super) budget: Budget,
    watches: RefCell<HashMap<Address, Rc<Watches>>>,
}

/// Watches at one endpoint.
#[derive(Default)]
pub(super) struct Watches {
    /// Ids of their registrations.
    running: RefCell<HashSet<usize>>,
    /// How many of them may end now.
    leaving: Cell<usize>,
    /// Since when the endpoint is not listed.
    unlisted: Cell<Option<Instant>>,
}

/// Registration of a watch; removed on drop.
pub(super) struct Watching {
    watches: Rc<Watches>,
    number: usize,
}

impl Default for History {
    fn default() -> History {
        History { budget: Budget::new(Instant::now()), watches: RefCell::default() }
    }
}

impl History {
    /// The watches at `endpoint`.
    pub(super) fn watches(&self, endpoint: &Address) -> Rc<Watches> {
        self.watches.borrow_mut().entry(endpoint.clone()).or_default().clone()
    }

    /// Updates which watches are to end, now that `listed` are the endpoints, and wakes those of `streams`; returns
    /// whether there are any. Call every second. `elsewhere` says whether another endpoint would serve clients that
    /// resume: a watch that no endpoint would serve is better than none.
    pub fn look(&self, streams: &Streams, listed: &[Address], elsewhere: bool, now: Instant) -> bool {
        let mut watches = self.watches.borrow_mut();
        watches.retain(|_, watches| watches.running() > 0 || Rc::strong_count(watches) > 1);
        if watches.is_empty() {
            return false;
        }
        let listed: HashSet<&Address> = listed.iter().collect();
        let mut some = false;
        for (endpoint, watches) in &*watches {
            if watches.look(listed.contains(endpoint), elsewhere, now) {
                some = true;
                watches.running.borrow().iter().for_each(|number| streams.wake(*number));
            }
        }
        some
    }

    /// Whether there are no watches.
    pub fn is_empty(&self) -> bool {
        self.watches.borrow().values().all(|watches| watches.running() == 0)
    }
}

impl Watches {
    /// Registers the watch of `place`.
    pub(super) fn begin(self: &Rc<Self>, place: &Place) -> Watching {
        self.running.borrow_mut().insert(place.number());
        Watching { watches: self.clone(), number: place.number() }
    }

    fn running(&self) -> usize {
        self.running.borrow().len()
    }

    fn look(&self, listed: bool, elsewhere: bool, now: Instant) -> bool {
        // The quota is per second: what was not used does not add up.
        self.leaving.set(0);
        if listed {
            self.unlisted.set(None);
            return false;
        }
        let since = self.unlisted.get().unwrap_or(now);
        self.unlisted.set(Some(since));
        if elsewhere && now.saturating_duration_since(since) >= GRACE {
            self.leaving.set(self.running().div_ceil(SHARE));
        }
        self.leaving.get() > 0
    }
}

impl Watching {
    /// Whether this watch should end because its endpoint is not listed. Uses up quota, so call it only to end the
    /// watch.
    pub(super) fn may_leave(&self) -> bool {
        let left = self.watches.leaving.get();
        self.watches.leaving.set(left.saturating_sub(1));
        left > 0
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.watches.running.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::{Wake, Waker};

    use super::*;
    use crate::egress::Host;

    /// Counts wake-ups.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    type Watch = (Place, Watching);

    fn at(port: u16) -> Address {
        Address::tcp(Host::Name("a".to_owned()), port)
    }

    fn begin(count: usize, streams: &Streams, watches: &Rc<Watches>) -> Vec<Watch> {
        let begin = |_| {
            let place = streams.enter();
            let watching = watches.begin(&place);
            (place, watching)
        };
        (0..count).map(begin).collect()
    }

    /// Number of watches of `running` that end in each second.
    fn ends(history: &History, listed: &[Address], running: &mut Vec<Watch>, from: Instant) -> Vec<usize> {
        let mut all = Vec::new();
        for second in 0..=25 {
            history.look(&Streams::default(), listed, true, from + Duration::from_secs(second));
            let before = running.len();
            running.retain(|(_, watch)| !watch.may_leave());
            all.push(before - running.len());
        }
        all
    }

    #[test]
    fn watches_of_an_endpoint_that_went_end_little_by_little_after_a_while() {
        let (history, streams, start) = (History::default(), Streams::default(), Instant::now());
        let mut going = begin(25, &streams, &history.watches(&at(1)));
        let staying = begin(25, &streams, &history.watches(&at(2)));
        assert!(!history.look(&streams, &[at(1), at(2)], true, start) && !going[0].1.may_leave());
        let ended = ends(&history, &[at(2)], &mut going, start);
        assert_eq!(ended[..14], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 2, 2]);
        assert_eq!((going.len(), ended.iter().sum::<usize>()), (0, 25));
        assert!(staying.iter().all(|(_, watch)| !watch.may_leave()));
        // The endpoint without watches is forgotten.
        assert!(!history.look(&streams, &[at(2)], true, start + GRACE * 10));
        assert_eq!(history.watches.borrow().len(), 1);
        drop(staying);
        assert!(history.is_empty() && streams.is_empty());
    }

    #[test]
    fn only_those_who_may_leave_are_woken() {
        let (history, streams, start) = (History::default(), Streams::default(), Instant::now());
        let [going, staying, others] = [1, 2, 1].map(|port| (port, Arc::<Woken>::default()));
        let other = History::default();
        let mut all = Vec::new();
        for (of, (port, woken)) in [(&history, &going), (&history, &staying), (&other, &others)] {
            let begun = begin(20, &streams, &of.watches(&at(*port)));
            for (place, _) in &begun {
                place.asked(&Waker::from(woken.clone()));
            }
            all.push(begun);
        }
        let woken = || [&going, &staying, &others].map(|(_, woken)| woken.0.load(SeqCst));
        for second in 0..GRACE.as_secs() {
            history.look(&streams, &[at(2)], true, start + Duration::from_secs(second));
            other.look(&streams, &[at(1)], true, start + Duration::from_secs(second));
        }
        assert_eq!(woken(), [0, 0, 0]);
        // All are woken, and the first two between events end.
        assert!(history.look(&streams, &[at(2)], true, start + GRACE));
        assert!(!other.look(&streams, &[at(1)], true, start + GRACE));
        assert_eq!(woken(), [20, 0, 0]);
        all[0].truncate(5);
        assert!(history.look(&streams, &[at(2)], true, start + GRACE * 2));
        assert_eq!(woken(), [25, 0, 0]);
    }

    #[test]
    fn nobody_leaves_an_endpoint_that_is_back_or_when_there_is_nowhere_to_go() {
        let (history, streams, start) = (History::default(), Streams::default(), Instant::now());
        let watch = begin(1, &streams, &history.watches(&at(1)));
        let look = |listed: &[Address], elsewhere, now| history.look(&streams, listed, elsewhere, now);
        assert!(!look(&[], false, start) && !look(&[], false, start + GRACE));
        assert!(look(&[], true, start + GRACE), "its grace period is over");
        assert!(!look(&[at(1)], true, start + GRACE) && !watch[0].1.may_leave());
        assert!(!look(&[], true, start + GRACE * 2), "a new grace period each time");
        assert!(look(&[], true, start + GRACE * 3));
    }

    #[test]
    fn others_at_the_same_endpoint_are_not_meant() {
        let (one, other, streams, start) = (History::default(), History::default(), Streams::default(), Instant::now());
        let mut going = begin(5, &streams, &one.watches(&at(1)));
        let mut staying = begin(5, &streams, &other.watches(&at(1)));
        assert_eq!(ends(&one, &[at(2)], &mut going, start).iter().sum::<usize>(), 5);
        assert_eq!(ends(&other, &[at(1)], &mut staying, start).iter().sum::<usize>(), 0);
    }
}
