//! One turn at a time for the whole process, fair among users: whoever wants many waits in a line of their own.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type UserTurnQueues = Mutex<HashMap<Box<str>, Weak<UserTurnQueue>>>;

/// Turns that are given to one after another. Only the first of each user waits beside those of others, so that nobody
/// waits for more than one turn of each other user.
pub struct UserTurns {
    all: Arc<Semaphore>,
    lines: Arc<UserTurnQueues>,
}

/// Those of one user who wait; there as long as there is one.
struct UserTurnQueue {
    user: Box<str>,
    first: Arc<Semaphore>,
    lines: Arc<UserTurnQueues>,
}

/// A turn, until dropped.
pub struct UserTurn {
    _turn: OwnedSemaphorePermit,
    _first: OwnedSemaphorePermit,
    _line: Arc<UserTurnQueue>,
}

impl Default for UserTurns {
    fn default() -> UserTurns {
        UserTurns { all: Arc::new(Semaphore::new(1)), lines: Arc::default() }
    }
}

impl UserTurns {
    /// Waits for a turn of `user`; none if there will be none.
    pub async fn wait(&self, user: &str) -> Option<UserTurn> {
        let line = self.line(user);
        let first = line.first.clone().acquire_owned().await.ok()?;
        let turn = self.all.clone().acquire_owned().await.ok()?;
        Some(UserTurn { _turn: turn, _first: first, _line: line })
    }

    fn line(&self, user: &str) -> Arc<UserTurnQueue> {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get(user).and_then(Weak::upgrade) {
            return line;
        }
        let first = Arc::new(Semaphore::new(1));
        let line = Arc::new(UserTurnQueue { user: user.into(), first, lines: self.lines.clone() });
        lines.insert(user.into(), Arc::downgrade(&line));
        line
    }
}

impl Drop for UserTurnQueue {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        // Another of the same name may have come meanwhile.
        if lines.get(&self.user).is_some_and(|line| line.strong_count() == 0) {
            lines.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn user_turns_of_one_do_not_hold_up_another() {
        let turns = UserTurns::default();
        let running = turns.wait("mallory").await.unwrap();
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.wait("mallory"))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let mut jane = pin!(turns.wait("jane"));
        assert!(jane.as_mut().now_or_never().is_none(), "one at a time");
        drop(running);
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let turn = jane.await.unwrap();
        drop(turn);
        // One who leaves the line keeps nobody.
        drop(waiting.remove(0));
        let turn = waiting.remove(0).await.unwrap();
        assert_eq!(turns.lines.lock().len(), 1);
        drop((waiting, turn));
        assert!(turns.lines.lock().is_empty());
    }
}
