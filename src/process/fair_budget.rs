//! A memory budget shared fairly between users: heavy users reach the limit before light ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::user_map::UserMap;

/// A budget of bytes (or other units) for all users together. One user gets at most as much as then remains for all
/// others (dynamic threshold): the first gets a half, the next a half of the rest, and so on.
#[derive(Debug)]
pub struct FairBudget {
    limit: usize,
    used: AtomicUsize,
    users: UserMap<BudgetShare>,
}

/// One user's part of [`FairBudget`]; released when the last reference is dropped.
#[derive(Debug)]
pub struct BudgetShare {
    user: Box<str>,
    used: AtomicUsize,
    budget: Arc<FairBudget>,
}

impl FairBudget {
    /// Creates a budget of `most` units.
    pub fn new(most: usize) -> Arc<FairBudget> {
        Arc::new(FairBudget { limit: most, used: AtomicUsize::new(0), users: UserMap::default() })
    }

    /// Returns the share of `user`, creating it if necessary.
    pub fn share(self: &Arc<FairBudget>, user: &str) -> Arc<BudgetShare> {
        let new = || BudgetShare { user: user.into(), used: AtomicUsize::new(0), budget: self.clone() };
        self.users.get_or_insert(user, new)
    }

    /// Units held by all users.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Number of users with a share.
    pub fn user_count(&self) -> usize {
        self.users.len()
    }
}

impl BudgetShare {
    /// Acquires `more` units; false if that exceeds the budget or the user's part.
    pub fn try_acquire(&self, more: usize) -> bool {
        let all = self.budget.used.fetch_add(more, Relaxed) + more;
        let own = self.used.fetch_add(more, Relaxed) + more;
        let fits = all <= self.budget.limit && own <= self.budget.limit - all + more;
        if !fits {
            self.release(more);
        }
        fits
    }

    /// Releases acquired units.
    pub fn release(&self, less: usize) {
        self.budget.used.fetch_sub(less, Relaxed);
        self.used.fetch_sub(less, Relaxed);
    }
}

/// Units acquired incrementally; released on drop.
#[derive(Debug)]
pub struct Reservation {
    share: Arc<BudgetShare>,
    units: usize,
}

impl Reservation {
    /// Creates an empty reservation of `user`.
    pub fn new(shares: &Arc<FairBudget>, user: &str) -> Reservation {
        Reservation { share: shares.share(user), units: 0 }
    }

    /// Acquires `more` units; false if that exceeds the budget or the user's part.
    pub fn try_grow(&mut self, more: usize) -> bool {
        let fits = self.share.try_acquire(more);
        self.units += if fits { more } else { 0 };
        fits
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.share.release(self.units);
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.used.load(Relaxed), Relaxed);
        self.budget.users.remove_unused(&self.user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_budget_leaves_units_for_other_users() {
        let shares = FairBudget::new(64);
        let (mallory, jane) = (shares.share("mallory"), shares.share("jane"));
        let most = |share: &BudgetShare| (0..1000).filter(|_| share.try_acquire(1)).count();
        assert_eq!([most(&mallory), most(&jane)], [32, 16]);
        assert!(shares.share("mallory").used.load(Relaxed) == 32 && !mallory.try_acquire(1));
        mallory.release(32);
        let bob = shares.share("bob");
        assert_eq!([most(&bob), shares.used()], [24, 40]);
        drop(bob);
        drop((mallory, jane));
        assert_eq!((shares.user_count(), shares.used()), (0, 0));
    }
}
