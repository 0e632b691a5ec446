//! Retry budget: retries are limited to a fraction of the requests, so that they do not amplify the load on a failing
//! backend.

use std::cell::Cell;
use std::time::Instant;

/// Cost of a retry, where each request deposits one: a fifth of the requests may be retried.
const PRICE: u64 = 5;
/// Retries per second that are always allowed.
const FLOOR: u64 = 5;
/// Maximum balance: the requests in flight to an endpoint that dies may all be retried at once.
const MOST: u64 = 500 * PRICE;

/// Retry budget of one APIService on one worker. A request that is not retried costs one addition.
pub(super) struct Budget {
    saved: Cell<u64>,
    /// When the minimum rate was last deposited.
    since: Cell<Instant>,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Budget {
        Budget { saved: Cell::new(MOST), since: Cell::new(now) }
    }

    /// Deposits for a request.
    pub(super) fn put_in(&self) {
        self.saved.set((self.saved.get() + 1).min(MOST));
    }

    /// Withdraws the cost of a retry; returns whether the retry is allowed.
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
        assert_eq!(taken(start), 500, "the initial balance");
        (0..1000).for_each(|_| budget.put_in());
        assert_eq!(taken(start), 200);
        assert_eq!(taken(start + Duration::from_secs(3)), 15);
        assert_eq!(taken(start + Duration::from_secs(3600)), 500);
        // A backend that fails every request gets a fifth more requests.
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
