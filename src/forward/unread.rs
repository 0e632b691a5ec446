//! Watches that their clients do not read: how much of the process's memory they may hold, and for how long.
//!
//! Over HTTP/2 a backend may send up to the stream's window before the client has read anything. A watch that stands
//! still is charged for that to its user. Beyond the user's share it has a while to move, beyond twice that none. It
//! then ends cleanly between two events, and its client resumes, as of an API server whose watch cache has a slow client
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

/// What is held within the bound, and what beyond it.
static UNREAD: LazyLock<[Arc<Shares>; 2]> = LazyLock::new(|| [Shares::new(MOST), Shares::new(MOST)]);

/// An answer that its client does not read; it moves again when this is dropped.
pub(super) struct Unread {
    /// None beyond all bounds.
    share: Option<Arc<Share>>,
    /// Until when it may stand still; none within the bound.
    until: Option<Deadline>,
}

impl Unread {
    /// An answer to `user` stands still.
    pub(super) fn begin(user: &str) -> Unread {
        Unread::of(user, &UNREAD)
    }

    fn of(user: &str, [within, beyond]: &[Arc<Shares>; 2]) -> Unread {
        let take = |shares: &Arc<Shares>| Some(shares.of(user)).filter(|share| share.take(CHARGE));
        if let Some(share) = take(within) {
            return Unread { share: Some(share), until: None };
        }
        let share = take(beyond);
        let until = share.is_some().then(|| Deadline::at(Instant::now() + PATIENCE));
        Unread { share, until }
    }

    /// Whether it has to end; otherwise the task of `cx` is woken when it has to.
    pub(super) fn is_over(&self, cx: &Context<'_>) -> bool {
        match &self.until {
            Some(until) => until.is_over(cx.waker()),
            None => self.share.is_none(),
        }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(share) = &self.share {
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
    async fn unread_watches_of_one_user_are_bounded_and_leave_room_for_others() {
        LocalSet::new()
            .run_until(async {
                let bounds = [Shares::new(16 * CHARGE), Shares::new(16 * CHARGE)];
                let cx = Context::from_waker(Waker::noop());
                let begin = |user: &str, count: usize| -> Vec<Unread> {
                    (0..count).map(|_| Unread::of(user, &bounds)).collect()
                };
                let counts = |unread: &[Unread]| {
                    let within =
                        unread.iter().filter(|unread| unread.until.is_none() && unread.share.is_some()).count();
                    let over = unread.iter().filter(|unread| unread.is_over(&cx)).count();
                    [within, unread.len() - within - over, over]
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
