//! Watches that their clients do not read: bounds on their memory and time.
//!
//! Over HTTP/2 a backend may send up to the stream's window before the client has read anything; over HTTP/1.1 a
//! client's connection buffers as much. A watch whose client takes less than [`PROGRESS`] in a second is charged for
//! that to its user until the client has caught up. Beyond the user's share it may wait for five more seconds, and
//! without any share it ends at once. It ends cleanly between two events over HTTP/2, and the client resumes, as in an
//! API server with a slow client (`k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go`).

use std::sync::{Arc, LazyLock};
use std::task::Context;
use std::time::{Duration, Instant};

use crate::egress::STREAM_WINDOW;
use crate::process::{BudgetShare, Deadline, FairBudget};

/// Charge of one unread watch, in bytes.
const CHARGE: usize = STREAM_WINDOW as usize;
/// Bytes that unread watches may hold in the process without a time limit.
const MAX_UNREAD_BYTES: usize = 64 << 20;
/// How long watches beyond that may wait for their client; there may be as many of them.
const BEYOND_SHARE_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that may be queued for a client without any share, when its watch ends.
const UNCHARGED_REST: usize = 32 << 10;

/// How long a watch may wait for its client without a charge: a burst of events briefly blocks the watches of a client
/// that reads all of them.
const GRACE: Duration = Duration::from_secs(1);
/// Bytes that a client must take to lift the charge; taking them one by one does not.
const PROGRESS: usize = 64 << 10;

/// Charges within the bound, and beyond it.
static UNREAD_BYTES: LazyLock<[Arc<FairBudget>; 2]> =
    LazyLock::new(|| [FairBudget::new(MAX_UNREAD_BYTES), FairBudget::new(MAX_UNREAD_BYTES)]);

/// A watch that its client has not caught up with. The charge is returned on drop.
pub(super) struct UnreadWatch {
    /// Bytes taken by the client since.
    taken: usize,
    charge: MemoryCharge,
}

enum MemoryCharge {
    /// Not charged before the deadline.
    Grace(Deadline),
    /// Charged within the bound: the watch may wait without a time limit.
    Within(Arc<BudgetShare>),
    /// Charged beyond the bound: it may wait until the deadline.
    Beyond(Arc<BudgetShare>, Deadline),
    /// There is no share left for it.
    Refused,
}

impl UnreadWatch {
    /// Starts when the client does not take available data.
    pub(super) fn new() -> UnreadWatch {
        UnreadWatch { taken: 0, charge: MemoryCharge::Grace(Deadline::at(Instant::now() + GRACE)) }
    }

    /// Records that the client took `bytes`; returns whether it reads again.
    pub(super) fn record_read(&mut self, bytes: usize) -> bool {
        self.taken = self.taken.saturating_add(bytes);
        self.taken >= PROGRESS
    }

    /// Whether the watch of `user` of a control plane must end, and how many bytes may then be queued for its client.
    /// Otherwise the task of `cx` is woken when it must.
    pub(super) fn poll_expired(&mut self, control_plane: Option<&str>, user: &str, cx: &Context<'_>) -> Option<usize> {
        if let MemoryCharge::Grace(until) = &mut self.charge
            && until.has_elapsed(cx.waker())
        {
            self.charge = MemoryCharge::acquire(control_plane, user, &UNREAD_BYTES);
        }
        match &mut self.charge {
            MemoryCharge::Grace(_) | MemoryCharge::Within(_) => None,
            MemoryCharge::Beyond(_, until) => until.has_elapsed(cx.waker()).then_some(CHARGE),
            MemoryCharge::Refused => Some(UNCHARGED_REST),
        }
    }
}

impl MemoryCharge {
    fn acquire(control_plane: Option<&str>, user: &str, [within, beyond]: &[Arc<FairBudget>; 2]) -> MemoryCharge {
        let take = |shares: &Arc<FairBudget>| {
            Some(shares.share_in(control_plane, user)).filter(|share| share.try_acquire(CHARGE))
        };
        match take(within) {
            Some(share) => MemoryCharge::Within(share),
            None => match take(beyond) {
                Some(share) => MemoryCharge::Beyond(share, Deadline::at(Instant::now() + BEYOND_SHARE_TIMEOUT)),
                None => MemoryCharge::Refused,
            },
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if let MemoryCharge::Within(share) | MemoryCharge::Beyond(share, _) = self {
            share.release(CHARGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test]
    async fn unread_watch_that_moves_within_a_second_is_not_charged() {
        LocalSet::new()
            .run_until(async {
                let cx = Context::from_waker(Waker::noop());
                let mut unread: Vec<UnreadWatch> =
                    (0..4 * MAX_UNREAD_BYTES / CHARGE).map(|_| UnreadWatch::new()).collect();
                assert!(unread.iter_mut().all(|unread| unread.poll_expired(None, "reader", &cx).is_none()));
                assert!(unread.iter().all(|unread| matches!(unread.charge, MemoryCharge::Grace(_))));
            })
            .await;
    }

    #[test]
    fn unread_watch_read_byte_by_byte_stays_charged() {
        let mut unread = UnreadWatch { taken: 0, charge: MemoryCharge::Refused };
        assert!(!(1..PROGRESS).any(|_| unread.record_read(1)));
        assert!(unread.record_read(1));
    }

    #[tokio::test]
    async fn unread_watches_of_one_user_are_bounded_and_leave_room_for_others() {
        LocalSet::new()
            .run_until(async {
                let bounds = [FairBudget::new(16 * CHARGE), FairBudget::new(16 * CHARGE)];
                let begin = |user: &str, count: usize| -> Vec<MemoryCharge> {
                    (0..count).map(|_| MemoryCharge::acquire(None, user, &bounds)).collect()
                };
                let counts = |unread: &[MemoryCharge]| {
                    let count = |which: fn(&&MemoryCharge) -> bool| unread.iter().filter(which).count();
                    [
                        count(|unread| matches!(unread, MemoryCharge::Within(_))),
                        count(|unread| matches!(unread, MemoryCharge::Beyond(..))),
                        count(|unread| matches!(unread, MemoryCharge::Refused)),
                    ]
                };
                let first = begin("mallory", 20);
                assert_eq!(counts(&first), [8, 8, 4]);
                assert_eq!(counts(&begin("jane", 3)), [3, 0, 0]);
                drop(first);
                assert_eq!(bounds.each_ref().map(|shares| shares.used()), [0, 0]);
            })
            .await;
    }
}
