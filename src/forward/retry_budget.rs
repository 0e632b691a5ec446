//! Retry budget: retries are limited to a fraction of the requests, so that they do not amplify the load on a failing
//! backend.

use std::cell::Cell;
use std::time::Instant;

/// Cost of a retry, where each request deposits one: a fifth of the requests may be retried.
const RETRY_COST: u64 = 5;
/// Retries per second that are always allowed.
const MIN_RETRIES_PER_SECOND: u64 = 5;
/// Maximum balance: the requests in flight to an endpoint that dies may all be retried at once.
const MAX_BALANCE: u64 = 500 * RETRY_COST;

/// Retry budget of one APIService on one worker. A request that is not retried costs one addition.
pub(super) struct RetryBudget {
    balance: Cell<u64>,
    /// When the minimum rate was last deposited.
    last_refill: Cell<Instant>,
}

impl RetryBudget {
    pub(super) fn new(now: Instant) -> RetryBudget {
        RetryBudget { balance: Cell::new(MAX_BALANCE), last_refill: Cell::new(now) }
    }

    /// Deposits for a request.
    pub(super) fn deposit(&self) {
        self.balance.set((self.balance.get() + 1).min(MAX_BALANCE));
    }

    /// Withdraws the cost of a retry; returns whether the retry is allowed.
    pub(super) fn withdraw(&self, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.last_refill.get()).as_secs();
        if seconds > 0 {
            self.last_refill.set(now);
            self.balance.set(
                (self.balance.get() + seconds.saturating_mul(MIN_RETRIES_PER_SECOND * RETRY_COST)).min(MAX_BALANCE),
            );
        }
        let left = self.balance.get().checked_sub(RETRY_COST);
        self.balance.set(left.unwrap_or(self.balance.get()));
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn retry_budget_allows_a_fifth_plus_a_minimum_rate() {
        let start = Instant::now();
        let budget = RetryBudget::new(start);
        let taken = |now| (0..10_000).filter(|_| budget.withdraw(now)).count();
        assert_eq!(taken(start), 500, "the initial balance");
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(taken(start), 200);
        assert_eq!(taken(start + Duration::from_secs(3)), 15);
        assert_eq!(taken(start + Duration::from_secs(3600)), 500);
        // A backend that fails every request gets a fifth more requests.
        let (mut sent, now) = (0, start + Duration::from_secs(3600));
        for _ in 0..10_000 {
            budget.deposit();
            sent += 1;
            while sent < 1_000_000 && budget.withdraw(now) {
                sent += 1;
            }
        }
        assert_eq!(sent, 12_000);
    }
}
