//! A memory budget shared fairly between users: heavy users reach the limit before light ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::user_map::UserMap;

/// A budget of bytes (or other units) for all users together. One user gets at most as much as then remains for all
/// others (dynamic threshold): the first gets a half, the next a half of the rest, and so on.
///
/// The users of a group, such as a control plane, together get at most twice as much as remains for all others: two thirds.
/// With the same bound for both, one user could leave nothing for the others of its group. Users of the same name in
/// different groups are different users.
#[derive(Debug)]
pub struct FairBudget {
    limit: usize,
    used: AtomicUsize,
    users: UserMap<BudgetShare>,
    groups: UserMap<BudgetGroup>,
}

/// Bound of a group, in multiples of what remains for all others.
const GROUP_FACTOR: usize = 2;

/// One user's part of [`FairBudget`]; released when the last reference is dropped.
#[derive(Debug)]
pub struct BudgetShare {
    /// Key of the user in [`FairBudget::users`].
    key: Box<str>,
    used: AtomicUsize,
    group: Option<Arc<BudgetGroup>>,
    budget: Arc<FairBudget>,
}

/// The part of all users of a group.
#[derive(Debug)]
struct BudgetGroup {
    name: Box<str>,
    used: AtomicUsize,
    budget: Arc<FairBudget>,
}

impl FairBudget {
    /// Creates a budget of `limit` units.
    pub fn new(limit: usize) -> Arc<FairBudget> {
        Arc::new(FairBudget { limit, used: AtomicUsize::new(0), users: UserMap::default(), groups: UserMap::default() })
    }

    /// Returns the share of `user`, creating it if necessary.
    pub fn share(self: &Arc<FairBudget>, user: &str) -> Arc<BudgetShare> {
        self.share_with_key(user, None)
    }

    /// Returns the share of `user` of `group`, or of none, creating it if necessary.
    pub fn share_in(self: &Arc<FairBudget>, group: Option<&str>, user: &str) -> Arc<BudgetShare> {
        let Some(name) = group else { return self.share(user) };
        let new = || BudgetGroup { name: name.into(), used: AtomicUsize::new(0), budget: self.clone() };
        let group = self.groups.get_or_insert(name, new);
        self.share_with_key(&format!("{name}\0{user}"), Some(group))
    }

    fn share_with_key(self: &Arc<FairBudget>, key: &str, group: Option<Arc<BudgetGroup>>) -> Arc<BudgetShare> {
        let new = || BudgetShare { key: key.into(), used: AtomicUsize::new(0), group, budget: self.clone() };
        self.users.get_or_insert(key, new)
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
        let group = self.group.as_ref().map_or(0, |group| group.used.fetch_add(more, Relaxed) + more);
        let fits = self.budget.limit.checked_sub(all).is_some_and(|rest| {
            let rest = rest + more;
            own <= rest && group <= rest.saturating_mul(GROUP_FACTOR)
        });
        if !fits {
            self.release(more);
        }
        fits
    }

    /// Releases acquired units.
    pub fn release(&self, less: usize) {
        self.budget.used.fetch_sub(less, Relaxed);
        self.used.fetch_sub(less, Relaxed);
        if let Some(group) = &self.group {
            group.used.fetch_sub(less, Relaxed);
        }
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
        self.release(self.used.load(Relaxed));
        self.budget.users.remove_unused(&self.key);
    }
}

impl Drop for BudgetGroup {
    fn drop(&mut self) {
        self.budget.groups.remove_unused(&self.name);
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

    #[test]
    fn fair_budget_group_of_many_users_leaves_units_for_other_groups() {
        let shares = FairBudget::new(64);
        let most = |share: &BudgetShare| (0..1000).filter(|_| share.try_acquire(1)).count();
        let red: Vec<_> = (0..50).map(|number| shares.share_in(Some("red"), &format!("user-{number}"))).collect();
        let taken: Vec<usize> = red.iter().map(|share| most(share)).collect();
        assert_eq!((taken[0], taken[1], taken.iter().sum::<usize>()), (32, 11, 43), "{taken:?}");
        // The same name elsewhere is another user.
        let (blue, own) = (shares.share_in(Some("blue"), "user-0"), shares.share_in(None, "user-0"));
        assert_eq!((most(&blue), most(&own)), (11, 5));
        drop(red);
        assert_eq!((most(&blue), shares.user_count()), (19, 2));
        drop((blue, own));
        assert_eq!((shares.user_count(), shares.groups.len(), shares.used()), (0, 0, 0));
    }
}
