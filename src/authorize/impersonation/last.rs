//! Cache of the impersonation mode that last succeeded for each user, so that the legacy mode costs no extra checks.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::way::Way;

/// The number of slots; upstream's `modeIndexCache` has about as many.
const USERS: usize = 8192;
/// The bits of an entry that contain the mode.
const WAY: u64 = 0b111;

/// A direct-mapped table; of the users that share a slot, it contains the latest. It only affects the order of checks.
pub(super) struct LastWays {
    places: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for LastWays {
    fn default() -> LastWays {
        LastWays { places: (0..USERS).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }
}

impl LastWays {
    pub(super) fn get(&self, user: &str) -> Option<Way> {
        let (place, tag) = self.place(user);
        let entry = place.load(Relaxed);
        if entry & !WAY != tag {
            return None;
        }
        // 0 means empty.
        Way::ALL.get(usize::try_from(entry & WAY).ok()?.checked_sub(1)?).copied()
    }

    pub(super) fn set(&self, user: &str, way: Way) {
        let (place, tag) = self.place(user);
        place.store(tag | (way as u64 + 1), Relaxed);
    }

    fn place(&self, user: &str) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(user);
        (&self.places[(hash >> 32) as usize % USERS], hash & !WAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_way_counts_and_there_is_no_end_of_users() {
        let last = LastWays::default();
        assert_eq!(last.get("jane"), None);
        for way in Way::ALL {
            last.set("jane", way);
            assert_eq!(last.get("jane"), Some(way));
        }
        assert_eq!(last.get("bob"), None);
        (0..3 * USERS).for_each(|number| last.set(&format!("user-{number}"), Way::UserInfo));
        let known = (0..3 * USERS).filter(|number| last.get(&format!("user-{number}")).is_some()).count();
        assert!(known > USERS / 2 && known <= USERS, "{known}");
    }
}
