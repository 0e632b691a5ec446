//! Cache of the impersonation mode that last succeeded for each user, so that the legacy mode costs no extra checks.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::mode::ImpersonationMode;

/// The number of slots; Kubernetes' `modeIndexCache` has about as many.
const SLOTS: usize = 8192;
/// The bits of an entry that contain the mode.
const MODE_MASK: u64 = 0b111;

/// A direct-mapped table; of the users that share a slot, it contains the latest. It only affects the order of checks.
pub(super) struct ModeCache {
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Default for ModeCache {
    fn default() -> ModeCache {
        ModeCache { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }
}

impl ModeCache {
    pub(super) fn get(&self, user: &str) -> Option<ImpersonationMode> {
        let (slot, tag) = self.slot(user);
        let entry = slot.load(Relaxed);
        if entry & !MODE_MASK != tag {
            return None;
        }
        // 0 means empty.
        ImpersonationMode::ALL.get(usize::try_from(entry & MODE_MASK).ok()?.checked_sub(1)?).copied()
    }

    pub(super) fn set(&self, user: &str, mode: ImpersonationMode) {
        let (slot, tag) = self.slot(user);
        slot.store(tag | (mode as u64 + 1), Relaxed);
    }

    fn slot(&self, user: &str) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(user);
        (&self.slots[(hash >> 32) as usize % SLOTS], hash & !MODE_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impersonation_mode_cache_keeps_last_mode_and_is_bounded() {
        let last = ModeCache::default();
        assert_eq!(last.get("jane"), None);
        for way in ImpersonationMode::ALL {
            last.set("jane", way);
            assert_eq!(last.get("jane"), Some(way));
        }
        assert_eq!(last.get("bob"), None);
        (0..3 * SLOTS).for_each(|number| last.set(&format!("user-{number}"), ImpersonationMode::UserInfo));
        let known = (0..3 * SLOTS).filter(|number| last.get(&format!("user-{number}")).is_some()).count();
        assert!(known > SLOTS / 2 && known <= SLOTS, "{known}");
    }
}
