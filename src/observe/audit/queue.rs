//! Queue of events for a sink, bounded in number and bytes: a blocked sink causes dropped events, never delays.
//!
//! Each user has a share. When the queue is full, only users above their fair share lose events, newest first. Events
//! are taken in turns of about equal cost per user (deficit round robin).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::event::AuditEvent;

/// Cost of the events taken in one user's turn, in bytes.
const TURN_QUANTUM: i64 = 64 << 10;

/// Events of one sink. Taken events count until their [`EventBatch`] is dropped.
pub(super) struct AuditQueue {
    state: Mutex<QueueState>,
    max_events: usize,
    max_bytes: usize,
    dropped: AtomicU64,
    /// Number of waiting events at which `wake` is called again, after the first event.
    wake_threshold: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct QueueState {
    users: HashMap<Arc<str>, UserQueue>,
    /// Users with waiting events, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    waiting: usize,
    events: usize,
    bytes: usize,
    /// The number of the next event.
    next: u64,
}

/// Events of one user.
#[derive(Default)]
struct UserQueue {
    waiting: VecDeque<(u64, Arc<AuditEvent>)>,
    /// Waiting and taken events.
    events: usize,
    bytes: usize,
    /// Remaining cost of this turn; negative after an event that cost more than a turn.
    credit: i64,
    has_turn: bool,
}

/// A batch of taken events, which count until this is dropped.
pub(super) struct EventBatch {
    pub(super) events: Vec<Arc<AuditEvent>>,
    bytes: usize,
    queue: Arc<AuditQueue>,
}

impl AuditQueue {
    pub(super) fn new(
        most_events: usize,
        most_bytes: usize,
        enough: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Arc<AuditQueue> {
        let (held, dropped) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(AuditQueue {
            state: held,
            max_events: most_events,
            max_bytes: most_bytes,
            dropped,
            wake_threshold: enough,
            wake: Box::new(wake),
        })
    }

    /// Appends `event`. Returns the number of lost events: this one if its user has a fair share of a full queue,
    /// otherwise those of users with more than a fair share.
    pub(super) fn push(&self, event: &Arc<AuditEvent>) -> usize {
        let (owner, bytes) = (event.owner(), event.weight());
        let mut held = self.state.lock();
        let (has_room, mut lost) = held.make_room(&owner, bytes, self.max_events, self.max_bytes);
        let mut wakes = false;
        if has_room {
            held.append(&owner, event.clone(), bytes);
            wakes = held.waiting == 1 || held.waiting == self.wake_threshold;
        } else {
            lost += 1;
        }
        drop(held);
        if lost > 0 {
            self.dropped.fetch_add(lost as u64, Relaxed);
        }
        if wakes {
            (self.wake)();
        }
        lost
    }

    /// Takes waiting events, at most `most` and `most_bytes` but at least one: in order for each user, and with about
    /// equal cost per user.
    pub(super) fn take(self: &Arc<AuditQueue>, most: usize, most_bytes: usize) -> EventBatch {
        let (mut events, mut bytes) = (Vec::new(), 0);
        let mut held = self.state.lock();
        let QueueState { users, turns, waiting, .. } = &mut *held;
        'turns: while let Some(user) = turns.pop_front() {
            let Some(share) = users.get_mut(&user) else { continue };
            if share.credit <= 0 {
                share.credit += TURN_QUANTUM;
            }
            while share.credit > 0
                && let Some((_, event)) = share.waiting.front()
            {
                let weight = event.weight();
                if events.len() >= most || !events.is_empty() && bytes + weight > most_bytes {
                    turns.push_front(user);
                    break 'turns;
                }
                bytes += weight;
                share.credit -= i64::try_from(weight).unwrap_or(i64::MAX);
                events.extend(share.waiting.pop_front());
                *waiting -= 1;
            }
            share.has_turn = !share.waiting.is_empty();
            if share.has_turn {
                turns.push_back(user);
            } else {
                share.credit = 0;
            }
        }
        drop(held);
        events.sort_unstable_by_key(|(number, _)| *number);
        let events = events.into_iter().map(|(_, event)| event).collect();
        EventBatch { events, bytes, queue: self.clone() }
    }

    /// Number of waiting events.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Number of waiting and taken events.
    pub(super) fn pending(&self) -> usize {
        self.state.lock().events
    }

    /// Number of events dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl QueueState {
    /// Makes room for an event of `user`, unless the user's own events fill the queue. Returns whether there is room,
    /// and the number of dropped events of other users.
    fn make_room(&mut self, user: &str, bytes: usize, most_events: usize, most_bytes: usize) -> (bool, usize) {
        let mut dropped = 0;
        loop {
            let too_many = self.events >= most_events;
            if !too_many && self.bytes + bytes <= most_bytes {
                return (true, dropped);
            }
            let own = self.users.get(user);
            let users = self.users.len() + usize::from(own.is_none());
            // Compare by the exhausted limit: number of events or bytes.
            let size = |share: &UserQueue| if too_many { share.events } else { share.bytes };
            let (fair, more) = if too_many { (most_events / users, 1) } else { (most_bytes / users, bytes) };
            if own.map_or(0, size) + more > fair {
                return (false, dropped);
            }
            let largest = self.users.iter_mut().filter(|(_, share)| size(share) > fair && !share.waiting.is_empty());
            let Some((name, largest)) = largest.max_by_key(|(_, share)| size(share)) else { return (false, dropped) };
            if let Some((_, event)) = largest.waiting.pop_back() {
                let weight = event.weight();
                largest.events -= 1;
                largest.bytes -= weight;
                self.waiting -= 1;
                self.events -= 1;
                self.bytes -= weight;
                dropped += 1;
                // Who holds nothing has no share, or those of others would be smaller.
                if largest.events == 0 {
                    let name = name.clone();
                    self.users.remove(&name);
                    self.turns.retain(|turn| *turn != name);
                }
            }
        }
    }

    fn append(&mut self, user: &str, event: Arc<AuditEvent>, bytes: usize) {
        if !self.users.contains_key(user) {
            self.users.insert(user.into(), UserQueue::default());
        }
        let Some((name, _)) = self.users.get_key_value(user) else { return };
        let name = name.clone();
        let Some(share) = self.users.get_mut(user) else { return };
        share.waiting.push_back((self.next, event));
        share.events += 1;
        share.bytes += bytes;
        if !std::mem::replace(&mut share.has_turn, true) {
            self.turns.push_back(name);
        }
        self.next += 1;
        self.waiting += 1;
        self.events += 1;
        self.bytes += bytes;
    }
}

impl Drop for EventBatch {
    fn drop(&mut self) {
        let mut held = self.queue.state.lock();
        held.events -= self.events.len();
        held.bytes -= self.bytes;
        for event in &self.events {
            let owner = event.owner();
            if let Some(share) = held.users.get_mut(&*owner) {
                share.events -= 1;
                share.bytes -= event.weight();
                if share.events == 0 {
                    held.users.remove(&*owner);
                }
            }
        }
    }
}

/// Minimum interval between two log lines.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Losses of one sink that are not logged yet.
pub(super) struct LossReporter {
    /// Destination of the events.
    destination: String,
    /// Number of logged events that were dropped because the queue was full.
    dropped: u64,
    /// Events that could not be written or delivered since the last log line, and the last error.
    failed: usize,
    error: String,
    reported_at: Option<Instant>,
}

impl LossReporter {
    pub(super) fn new(to: impl Into<String>) -> LossReporter {
        LossReporter { destination: to.into(), dropped: 0, failed: 0, error: String::new(), reported_at: None }
    }

    /// Records that `events` could not be written or delivered.
    pub(super) fn record_failure(&mut self, events: usize, why: impl Into<String>) {
        self.failed += events;
        self.error = why.into();
    }

    /// Logs new losses, unless the last log line was less than [`REPORT_INTERVAL`] ago.
    pub(super) fn report(&mut self, queue: &AuditQueue) {
        let dropped = queue.dropped();
        if dropped == self.dropped && self.failed == 0
            || self.reported_at.is_some_and(|told| told.elapsed() < REPORT_INTERVAL)
        {
            return;
        }
        let to = &*self.destination;
        if self.failed > 0 {
            tracing::error!(events = self.failed, to, error = self.error, "audit events lost: the sink failed");
        }
        if dropped > self.dropped {
            let events = dropped - self.dropped;
            tracing::error!(events, to, "audit events lost: the queue is full");
        }
        (self.dropped, self.failed, self.reported_at) = (dropped, 0, Some(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_queue_counts_drops_and_taken_events_keep_their_room() {
        let woken = Arc::new(AtomicU64::new(0));
        let waking = woken.clone();
        let queue = AuditQueue::new(4, usize::MAX, 2, move || {
            waking.fetch_add(1, Relaxed);
        });
        let event = AuditEvent::for_test();
        for n in 0..6 {
            assert_eq!(queue.push(&event), usize::from(n >= 4));
        }
        // Woken by the first event, and by the second.
        assert_eq!((queue.dropped(), woken.load(Relaxed), queue.waiting()), (2, 2, 4));
        let taken = queue.take(3, usize::MAX);
        assert_eq!((taken.events.len(), queue.waiting(), queue.pending()), (3, 1, 4));
        assert_eq!(queue.push(&event), 1);
        drop(taken);
        assert_eq!(queue.push(&event), 0);
        assert_eq!(queue.take(9, usize::MAX).events.len(), 2);
        assert_eq!(queue.pending(), 0);
    }

    #[test]
    fn audit_queue_bytes_are_bounded() {
        let event = AuditEvent::for_test();
        let queue = AuditQueue::new(100, 2 * event.weight(), 50, || {});
        assert_eq!([queue.push(&event), queue.push(&event), queue.push(&event)], [0, 0, 1]);
        assert_eq!(queue.take(9, 1).events.len(), 1);
        assert_eq!(queue.take(9, 1).events.len(), 1);
        assert_eq!(queue.take(9, 1).events.len(), 0);
    }

    /// User and path of each event.
    fn names(taken: &EventBatch) -> Vec<String> {
        taken.events.iter().map(|event| format!("{}{}", event.owner(), event.facts.uri.path())).collect()
    }

    #[test]
    fn audit_queue_user_of_a_control_plane_takes_no_share_of_the_same_name_elsewhere() {
        let queue = AuditQueue::new(90, usize::MAX, 1000, || {});
        let lost = |event: &Arc<AuditEvent>, count: usize| (0..count).map(|_| queue.push(event)).sum::<usize>();
        assert_eq!(lost(&AuditEvent::for_control_plane("red", "jane"), 200), 110);
        // Each push drops an event of the other.
        assert_eq!(lost(&AuditEvent::for_control_plane("blue", "jane"), 45), 45);
        assert_eq!(lost(&AuditEvent::for_user("jane", "/version", 0), 30), 30);
        let events = queue.take(90, usize::MAX);
        let count = |name: Option<&str>| {
            events.events.iter().filter(|event| event.facts.control_plane.as_deref() == name).count()
        };
        assert_eq!([count(Some("red")), count(Some("blue")), count(None)], [30, 30, 30]);
        drop(events);
        assert!(queue.state.lock().users.is_empty());
    }

    #[test]
    fn audit_queue_drops_events_of_the_flooding_user() {
        let queue = AuditQueue::new(100, usize::MAX, 1000, || {});
        let flood = AuditEvent::for_user("mallory", "/flood", 0);
        for n in 0..300 {
            assert_eq!(queue.push(&flood), usize::from(n >= 100));
        }
        // Up to a fair share, other users lose nothing; beyond it they lose their own events.
        for _ in 0..50 {
            assert_eq!(queue.push(&AuditEvent::for_user("jane", "/a", 0)), 1);
        }
        assert_eq!((queue.dropped(), queue.pending()), (250, 100));
        let count = |user: &str| queue.state.lock().users[user].events;
        assert_eq!([count("mallory"), count("jane")], [50, 50]);
        assert_eq!(queue.push(&AuditEvent::for_user("jane", "/a", 0)), 1);
        assert_eq!(queue.push(&flood), 1);
        for n in 0..60 {
            queue.push(&AuditEvent::for_user("bob", "/b", n));
        }
        let counts = ["mallory", "jane", "bob"].map(count);
        assert!(
            counts[2] == 33 && counts.iter().sum::<usize>() == 100 && counts.iter().all(|n| *n >= 33),
            "{counts:?}"
        );
        // Taken events count for their user.
        let taken = queue.take(90, usize::MAX);
        assert_eq!(queue.push(&flood), 1);
        drop(taken);
        assert_eq!(queue.push(&flood), 0);
        drop(queue.take(100, usize::MAX));
        assert!(queue.state.lock().users.is_empty() && queue.pending() == 0);
    }

    #[test]
    fn audit_queue_bytes_are_shared_fairly_too() {
        let large = AuditEvent::for_user("mallory", "/large", 1000);
        let queue = AuditQueue::new(10_000, 20 * large.weight(), 1000, || {});
        for n in 0..30 {
            assert_eq!(queue.push(&large), usize::from(n >= 20));
        }
        let small = AuditEvent::for_user("jane", "/a", 0);
        let mut pushed = 0;
        while queue.state.lock().users.get("jane").map_or(0, |share| share.bytes) + small.weight()
            <= 10 * large.weight()
        {
            queue.push(&small);
            pushed += 1;
        }
        let held = queue.state.lock();
        assert_eq!((held.users["jane"].events, held.users["mallory"].events), (pushed, 10));
        assert!(held.bytes <= 20 * large.weight());
    }

    #[test]
    fn audit_queue_share_ends_with_the_last_event_of_a_user() {
        let (large, small) = (AuditEvent::for_user("mallory", "/large", 10_000), AuditEvent::for_user("jane", "/a", 0));
        let queue = AuditQueue::new(10_000, large.weight() + small.weight(), 1000, || {});
        assert_eq!([queue.push(&large), queue.push(&small)], [0, 0]);
        assert_eq!(queue.push(&AuditEvent::for_user("bob", "/b", 0)), 1);
        let held = queue.state.lock();
        let users: std::collections::BTreeSet<&str> = held.users.keys().map(|user| &**user).collect();
        assert_eq!(users, ["bob", "jane"].into());
        assert_eq!(held.turns.iter().map(|user| &**user).collect::<Vec<_>>(), ["jane", "bob"]);
    }

    #[test]
    fn audit_queue_events_of_others_do_not_wait_for_a_costly_user() {
        let queue = AuditQueue::new(10_000, usize::MAX, 10_000, || {});
        for _ in 0..100 {
            queue.push(&AuditEvent::for_user("mallory", "/large", 1 << 20));
        }
        for _ in 0..10 {
            queue.push(&AuditEvent::for_user("jane", "/a", 0));
        }
        let first = names(&queue.take(500, 8 << 20));
        assert_eq!(first.iter().filter(|name| *name == "jane/a").count(), 10, "{first:?}");
        // A batch keeps the order in which events were queued.
        assert_eq!(first.last().map(String::as_str), Some("jane/a"));
        let mut rest = 0;
        loop {
            let taken = queue.take(500, 8 << 20);
            if taken.events.is_empty() {
                break;
            }
            rest += taken.events.len();
        }
        assert_eq!((first.len() + rest, queue.waiting(), queue.pending()), (110, 0, 0));
    }
}
