//! The queues of the tunnels of one stream.

use std::collections::{HashMap, HashSet, VecDeque};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use konnectivity_client::Packet;
use tokio::time::Instant;

use super::data_queue::DataQueue;
use super::{
    MAX_CLOSING, MAX_CONTROL_PACKETS, MAX_OUTGOING_BYTES, MAX_PACKET_DATA, MIN_OUTGOING_BYTES, MIN_PROGRESS_BYTES,
    SHARED_OUTGOING_BYTES, STALL_REPORT_TIME, STALL_TIMEOUT,
};
use crate::konnectivity::stream_counter::StreamCounter;

/// The state of a stream, under its lock.
pub(super) struct MultiplexerState {
    /// Metrics of what is sent to the peer.
    pub(super) counter: StreamCounter,
    /// Framed packets without data; they are sent before data.
    pub(super) control: VecDeque<Bytes>,
    /// By connection id. Boxed, as much of a hash table is empty.
    pub(super) tunnels: HashMap<i64, Box<TunnelState>>,
    /// Tunnels with data that they may send, in turn.
    turns: VecDeque<i64>,
    /// Connections without a tunnel whose close is not confirmed; their data is dropped.
    closing: HashSet<i64>,
    pub(super) stream_writer: Option<Waker>,
    pub(super) is_closed: bool,
    /// No packet is sent after those that wait and those of the tunnels that there are.
    pub(super) is_finishing: bool,
    /// Data sent to and received from the peer.
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

/// The queues of one tunnel.
pub(super) struct TunnelState {
    /// Address of the target.
    address: Box<str>,
    /// Data for the peer.
    outgoing: DataQueue,
    /// Whether the queue for the peer has reached its limit, and is not half empty since.
    pub(super) is_outgoing_full: bool,
    /// What the peer still accepts, in bytes.
    send_window: i64,
    has_turn: bool,
    /// When data was last sent.
    last_sent: Instant,
    /// Data from the peer.
    pub(super) incoming: DataQueue,
    /// Bytes taken by the reader that the peer does not know of.
    taken_bytes: i64,
    /// When the reader last took something.
    last_taken: Instant,
    pub(super) wait: StreamWait,
    /// The peer sends no more data.
    pub(super) is_write_closed: bool,
    /// The peer closed the connection, with its error text.
    pub(super) closed: Option<String>,
    /// Whether it was closed before the stream ended.
    pub(super) was_closed_by_peer: bool,
    /// Error text with which this side closes it.
    pub(super) close_error: Option<Box<str>>,
    /// Whether the close packet of this side was sent.
    pub(super) is_close_sent: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The task that reads the stream, while the queue is full.
    pub(super) receive_loop: Option<Waker>,
}

/// How long a stream without flow control has waited for the reader of one tunnel.
#[derive(Default)]
pub(super) struct StreamWait {
    /// Time in earlier waits since the reader took the last [`MIN_PROGRESS_BYTES`].
    waited: Duration,
    /// Bytes taken since then.
    taken: usize,
    /// When the present wait began.
    began: Option<Instant>,
}

impl StreamWait {
    pub(super) fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    pub(super) fn end(&mut self) {
        if let Some(began) = self.began.take() {
            self.waited += began.elapsed();
        }
    }

    /// When the present wait is too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        Some(self.began? + STALL_TIMEOUT.saturating_sub(self.waited))
    }

    fn record_progress(&mut self, bytes: usize) {
        self.taken += bytes;
        if self.taken >= MIN_PROGRESS_BYTES {
            (self.taken, self.waited) = (0, Duration::ZERO);
            self.began = self.began.map(|_| Instant::now());
        }
    }
}

/// A tunnel whose data waits for a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StalledTunnel {
    pub(super) connection: i64,
    pub(super) address: String,
    /// Whether it waits for this side's socket, and not for the peer.
    pub(super) is_incoming: bool,
    pub(super) bytes: usize,
    /// How long nothing was read.
    pub(super) age: Duration,
}

impl MultiplexerState {
    pub(super) fn new(counter: StreamCounter) -> MultiplexerState {
        MultiplexerState {
            counter,
            control: VecDeque::new(),
            tunnels: HashMap::new(),
            turns: VecDeque::new(),
            closing: HashSet::new(),
            stream_writer: None,
            is_closed: false,
            is_finishing: false,
            sent_bytes: 0,
            received_bytes: 0,
        }
    }

    pub(super) fn push_control(&mut self, packet: &Packet) {
        if self.is_closed {
            return;
        }
        self.counter.record(packet);
        self.control.push_back(packet.encode_frame());
        if self.control.len() > MAX_CONTROL_PACKETS {
            self.close();
        }
        self.wake_stream_writer();
    }

    /// Drops data of a connection until its close is confirmed. Beyond [`MAX_CLOSING`] connections all are forgotten: late
    /// data is answered as that of an unknown connection.
    pub(super) fn start_closing(&mut self, connection: i64) {
        if self.closing.len() >= MAX_CLOSING {
            self.closing.clear();
        }
        self.closing.insert(connection);
    }

    pub(super) fn is_closing(&self, connection: i64) -> bool {
        self.closing.contains(&connection)
    }

    /// Forgets a connection whose close is confirmed, or whose id is used again. False if it was not closing.
    pub(super) fn end_closing(&mut self, connection: i64) -> bool {
        self.closing.remove(&connection)
    }

    /// Adds data of a tunnel for the peer. False if the tunnel is closed.
    pub(super) fn push_outgoing(&mut self, connection: i64, data: Bytes) -> bool {
        let Some(tunnel) = self.tunnels.get_mut(&connection).filter(|tunnel| tunnel.closed.is_none()) else {
            return false;
        };
        if tunnel.outgoing.is_empty() {
            // There was nothing to send before.
            tunnel.last_sent = Instant::now();
        }
        tunnel.outgoing.push(data);
        tunnel.is_outgoing_full |= tunnel.outgoing.len() >= tunnel.outgoing_limit(self.turns.len());
        self.give_turn(connection);
        true
    }

    pub(super) fn add_window(&mut self, connection: i64, increment: i64) {
        if let Some(tunnel) = self.tunnels.get_mut(&connection) {
            tunnel.send_window = tunnel.send_window.saturating_add(increment);
            self.give_turn(connection);
        }
    }

    fn give_turn(&mut self, connection: i64) {
        let Some(tunnel) = self.tunnels.get_mut(&connection) else { return };
        if !tunnel.has_turn && !tunnel.outgoing.is_empty() && tunnel.send_window > 0 {
            tunnel.has_turn = true;
            self.turns.push_back(connection);
            self.wake_stream_writer();
        }
    }

    /// The data of the next tunnel.
    pub(super) fn next_data(&mut self) -> Option<(i64, Bytes)> {
        loop {
            let waiting_tunnels = self.turns.len();
            let connection = self.turns.pop_front()?;
            let Some(tunnel) = self.tunnels.get_mut(&connection) else { continue };
            tunnel.has_turn = false;
            let data = tunnel.next_outgoing(waiting_tunnels);
            self.give_turn(connection);
            if let Some(data) = data {
                self.sent_bytes += data.len() as u64;
                self.counter.record_data();
                return Some((connection, data));
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.control.clear();
        for tunnel in self.tunnels.values_mut() {
            tunnel.was_closed_by_peer = tunnel.closed.is_some();
            tunnel.outgoing = DataQueue::default();
            tunnel.close(String::new());
        }
        self.wake_stream_writer();
    }

    pub(super) fn finish(&mut self) {
        self.is_finishing = true;
        self.wake_stream_writer();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tunnels.is_empty() && self.control.is_empty()
    }

    pub(super) fn open_tunnels(&self) -> usize {
        self.tunnels.values().filter(|tunnel| tunnel.closed.is_none()).count()
    }

    /// Number of tunnels whose queue from the peer is full, and of those whose queue for the peer is. `receive_limit` is
    /// where the first is full.
    pub(super) fn count_full(&self, receive_limit: i64) -> [usize; 2] {
        let open = || self.tunnels.values().filter(|tunnel| tunnel.closed.is_none());
        let incoming = open().filter(|tunnel| tunnel.unreported_bytes() >= receive_limit).count();
        [incoming, open().filter(|tunnel| tunnel.is_outgoing_full).count()]
    }

    /// Open tunnels whose data waits for [`STALL_REPORT_TIME`].
    pub(super) fn stalled_tunnels(&self) -> Vec<StalledTunnel> {
        let open = self.tunnels.iter().filter(|(_, tunnel)| tunnel.closed.is_none());
        let stalled = open.flat_map(|(connection, tunnel)| {
            let queues = [
                (true, tunnel.incoming.len(), tunnel.last_taken.elapsed()),
                (false, tunnel.outgoing.len(), tunnel.last_sent.elapsed()),
            ];
            let waiting = queues.into_iter().filter(|(_, bytes, age)| *bytes > 0 && *age >= STALL_REPORT_TIME);
            waiting.map(|(is_incoming, bytes, age)| StalledTunnel {
                connection: *connection,
                address: tunnel.address.to_string(),
                is_incoming,
                bytes,
                age,
            })
        });
        stalled.collect()
    }

    fn wake_stream_writer(&mut self) {
        if let Some(waker) = self.stream_writer.take() {
            waker.wake();
        }
    }
}

impl TunnelState {
    pub(super) fn new(send_window: i64, address: &str) -> TunnelState {
        TunnelState {
            address: address.into(),
            outgoing: DataQueue::default(),
            is_outgoing_full: false,
            send_window,
            has_turn: false,
            last_sent: Instant::now(),
            incoming: DataQueue::default(),
            taken_bytes: 0,
            last_taken: Instant::now(),
            wait: StreamWait::default(),
            is_write_closed: false,
            closed: None,
            was_closed_by_peer: false,
            close_error: None,
            is_close_sent: false,
            reader: None,
            writer: None,
            receive_loop: None,
        }
    }

    pub(super) fn push_incoming(&mut self, data: Bytes) {
        if self.incoming.is_empty() {
            // The reader had nothing to take before.
            self.last_taken = Instant::now();
        }
        self.incoming.push(data);
        self.wake_reader();
    }

    /// Bytes received that were not returned to the peer's window.
    pub(super) fn unreported_bytes(&self) -> i64 {
        self.taken_bytes.saturating_add(i64::try_from(self.incoming.len()).unwrap_or(i64::MAX))
    }

    /// The next data for the reader, and the window increment that the peer should know of.
    pub(super) fn take_incoming(&mut self, window: Option<i64>) -> Option<(Bytes, Option<i64>)> {
        let data = self.incoming.pop(usize::MAX)?;
        self.last_taken = Instant::now();
        self.wait.record_progress(data.len());
        if let Some(waker) = self.receive_loop.take() {
            waker.wake();
        }
        let Some(window) = window else { return Some((data, None)) };
        self.taken_bytes += data.len() as i64;
        let increment = (self.taken_bytes >= window / 4).then(|| std::mem::take(&mut self.taken_bytes));
        Some((data, increment))
    }

    fn next_outgoing(&mut self, waiting_tunnels: usize) -> Option<Bytes> {
        let length = usize::try_from(self.send_window).unwrap_or(0).min(MAX_PACKET_DATA);
        let data = self.outgoing.pop(length)?;
        if self.send_window != i64::MAX {
            self.send_window -= data.len() as i64;
        }
        self.last_sent = Instant::now();
        // Not at once: to wake another thread for each packet costs more than to relay it.
        if self.outgoing.len() <= self.outgoing_limit(waiting_tunnels) / 2 {
            self.is_outgoing_full = false;
            if let Some(waker) = self.writer.take() {
                waker.wake();
            }
        }
        Some(data)
    }

    /// Limit of the data that waits for the stream, in bytes.
    fn outgoing_limit(&self, waiting_tunnels: usize) -> usize {
        let share = SHARED_OUTGOING_BYTES / waiting_tunnels.max(1);
        let window = usize::try_from(self.send_window).unwrap_or(0);
        share.min(window).clamp(MIN_OUTGOING_BYTES, MAX_OUTGOING_BYTES)
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.outgoing.is_empty()
    }

    pub(super) fn close(&mut self, error: String) {
        self.closed.get_or_insert(error);
        self.wake_all();
    }

    /// Drops what is queued in both directions.
    pub(super) fn discard(&mut self) {
        (self.incoming, self.outgoing) = Default::default();
    }

    pub(super) fn set_reader(&mut self, waker: &Waker) {
        self.reader = Some(waker.clone());
    }

    pub(super) fn set_writer(&mut self, waker: &Waker) {
        self.writer = Some(waker.clone());
    }

    pub(super) fn wake_reader(&mut self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    pub(super) fn wake_all(&mut self) {
        for waker in [self.reader.take(), self.writer.take(), self.receive_loop.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}
