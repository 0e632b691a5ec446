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

use super::long_running_responses::{LongRunningResponses, LongRunningSlot};
use super::retry_budget::RetryBudget;
use crate::egress::Address;

/// Grace period for an endpoint to end its watches itself.
const DRAIN_GRACE: Duration = Duration::from_secs(10);
/// One of this many watches ends each second, so that clients do not resume all at once.
const DRAIN_FRACTION: usize = 10;

/// State of one APIService on one worker.
pub struct ApiServiceState {
    pub(super) retry_budget: RetryBudget,
    watches: RefCell<HashMap<Address, Rc<EndpointWatches>>>,
}

/// Watches at one endpoint.
#[derive(Default)]
pub(super) struct EndpointWatches {
    /// Ids of their registrations.
    running: RefCell<HashSet<usize>>,
    /// How many of them may end now.
    drain_quota: Cell<usize>,
    /// Since when the endpoint is not listed.
    unlisted_since: Cell<Option<Instant>>,
}

/// Registration of a watch; removed on drop.
pub(super) struct WatchRegistration {
    watches: Rc<EndpointWatches>,
    number: usize,
}

impl Default for ApiServiceState {
    fn default() -> ApiServiceState {
        ApiServiceState { retry_budget: RetryBudget::new(Instant::now()), watches: RefCell::default() }
    }
}

impl ApiServiceState {
    /// The watches at `endpoint`.
    pub(super) fn watches(&self, endpoint: &Address) -> Rc<EndpointWatches> {
        self.watches.borrow_mut().entry(endpoint.clone()).or_default().clone()
    }

    /// Updates which watches are to end, now that `listed` are the endpoints, and wakes those of `streams`; returns
    /// whether there are any. Call every second. `elsewhere` says whether another endpoint would serve clients that
    /// resume: a watch that no endpoint would serve is better than none.
    pub fn update_drain(
        &self,
        streams: &LongRunningResponses,
        listed: &[Address],
        elsewhere: bool,
        now: Instant,
    ) -> bool {
        let mut watches = self.watches.borrow_mut();
        watches.retain(|_, watches| watches.running() > 0 || Rc::strong_count(watches) > 1);
        if watches.is_empty() {
            return false;
        }
        let listed: HashSet<&Address> = listed.iter().collect();
        let mut some = false;
        for (endpoint, watches) in &*watches {
            if watches.update_drain(listed.contains(endpoint), elsewhere, now) {
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

impl EndpointWatches {
    /// Registers the watch of `slot`.
    pub(super) fn register(self: &Rc<Self>, slot: &LongRunningSlot) -> WatchRegistration {
        self.running.borrow_mut().insert(slot.id());
        WatchRegistration { watches: self.clone(), number: slot.id() }
    }

    fn running(&self) -> usize {
        self.running.borrow().len()
    }

    fn update_drain(&self, listed: bool, elsewhere: bool, now: Instant) -> bool {
        // The quota is per second: what was not used does not add up.
        self.drain_quota.set(0);
        if listed {
            self.unlisted_since.set(None);
            return false;
        }
        let since = self.unlisted_since.get().unwrap_or(now);
        self.unlisted_since.set(Some(since));
        if elsewhere && now.saturating_duration_since(since) >= DRAIN_GRACE {
            self.drain_quota.set(self.running().div_ceil(DRAIN_FRACTION));
        }
        self.drain_quota.get() > 0
    }
}

impl WatchRegistration {
    /// Whether this watch should end because its endpoint is not listed. Uses up quota, so call it only to end the
    /// watch.
    pub(super) fn take_drain_turn(&self) -> bool {
        let left = self.watches.drain_quota.get();
        self.watches.drain_quota.set(left.saturating_sub(1));
        left > 0
    }
}

impl Drop for WatchRegistration {
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
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    type Watch = (LongRunningSlot, WatchRegistration);

    fn at(port: u16) -> Address {
        Address::tcp(Host::Name("a".to_owned()), port)
    }

    fn begin(count: usize, streams: &LongRunningResponses, watches: &Rc<EndpointWatches>) -> Vec<Watch> {
        let begin = |_| {
            let place = streams.register();
            let watching = watches.register(&place);
            (place, watching)
        };
        (0..count).map(begin).collect()
    }

    /// Number of watches of `running` that end in each second.
    fn ends(history: &ApiServiceState, listed: &[Address], running: &mut Vec<Watch>, from: Instant) -> Vec<usize> {
        let mut all = Vec::new();
        for second in 0..=25 {
            history.update_drain(&LongRunningResponses::default(), listed, true, from + Duration::from_secs(second));
            let before = running.len();
            running.retain(|(_, watch)| !watch.take_drain_turn());
            all.push(before - running.len());
        }
        all
    }

    #[test]
    fn watch_drain_ends_watches_gradually_after_grace() {
        let (history, streams, start) = (ApiServiceState::default(), LongRunningResponses::default(), Instant::now());
        let mut going = begin(25, &streams, &history.watches(&at(1)));
        let staying = begin(25, &streams, &history.watches(&at(2)));
        assert!(!history.update_drain(&streams, &[at(1), at(2)], true, start) && !going[0].1.take_drain_turn());
        let ended = ends(&history, &[at(2)], &mut going, start);
        assert_eq!(ended[..14], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 2, 2]);
        assert_eq!((going.len(), ended.iter().sum::<usize>()), (0, 25));
        assert!(staying.iter().all(|(_, watch)| !watch.take_drain_turn()));
        // The endpoint without watches is forgotten.
        assert!(!history.update_drain(&streams, &[at(2)], true, start + DRAIN_GRACE * 10));
        assert_eq!(history.watches.borrow().len(), 1);
        drop(staying);
        assert!(history.is_empty() && streams.is_empty());
    }

    #[test]
    fn watch_drain_wakes_only_watches_of_unlisted_endpoint() {
        let (history, streams, start) = (ApiServiceState::default(), LongRunningResponses::default(), Instant::now());
        let [going, staying, others] = [1, 2, 1].map(|port| (port, Arc::<WakeCounter>::default()));
        let other = ApiServiceState::default();
        let mut all = Vec::new();
        for (of, (port, woken)) in [(&history, &going), (&history, &staying), (&other, &others)] {
            let begun = begin(20, &streams, &of.watches(&at(*port)));
            for (place, _) in &begun {
                place.poll_signal(&Waker::from(woken.clone()));
            }
            all.push(begun);
        }
        let woken = || [&going, &staying, &others].map(|(_, woken)| woken.0.load(SeqCst));
        for second in 0..DRAIN_GRACE.as_secs() {
            history.update_drain(&streams, &[at(2)], true, start + Duration::from_secs(second));
            other.update_drain(&streams, &[at(1)], true, start + Duration::from_secs(second));
        }
        assert_eq!(woken(), [0, 0, 0]);
        // All are woken, and the first two between events end.
        assert!(history.update_drain(&streams, &[at(2)], true, start + DRAIN_GRACE));
        assert!(!other.update_drain(&streams, &[at(1)], true, start + DRAIN_GRACE));
        assert_eq!(woken(), [20, 0, 0]);
        all[0].truncate(5);
        assert!(history.update_drain(&streams, &[at(2)], true, start + DRAIN_GRACE * 2));
        assert_eq!(woken(), [25, 0, 0]);
    }

    #[test]
    fn watch_drain_stops_when_endpoint_returns_or_none_is_left() {
        let (history, streams, start) = (ApiServiceState::default(), LongRunningResponses::default(), Instant::now());
        let watch = begin(1, &streams, &history.watches(&at(1)));
        let look = |listed: &[Address], elsewhere, now| history.update_drain(&streams, listed, elsewhere, now);
        assert!(!look(&[], false, start) && !look(&[], false, start + DRAIN_GRACE));
        assert!(look(&[], true, start + DRAIN_GRACE), "its grace period is over");
        assert!(!look(&[at(1)], true, start + DRAIN_GRACE) && !watch[0].1.take_drain_turn());
        assert!(!look(&[], true, start + DRAIN_GRACE * 2), "a new grace period each time");
        assert!(look(&[], true, start + DRAIN_GRACE * 3));
    }

    #[test]
    fn watch_drain_leaves_other_api_services_alone() {
        let (one, other, streams, start) =
            (ApiServiceState::default(), ApiServiceState::default(), LongRunningResponses::default(), Instant::now());
        let mut going = begin(5, &streams, &one.watches(&at(1)));
        let mut staying = begin(5, &streams, &other.watches(&at(1)));
        assert_eq!(ends(&one, &[at(2)], &mut going, start).iter().sum::<usize>(), 5);
        assert_eq!(ends(&other, &[at(1)], &mut staying, start).iter().sum::<usize>(), 0);
    }
}
