//! The connections of a worker, their timeouts (idle, header) and their closing.
//!
//! One sweep per second over a worker's connections replaces timers per connection, so that an idle
//! watch has none.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use super::ServerLimits;
use super::h2_frame_tracker::FrameProgress;
use crate::process::Deadline;

/// State of one connection, written by its own task and by the sweep of the same thread.
///
/// It uses atomics only because hyper requires the stream of an upgradeable connection to be `Send`.
pub(super) struct ConnectionTracker {
    epoch: Instant,
    pub(super) remote: SocketAddr,
    pub(super) http2: bool,
    active_requests: AtomicU32,
    served_requests: AtomicU64,
    /// Milliseconds since `epoch` at which the connection became idle.
    idle_since: AtomicU64,
    /// Milliseconds since `epoch` plus one at which the first byte of an incomplete header arrived, or of another
    /// incomplete frame of an HTTP/2 client; 0 for none.
    header_started_at: AtomicU64,
    close_mode: AtomicU8,
    /// Milliseconds since `epoch` at which a graceful close was requested.
    close_requested_at: AtomicU64,
    upgraded: AtomicBool,
    /// Counts reads and writes.
    activity: AtomicU32,
    /// `moved` at the last sweep, and the time of its last change (milliseconds since `epoch`).
    last_activity: (AtomicU32, AtomicU64),
    waker: AtomicWaker,
    /// Response bytes not flushed to the client yet (HTTP/1.1 only).
    unflushed: AtomicUsize,
    /// Deadline of the current response, in milliseconds since `epoch` plus one; 0 for none.
    response_deadline: AtomicU64,
    is_tunneling: AtomicBool,
    tunnel_waker: AtomicWaker,
}

/// How long a connection may stay without a request or a byte after a graceful close was requested: one that never
/// had a request, and one that had and may not have answered GOAWAY yet.
const CLOSE_GRACE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// Response bytes passed to hyper between two flushes to an HTTP/1.1 client, not counting the last piece.
const MAX_UNFLUSHED: usize = 128 << 10;

/// Multiple of [`ServerLimits::read_header_timeout`] after which an HTTP/2 connection with running streams and an
/// incomplete header block or frame is closed. After the first timeout it gets GOAWAY, and the streams continue.
///
/// No other frame may come before the rest of a header block (RFC 9113, section 6.10): no WINDOW_UPDATE or RST_STREAM
/// for the running streams, no PING acknowledgment. A block cannot be skipped either, because later ones depend on its
/// compression state (section 4.3). With the default of 10 s the client has 60 s; client-go gives its own connection up
/// when it could not send a ping for 45 s. Without a bound, each connection with a watch may hold a block of
/// [`ServerLimits::max_request_header_bytes`] (1 MiB by default) as long as the watch lasts.
const STALLED_FRAME_TIMEOUT_FACTOR: u32 = 6;

/// How a connection is requested to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CloseMode {
    /// No request to close.
    None = 0,
    /// GOAWAY or `Connection: close`, then finish running requests.
    Graceful = 1,
    /// Connections are closed at once.
    Immediate = 2,
}

impl ConnectionTracker {
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Records a read or write. Only the connection's own task writes this, so load and store do not race.
    pub(super) fn record_activity(&self) {
        self.activity.store(self.activity.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether no request has arrived yet, or one with an incomplete header (HTTP/1.1 only).
    pub(super) fn is_awaiting_request(&self) -> bool {
        self.served_requests.load(Ordering::Relaxed) == 0 || self.header_started_at.load(Ordering::Relaxed) > 0
    }

    /// Records received bytes; they begin a header if no request is running (HTTP/1.1 only).
    pub(super) fn on_bytes_received(&self) {
        self.record_activity();
        if self.active_requests.load(Ordering::Relaxed) == 0
            && self.header_started_at.load(Ordering::Relaxed) == 0
            && !self.upgraded.load(Ordering::Relaxed)
        {
            self.header_started_at.store(self.now() + 1, Ordering::Relaxed);
        }
    }

    /// Records received bytes, and whether they leave a frame incomplete (HTTP/2 only).
    pub(super) fn on_frames_received(&self, owed: FrameProgress) {
        self.record_activity();
        match owed {
            FrameProgress::Complete => self.header_started_at.store(0, Ordering::Relaxed),
            FrameProgress::Started => self.header_started_at.store(self.now() + 1, Ordering::Relaxed),
            FrameProgress::Unfinished => {}
        }
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn begin_request(self: &Arc<Self>) -> ActiveRequest {
        self.active_requests.fetch_add(1, Ordering::Relaxed);
        self.served_requests.fetch_add(1, Ordering::Relaxed);
        // Over HTTP/2 the next one's header may have begun already.
        if !self.http2 {
            self.header_started_at.store(0, Ordering::Relaxed);
        }
        ActiveRequest(self.clone())
    }

    /// Marks the connection as upgraded: the timeouts no longer apply.
    pub(super) fn set_upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Requests the connection to close; a graceful request after an immediate one is ignored.
    pub(super) fn request_close(&self, end: CloseMode) {
        if self.close_mode.fetch_max(end as u8, Ordering::Relaxed) < end as u8 {
            self.close_requested_at.store(self.now(), Ordering::Relaxed);
            self.waker.wake();
            self.tunnel_waker.wake();
        }
    }

    /// Sets the deadline of the response created in this poll of its task.
    pub(super) fn set_response_deadline(&self, at: Instant) {
        let at = at.saturating_duration_since(self.epoch).as_millis() as u64;
        self.response_deadline.store(at + 1, Ordering::Relaxed);
    }

    /// Takes the deadline set by [`ConnectionTracker::set_response_deadline`] in this poll.
    pub(super) fn take_response_deadline(&self) -> Option<Instant> {
        // Only this connection's thread writes it: a plain load suffices for most polls.
        if self.response_deadline.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let at = self.response_deadline.swap(0, Ordering::Relaxed) - 1;
        Some(self.epoch + Duration::from_millis(at))
    }

    /// Adds response bytes to be written (HTTP/1.1 only). Only the connection's own task writes this.
    pub(super) fn add_unflushed(&self, bytes: usize) {
        self.unflushed.store(self.unflushed.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Whether the write buffer is full, until the client reads (HTTP/1.1 only).
    pub(super) fn is_write_buffer_full(&self) -> bool {
        self.unflushed.load(Ordering::Relaxed) >= MAX_UNFLUSHED
    }

    /// Records that all data was flushed; returns whether the buffer was full.
    pub(super) fn on_flushed(&self) -> bool {
        let was_full = self.is_write_buffer_full();
        self.unflushed.store(0, Ordering::Relaxed);
        was_full
    }

    /// The number of the running request, if any (over HTTP/1.1 there is at most one).
    pub(super) fn running_request(&self) -> Option<u64> {
        (self.active_requests.load(Ordering::Relaxed) > 0).then(|| self.served_requests.load(Ordering::Relaxed))
    }

    /// Resolves when the connection's tunnel has ended, or at once without one.
    pub(super) async fn tunnel_closed(&self) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.is_tunneling.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// The requested way to close; call [`ConnectionTracker::register_waker`] first.
    pub(super) fn close_mode(&self) -> CloseMode {
        match self.close_mode.load(Ordering::Relaxed) {
            0 => CloseMode::None,
            1 => CloseMode::Graceful,
            _ => CloseMode::Immediate,
        }
    }

    pub(super) fn register_waker(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    fn timeout_action(&self, limits: &ServerLimits) -> CloseMode {
        if self.upgraded.load(Ordering::Relaxed) {
            return CloseMode::None;
        }
        let now = self.now();
        let past = |since: u64, limit: Duration| now.saturating_sub(since) > limit.as_millis() as u64;
        let first_byte = self.header_started_at.load(Ordering::Relaxed);
        let unfinished = |limit: Duration| first_byte > 0 && past(first_byte - 1, limit);
        if self.active_requests.load(Ordering::Relaxed) > 0 {
            // Over HTTP/1.1, the running request has its own timeouts.
            return match self.http2 {
                true if unfinished(limits.read_header_timeout * STALLED_FRAME_TIMEOUT_FACTOR) => CloseMode::Immediate,
                true if unfinished(limits.read_header_timeout) => CloseMode::Graceful,
                _ => CloseMode::None,
            };
        }
        let moved = self.activity.load(Ordering::Relaxed);
        if self.last_activity.0.swap(moved, Ordering::Relaxed) != moved {
            self.last_activity.1.store(now, Ordering::Relaxed);
        }
        if unfinished(limits.read_header_timeout) {
            return CloseMode::Immediate;
        }
        let idle = self.idle_since.load(Ordering::Relaxed);
        // A client that never sent a request, or that vanished, would delay the shutdown.
        // A client that reads its response slowly is not affected: its bytes move.
        let since =
            self.last_activity.1.load(Ordering::Relaxed).max(idle).max(self.close_requested_at.load(Ordering::Relaxed));
        let silence = CLOSE_GRACE[usize::from(self.served_requests.load(Ordering::Relaxed) > 0)];
        if first_byte == 0 && self.close_mode() == CloseMode::Graceful && past(since, silence) {
            return CloseMode::Immediate;
        }
        if past(idle, limits.idle_timeout) {
            // After the request to close, it has the same time again.
            let told_at = self.close_requested_at.load(Ordering::Relaxed).max(idle);
            let ignored = self.close_mode() == CloseMode::Graceful
                && past(told_at, limits.idle_timeout.min(Duration::from_secs(10)));
            return if ignored { CloseMode::Immediate } else { CloseMode::Graceful };
        }
        CloseMode::None
    }
}

/// Guard of an upgraded connection. Until it is dropped, the connection stays counted and can be closed.
pub struct UpgradedConnection(Arc<ConnectionTracker>);

impl UpgradedConnection {
    pub(super) fn new(lifetime: &Arc<ConnectionTracker>) -> UpgradedConnection {
        lifetime.is_tunneling.store(true, Ordering::Relaxed);
        UpgradedConnection(lifetime.clone())
    }

    /// Resolves when the connection must be closed at once.
    pub async fn close_requested(&self) {
        poll_fn(|cx| {
            self.0.tunnel_waker.register(cx.waker());
            if self.0.close_mode() == CloseMode::Immediate { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for UpgradedConnection {
    fn drop(&mut self) {
        self.0.is_tunneling.store(false, Ordering::Relaxed);
        self.0.waker.wake();
    }
}

/// RAII guard of a running request.
pub(super) struct ActiveRequest(pub(super) Arc<ConnectionTracker>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if self.0.active_requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.idle_since.store(self.0.now(), Ordering::Relaxed);
        }
    }
}

/// All connections of one worker. The admin thread reads them, too, so the list has a lock,
/// which is taken when a connection opens or closes, and once per second.
#[derive(Clone)]
pub struct Connections(Arc<ConnectionList>);

struct ConnectionList {
    epoch: Instant,
    open: Mutex<Vec<Arc<ConnectionTracker>>>,
    /// Number of handshakes in progress.
    pending_handshakes: AtomicU32,
    /// Whether new connections are closed after their first request.
    is_closing: AtomicBool,
}

/// RAII guard of a handshake in progress.
pub(super) struct PendingHandshake(Connections);

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.0.0.pending_handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One line of `/debug/connections`.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionReport {
    /// The client's address.
    pub remote: String,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: &'static str,
    /// Number of running requests.
    pub active: u32,
    /// Requests since the connection opened.
    pub served: u64,
    /// Whether the connection was upgraded.
    pub upgraded: bool,
}

impl Default for Connections {
    fn default() -> Self {
        Connections(Arc::new(ConnectionList {
            epoch: Instant::now(),
            open: Mutex::default(),
            pending_handshakes: AtomicU32::default(),
            is_closing: AtomicBool::default(),
        }))
    }
}

impl Connections {
    pub(super) fn begin_handshake(&self) -> PendingHandshake {
        self.0.pending_handshakes.fetch_add(1, Ordering::Relaxed);
        PendingHandshake(self.clone())
    }

    /// The number of handshakes in progress.
    pub fn pending_handshakes(&self) -> usize {
        self.0.pending_handshakes.load(Ordering::Relaxed) as usize
    }

    pub(super) fn register(&self, remote: SocketAddr, http2: bool) -> ConnectionRegistration {
        let lifetime = Arc::new(ConnectionTracker {
            epoch: self.0.epoch,
            remote,
            http2,
            active_requests: AtomicU32::new(0),
            served_requests: AtomicU64::new(0),
            idle_since: AtomicU64::new(self.0.epoch.elapsed().as_millis() as u64),
            header_started_at: AtomicU64::new(0),
            close_mode: AtomicU8::new(if self.0.is_closing.load(Ordering::Relaxed) {
                CloseMode::Graceful
            } else {
                CloseMode::None
            } as u8),
            close_requested_at: AtomicU64::new(self.0.epoch.elapsed().as_millis() as u64),
            upgraded: AtomicBool::new(false),
            activity: AtomicU32::new(0),
            last_activity: (AtomicU32::new(0), AtomicU64::new(self.0.epoch.elapsed().as_millis() as u64)),
            waker: AtomicWaker::new(),
            unflushed: AtomicUsize::new(0),
            response_deadline: AtomicU64::new(0),
            is_tunneling: AtomicBool::new(false),
            tunnel_waker: AtomicWaker::new(),
        });
        self.0.open.lock().push(lifetime.clone());
        ConnectionRegistration { connection: lifetime, connections: self.clone() }
    }

    /// Closes connections that exceed the timeouts of `limits`. Call it about once per second.
    pub fn sweep(&self, limits: &ServerLimits) {
        for lifetime in self.0.open.lock().iter() {
            let verdict = lifetime.timeout_action(limits);
            if verdict > CloseMode::None {
                lifetime.request_close(verdict);
            }
        }
    }

    /// Closes all connections gracefully, including later ones: GOAWAY, or `Connection: close`.
    pub fn close_gracefully(&self) {
        self.0.is_closing.store(true, Ordering::Relaxed);
        self.0.open.lock().iter().for_each(|lifetime| lifetime.request_close(CloseMode::Graceful));
    }

    /// Closes all connections at once.
    pub fn close_now(&self) {
        self.0.open.lock().iter().for_each(|lifetime| lifetime.request_close(CloseMode::Immediate));
    }

    /// The number of open connections.
    pub fn len(&self) -> usize {
        self.0.open.lock().len()
    }

    /// Whether no connection is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of each connection, for `/debug/connections`.
    pub fn report(&self) -> Vec<ConnectionReport> {
        let report = |lifetime: &Arc<ConnectionTracker>| ConnectionReport {
            remote: lifetime.remote.to_string(),
            protocol: if lifetime.http2 { "HTTP/2.0" } else { "HTTP/1.1" },
            active: lifetime.active_requests.load(Ordering::Relaxed),
            served: lifetime.served_requests.load(Ordering::Relaxed),
            upgraded: lifetime.upgraded.load(Ordering::Relaxed),
        };
        self.0.open.lock().iter().map(report).collect()
    }
}

/// RAII registration of a connection in [`Connections`].
pub(super) struct ConnectionRegistration {
    pub(super) connection: Arc<ConnectionTracker>,
    connections: Connections,
}

impl Drop for ConnectionRegistration {
    fn drop(&mut self) {
        let mut open = self.connections.0.open.lock();
        if let Some(at) = open.iter().position(|lifetime| Arc::ptr_eq(lifetime, &self.connection)) {
            open.swap_remove(at);
        }
    }
}

/// Added to a response's deadline: the body's own timeout ends it more cleanly, if the body is polled.
const DEADLINE_GRACE: Duration = Duration::from_secs(1);

/// The deadline of a connection whose response is due `at`.
pub(super) fn deadline_with_grace(at: Instant) -> Deadline {
    Deadline::at(at + DEADLINE_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(http2: bool) -> (Connections, ConnectionRegistration) {
        let connections = Connections::default();
        let listed = connections.register("127.0.0.1:1".parse().unwrap(), http2);
        (connections, listed)
    }

    fn limits(idle: u64, header: u64) -> ServerLimits {
        ServerLimits {
            idle_timeout: Duration::from_millis(idle),
            read_header_timeout: Duration::from_millis(header),
            ..ServerLimits::default()
        }
    }

    fn later(listed: &ConnectionRegistration, milliseconds: u64) {
        // Moves the connection's past back instead of waiting.
        let l = &listed.connection;
        l.idle_since.store(0, Ordering::Relaxed);
        if l.header_started_at.load(Ordering::Relaxed) > 0 {
            l.header_started_at.store(1, Ordering::Relaxed);
        }
        while l.now() <= milliseconds {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn idle_timeout_closes_idle_connection_gracefully() {
        let (connections, listed) = listed(true);
        let active = listed.connection.begin_request();
        later(&listed, 2);
        connections.sweep(&limits(1, 1000));
        assert_eq!(listed.connection.close_mode(), CloseMode::None);
        drop(active);
        // Well before twice the limit, at which it is cut.
        later(&listed, 210);
        connections.sweep(&limits(200, 1000));
        assert_eq!(listed.connection.close_mode(), CloseMode::Graceful);
    }

    #[test]
    fn read_header_timeout_counts_from_first_byte() {
        let (connections, listed) = listed(false);
        connections.sweep(&limits(60_000, 0));
        assert_eq!(listed.connection.close_mode(), CloseMode::None);
        listed.connection.on_bytes_received();
        later(&listed, 5);
        connections.sweep(&limits(60_000, 1));
        assert_eq!(listed.connection.close_mode(), CloseMode::Immediate);
    }

    #[test]
    fn unfinished_header_block_ends_connection_with_running_streams_after_goaway() {
        let (connections, listed) = listed(true);
        let _active = listed.connection.begin_request();
        listed.connection.on_frames_received(FrameProgress::Started);
        connections.sweep(&limits(60_000, 60_000));
        assert_eq!(listed.connection.close_mode(), CloseMode::None);
        later(&listed, 5);
        // Past the limit, well before six times as long.
        connections.sweep(&limits(60_000, 4));
        assert_eq!(listed.connection.close_mode(), CloseMode::Graceful);
        later(&listed, 13);
        connections.sweep(&limits(60_000, 2));
        assert_eq!(listed.connection.close_mode(), CloseMode::Immediate);
    }

    #[test]
    fn finished_header_block_leaves_running_streams_alone() {
        let (connections, listed) = listed(true);
        let _active = listed.connection.begin_request();
        listed.connection.on_frames_received(FrameProgress::Started);
        listed.connection.on_frames_received(FrameProgress::Complete);
        later(&listed, 5);
        connections.sweep(&limits(60_000, 0));
        assert_eq!(listed.connection.close_mode(), CloseMode::None);
    }

    #[test]
    fn connections_closed_one_is_unregistered() {
        let (connections, listed) = listed(false);
        assert_eq!(connections.len(), 1);
        drop(listed);
        assert!(connections.is_empty());
    }
}
