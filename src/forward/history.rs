//! What one worker keeps of an APIService however often its endpoints change: what may be sent once more, and where its
//! watches are.
//!
//! What was under way to an endpoint that is not listed any more is finished there; watches move on. An endpoint that is
//! shutting down ends its watches itself, one that is gone never will, and of one that is only not ready nobody knows.
//! So each gets a while; then its watches end a few at a time, cleanly and between two events, and their clients resume
//! where it goes on. Only those of this APIService: the same connections may carry those of others, which stay.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::budget::Budget;
use crate::egress::Destination;

/// How long an endpoint has to end its watches itself.
const GRACE: Duration = Duration::from_secs(10);
/// One in so many of its watches ends each second, so that those who resume do not come all at once.
const SHARE: usize = 10;

/// One APIService's past, from one worker.
pub struct History {
    pub(super) budget: Budget,
    watches: RefCell<HashMap<Destination, Rc<Watches>>>,
}

/// The watches at one endpoint.
#[derive(Default)]
pub(super) struct Watches {
    running: Cell<usize>,
    /// How many of them may end now.
    leaving: Cell<usize>,
    /// Since when the endpoint is not listed.
    unlisted: Cell<Option<Instant>>,
}

/// One of the watches; counted until it is dropped.
pub(super) struct Watching(Rc<Watches>);

impl Default for History {
    fn default() -> History {
        History { budget: Budget::new(Instant::now()), watches: RefCell::default() }
    }
}

impl History {
    /// Those at `endpoint`.
    pub(super) fn watches(&self, endpoint: &Destination) -> Rc<Watches> {
        self.watches.borrow_mut().entry(endpoint.clone()).or_default().clone()
    }

    /// Looks where the watches are, now that `listed` are the endpoints; true if any may end. Call it every second.
    /// `elsewhere` says whether anybody would serve those who resume: a watch that nobody else would serve is better
    /// than none.
    pub fn look(&self, listed: &[Destination], elsewhere: bool, now: Instant) -> bool {
        let mut watches = self.watches.borrow_mut();
        watches.retain(|_, watches| watches.running.get() > 0 || Rc::strong_count(watches) > 1);
        if watches.is_empty() {
            return false;
        }
        let listed: HashSet<&Destination> = listed.iter().collect();
        let mut some = false;
        for (endpoint, watches) in &*watches {
            some |= watches.look(listed.contains(endpoint), elsewhere, now);
        }
        some
    }

    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.watches.borrow().values().all(|watches| watches.running.get() == 0)
    }
}

impl Watches {
    /// A watch begins.
    pub(super) fn begin(self: &Rc<Self>) -> Watching {
        self.running.set(self.running.get() + 1);
        Watching(self.clone())
    }

    fn look(&self, listed: bool, elsewhere: bool, now: Instant) -> bool {
        // Who did not stand between two events until now does not leave later, when nobody knows why.
        self.leaving.set(0);
        if listed {
            self.unlisted.set(None);
            return false;
        }
        let since = self.unlisted.get().unwrap_or(now);
        self.unlisted.set(Some(since));
        if elsewhere && now.saturating_duration_since(since) >= GRACE {
            self.leaving.set(self.running.get().div_ceil(SHARE));
        }
        self.leaving.get() > 0
    }
}

impl Watching {
    /// Whether this one should end, because its endpoint goes. Asked only by those who then do: so many may.
    pub(super) fn may_leave(&self) -> bool {
        let left = self.0.leaving.get();
        self.0.leaving.set(left.saturating_sub(1));
        left > 0
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Host;

    fn at(port: u16) -> Destination {
        Destination { host: Host::Name("a".to_owned()), port }
    }

    /// How many of `running` end in each of the next seconds.
    fn ends(history: &History, listed: &[Destination], running: &mut Vec<Watching>, from: Instant) -> Vec<usize> {
        let mut all = Vec::new();
        for second in 0..=25 {
            history.look(listed, true, from + Duration::from_secs(second));
            let before = running.len();
            running.retain(|watch| !watch.may_leave());
            all.push(before - running.len());
        }
        all
    }

    #[test]
    fn watches_of_an_endpoint_that_went_end_little_by_little_after_a_while() {
        let (history, start) = (History::default(), Instant::now());
        let mut going: Vec<Watching> = (0..25).map(|_| history.watches(&at(1)).begin()).collect();
        let staying: Vec<Watching> = (0..25).map(|_| history.watches(&at(2)).begin()).collect();
        assert!(!history.look(&[at(1), at(2)], true, start) && !going[0].may_leave());
        let ended = ends(&history, &[at(2)], &mut going, start);
        assert_eq!(ended[..14], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 2, 2]);
        assert_eq!((going.len(), ended.iter().sum::<usize>()), (0, 25));
        assert!(staying.iter().all(|watch| !watch.may_leave()));
        // Nothing is left to be looked at.
        assert!(!history.look(&[at(2)], true, start + GRACE * 10));
        assert_eq!(history.watches.borrow().len(), 1);
        drop(staying);
        assert!(history.is_empty());
    }

    #[test]
    fn nobody_leaves_an_endpoint_that_is_back_or_when_there_is_nowhere_to_go() {
        let (history, start) = (History::default(), Instant::now());
        let watch = history.watches(&at(1)).begin();
        assert!(!history.look(&[], false, start) && !history.look(&[], false, start + GRACE));
        assert!(history.look(&[], true, start + GRACE), "it had its while");
        assert!(!history.look(&[at(1)], true, start + GRACE) && !watch.may_leave());
        assert!(!history.look(&[], true, start + GRACE * 2), "a while of its own each time");
        assert!(history.look(&[], true, start + GRACE * 3));
    }

    #[test]
    fn others_at_the_same_endpoint_are_not_meant() {
        let (one, other, start) = (History::default(), History::default(), Instant::now());
        let mut going: Vec<Watching> = (0..5).map(|_| one.watches(&at(1)).begin()).collect();
        let mut staying: Vec<Watching> = (0..5).map(|_| other.watches(&at(1)).begin()).collect();
        assert_eq!(ends(&one, &[at(2)], &mut going, start).iter().sum::<usize>(), 5);
        assert_eq!(ends(&other, &[at(1)], &mut staying, start).iter().sum::<usize>(), 0);
    }
}
