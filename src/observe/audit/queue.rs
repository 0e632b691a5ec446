//! Queue of events for a sink, bounded in number and bytes: a blocked sink causes dropped events, never delays.
//!
//! [`FairQueue`] shares it between control planes and users.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::event::AuditEvent;
use super::fair_queue::{FairQueue, Usage};

/// Events of one sink. Taken events count until their [`EventBatch`] is dropped.
pub(super) struct AuditQueue {
    state: Mutex<FairQueue>,
    limit: Usage,
    dropped: AtomicU64,
    /// Number of waiting events at which `wake` is called again, after the first event.
    wake_threshold: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// A batch of taken events, which count until this is dropped.
pub(super) struct EventBatch {
    pub(super) events: Vec<Arc<AuditEvent>>,
    queue: Arc<AuditQueue>,
}

impl AuditQueue {
    pub(super) fn new(
        most_events: usize,
        most_bytes: usize,
        enough: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Arc<AuditQueue> {
        Arc::new(AuditQueue {
            state: Mutex::default(),
            limit: Usage { events: most_events, bytes: most_bytes },
            dropped: AtomicU64::new(0),
            wake_threshold: enough,
            wake: Box::new(wake),
        })
    }

    /// Appends `event`. Returns the number of lost events: this one if its control plane and user have a fair share of a
    /// full queue, otherwise those of others with more than a fair share.
    pub(super) fn push(&self, event: &Arc<AuditEvent>) -> usize {
        let mut held = self.state.lock();
        let (has_room, mut lost) = held.make_room(event, self.limit);
        let mut wakes = false;
        if has_room {
            held.append(event);
            wakes = held.waiting() == 1 || held.waiting() == self.wake_threshold;
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

    /// Takes waiting events, at most `max_events` and `most_bytes` but at least one: in the order in which they were
    /// appended, and with about equal cost per control plane, then per user.
    pub(super) fn take(self: &Arc<AuditQueue>, max_events: usize, max_bytes: usize) -> EventBatch {
        let events = self.state.lock().take(Usage { events: max_events, bytes: max_bytes });
        EventBatch { events, queue: self.clone() }
    }

    /// Number of waiting events.
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting()
    }

    /// Number of waiting and taken events.
    pub(super) fn pending(&self) -> usize {
        self.state.lock().usage().events
    }

    /// Number of events dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

impl Drop for EventBatch {
    fn drop(&mut self) {
        self.queue.state.lock().release(&self.events);
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
            || self.reported_at.is_some_and(|reported_at| reported_at.elapsed() < REPORT_INTERVAL)
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
        taken.events.iter().map(|event| format!("{}{}", event.owner().1, event.facts.uri.path())).collect()
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
        assert!(queue.state.lock().is_empty());
    }

    #[test]
    fn audit_queue_control_plane_with_many_users_takes_only_its_share() {
        let queue = AuditQueue::new(1000, usize::MAX, 1000, || {});
        let red = |user: usize| queue.push(&AuditEvent::for_control_plane("red", &format!("user-{user}")));
        assert_eq!((0..3000).map(red).sum::<usize>(), 2000);
        let blue = AuditEvent::for_control_plane("blue", "jane");
        // Up to half of the queue each event replaces one of the other control plane, then none.
        assert_eq!((0..500).map(|_| queue.push(&blue)).sum::<usize>(), 500);
        let count = |name: &str, events: &EventBatch| {
            events.events.iter().filter(|event| event.facts.control_plane.as_deref() == Some(name)).count()
        };
        assert_eq!(queue.state.lock().user_usage(Some("blue"), "jane").events, 500);
        assert_eq!([queue.push(&blue), red(3000)], [1, 1]);
        assert_eq!(queue.state.lock().user_usage(Some("blue"), "jane").events, 500);
        // Another user of the same control plane has a share of that of the control plane.
        let bob = AuditEvent::for_control_plane("blue", "bob");
        assert_eq!((0..250).map(|_| queue.push(&bob)).sum::<usize>(), 250);
        let held = ["jane", "bob"].map(|user| queue.state.lock().user_usage(Some("blue"), user).events);
        assert_eq!(held, [250, 250]);
        let all = queue.take(1000, usize::MAX);
        assert_eq!([count("red", &all), count("blue", &all)], [500, 500]);
        drop(all);
        assert!(queue.state.lock().is_empty() && queue.pending() == 0);
    }

    #[test]
    fn audit_queue_control_plane_with_many_users_does_not_delay_another() {
        let queue = AuditQueue::new(10_000, usize::MAX, 10_000, || {});
        for user in 0..5000 {
            queue.push(&AuditEvent::for_control_plane("red", &format!("user-{user}")));
        }
        let blue = AuditEvent::for_control_plane("blue", "jane");
        for _ in 0..5000 {
            queue.push(&blue);
        }
        let batch = queue.take(1000, usize::MAX);
        let count = batch.events.iter().filter(|event| event.facts.control_plane.as_deref() == Some("blue")).count();
        let turn = (64 << 10) / blue.weight() + 1;
        assert!(count.abs_diff(500) <= turn, "{count} of 1000, {turn} in a turn");
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
        let count = |user: &str| queue.state.lock().user_usage(None, user).events;
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
        assert!(queue.state.lock().is_empty() && queue.pending() == 0);
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
        while queue.state.lock().user_usage(None, "jane").bytes + small.weight() <= 10 * large.weight() {
            queue.push(&small);
            pushed += 1;
        }
        let held = queue.state.lock();
        let events = |user: &str| held.user_usage(None, user).events;
        assert_eq!((events("jane"), events("mallory")), (pushed, 10));
        assert!(held.usage().bytes <= 20 * large.weight());
    }

    #[test]
    fn audit_queue_share_ends_with_the_last_event_of_a_user() {
        let (large, small) = (AuditEvent::for_user("mallory", "/large", 10_000), AuditEvent::for_user("jane", "/a", 0));
        let queue = AuditQueue::new(10_000, large.weight() + small.weight(), 1000, || {});
        assert_eq!([queue.push(&large), queue.push(&small)], [0, 0]);
        assert_eq!(queue.push(&AuditEvent::for_user("bob", "/b", 0)), 1);
        assert_eq!(queue.state.lock().users(), (vec!["jane", "bob"], 2));
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
