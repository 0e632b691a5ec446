//! How many requests may be sent once more: a part of what is asked, so that a backend in trouble does not get more of
//! it by our help.

use std::cell::Cell;
use std::time::Instant;

/// What a request sent once more costs, where each request puts in one: a fifth may be.
const PRICE: u64 = 5;
/// That many a second may be in any case.
const FLOOR: u64 = 5;
/// All that may be saved up: what breaks with an endpoint that dies, may be sent again at once.
const MOST: u64 = 500 * PRICE;

/// One worker's budget for one APIService. Costs a request that is not sent again one addition.
pub(super) struct Budget {
    saved: Cell<u64>,
    /// When the floor was last put in.
    since: Cell<Instant>,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Budget {
        Budget { saved: Cell::new(MOST), since: Cell::new(now) }
    }

    /// A request is sent.
    pub(super) fn put_in(&self) {
        self.saved.set((self.saved.get() + 1).min(MOST));
    }

    /// Whether one more may be sent again.
    pub(super) fn take(&self, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.since.get()).as_secs();
        if seconds > 0 {
            self.since.set(now);
            self.saved.set((self.saved.get() + seconds.saturating_mul(FLOOR * PRICE)).min(MOST));
        }
        let left = self.saved.get().checked_sub(PRICE);
        self.saved.set(left.unwrap_or(self.saved.get()));
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fifth_of_what_is_asked_and_a_few_a_second_may_be_sent_again() {
        let start = Instant::now();
        let budget = Budget::new(start);
        let taken = |now| (0..10_000).filter(|_| budget.take(now)).count();
        assert_eq!(taken(start), 500, "what an endpoint had under way");
        (0..1000).for_each(|_| budget.put_in());
        assert_eq!(taken(start), 200);
        assert_eq!(taken(start + Duration::from_secs(3)), 15);
        assert_eq!(taken(start + Duration::from_secs(3600)), 500);
        // A backend that breaks every request gets a fifth more than it is asked.
        let (mut sent, now) = (0, start + Duration::from_secs(3600));
        for _ in 0..10_000 {
            budget.put_in();
            sent += 1;
            while sent < 1_000_000 && budget.take(now) {
                sent += 1;
            }
        }
        assert_eq!(sent, 12_000);
    }
}
