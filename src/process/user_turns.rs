//! One turn at a time for the whole process, fair between users: each user waits in a queue of their own.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::user_map::UserMap;

/// Turns given one after another. Only the first waiter of each user competes with those of other users, so a user waits
/// for at most one turn of each other user.
pub struct UserTurns {
    all: Arc<Semaphore>,
    queues: Arc<UserMap<UserTurnQueue>>,
}

/// The waiters of one user; kept as long as there is one.
struct UserTurnQueue {
    user: Box<str>,
    first: Arc<Semaphore>,
    queues: Arc<UserMap<UserTurnQueue>>,
}

/// A turn, released on drop.
pub struct UserTurn {
    _turn: OwnedSemaphorePermit,
    _first: OwnedSemaphorePermit,
    _queue: Arc<UserTurnQueue>,
}

impl Default for UserTurns {
    fn default() -> UserTurns {
        UserTurns { all: Arc::new(Semaphore::new(1)), queues: Arc::default() }
    }
}

impl UserTurns {
    /// Waits for a turn of `user`; `None` if there will be none.
    pub async fn wait(&self, user: &str) -> Option<UserTurn> {
        let queue = self.queues.get_or_insert(user, || UserTurnQueue {
            user: user.into(),
            first: Arc::new(Semaphore::new(1)),
            queues: self.queues.clone(),
        });
        let first = queue.first.clone().acquire_owned().await.ok()?;
        let turn = self.all.clone().acquire_owned().await.ok()?;
        Some(UserTurn { _turn: turn, _first: first, _queue: queue })
    }
}

impl Drop for UserTurnQueue {
    fn drop(&mut self) {
        self.queues.remove_unused(&self.user);
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
        // A waiter that is dropped does not block its queue.
        drop(waiting.remove(0));
        let turn = waiting.remove(0).await.unwrap();
        assert_eq!(turns.queues.len(), 1);
        drop((waiting, turn));
        assert_eq!(turns.queues.len(), 0);
    }
}
