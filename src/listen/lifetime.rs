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

use super::Limits;
use super::blocks::Owed;

/// State of one connection, written by its own task and by the sweep of the same thread.
///
/// It uses atomics only because hyper requires the stream of an upgradeable connection to be `Send`.
pub(super) struct Lifetime {
    epoch: Instant,
    pub(super) remote: SocketAddr,
    pub(super) http2: bool,
    active: AtomicU32,
    served: AtomicU64,
    /// Milliseconds since `epoch` at which the connection became idle.
    idle_since: AtomicU64,
    /// Milliseconds since `epoch` plus one at which the first byte of an incomplete header arrived, or of another
    /// incomplete frame of an HTTP/2 client; 0 for none.
    first_byte: AtomicU64,
    end: AtomicU8,
    /// Milliseconds since `epoch` at which a graceful close was requested.
    told_at: AtomicU64,
    upgraded: AtomicBool,
    /// Counts reads and writes.
    moved: AtomicU32,
    /// `moved` at the last sweep, and the time of its last change (milliseconds since `epoch`).
    stood: (AtomicU32, AtomicU64),
    waker: AtomicWaker,
    /// Response bytes not flushed to the client yet (HTTP/1.1 only).
    unwritten: AtomicUsize,
    /// Deadline of the current response, in milliseconds since `epoch` plus one; 0 for none.
    answer_by: AtomicU64,
    tunnelling: AtomicBool,
    tunnel_waker: AtomicWaker,
}

/// How long a connection may stay without a request or a byte after a graceful close was requested: one that never
/// had a request, and one that had and may not have answered GOAWAY yet.
const SILENCE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// Response bytes passed to hyper between two flushes to an HTTP/1.1 client, not counting the last piece.
const MOST_UNWRITTEN: usize = 128 << 10;

/// Multiple of [`Limits::read_header_timeout`] after which an HTTP/2 connection with running streams and an incomplete
/// header block or frame is closed. After the first timeout it gets GOAWAY, and the streams continue.
///
/// No other frame may come before the rest of a header block (RFC 9113, section 6.10): no WINDOW_UPDATE or RST_STREAM
/// for the running streams, no PING acknowledgment. A block cannot be skipped either, because later ones depend on its
/// compression state (section 4.3). With the default of 10 s the client has 60 s; client-go gives its own connection up
/// when it could not send a ping for 45 s. Without a bound, each connection with a watch may hold a block of
/// [`Limits::max_request_header_bytes`] (1 MiB by default) as long as the watch lasts.
const UNFINISHED_BESIDE_STREAMS: u32 = 6;

/// How a connection is requested to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// No request to close.
    No = 0,
    /// GOAWAY or `Connection: close`, then finish running requests.
    Gracefully = 1,
    /// At once.
    Now = 2,
}

impl Lifetime {
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Records a read or write. Only the connection's own task writes this, so load and store do not race.
    pub(super) fn moved(&self) {
        self.moved.store(self.moved.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether no request has arrived yet, or one with an incomplete header (HTTP/1.1 only).
    pub(super) fn expects_request(&self) -> bool {
        self.served.load(Ordering::Relaxed) == 0 || self.first_byte.load(Ordering::Relaxed) > 0
    }

    /// Records received bytes; they begin a header if no request is running (HTTP/1.1 only).
    pub(super) fn bytes_came(&self) {
        self.moved();
        if self.active.load(Ordering::Relaxed) == 0
            && self.first_byte.load(Ordering::Relaxed) == 0
            && !self.upgraded.load(Ordering::Relaxed)
        {
            self.first_byte.store(self.now() + 1, Ordering::Relaxed);
        }
    }

    /// Records received bytes, and whether they leave a frame incomplete (HTTP/2 only).
    pub(super) fn frames_came(&self, owed: Owed) {
        self.moved();
        match owed {
            Owed::Nothing => self.first_byte.store(0, Ordering::Relaxed),
            Owed::Since => self.first_byte.store(self.now() + 1, Ordering::Relaxed),
            Owed::Still => {}
        }
    }

    /// Counts a request until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.served.fetch_add(1, Ordering::Relaxed);
        // Over HTTP/2 the next one's header may have begun already.
        if !self.http2 {
            self.first_byte.store(0, Ordering::Relaxed);
        }
        Active(self.clone())
    }

    /// Marks the connection as upgraded: the timeouts no longer apply.
    pub(super) fn upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Requests the connection to close; a graceful request after an immediate one is ignored.
    pub(super) fn tell(&self, end: End) {
        if self.end.fetch_max(end as u8, Ordering::Relaxed) < end as u8 {
            self.told_at.store(self.now(), Ordering::Relaxed);
            self.waker.wake();
            self.tunnel_waker.wake();
        }
    }

    /// Sets the deadline of the response created in this poll of its task.
    pub(super) fn answer_by(&self, at: Instant) {
        let at = at.saturating_duration_since(self.epoch).as_millis() as u64;
        self.answer_by.store(at + 1, Ordering::Relaxed);
    }

    /// Takes the deadline set by [`Lifetime::answer_by`] in this poll.
    pub(super) fn take_answer_by(&self) -> Option<Instant> {
        // Only this connection's thread writes it: a plain load suffices for most polls.
        if self.answer_by.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let at = self.answer_by.swap(0, Ordering::Relaxed) - 1;
        Some(self.epoch + Duration::from_millis(at))
    }

    /// Adds response bytes to be written (HTTP/1.1 only). Only the connection's own task writes this.
    pub(super) fn hand(&self, bytes: usize) {
        self.unwritten.store(self.unwritten.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Whether the write buffer is full, until the client reads (HTTP/1.1 only).
    pub(super) fn is_full(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed) >= MOST_UNWRITTEN
    }

    /// Records that all data was flushed; returns whether the buffer was full.
    pub(super) fn flushed(&self) -> bool {
        let was_full = self.is_full();
        self.unwritten.store(0, Ordering::Relaxed);
        was_full
    }

    /// The number of the running request, if any (over HTTP/1.1 there is at most one).
    pub(super) fn running(&self) -> Option<u64> {
        (self.active.load(Ordering::Relaxed) > 0).then(|| self.served.load(Ordering::Relaxed))
    }

    /// Resolves when the connection's tunnel has ended, or at once without one.
    pub(super) async fn tunnel_over(&self) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.tunnelling.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// The requested way to close; call [`Lifetime::register`] first.
    pub(super) fn told(&self) -> End {
        match self.end.load(Ordering::Relaxed) {
            0 => End::No,
            1 => End::Gracefully,
            _ => End::Now,
        }
    }

    pub(super) fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    fn verdict(&self, limits: &Limits) -> End {
        if self.upgraded.load(Ordering::Relaxed) {
            return End::No;
        }
        let now = self.now();
        let past = |since: u64, limit: Duration| now.saturating_sub(since) > limit.as_millis() as u64;
        let first_byte = self.first_byte.load(Ordering::Relaxed);
        let unfinished = |limit: Duration| first_byte > 0 && past(first_byte - 1, limit);
        if self.active.load(Ordering::Relaxed) > 0 {
            // Over HTTP/1.1, the running request has its own timeouts.
            return match self.http2 {
                true if unfinished(limits.read_header_timeout * UNFINISHED_BESIDE_STREAMS) => End::Now,
                true if unfinished(limits.read_header_timeout) => End::Gracefully,
                _ => End::No,
            };
        }
        let moved = self.moved.load(Ordering::Relaxed);
        if self.stood.0.swap(moved, Ordering::Relaxed) != moved {
            self.stood.1.store(now, Ordering::Relaxed);
        }
        if unfinished(limits.read_header_timeout) {
            return End::Now;
        }
        let idle = self.idle_since.load(Ordering::Relaxed);
        // A client that never sent a request, or that vanished, would delay the shutdown.
        // A client that reads its response slowly is not affected: its bytes move.
        let since = self.stood.1.load(Ordering::Relaxed).max(idle).max(self.told_at.load(Ordering::Relaxed));
        let silence = SILENCE[usize::from(self.served.load(Ordering::Relaxed) > 0)];
        if first_byte == 0 && self.told() == End::Gracefully && past(since, silence) {
            return End::Now;
        }
        if past(idle, limits.idle_timeout) {
            // After the request to close, it has the same time again.
            let told_at = self.told_at.load(Ordering::Relaxed).max(idle);
            let ignored =
                self.told() == End::Gracefully && past(told_at, limits.idle_timeout.min(Duration::from_secs(10)));
            return if ignored { End::Now } else { End::Gracefully };
        }
        End::No
    }
}

/// Guard of an upgraded connection. Until it is dropped, the connection stays counted and can be closed.
pub struct Tunnel(Arc<Lifetime>);

impl Tunnel {
    pub(super) fn of(lifetime: &Arc<Lifetime>) -> Tunnel {
        lifetime.tunnelling.store(true, Ordering::Relaxed);
        Tunnel(lifetime.clone())
    }

    /// Resolves when the connection must be closed at once.
    pub async fn cut(&self) {
        poll_fn(|cx| {
            self.0.tunnel_waker.register(cx.waker());
            if self.0.told() == End::Now { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.tunnelling.store(false, Ordering::Relaxed);
        self.0.waker.wake();
    }
}

/// RAII guard of a running request.
pub(super) struct Active(pub(super) Arc<Lifetime>);

impl Drop for Active {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.idle_since.store(self.0.now(), Ordering::Relaxed);
        }
    }
}

/// All connections of one worker. The admin thread reads them, too, so the list has a lock,
/// which is taken when a connection opens or closes, and once per second.
#[derive(Clone)]
pub struct Connections(Arc<Shared>);

struct Shared {
    epoch: Instant,
    open: Mutex<Vec<Arc<Lifetime>>>,
    /// Number of handshakes in progress.
    arriving: AtomicU32,
    /// Whether new connections are closed after their first request.
    finishing: AtomicBool,
}

/// RAII guard of a handshake in progress.
pub(super) struct Arriving(Connections);

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.0.arriving.fetch_sub(1, Ordering::Relaxed);
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
    /// Running requests.
    pub active: u32,
    /// Requests since the connection opened.
    pub served: u64,
    /// Whether the connection was upgraded.
    pub upgraded: bool,
}

impl Default for Connections {
    fn default() -> Self {
        Connections(Arc::new(Shared {
            epoch: Instant::now(),
            open: Mutex::default(),
            arriving: AtomicU32::default(),
            finishing: AtomicBool::default(),
        }))
    }
}

impl Connections {
    pub(super) fn arrive(&self) -> Arriving {
        self.0.arriving.fetch_add(1, Ordering::Relaxed);
        Arriving(self.clone())
    }

    /// The number of handshakes in progress.
    pub fn arriving(&self) -> usize {
        self.0.arriving.load(Ordering::Relaxed) as usize
    }

    pub(super) fn open(&self, remote: SocketAddr, http2: bool) -> Listed {
        let lifetime = Arc::new(Lifetime {
            epoch: self.0.epoch,
            remote,
            http2,
            active: AtomicU32::new(0),
            served: AtomicU64::new(0),
            idle_since: AtomicU64::new(self.0.epoch.elapsed().as_millis() as u64),
            first_byte: AtomicU64::new(0),
            end: AtomicU8::new(if self.0.finishing.load(Ordering::Relaxed) { End::Gracefully } else { End::No } as u8),
            told_at: AtomicU64::new(self.0.epoch.elapsed().as_millis() as u64),
            upgraded: AtomicBool::new(false),
            moved: AtomicU32::new(0),
            stood: (AtomicU32::new(0), AtomicU64::new(self.0.epoch.elapsed().as_millis() as u64)),
            waker: AtomicWaker::new(),
            unwritten: AtomicUsize::new(0),
            answer_by: AtomicU64::new(0),
            tunnelling: AtomicBool::new(false),
            tunnel_waker: AtomicWaker::new(),
        });
        self.0.open.lock().push(lifetime.clone());
        Listed { lifetime, connections: self.clone() }
    }

    /// Closes connections that exceed the timeouts of `limits`. Call it about once per second.
    pub fn sweep(&self, limits: &Limits) {
        for lifetime in self.0.open.lock().iter() {
            let verdict = lifetime.verdict(limits);
            if verdict > End::No {
                lifetime.tell(verdict);
            }
        }
    }

    /// Closes all connections gracefully, including later ones: GOAWAY, or `Connection: close`.
    pub fn finish(&self) {
        self.0.finishing.store(true, Ordering::Relaxed);
        self.0.open.lock().iter().for_each(|lifetime| lifetime.tell(End::Gracefully));
    }

    /// Closes all connections at once.
    pub fn cut(&self) {
        self.0.open.lock().iter().for_each(|lifetime| lifetime.tell(End::Now));
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
        let line = |lifetime: &Arc<Lifetime>| ConnectionReport {
            remote: lifetime.remote.to_string(),
            protocol: if lifetime.http2 { "HTTP/2.0" } else { "HTTP/1.1" },
            active: lifetime.active.load(Ordering::Relaxed),
            served: lifetime.served.load(Ordering::Relaxed),
            upgraded: lifetime.upgraded.load(Ordering::Relaxed),
        };
        self.0.open.lock().iter().map(line).collect()
    }
}

/// RAII registration of a connection in [`Connections`].
pub(super) struct Listed {
    pub(super) lifetime: Arc<Lifetime>,
    connections: Connections,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut open = self.connections.0.open.lock();
        if let Some(at) = open.iter().position(|lifetime| Arc::ptr_eq(lifetime, &self.lifetime)) {
            open.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(http2: bool) -> (Connections, Listed) {
        let connections = Connections::default();
        let listed = connections.open("127.0.0.1:1".parse().unwrap(), http2);
        (connections, listed)
    }

    fn limits(idle: u64, header: u64) -> Limits {
        Limits {
            idle_timeout: Duration::from_millis(idle),
            read_header_timeout: Duration::from_millis(header),
            ..Limits::default()
        }
    }

    fn later(listed: &Listed, milliseconds: u64) {
        // Moves the connection's past back instead of waiting.
        let l = &listed.lifetime;
        l.idle_since.store(0, Ordering::Relaxed);
        if l.first_byte.load(Ordering::Relaxed) > 0 {
            l.first_byte.store(1, Ordering::Relaxed);
        }
        while l.now() <= milliseconds {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn an_idle_connection_is_told_to_go_but_one_with_a_request_is_not() {
        let (connections, listed) = listed(true);
        let active = listed.lifetime.begin();
        later(&listed, 2);
        connections.sweep(&limits(1, 1000));
        assert_eq!(listed.lifetime.told(), End::No);
        drop(active);
        // Well before twice the limit, at which it is cut.
        later(&listed, 210);
        connections.sweep(&limits(200, 1000));
        assert_eq!(listed.lifetime.told(), End::Gracefully);
    }

    #[test]
    fn a_slow_header_is_cut_and_counts_from_its_first_byte() {
        let (connections, listed) = listed(false);
        connections.sweep(&limits(60_000, 0));
        assert_eq!(listed.lifetime.told(), End::No);
        listed.lifetime.bytes_came();
        later(&listed, 5);
        connections.sweep(&limits(60_000, 1));
        assert_eq!(listed.lifetime.told(), End::Now);
    }

    #[test]
    fn unfinished_header_block_ends_connection_with_running_streams_after_goaway() {
        let (connections, listed) = listed(true);
        let _active = listed.lifetime.begin();
        listed.lifetime.frames_came(Owed::Since);
        connections.sweep(&limits(60_000, 60_000));
        assert_eq!(listed.lifetime.told(), End::No);
        later(&listed, 5);
        // Past the limit, well before six times as long.
        connections.sweep(&limits(60_000, 4));
        assert_eq!(listed.lifetime.told(), End::Gracefully);
        later(&listed, 13);
        connections.sweep(&limits(60_000, 2));
        assert_eq!(listed.lifetime.told(), End::Now);
    }

    #[test]
    fn finished_header_block_leaves_running_streams_alone() {
        let (connections, listed) = listed(true);
        let _active = listed.lifetime.begin();
        listed.lifetime.frames_came(Owed::Since);
        listed.lifetime.frames_came(Owed::Nothing);
        later(&listed, 5);
        connections.sweep(&limits(60_000, 0));
        assert_eq!(listed.lifetime.told(), End::No);
    }

    #[test]
    fn a_closed_connection_leaves_the_list() {
        let (connections, listed) = listed(false);
        assert_eq!(connections.len(), 1);
        drop(listed);
        assert!(connections.is_empty());
    }
}
