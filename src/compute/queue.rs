//! Compute slots, shared fairly: a queue for each user, served in turn.
//!
//! A user may hold another slot while holding fewer than are still free (dynamic thresholds, as for requests in flight):
//! one user gets at most half of the slots, two users a third each. A slot remains for a user who has none.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::observe::metrics::{ComputeMetrics, ComputeRefusal};
use crate::route::Hand;

/// Least number of slots, so that the shares of users differ from nothing. More than there are cores share these.
const MIN_SLOTS: usize = 4;

/// Requests of a user that wait at most, the default queue length of API Priority and Fairness.
const MAX_WAITING: usize = 50;

/// Whose work it is: a user, or none for that of the server itself.
pub type WorkOwner = Option<Hand>;

/// Slots for work on compute threads, and the work that waits for one. Cheap to clone.
#[derive(Clone)]
pub struct ComputeQueue(Arc<SharedQueue>);

struct SharedQueue {
    slots: usize,
    state: Mutex<QueueState>,
    metrics: Arc<ComputeMetrics>,
}

#[derive(Default)]
struct QueueState {
    running: usize,
    /// Owners with running or waiting work.
    owners: HashMap<WorkOwner, OwnedWork>,
    /// Owners with waiting work, the next one first.
    turn: VecDeque<WorkOwner>,
    last_id: u64,
}

#[derive(Default)]
struct OwnedWork {
    running: usize,
    waiting: VecDeque<WaitingWork>,
}

struct WaitingWork {
    id: u64,
    rank: WorkRank,
    granted: oneshot::Sender<ComputeSlot>,
}

/// What work is to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkRank {
    /// The first. It is refused if too many requests wait.
    First,
    /// It continues a request: before all other work of the owner, and never refused, for what was read takes memory.
    Continued,
    /// For the body of a response or a watch. In turn, and never refused.
    Body,
}

/// RAII permit for work on a compute thread.
pub(super) struct ComputeSlot {
    queue: ComputeQueue,
    owner: WorkOwner,
}

/// RAII guard of a place in the queue: work that is no longer wanted leaves it.
struct QueuePlace<'q> {
    queue: &'q ComputeQueue,
    owner: WorkOwner,
    id: u64,
}

/// The owner has too much work that waits.
#[derive(Debug)]
pub(super) struct QueueFull;

impl Default for ComputeQueue {
    fn default() -> ComputeQueue {
        ComputeQueue::new(Arc::default())
    }
}

impl ComputeQueue {
    /// A queue with a slot for each core.
    pub fn new(metrics: Arc<ComputeMetrics>) -> ComputeQueue {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        ComputeQueue::with_slots(cores.max(MIN_SLOTS), metrics)
    }

    pub(super) fn with_slots(slots: usize, metrics: Arc<ComputeMetrics>) -> ComputeQueue {
        ComputeQueue(Arc::new(SharedQueue { slots, state: Mutex::default(), metrics }))
    }

    pub(super) fn metrics(&self) -> &ComputeMetrics {
        &self.0.metrics
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// The owner has too many requests that wait.
    pub(super) async fn acquire(&self, owner: WorkOwner, rank: WorkRank) -> Result<ComputeSlot, QueueFull> {
        let began = Instant::now();
        let (place, granted) = {
            let mut state = self.0.state.lock();
            let id = state.last_id + 1;
            state.last_id = id;
            let (running, slots) = (state.running, self.0.slots);
            let work = state.owners.entry(owner).or_default();
            if work.waiting.is_empty() && work.may_start(running, slots) {
                work.running += 1;
                state.running += 1;
                self.0.metrics.record_wait(began.elapsed());
                return Ok(ComputeSlot { queue: self.clone(), owner });
            }
            if owner.is_some() && rank == WorkRank::First && work.first_count() >= MAX_WAITING {
                self.0.metrics.record_refusal(ComputeRefusal::QueueFull);
                return Err(QueueFull);
            }
            let (sender, receiver) = oneshot::channel();
            let waiting = WaitingWork { id, rank, granted: sender };
            if work.waiting.is_empty() {
                state.turn.push_back(owner);
            }
            state.owners.entry(owner).or_default().insert(waiting);
            (QueuePlace { queue: self, owner, id }, receiver)
        };
        let slot = granted.await.map_err(|_| QueueFull)?;
        drop(place);
        self.0.metrics.record_wait(began.elapsed());
        Ok(slot)
    }

    /// Gives the slots that are free to those whose turn it is.
    fn grant(&self) {
        let granted = self.0.state.lock().take_granted(self.0.slots);
        for (owner, waiting) in granted {
            // One that is gone returns its slot.
            let _ = waiting.granted.send(ComputeSlot { queue: self.clone(), owner });
        }
    }
}

impl QueueState {
    /// Takes the work that can start out of the queues.
    fn take_granted(&mut self, slots: usize) -> Vec<(WorkOwner, WaitingWork)> {
        let mut granted = Vec::new();
        while let Some(at) = self.turn.iter().position(|owner| self.may_start(*owner, slots)) {
            let Some(owner) = self.turn.remove(at) else { break };
            let Some(work) = self.owners.get_mut(&owner) else { continue };
            let Some(next) = work.waiting.pop_front() else { continue };
            work.running += 1;
            self.running += 1;
            if !work.waiting.is_empty() {
                self.turn.push_back(owner);
            }
            granted.push((owner, next));
        }
        granted
    }

    fn may_start(&self, owner: WorkOwner, slots: usize) -> bool {
        self.owners.get(&owner).is_some_and(|work| work.may_start(self.running, slots))
    }

    /// Forgets an owner without work.
    fn forget_idle(&mut self, owner: WorkOwner) {
        let Some(work) = self.owners.get(&owner) else { return };
        if work.waiting.is_empty() {
            self.turn.retain(|other| *other != owner);
            if work.running == 0 {
                self.owners.remove(&owner);
            }
        }
    }
}

impl OwnedWork {
    /// Number of requests that wait and have not begun.
    fn first_count(&self) -> usize {
        self.waiting.iter().filter(|waiting| waiting.rank == WorkRank::First).count()
    }

    /// Puts work into its place.
    fn insert(&mut self, waiting: WaitingWork) {
        let place = match waiting.rank {
            WorkRank::Continued => self.waiting.partition_point(|other| other.rank == WorkRank::Continued),
            WorkRank::First | WorkRank::Body => self.waiting.len(),
        };
        self.waiting.insert(place, waiting);
    }

    /// Whether a slot of `slots`, of which `running` are taken, is within the share of the owner.
    fn may_start(&self, running: usize, slots: usize) -> bool {
        self.running < slots.saturating_sub(running)
    }
}

impl Drop for ComputeSlot {
    fn drop(&mut self) {
        {
            let mut state = self.queue.0.state.lock();
            state.running -= 1;
            if let Some(work) = state.owners.get_mut(&self.owner) {
                work.running -= 1;
            }
            state.forget_idle(self.owner);
        }
        self.queue.grant();
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.0.state.lock();
        let Some(work) = state.owners.get_mut(&self.owner) else { return };
        work.waiting.retain(|waiting| waiting.id != self.id);
        state.forget_idle(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::task::{LocalSet, spawn_local, yield_now};

    use super::*;
    use crate::route::Dealer;

    fn owners() -> [WorkOwner; 3] {
        let dealer = Dealer::default();
        ["anna", "bob", "eve"].map(|user| Some(dealer.hand(user)))
    }

    fn queue(slots: usize) -> ComputeQueue {
        ComputeQueue::with_slots(slots, Arc::default())
    }

    type StartedWork = (&'static str, Option<ComputeSlot>);

    /// Work that notes its name when it starts, and holds its slot until that is taken.
    #[derive(Clone, Default)]
    struct Started(Rc<RefCell<Vec<StartedWork>>>);

    impl Started {
        async fn start(&self, queue: &ComputeQueue, owner: WorkOwner, name: &'static str) {
            let (queue, started) = (queue.clone(), self.clone());
            spawn_local(async move {
                let rank = if name.starts_with("next") { WorkRank::Continued } else { WorkRank::First };
                let slot = queue.acquire(owner, rank).await.unwrap();
                started.0.borrow_mut().push((name, Some(slot)));
            });
            yield_now().await;
        }

        fn names(&self) -> Vec<&'static str> {
            self.0.borrow().iter().map(|(name, _)| *name).collect()
        }

        async fn end(&self, name: &str) {
            let find = |(other, slot): &&mut (&'static str, Option<ComputeSlot>)| *other == name && slot.is_some();
            let ended = self.0.borrow_mut().iter_mut().find(find).and_then(|(_, slot)| slot.take());
            drop(ended);
            yield_now().await;
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn compute_slot_remains_for_user_beside_many_works_of_another() {
        LocalSet::new()
            .run_until(async {
                let ([anna, bob, eve], queue, started) = (owners(), queue(4), Started::default());
                for name in ["e1", "e2", "e3", "e4", "e5"] {
                    started.start(&queue, eve, name).await;
                }
                assert_eq!(started.names(), ["e1", "e2"], "half of the slots");
                started.start(&queue, anna, "a1").await;
                started.start(&queue, bob, "b1").await;
                assert_eq!(started.names(), ["e1", "e2", "a1", "b1"], "others do not wait");
                started.start(&queue, anna, "a2").await;
                started.end("e1").await;
                assert_eq!(started.names().len(), 4, "one is left for a fourth user");
                started.end("e2").await;
                started.end("b1").await;
                assert_eq!(started.names(), ["e1", "e2", "a1", "b1", "e3", "a2"], "in turn");
            })
            .await;
    }

    #[tokio::test]
    async fn compute_queue_serves_users_in_turn_and_begun_requests_first() {
        LocalSet::new()
            .run_until(async {
                let ([anna, bob, _], queue, started) = (owners(), queue(2), Started::default());
                let work = ["a1", "b1", "a2", "next a3", "next a4", "b2"];
                for name in work {
                    let owner = if name.contains('a') { anna } else { bob };
                    started.start(&queue, owner, name).await;
                }
                assert_eq!(started.names(), ["a1", "b1"]);
                for name in ["a1", "b1", "next a3", "b2", "next a4"] {
                    started.end(name).await;
                }
                assert_eq!(started.names(), ["a1", "b1", "next a3", "b2", "next a4", "a2"]);
                started.end("a2").await;
                assert!(queue.0.state.lock().owners.is_empty() && queue.0.state.lock().turn.is_empty());
            })
            .await;
    }

    #[tokio::test]
    async fn compute_queue_of_user_is_bounded_and_unwanted_work_leaves_it() {
        LocalSet::new()
            .run_until(async {
                let ([anna, bob, _], queue) = (owners(), queue(2));
                let held = queue.acquire(anna, WorkRank::First).await.unwrap();
                let waiting: Vec<_> = (0..MAX_WAITING)
                    .map(|_| {
                        let queue = queue.clone();
                        spawn_local(async move { queue.acquire(anna, WorkRank::First).await.map(drop) })
                    })
                    .collect();
                yield_now().await;
                assert!(queue.acquire(anna, WorkRank::First).await.is_err());
                assert!(queue.acquire(bob, WorkRank::First).await.is_ok(), "the queue of another user is its own");
                waiting.iter().skip(1).for_each(tokio::task::JoinHandle::abort);
                yield_now().await;
                assert_eq!(queue.0.state.lock().owners[&anna].waiting.len(), 1);
                assert_eq!(queue.metrics().refusals(ComputeRefusal::QueueFull), 1);
                drop(held);
                for one in waiting {
                    assert!(one.await.is_err() || queue.0.state.lock().running == 0);
                }
                assert!(queue.0.state.lock().owners.is_empty());
            })
            .await;
    }

    #[tokio::test]
    async fn compute_queue_of_many_watches_refuses_no_request() {
        LocalSet::new()
            .run_until(async {
                let ([anna, ..], queue) = (owners(), queue(2));
                let held = queue.acquire(anna, WorkRank::First).await.unwrap();
                for _ in 0..2 * MAX_WAITING {
                    let queue = queue.clone();
                    spawn_local(async move { queue.acquire(anna, WorkRank::Body).await.map(drop) });
                }
                let request = spawn_local({
                    let queue = queue.clone();
                    async move { queue.acquire(anna, WorkRank::First).await.map(drop) }
                });
                yield_now().await;
                drop(held);
                assert!(request.await.unwrap().is_ok());
            })
            .await;
    }
}
