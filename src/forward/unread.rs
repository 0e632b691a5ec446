//! Watches that their clients do not read: how much of the process's memory they may hold, and for how long.
//!
//! Over HTTP/2 a backend may send up to the stream's window before the client has read anything; over HTTP/1.1 a client's
//! connection holds up to as much. A watch whose client takes less than [`PROGRESS`] in a second is charged for that to
//! its user until the client has caught up. Beyond the user's share it may wait for five more seconds, and beyond
//! that share no longer. It then ends, over HTTP/2 cleanly between two events, and its client resumes, as of an API
//! server whose watch cache has a slow client (`k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go`).

use std::sync::{Arc, LazyLock};
use std::task::Context;
use std::time::{Duration, Instant};

use crate::egress::STREAM_WINDOW;
use crate::process::{Deadline, Share, Shares};

/// What one unread watch is charged for, in bytes.
const CHARGE: usize = STREAM_WINDOW as usize;
/// What unread watches may hold in the process, in bytes, for as long as they like.
const MOST: usize = 64 << 20;
/// How long those beyond that may wait for their client; there may be as many of them.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that may be queued for a client that had no share left, when its watch ends.
const UNCHARGED_REST: usize = 32 << 10;

/// How long a watch may wait for its client without being charged: a burst of events stops the watches of a client that
/// reads all of them.
const GRACE: Duration = Duration::from_secs(1);
/// A client that takes so many bytes reads; taking them one by one does not lift the charge.
const PROGRESS: usize = 64 << 10;

/// What is held within the bound, and what beyond it.
static UNREAD: LazyLock<[Arc<Shares>; 2]> = LazyLock::new(|| [Shares::new(MOST), Shares::new(MOST)]);

/// A watch whose client has not caught up with it. The charge is given back when this is dropped.
pub(super) struct Unread {
    /// Bytes that the client took meanwhile.
    taken: usize,
    charge: Charge,
}

enum Charge {
    /// None before the deadline.
    Grace(Deadline),
    /// The watch may wait as long as it likes.
    Within(Arc<Share>),
    /// It may wait until the deadline.
    Beyond(Arc<Share>, Deadline),
    /// There is no share left for it.
    Refused,
}

impl Unread {
    /// The client does not take what there is.
    pub(super) fn begin() -> Unread {
        Unread { taken: 0, charge: Charge::Grace(Deadline::at(Instant::now() + GRACE)) }
    }

    /// The client took `bytes`; whether it reads.
    pub(super) fn is_read(&mut self, bytes: usize) -> bool {
        self.taken = self.taken.saturating_add(bytes);
        self.taken >= PROGRESS
    }

    /// Whether the watch of `user` must end, and how many bytes may then be queued for its client; otherwise the task of
    /// `cx` is woken when it must.
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
