//! State of one connection to a server, shared by its tunnels and its task.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::LOG_TARGET;
use super::close::StreamClose;
use super::proxy_stream::ProxyStreamHandle;
use super::stream_counters::StreamCounters;

/// Interval between sweeps over the tunnels.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// A tunnel counts as stuck at its agent when its writer has waited this long.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// Limit of unread bytes of all tunnels of a connection together.
const MAX_UNREAD_BYTES: usize = 256 << 20;
/// Above that limit, tunnels with a reader that lags by this much may be closed.
const MIN_LAG_TO_CLOSE: Duration = SWEEP_INTERVAL;

/// Shared state of a connection. It stays on one thread, but must be `Send`: an upgrade requires that of its stream,
/// here a tunnel.
pub(super) struct TunnelConnectionState {
    /// Why the connection ended, once it has.
    pub(super) ended: Mutex<Option<String>>,
    pub(super) streams: Arc<StreamCounters>,
    /// Limit of concurrent streams.
    pub(super) limit: AtomicUsize,
    /// Number of reads from the server, HTTP/2's own frames included.
    pub(super) read_count: AtomicU64,
    /// Number of stuck tunnels.
    pub(super) stuck_tunnels: AtomicUsize,
    /// How long a reader may leave its window full, if the server has no flow control for each tunnel.
    pub(super) slow_reader_timeout: Duration,
    pub(super) tracked_streams: Mutex<Vec<Weak<ProxyStreamHandle>>>,
    closing: Mutex<Vec<StreamClose>>,
    task: Mutex<Option<Waker>>,
}

impl TunnelConnectionState {
    pub(super) fn new(limit: usize, stall: Duration) -> TunnelConnectionState {
        TunnelConnectionState {
            ended: Mutex::default(),
            streams: Arc::default(),
            limit: AtomicUsize::new(limit),
            read_count: AtomicU64::new(0),
            stuck_tunnels: AtomicUsize::new(0),
            slow_reader_timeout: stall,
            tracked_streams: Mutex::default(),
            closing: Mutex::default(),
            task: Mutex::default(),
        }
    }

    /// Hands a stream to the connection's task, which closes it: its user is gone.
    pub(super) fn close_later(&self, leaving: StreamClose) {
        if self.ended.lock().is_none() {
            self.closing.lock().push(leaving);
            self.wake();
        }
    }

    /// Adds a stream to the sweep.
    pub(super) fn track(&self, handle: &Arc<ProxyStreamHandle>) {
        self.tracked_streams.lock().push(Arc::downgrade(handle));
        self.wake();
    }

    fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }

    /// Sets the waker of the connection's task.
    pub(super) fn set_waker(&self, waker: &Waker) {
        let mut task = self.task.lock();
        match &mut *task {
            Some(task) => task.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }

    /// Takes the streams that the task has to close.
    pub(super) fn take_closing(&self) -> Vec<StreamClose> {
        std::mem::take(&mut *self.closing.lock())
    }

    /// Marks the connection as ended.
    pub(super) fn mark_ended(&self, why: String) {
        self.ended.lock().get_or_insert(why);
        drop(self.take_closing());
    }

    /// Closes tunnels with slow readers that block the others, and counts those with stuck writers.
    pub(super) fn sweep(&self, now: Instant) {
        let (mut stuck, mut all) = (0, 0);
        let mut behind: Vec<(usize, Duration, Arc<ProxyStreamHandle>)> = Vec::new();
        self.tracked_streams.lock().retain(|handle| {
            let Some(line) = handle.upgrade() else { return false };
            let held = line.unread_bytes();
            let limit = if line.has_flow_control() { Duration::MAX } else { self.slow_reader_timeout };
            let mut watched = line.flow_state.lock();
            stuck +=
                usize::from(watched.writer_waits_since.is_some_and(|since| now.duration_since(since) >= STUCK_AFTER));
            if watched.slow_reader.observe(held, line.read_bytes(), limit, now) {
                tracing::warn!(
                    target: LOG_TARGET,
                    "Konnectivity tunnel closed: its reader left {} KiB unread for {:?} and blocked others",
                    held >> 10,
                    self.slow_reader_timeout
                );
                drop(watched);
                line.abandon();
                return false;
            }
            let waited = watched.slow_reader.lag(now);
            drop(watched);
            all += held;
            if waited >= MIN_LAG_TO_CLOSE {
                behind.push((held, waited, line));
            }
            true
        });
        if self.stuck_tunnels.swap(stuck, Relaxed) == 0 && stuck > 0 {
            tracing::warn!(
                    target: LOG_TARGET,
                "Konnectivity tunnel stuck for {STUCK_AFTER:?}: if its target does not read, its agent may block all tunnels"
            );
        }
        close_slow_readers(all, behind);
    }
}

/// Closes tunnels until the unread bytes, `all`, are within the limit: those first that hold most for longest. However
/// little each of them holds, together they would use up the connection's window and block all tunnels.
fn close_slow_readers(all: usize, mut behind: Vec<(usize, Duration, Arc<ProxyStreamHandle>)>) {
    if all <= MAX_UNREAD_BYTES {
        return;
    }
    behind.sort_unstable_by_key(|(held, waited, _)| *held as u128 * waited.as_millis());
    let (mut left, mut gone) = (all, 0);
    while left > MAX_UNREAD_BYTES
        && let Some((held, _, line)) = behind.pop()
    {
        line.abandon();
        left -= held;
        gone += 1;
    }
    if gone > 0 {
        tracing::warn!(
                    target: LOG_TARGET,
            "{gone} Konnectivity tunnels closed: readers of one connection left {} MiB unread, these the most",
            all >> 20
        );
    }
}
