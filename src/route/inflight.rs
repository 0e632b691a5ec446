//! Limits of requests in flight, in total and per user.
//!
//! A user may take another in-flight permit while holding fewer than [`USER_SHARE_FACTOR`] times the permits that are
//! still free (dynamic thresholds, as in switches that share a buffer among ports). A single user gets at most three
//! quarters of all permits, two greedy users three sevenths each, three users three tenths; some are always left for a
//! user without any. There is no queue, and no state is kept of users without requests.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use crate::observe::metrics::RejectReason;

/// A user's share: this many times the free permits.
const USER_SHARE_FACTOR: usize = 3;
/// An APIService's share of the gateway's own limits: this many times the free permits. A single one gets eight ninths,
/// two slow ones eight seventeenths each. Larger than a user's, so that one greedy user does not block an APIService.
const APISERVICE_SHARE_FACTOR: usize = 8;
/// Counters per row.
const CELLS: usize = 256;

/// Requests in flight of one limit, shared by all threads (and, for an APIService, by all its routes over time).
#[derive(Clone, Default)]
pub struct Inflight(Arc<InflightCounts>);

/// Permit of a request in flight; released when dropped.
pub struct InflightPermit {
    inflight: Inflight,
    hand: Hand,
    mutating: bool,
}

/// The counters of a user: one in each row (shuffle sharding, as in API Priority and Fairness). A user's count is the
/// minimum of the two, so two users are confused only if both counters coincide: one pair in 65,536. A table by name
/// could be filled up with names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hand([u8; 2]);

/// Deals hands by a keyed hash, so that no one can choose a name that shares another user's counters.
#[derive(Clone, Default)]
pub struct Dealer(RandomState);

struct InflightCounts {
    total: AtomicUsize,
    /// Requests of an APIService that count against the gateway's limit for mutating requests.
    mutating: AtomicUsize,
    rows: [[AtomicU32; CELLS]; 2],
}

impl Dealer {
    /// The hand of `user`; stable for this dealer.
    pub fn hand(&self, user: &str) -> Hand {
        let [one, two, ..] = self.0.hash_one(user).to_ne_bytes();
        Hand([one, two])
    }
}

impl Hand {
    /// The hand as a number.
    pub(super) fn as_u16(self) -> u16 {
        u16::from_ne_bytes(self.0)
    }
}

impl Inflight {
    /// Acquires a permit for the user with `hand`, if fewer than `limit` are taken and the user is within its share; 0
    /// means no limit.
    ///
    /// # Errors
    /// Why there is none. Rejected requests do not affect other users.
    pub fn try_acquire(&self, hand: Hand, limit: usize) -> Result<InflightPermit, RejectReason> {
        if limit > 0 {
            let free = limit.saturating_sub(self.count());
            if free == 0 {
                return Err(RejectReason::LimitReached);
            }
            // Two threads may both take the last permit of a share, which then is slightly exceeded; the limit itself
            // is not.
            if self.held_by(hand) >= USER_SHARE_FACTOR * free {
                return Err(RejectReason::FairShare);
            }
        }
        let before = self.0.total.fetch_add(1, Relaxed);
        for cell in self.cells(hand) {
            cell.fetch_add(1, Relaxed);
        }
        // The guard comes first: it also undoes the count of a rejected request.
        let permit = InflightPermit { inflight: self.clone(), hand, mutating: false };
        if limit == 0 || before < limit { Ok(permit) } else { Err(RejectReason::LimitReached) }
    }

    /// As [`Inflight::try_acquire`], for a request that already has a permit of a gateway's limit, for `mutating`
    /// requests or the others, of which `free` are left: this APIService may hold only its share of those. A slow
    /// backend must not use up the permits that all share.
    pub(super) fn try_acquire_shared(
        &self,
        hand: Hand,
        limit: usize,
        mutating: bool,
        free: Option<usize>,
    ) -> Result<InflightPermit, RejectReason> {
        let changes = self.0.mutating.load(Relaxed);
        let held = if mutating { changes } else { self.count().saturating_sub(changes) };
        if free.is_some_and(|free| held >= APISERVICE_SHARE_FACTOR * (free + 1)) {
            return Err(RejectReason::LimitReached);
        }
        let mut permit = self.try_acquire(hand, limit)?;
        if mutating {
            permit.mutating = true;
            self.0.mutating.fetch_add(1, Relaxed);
        }
        Ok(permit)
    }

    /// Free permits of `limit`; `None` without a limit (0).
    pub fn free(&self, limit: usize) -> Option<usize> {
        (limit > 0).then(|| limit.saturating_sub(self.count()))
    }

    /// Requests in flight.
    pub fn count(&self) -> usize {
        self.0.total.load(Relaxed)
    }

    fn held_by(&self, hand: Hand) -> usize {
        self.cells(hand).map(|cell| cell.load(Relaxed)).into_iter().min().unwrap_or_default() as usize
    }

    fn cells(&self, Hand([one, two]): Hand) -> [&AtomicU32; 2] {
        let [first, second] = &self.0.rows;
        [&first[usize::from(one)], &second[usize::from(two)]]
    }
}

impl Default for InflightCounts {
    fn default() -> Self {
        let row = || std::array::from_fn(|_| AtomicU32::new(0));
        InflightCounts { total: AtomicUsize::new(0), mutating: AtomicUsize::new(0), rows: [row(), row()] }
    }
}

impl Drop for InflightPermit {
    fn drop(&mut self) {
        for cell in self.inflight.cells(self.hand) {
            cell.fetch_sub(1, Relaxed);
        }
        if self.mutating {
            self.inflight.0.mutating.fetch_sub(1, Relaxed);
        }
        self.inflight.0.total.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Hand = Hand([1, 1]);
    const B: Hand = Hand([1, 2]);
    const C: Hand = Hand([2, 1]);

    /// Takes as many permits as possible.
    fn greedy(inflight: &Inflight, hand: Hand, most: usize) -> Vec<InflightPermit> {
        std::iter::from_fn(|| inflight.try_acquire(hand, most).ok()).take(10_000).collect()
    }

    #[test]
    fn inflight_permits_are_returned_on_drop() {
        let inflight = Inflight::default();
        let one = inflight.try_acquire(A, 1);
        assert!(one.is_ok() && inflight.try_acquire(A, 1).err() == Some(RejectReason::LimitReached));
        assert_eq!(inflight.count(), 1);
        assert!(inflight.try_acquire(A, 0).is_ok());
        drop(one);
        assert!(inflight.try_acquire(A, 1).is_ok());
        assert_eq!((inflight.count(), inflight.held_by(A)), (0, 0));
    }

    #[test]
    fn inflight_one_user_leaves_permits_to_others() {
        // Limits too small for shares are first come, first served.
        for (most, alone) in [(1, 1), (2, 2), (3, 3), (4, 3), (20, 15), (200, 150), (400, 300)] {
            let inflight = Inflight::default();
            let taken = greedy(&inflight, A, most);
            assert_eq!(taken.len(), alone, "of {most}");
            let expected = if alone < most { RejectReason::FairShare } else { RejectReason::LimitReached };
            assert_eq!(inflight.try_acquire(A, most).err(), Some(expected));
            if alone < most {
                // B and C each share a cell with A, but not both.
                assert!(inflight.try_acquire(B, most).is_ok() && inflight.try_acquire(C, most).is_ok());
            }
        }
    }

    #[test]
    fn inflight_greedy_users_get_equal_shares() {
        let inflight = Inflight::default();
        let mut taken: Vec<(Hand, Vec<InflightPermit>)> = vec![(A, greedy(&inflight, A, 100))];
        assert_eq!(taken[0].1.len(), 75);
        taken.push((Hand([7, 7]), Vec::new()));
        taken.push((Hand([8, 8]), Vec::new()));
        // Each user in turn ends a request, and all take what they can get.
        for round in 0..300 {
            let ending = round % 3;
            taken[ending].1.pop();
            for user in [(round + 1) % 3, (round + 2) % 3, ending] {
                let (hand, places) = &mut taken[user];
                places.extend(inflight.try_acquire(*hand, 100).ok());
            }
        }
        for (hand, places) in &taken {
            assert!((28..=32).contains(&places.len()), "{hand:?} holds {}", places.len());
        }
        assert!(inflight.try_acquire(Hand([9, 9]), 100).is_ok());
    }

    #[test]
    fn inflight_without_limit_admits_all() {
        let inflight = Inflight::default();
        let taken = greedy(&inflight, A, 0);
        assert_eq!((taken.len(), inflight.count()), (10_000, 10_000));
    }

    #[test]
    fn inflight_limit_holds_across_threads() {
        let inflight = Inflight::default();
        let (dealer, most) = (Dealer::default(), 50);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (inflight, dealer) = (&inflight, &dealer);
                scope.spawn(move || {
                    for turn in 0..5000 {
                        let hand = dealer.hand(&format!("user-{thread}-{}", turn % 7));
                        let taken = greedy(inflight, hand, most);
                        assert!(taken.len() <= most);
                    }
                });
            }
        });
        assert_eq!(inflight.count(), 0);
        assert!(inflight.0.rows.iter().flatten().all(|cell| cell.load(Relaxed) == 0));
    }

    #[test]
    fn inflight_hand_is_stable_per_process() {
        let dealer = Dealer::default();
        assert_eq!(dealer.hand("jane"), dealer.hand("jane"));
        let names: Vec<String> = (0..64).map(|number| format!("user-{number}")).collect();
        let other = Dealer::default();
        assert!(names.iter().any(|name| dealer.hand(name) != other.hand(name)));
    }
}
