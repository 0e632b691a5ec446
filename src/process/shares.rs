//! A memory budget shared fairly between users: heavy users reach the limit before light ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A budget of bytes (or other units) for all users together. One user gets at most as much as then remains for all
/// others (dynamic threshold): the first gets a half, the next a half of the rest, and so on.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    used: AtomicUsize,
    users: Mutex<HashMap<Box<str>, Weak<Share>>>,
}

/// One user's part of [`Shares`]; released when the last reference is dropped.
#[derive(Debug)]
pub struct Share {
    user: Box<str>,
    used: AtomicUsize,
    all: Arc<Shares>,
}

impl Shares {
    /// Creates a budget of `most` units.
    pub fn new(most: usize) -> Arc<Shares> {
        Arc::new(Shares { most, used: AtomicUsize::new(0), users: Mutex::default() })
    }

    /// Returns the share of `user`, creating it if necessary.
    pub fn of(self: &Arc<Shares>, user: &str) -> Arc<Share> {
        let mut users = self.users.lock();
        if let Some(known) = users.get(user).and_then(Weak::upgrade) {
            return known;
        }
        let share = Arc::new(Share { user: user.into(), used: AtomicUsize::new(0), all: self.clone() });
        users.insert(user.into(), Arc::downgrade(&share));
        share
    }

    /// Units held by all users.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Number of users with a share.
    pub fn users(&self) -> usize {
        self.users.lock().len()
    }
}

impl Share {
    /// Acquires `more` units; false if that exceeds the budget or the user's part.
    pub fn take(&self, more: usize) -> bool {
        let all = self.all.used.fetch_add(more, Relaxed) + more;
        let own = self.used.fetch_add(more, Relaxed) + more;
        let fits = all <= self.all.most && own <= self.all.most - all + more;
        if !fits {
            self.give_back(more);
        }
        fits
    }

    /// Releases acquired units.
    pub fn give_back(&self, less: usize) {
        self.all.used.fetch_sub(less, Relaxed);
        self.used.fetch_sub(less, Relaxed);
    }
}

/// Units acquired incrementally; released on drop.
#[derive(Debug)]
pub struct Reservation {
    share: Arc<Share>,
    units: usize,
}

impl Reservation {
    /// Creates an empty reservation of `user`.
    pub fn of(shares: &Arc<Shares>, user: &str) -> Reservation {
        Reservation { share: shares.of(user), units: 0 }
    }

    /// Acquires `more` units; false if that exceeds the budget or the user's part.
    pub fn grow(&mut self, more: usize) -> bool {
        let fits = self.share.take(more);
        self.units += if fits { more } else { 0 };
        fits
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.share.give_back(self.units);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.used.fetch_sub(self.used.load(Relaxed), Relaxed);
        let mut users = self.all.users.lock();
        // Another share of the same user may have been created meanwhile.
        if users.get(&self.user).is_some_and(|known| known.strong_count() == 0) {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_room_for_others() {
        let shares = Shares::new(64);
        let (mallory, jane) = (shares.of("mallory"), shares.of("jane"));
        let most = |share: &Share| (0..1000).filter(|_| share.take(1)).count();
        assert_eq!([most(&mallory), most(&jane)], [32, 16]);
        assert!(shares.of("mallory").used.load(Relaxed) == 32 && !mallory.take(1));
        mallory.give_back(32);
        let bob = shares.of("bob");
        assert_eq!([most(&bob), shares.used()], [24, 40]);
        drop(bob);
        drop((mallory, jane));
        assert_eq!((shares.users(), shares.used()), (0, 0));
    }
}
