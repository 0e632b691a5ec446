//! How long a connection may live: idle, slow with its header, or told to go.
//!
//! One sweep a second over a worker's connections stands in for timers of their own, so that an idle
//! watch pays for none.

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

/// What one connection does, written by its own task and by the sweep of the same thread.
///
/// Atomics only because hyper wants the stream of an upgradeable connection to be `Send`.
pub(super) struct Lifetime {
    epoch: Instant,
    pub(super) remote: SocketAddr,
    pub(super) http2: bool,
    active: AtomicU32,
    served: AtomicU64,
    /// Milliseconds since `epoch` at which the connection fell idle.
    idle_since: AtomicU64,
    /// Milliseconds since `epoch` plus one at which the first byte of a header came, or of anything else of an HTTP/2
    /// client that h2 waits for the rest of; 0 when none waits.
    first_byte: AtomicU64,
    end: AtomicU8,
    /// Milliseconds since `epoch` at which the connection was told to end gracefully.
    told_at: AtomicU64,
    upgraded: AtomicBool,
    /// Goes on with every piece of bytes, either way.
    moved: AtomicU32,
    /// `moved` at the last sweep, and since when (milliseconds since `epoch`) it has stood still.
    stood: (AtomicU32, AtomicU64),
    waker: AtomicWaker,
    /// Answered bytes that were not flushed to the client yet (HTTP/1.1 only).
    unwritten: AtomicUsize,
    /// Milliseconds since `epoch` plus one by which the answer being made must be taken; 0 for none.
    answer_by: AtomicU64,
    tunnelling: AtomicBool,
    tunnel_waker: AtomicWaker,
}

/// How long a connection that was told to go may stay without a request or a byte: one that never
/// carried a request, and one that did and may not have answered our GOAWAY yet.
const SILENCE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

/// Answered bytes that hyper gets between two flushes to an HTTP/1.1 client, and one piece more.
const MOST_UNWRITTEN: usize = 128 << 10;

/// How many times [`Limits::read_header_timeout`] an HTTP/2 client has for the rest of a header block or frame while
/// streams run. After the first it gets GOAWAY, and the streams go on; after the last the connection ends with them.
///
/// Nothing else may come before that rest (RFC 9113, section 6.10): no window for the streams that run, no reset of
/// them, no answer to a ping. So it can be waited for in no other way, and a block cannot be skipped, for the next ones
/// are compressed by it (section 4.3). With the default of 10 s the client has 60 s; client-go gives its own connection up
/// when it could not send a ping for 45 s. Without a bound each connection with a watch may hold a block of
/// [`Limits::max_request_header_bytes`] (1 MiB by default) as long as the watch lasts.
const UNFINISHED_BESIDE_STREAMS: u32 = 6;

/// How a connection was told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// It was not.
    No = 0,
    /// GOAWAY or `Connection: close`, then finish what runs.
    Gracefully = 1,
    /// At once.
    Now = 2,
}

impl Lifetime {
    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Bytes went by. Only the connection's own task writes this, so nothing is lost between load and store.
    pub(super) fn moved(&self) {
        self.moved.store(self.moved.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether no request came yet, or one has begun to come and its header is not whole (HTTP/1.1 only).
    pub(super) fn expects_request(&self) -> bool {
        self.served.load(Ordering::Relaxed) == 0 || self.first_byte.load(Ordering::Relaxed) > 0
    }

    /// Bytes came in; they begin a header when no request runs (HTTP/1.1 only).
    pub(super) fn bytes_came(&self) {
        self.moved();
        if self.active.load(Ordering::Relaxed) == 0
            && self.first_byte.load(Ordering::Relaxed) == 0
            && !self.upgraded.load(Ordering::Relaxed)
        {
            self.first_byte.store(self.now() + 1, Ordering::Relaxed);
        }
    }

    /// Bytes came in, after which so much is owed (HTTP/2 only).
    pub(super) fn frames_came(&self, owed: Owed) {
        self.moved();
        match owed {
            Owed::Nothing => self.first_byte.store(0, Ordering::Relaxed),
            Owed::Since => self.first_byte.store(self.now() + 1, Ordering::Relaxed),
            Owed::Still => {}
        }
    }

    /// A request begins; it ends when the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.served.fetch_add(1, Ordering::Relaxed);
        // Over HTTP/2 the next one's header may have begun already.
        if !self.http2 {
            self.first_byte.store(0, Ordering::Relaxed);
        }
        Active(self.clone())
    }

    /// The connection is a tunnel now; its own rules apply.
    pub(super) fn upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Relaxed)
    }

    /// Tells the connection to end; a milder word after a harder one is ignored.
    pub(super) fn tell(&self, end: End) {
        if self.end.fetch_max(end as u8, Ordering::Relaxed) < end as u8 {
            self.told_at.store(self.now(), Ordering::Relaxed);
            self.waker.wake();
            self.tunnel_waker.wake();
        }
    }

    /// The answer that is being made in this poll of its task must be taken by `at`.
    pub(super) fn answer_by(&self, at: Instant) {
        let at = at.saturating_duration_since(self.epoch).as_millis() as u64;
        self.answer_by.store(at + 1, Ordering::Relaxed);
    }

    /// What [`Lifetime::answer_by`] said in this poll, once.
    pub(super) fn take_answer_by(&self) -> Option<Instant> {
        // Only this connection's thread writes it: most polls need no more than a look.
        if self.answer_by.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let at = self.answer_by.swap(0, Ordering::Relaxed) - 1;
        Some(self.epoch + Duration::from_millis(at))
    }

    /// So many bytes of an answer are to be written (HTTP/1.1 only). Only the connection's own task writes this.
    pub(super) fn hand(&self, bytes: usize) {
        self.unwritten.store(self.unwritten.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Whether no more of an answer is to be queued before the client takes what is (HTTP/1.1 only).
    pub(super) fn is_full(&self) -> bool {
        self.unwritten.load(Ordering::Relaxed) >= MOST_UNWRITTEN
    }

    /// All that there was is flushed to the client; whether an answer was held back by it.
    pub(super) fn flushed(&self) -> bool {
        let was_full = self.is_full();
        self.unwritten.store(0, Ordering::Relaxed);
        was_full
    }

    /// The number of the request that runs, if one does (HTTP/1.1: there is never a second).
    pub(super) fn running(&self) -> Option<u64> {
        (self.active.load(Ordering::Relaxed) > 0).then(|| self.served.load(Ordering::Relaxed))
    }

    /// Resolves when no tunnel is left of the connection.
    pub(super) async fn tunnel_over(&self) {
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            if self.tunnelling.load(Ordering::Relaxed) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// What the connection was told; call [`Lifetime::register`] first.
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
            // Over HTTP/1.1 it is the running request that bounds what the connection costs.
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
        // A client that connected and never spoke, or is gone without a word, would hold up the end of the process.
        // Not one that is slow to read its answer: its bytes move.
        let since = self.stood.1.load(Ordering::Relaxed).max(idle).max(self.told_at.load(Ordering::Relaxed));
        let silence = SILENCE[usize::from(self.served.load(Ordering::Relaxed) > 0)];
        if first_byte == 0 && self.told() == End::Gracefully && past(since, silence) {
            return End::Now;
        }
        if past(idle, limits.idle_timeout) {
            // Told to go, it has as long again, but not for ever.
            let told_at = self.told_at.load(Ordering::Relaxed).max(idle);
            let ignored =
                self.told() == End::Gracefully && past(told_at, limits.idle_timeout.min(Duration::from_secs(10)));
            return if ignored { End::Now } else { End::Gracefully };
        }
        End::No
    }
}

/// What an upgrade makes of a connection, until it is dropped. The connection keeps its place in all counts
/// meanwhile, and can be cut.
pub struct Tunnel(Arc<Lifetime>);

impl Tunnel {
    pub(super) fn of(lifetime: &Arc<Lifetime>) -> Tunnel {
        lifetime.tunnelling.store(true, Ordering::Relaxed);
        Tunnel(lifetime.clone())
    }

    /// Resolves when the tunnel must end at once.
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

/// A request that runs on a connection.
pub(super) struct Active(pub(super) Arc<Lifetime>);

impl Drop for Active {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.idle_since.store(self.0.now(), Ordering::Relaxed);
        }
    }
}

/// All connections of one worker. The operator's thread may look at them, so the list is behind a lock
/// that is taken when a connection opens or closes, and once a second.
#[derive(Clone)]
pub struct Connections(Arc<Shared>);

struct Shared {
    epoch: Instant,
    open: Mutex<Vec<Arc<Lifetime>>>,
    /// Those whose handshake is not done yet.
    arriving: AtomicU32,
    /// Whether whoever comes is told to go after its first request.
    finishing: AtomicBool,
}

/// A connection whose handshake is not done yet; it arrived, or failed to, when this is dropped.
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
    /// Requests that run now.
    pub active: u32,
    /// Requests since the connection opened.
    pub served: u64,
    /// Whether it has become a tunnel.
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

    /// How many shake hands.
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

    /// Ends connections that are idle or slow beyond `limits`. Call it about once a second.
    pub fn sweep(&self, limits: &Limits) {
        for lifetime in self.0.open.lock().iter() {
            let verdict = lifetime.verdict(limits);
            if verdict > End::No {
                lifetime.tell(verdict);
            }
        }
    }

    /// Tells every connection, also those yet to come, to finish what it does: GOAWAY, or `Connection: close`.
    pub fn finish(&self) {
        self.0.finishing.store(true, Ordering::Relaxed);
        self.0.open.lock().iter().for_each(|lifetime| lifetime.tell(End::Gracefully));
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        self.0.open.lock().iter().for_each(|lifetime| lifetime.tell(End::Now));
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.0.open.lock().len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What each connection does.
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

/// A connection's place among [`Connections`]; it leaves when dropped.
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
