//! Watches that their clients do not read: how much of the process's memory they may hold, and for how long.
//!
//! Over HTTP/2 a backend may send up to the stream's window before the client has read anything. A watch that stands
//! still for a second is charged for that to its user; one that moves sooner is not, however often it stops. Beyond the
//! user's share it may stand still for five more seconds, and beyond that share no longer. It then ends cleanly between
//! two events, and its client resumes, as of an API server whose watch cache has a slow client
//! (`k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go`).

use std::sync::{Arc, LazyLock};
use std::task::Context;
use std::time::{Duration, Instant};

use crate::egress::STREAM_WINDOW;
use crate::process::{Deadline, Share, Shares};

/// What one watch that stands still is charged for, in bytes.
const CHARGE: usize = STREAM_WINDOW as usize;
/// What watches that stand still may hold in the process, in bytes, for as long as they like.
const MOST: usize = 64 << 20;
/// How long those beyond that may stand still; there may be as many of them.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an answer may stand still without being charged for: a burst of events stops the watches of a client that
/// reads all of them.
const GRACE: Duration = Duration::from_secs(1);

/// What is held within the bound, and what beyond it.
static UNREAD: LazyLock<[Arc<Shares>; 2]> = LazyLock::new(|| [Shares::new(MOST), Shares::new(MOST)]);

/// An answer that its client does not read; it moves again when this is dropped.
pub(super) enum Unread {
    /// Not charged for before the deadline.
    Fresh(Deadline),
    /// It may stand still as long as it likes.
    Within(Arc<Share>),
    /// It may stand still until the deadline.
    Beyond(Arc<Share>, Deadline),
    /// There is no share left for it.
    Over,
}

impl Unread {
    /// An answer stands still.
    pub(super) fn begin() -> Unread {
        Unread::Fresh(Deadline::at(Instant::now() + GRACE))
    }

    /// Whether the answer to `user` has to end; otherwise the task of `cx` is woken when it has to.
    pub(super) fn is_over(&mut self, user: &str, cx: &Context<'_>) -> bool {
        if let Unread::Fresh(until) = self
            && until.is_over(cx.waker())
        {
            *self = Unread::charged(user, &UNREAD);
        }
        match self {
            Unread::Fresh(_) | Unread::Within(_) => false,
            Unread::Beyond(_, until) => until.is_over(cx.waker()),
            Unread::Over => true,
        }
    }

    fn charged(user: &str, [within, beyond]: &[Arc<Shares>; 2]) -> Unread {
        let take = |shares: &Arc<Shares>| Some(shares.of(user)).filter(|share| share.take(CHARGE));
        match take(within) {
            Some(share) => Unread::Within(share),
            None => match take(beyond) {
                Some(share) => Unread::Beyond(share, Deadline::at(Instant::now() + PATIENCE)),
                None => Unread::Over,
            },
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Unread::Within(share) | Unread::Beyond(share, _) = self {
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
                assert!(unread.iter_mut().all(|unread| !unread.is_over("reader", &cx)));
                assert!(unread.iter().all(|unread| matches!(unread, Unread::Fresh(_))));
            })
            .await;
    }

    #[tokio::test]
    async fn unread_watches_of_one_user_are_bounded_and_leave_room_for_others() {
        LocalSet::new()
            .run_until(async {
                let bounds = [Shares::new(16 * CHARGE), Shares::new(16 * CHARGE)];
                let begin = |user: &str, count: usize| -> Vec<Unread> {
                    (0..count).map(|_| Unread::charged(user, &bounds)).collect()
                };
                let counts = |unread: &[Unread]| {
                    let count = |which: fn(&&Unread) -> bool| unread.iter().filter(which).count();
                    [
                        count(|unread| matches!(unread, Unread::Within(_))),
                        count(|unread| matches!(unread, Unread::Beyond(..))),
                        count(|unread| matches!(unread, Unread::Over)),
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
