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
use crate::process::{Deadline, Share, Shares};

/// Charge of one unread watch, in bytes.
const CHARGE: usize = STREAM_WINDOW as usize;
/// Bytes that unread watches may hold in the process without a time limit.
const MOST: usize = 64 << 20;
/// How long watches beyond that may wait for their client; there may be as many of them.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that may be queued for a client without any share, when its watch ends.
const UNCHARGED_REST: usize = 32 << 10;

/// How long a watch may wait for its client without a charge: a burst of events briefly blocks the watches of a client
/// that reads all of them.
const GRACE: Duration = Duration::from_secs(1);
/// Bytes that a client must take to lift the charge; taking them one by one does not.
const PROGRESS: usize = 64 << 10;

/// Charges within the bound, and beyond it.
static UNREAD: LazyLock<[Arc<Shares>; 2]> = LazyLock::new(|| [Shares::new(MOST), Shares::new(MOST)]);

/// A watch that its client has not caught up with. The charge is returned on drop.
pub(super) struct Unread {
    /// Bytes taken by the client since.
    taken: usize,
    charge: Charge,
}

enum Charge {
    /// Not charged before the deadline.
    Grace(Deadline),
    /// Charged within the bound: the watch may wait without a time limit.
    Within(Arc<Share>),
    /// Charged beyond the bound: it may wait until the deadline.
    Beyond(Arc<Share>, Deadline),
    /// There is no share left for it.
    Refused,
}

impl Unread {
    /// Starts when the client does not take available data.
    pub(super) fn begin() -> Unread {
        Unread { taken: 0, charge: Charge::Grace(Deadline::at(Instant::now() + GRACE)) }
    }

    /// Records that the client took `bytes`; returns whether it reads again.
    pub(super) fn is_read(&mut self, bytes: usize) -> bool {
        self.taken = self.taken.saturating_add(bytes);
        self.taken >= PROGRESS
    }

    /// Whether the watch of `user` must end, and how many bytes may then be queued for its client. Otherwise the task
    /// of `cx` is woken when it must.
    pub(super) fn is_over(&mut self, user: &str, cx: &Context<'_>) -> Option<usize> {
        if let Charge::Grace(until) = &mut self.charge
            && until.is_over(cx.waker())
        {
            self.charge = Charge::take(user, &UNREAD);
        }
        match &mut self.charge {
            Charge::Grace(_) | Charge::Within(_) => None,
            Charge::Beyond(_, until) => until.is_over(cx.waker()).then_some(CHARGE),
            Charge::Refused => Some(UNCHARGED_REST),
        }
    }
}

impl Charge {
    fn take(user: &str, [within, beyond]: &[Arc<Shares>; 2]) -> Charge {
        let take = |shares: &Arc<Shares>| Some(shares.of(user)).filter(|share| share.take(CHARGE));
        match take(within) {
            Some(share) => Charge::Within(share),
            None => match take(beyond) {
                Some(share) => Charge::Beyond(share, Deadline::at(Instant::now() + PATIENCE)),
                None => Charge::Refused,
            },
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Charge::Within(share) | Charge::Beyond(share, _) = self {
            share.give_back(CHARGE);
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
                let mut unread: Vec<Unread> = (0..4 * MOST / CHARGE).map(|_| Unread::begin()).collect();
                assert!(unread.iter_mut().all(|unread| unread.is_over("reader", &cx).is_none()));
                assert!(unread.iter().all(|unread| matches!(unread.charge, Charge::Grace(_))));
            })
            .await;
    }

    #[test]
    fn unread_watch_read_byte_by_byte_stays_charged() {
        let mut unread = Unread { taken: 0, charge: Charge::Refused };
        assert!(!(1..PROGRESS).any(|_| unread.is_read(1)));
        assert!(unread.is_read(1));
    }

    #[tokio::test]
    async fn unread_watches_of_one_user_are_bounded_and_leave_room_for_others() {
        LocalSet::new()
            .run_until(async {
                let bounds = [Shares::new(16 * CHARGE), Shares::new(16 * CHARGE)];
                let begin = |user: &str, count: usize| -> Vec<Charge> {
                    (0..count).map(|_| Charge::take(user, &bounds)).collect()
                };
                let counts = |unread: &[Charge]| {
                    let count = |which: fn(&&Charge) -> bool| unread.iter().filter(which).count();
                    [
                        count(|unread| matches!(unread, Charge::Within(_))),
                        count(|unread| matches!(unread, Charge::Beyond(..))),
                        count(|unread| matches!(unread, Charge::Refused)),
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
