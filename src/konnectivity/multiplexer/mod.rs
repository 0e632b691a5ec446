//! Tunnels that share the gRPC stream between a server and an agent.
//!
//! Each tunnel has a queue in each direction. Queues towards the peer are served in turn, one packet each. What arrives
//! is put into the tunnel's queue at once. If both sides announce a window ([`TUNNEL_WINDOW`]), a sender stops at the window
//! of the tunnel, and the stream is always read. The protocol of the reference has no such window: there, the stream waits
//! while a queue is full, and a tunnel that lets it wait too long ([`TunnelMultiplexer::wait_for_room`]) is closed.
//!
//! [`TUNNEL_WINDOW`]: konnectivity_client::TUNNEL_WINDOW

mod data_queue;
mod state;
mod tunnel;

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::buf::Chain;
use bytes::{Buf as _, Bytes};
use h2::SendStream;
use konnectivity_client::{Packet, encode_data_head};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::recent_failures::shorten;
use super::report::{StalledTunnelReport, timestamp_ago};
use super::stream_counter::StreamCounter;
use crate::observe::metrics::{StreamMetrics, StreamSegment};
pub(super) use data_queue::MIN_SHARED_BYTES;
use state::{MultiplexerState, StalledTunnel, TunnelState};
pub(super) use tunnel::{MultiplexedTunnel, TunnelEvent};

/// Window of each tunnel between a server and an agent of this project, in bytes.
pub(super) const WINDOW_BYTES: i64 = 4 << 20;
/// Data of a tunnel that waits for its reader, in bytes, where the peer has no window.
const MAX_INCOMING_BYTES: usize = 8 << 20;
/// How long a stream waits for the reader of a full queue until it has taken [`MIN_PROGRESS_BYTES`]. Then the tunnel is
/// closed.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// What such a reader takes at least in that time, in bytes.
const MIN_PROGRESS_BYTES: usize = 256 << 10;
/// How long data waits before the status calls its tunnel stalled.
const STALL_REPORT_TIME: Duration = Duration::from_secs(5);
/// Limit of the data of a tunnel that waits for the stream, in bytes.
const MAX_OUTGOING_BYTES: usize = 1 << 20;
/// The same with many tunnels that wait, or if the peer accepts less.
const MIN_OUTGOING_BYTES: usize = 128 << 10;
/// The waiting tunnels share so much, in bytes, but each has at least [`MIN_OUTGOING_BYTES`].
const SHARED_OUTGOING_BYTES: usize = 16 << 20;
/// Maximum data of a packet, in bytes.
pub(super) const MAX_PACKET_DATA: usize = 64 << 10;
/// Packets without data that wait for a peer that does not read. Then the stream is closed.
const MAX_CONTROL_PACKETS: usize = 20_000;
/// Connections whose close the peer has not confirmed.
const MAX_CLOSING: usize = 20_000;

/// A framed packet: its head and its data, which is not copied.
pub(super) type PacketFrame = Chain<Bytes, Bytes>;

/// The side of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamSide {
    /// It requests that a connection be closed.
    Server,
    /// It reports that a connection is closed.
    Agent,
}

/// The windows of each tunnel, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TunnelWindows {
    /// What the peer accepts.
    pub(super) send: i64,
    /// What this side accepts.
    pub(super) receive: i64,
}

/// The tunnels of one stream.
pub(super) struct TunnelMultiplexer {
    side: StreamSide,
    windows: Option<TunnelWindows>,
    state: Mutex<MultiplexerState>,
}

/// What became of received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveOutcome {
    /// It waits for its reader, or its tunnel is about to be closed.
    Taken,
    /// As [`ReceiveOutcome::Taken`]; wait for [`TunnelMultiplexer::wait_for_room`] before the next packet.
    Full,
    /// There is no such tunnel.
    UnknownConnection,
}

impl TunnelMultiplexer {
    pub(super) fn new(
        side: StreamSide,
        windows: Option<TunnelWindows>,
        metrics: &Arc<StreamMetrics>,
    ) -> Arc<TunnelMultiplexer> {
        let counter = match side {
            StreamSide::Server => StreamCounter::of_server(metrics, StreamSegment::ToAgent),
            StreamSide::Agent => StreamCounter::of_agent(metrics, StreamSegment::FromAgent),
        };
        Arc::new(TunnelMultiplexer { side, windows, state: Mutex::new(MultiplexerState::new(counter)) })
    }

    /// Adds the tunnel of `connection` to the target at `address`. Data may arrive for it from now on. `None` if the id is 0 or in use.
    pub(super) fn open(self: &Arc<Self>, connection: i64, address: &str) -> Option<MultiplexedTunnel> {
        let window = self.windows.map_or(i64::MAX, |windows| windows.send);
        let mut state = self.state.lock();
        if connection == 0 || state.tunnels.contains_key(&connection) {
            return None;
        }
        let mut tunnel = TunnelState::new(window, shorten(address));
        if state.is_closed {
            tunnel.closed = Some(String::new());
        }
        state.tunnels.insert(connection, Box::new(tunnel));
        state.end_closing(connection);
        Some(MultiplexedTunnel::new(self.clone(), connection))
    }

    /// Sends a packet without data.
    pub(super) fn send(&self, packet: &Packet) {
        self.state.lock().push_control(packet);
    }

    /// Puts data of the peer into the queue of its tunnel.
    pub(super) fn receive(&self, connection: i64, data: Bytes) -> ReceiveOutcome {
        let mut state = self.state.lock();
        state.received_bytes += data.len() as u64;
        let Some(tunnel) = state.tunnels.get_mut(&connection) else {
            let is_closing = state.is_closing(connection);
            return if is_closing { ReceiveOutcome::Taken } else { ReceiveOutcome::UnknownConnection };
        };
        // Empty data is nothing, as everywhere in this protocol.
        if tunnel.closed.is_some() || data.is_empty() {
            return ReceiveOutcome::Taken;
        }
        tunnel.push_incoming(data);
        match self.windows {
            Some(windows) if tunnel.unreported_bytes() > windows.receive => {
                tracing::warn!(connection, "tunnel closed: the peer exceeds its window");
                self.abort(&mut state, connection, "the peer exceeds the window of the tunnel");
                ReceiveOutcome::Taken
            }
            None if tunnel.incoming.len() >= MAX_INCOMING_BYTES => ReceiveOutcome::Full,
            _ => ReceiveOutcome::Taken,
        }
    }

    /// Waits until the queue of a tunnel has room again. All tunnels of the stream wait meanwhile, so a tunnel whose reader
    /// lets them wait for [`STALL_TIMEOUT`] without taking [`MIN_PROGRESS_BYTES`] is closed.
    pub(super) async fn wait_for_room(&self, connection: i64) {
        if let Some(tunnel) = self.state.lock().tunnels.get_mut(&connection) {
            tunnel.wait.begin();
        }
        loop {
            let Some(deadline) = self.state.lock().tunnels.get(&connection).and_then(|tunnel| tunnel.wait.deadline())
            else {
                return;
            };
            let result = timeout_at(deadline, poll_fn(|cx| self.poll_incoming_room(connection, cx))).await;
            let mut state = self.state.lock();
            let Some(tunnel) = state.tunnels.get_mut(&connection) else { return };
            if result.is_ok() {
                tunnel.wait.end();
                return;
            }
            // The reader may have moved the deadline.
            if tunnel.wait.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
                tracing::warn!(connection, "tunnel closed: its reader is too slow, and the peer has no flow control");
                self.abort(&mut state, connection, "closed: its reader is too slow");
                return;
            }
        }
    }

    fn poll_incoming_room(&self, connection: i64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        match state.tunnels.get_mut(&connection) {
            Some(tunnel) if tunnel.closed.is_none() && tunnel.incoming.len() >= MAX_INCOMING_BYTES => {
                tunnel.receive_loop = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// The peer accepts more data of a tunnel.
    pub(super) fn add_window(&self, connection: i64, increment: i64) {
        if self.windows.is_some() && increment > 0 {
            self.state.lock().add_window(connection, increment);
        }
    }

    /// The peer has no more data for a tunnel.
    pub(super) fn receive_write_closed(&self, connection: i64) {
        if self.windows.is_some()
            && let Some(tunnel) = self.state.lock().tunnels.get_mut(&connection)
        {
            tunnel.is_write_closed = true;
            tunnel.wake_reader();
        }
    }

    /// The peer closed a tunnel, or requests it. False if there is no such tunnel.
    pub(super) fn receive_close(&self, connection: i64, error: String) -> bool {
        let mut state = self.state.lock();
        let was_closing = state.end_closing(connection);
        let Some(tunnel) = state.tunnels.get_mut(&connection) else { return was_closing };
        tunnel.close(error);
        true
    }

    /// Ends the stream and all its tunnels.
    pub(super) fn close(&self) {
        self.state.lock().close();
    }

    /// Sends what waits, then no more: [`TunnelMultiplexer::write`] returns once no tunnel is left.
    pub(super) fn finish(&self) {
        self.state.lock().finish();
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.state.lock().is_finishing
    }

    /// Number of tunnels, with those that the peer has closed and whose data waits for its reader.
    pub(super) fn unfinished_tunnels(&self) -> usize {
        self.state.lock().tunnels.len()
    }

    /// Whether there is no tunnel, and no packet waits for the stream.
    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().is_empty()
    }

    /// Number of open tunnels.
    pub(super) fn open_tunnels(&self) -> usize {
        self.state.lock().open_tunnels()
    }

    /// Number of tunnels whose data waits for a reader, in one direction or in both.
    pub(super) fn count_stalled(&self) -> usize {
        let stalled = self.state.lock().stalled_tunnels();
        stalled.iter().map(|tunnel| tunnel.connection).collect::<HashSet<_>>().len()
    }

    /// Number of tunnels whose queue from the peer is full, and of those whose queue for the peer is.
    pub(super) fn count_full(&self) -> [usize; 2] {
        let limit = self.windows.map_or(MAX_INCOMING_BYTES as i64, |windows| windows.receive);
        self.state.lock().count_full(limit)
    }

    /// Data sent to and received from the peer.
    pub(super) fn transferred_bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.sent_bytes, state.received_bytes)
    }

    /// Whether each tunnel has a window in both directions.
    pub(super) fn has_windows(&self) -> bool {
        self.windows.is_some()
    }

    /// The stalled tunnels for the status. `peer` is the id of the other side.
    pub(super) fn report_stalled(&self, peer: &str) -> Vec<StalledTunnelReport> {
        let (here, there) = match self.side {
            StreamSide::Server => ("client", "target"),
            StreamSide::Agent => ("target", "client"),
        };
        let describe = |tunnel: StalledTunnel| StalledTunnelReport {
            peer: peer.to_owned(),
            connection: tunnel.connection,
            address: tunnel.address,
            waits_for: match tunnel.is_incoming {
                true => here,
                false if self.has_windows() => there,
                false => "peer",
            }
            .to_owned(),
            bytes: tunnel.bytes as u64,
            since: timestamp_ago(tunnel.age),
        };
        let stalled = self.state.lock().stalled_tunnels();
        stalled.into_iter().map(describe).collect()
    }

    /// Closes a tunnel from this side, at once.
    fn abort(&self, state: &mut MultiplexerState, connection: i64, why: &str) {
        let Some(tunnel) = state.tunnels.get_mut(&connection) else { return };
        tunnel.discard();
        tunnel.close(why.to_owned());
        tunnel.is_close_sent = true;
        let packet = self.close_packet(connection, why);
        state.start_closing(connection);
        state.push_control(&packet);
    }

    /// An agent of the reference understands no error.
    fn close_packet(&self, connection: i64, error: &str) -> Packet {
        match self.side {
            StreamSide::Server if error.is_empty() || !self.has_windows() => Packet::CloseRequest { connection },
            _ => Packet::CloseResponse { error: error.to_owned(), connection },
        }
    }

    /// The next frame for the peer; `None` when the stream is closed or finished.
    fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<PacketFrame>> {
        let mut state = self.state.lock();
        if let Some(packet) = state.control.pop_front() {
            return Poll::Ready(Some(packet.chain(Bytes::new())));
        }
        if let Some((connection, data)) = state.next_data() {
            let head = Bytes::from(encode_data_head(connection, data.len(), 0));
            return Poll::Ready(Some(head.chain(data)));
        }
        if state.is_closed || state.is_finishing && state.is_empty() {
            return Poll::Ready(None);
        }
        state.stream_writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Writes packets until the stream is closed, is finished or fails.
    pub(super) async fn write(&self, send: &mut SendStream<PacketFrame>) -> Result<(), h2::Error> {
        while let Some(frame) = poll_fn(|cx| self.poll_frame(cx)).await {
            if let Err(error) = send_frame(send, frame).await {
                self.state.lock().counter.record_error(&error);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Sends one frame when HTTP/2's flow control permits the first byte of it.
pub(super) async fn send_frame(send: &mut SendStream<PacketFrame>, frame: PacketFrame) -> Result<(), h2::Error> {
    send.reserve_capacity(frame.remaining());
    poll_fn(|cx| {
        while send.capacity() == 0 {
            match ready!(send.poll_capacity(cx)) {
                Some(granted) => granted.map(drop)?,
                None => return Poll::Ready(Err(h2::Error::from(h2::Reason::CANCEL))),
            }
        }
        Poll::Ready(Ok(()))
    })
    .await?;
    send.send_data(frame, false)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use konnectivity_client::PacketDecoder;
    use tokio::time::sleep;

    use super::*;

    /// A peer without windows sends as fast as the stream is read, while the reader takes a packet at a time with `pause`
    /// between. Returns after how long the tunnel was closed, if it was in the first minute.
    async fn closed_after(pause: Duration) -> Option<Duration> {
        let multiplexer = TunnelMultiplexer::new(StreamSide::Server, None, &Arc::default());
        let tunnel = multiplexer.open(1, "a:1").unwrap();
        let began = Instant::now();
        let sending = async {
            while began.elapsed() < Duration::from_secs(60) {
                match multiplexer.receive(1, vec![7; MAX_PACKET_DATA].into()) {
                    ReceiveOutcome::Full => multiplexer.wait_for_room(1).await,
                    ReceiveOutcome::Taken => sleep(Duration::from_millis(1)).await,
                    ReceiveOutcome::UnknownConnection => unreachable!("the tunnel is open"),
                }
            }
        };
        let reading = async {
            loop {
                match tunnel.event().await {
                    TunnelEvent::Data(_) => sleep(pause).await,
                    TunnelEvent::Closed(error) => {
                        assert_eq!(error, "closed: its reader is too slow");
                        return;
                    }
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::select! {
            () = sending => None,
            () = reading => Some(began.elapsed()),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn multiplexer_closes_the_tunnel_of_a_reader_that_trickles() {
        // A packet now and then is no reason to let the other tunnels wait for ever.
        let closed = closed_after(Duration::from_millis(1900)).await.unwrap();
        assert!(closed < Duration::from_secs(5), "{closed:?}");
        // 107 KiB/s.
        assert!(closed_after(Duration::from_millis(600)).await.unwrap() < Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn multiplexer_keeps_the_tunnel_of_a_slow_reader() {
        // 160 KiB/s.
        assert_eq!(closed_after(Duration::from_millis(400)).await, None);
    }

    #[tokio::test]
    async fn multiplexer_queues_less_for_a_peer_that_accepts_less_and_with_many_tunnels() {
        let fill = |tunnel: &MultiplexedTunnel| {
            let mut queued = 0;
            while tunnel.wait_for_capacity().now_or_never().is_some() {
                tunnel.send(vec![7; MAX_PACKET_DATA].into());
                queued += MAX_PACKET_DATA;
            }
            queued
        };
        let windows = |send| Some(TunnelWindows { send, receive: WINDOW_BYTES });
        for (windows, expected) in [
            (None, MAX_OUTGOING_BYTES),
            (windows(WINDOW_BYTES), MAX_OUTGOING_BYTES),
            (windows(300 << 10), 5 * MAX_PACKET_DATA),
            (windows(1), MIN_OUTGOING_BYTES),
        ] {
            let multiplexer = TunnelMultiplexer::new(StreamSide::Server, windows, &Arc::default());
            assert_eq!(fill(&multiplexer.open(1, "a:1").unwrap()), expected, "{windows:?}");
        }
        let multiplexer = TunnelMultiplexer::new(StreamSide::Server, windows(WINDOW_BYTES), &Arc::default());
        let tunnels: Vec<_> = (1..=1000).map(|connection| multiplexer.open(connection, "a:1").unwrap()).collect();
        tunnels.iter().for_each(|tunnel| tunnel.send(vec![7; 1].into()));
        assert!(tunnels.iter().all(|tunnel| fill(tunnel) == MIN_OUTGOING_BYTES));
    }

    /// The packets that wait for the stream.
    fn sent_packets(multiplexer: &TunnelMultiplexer) -> Vec<Packet> {
        let mut decoder = PacketDecoder::default();
        std::iter::from_fn(|| {
            let mut frame = poll_fn(|cx| multiplexer.poll_frame(cx)).now_or_never()??;
            let mut bytes = frame.copy_to_bytes(frame.remaining());
            Some(decoder.decode(&mut bytes).unwrap().unwrap().packet)
        })
        .collect()
    }

    #[tokio::test]
    async fn multiplexer_wakes_the_writer_of_a_full_queue_when_it_is_half_empty() {
        let multiplexer = TunnelMultiplexer::new(StreamSide::Server, None, &Arc::default());
        let tunnel = multiplexer.open(1, "a:1").unwrap();
        tunnel.send(vec![7; MAX_OUTGOING_BYTES].into());
        let mut room = std::pin::pin!(tunnel.wait_for_capacity());
        let mut sent = 0;
        while futures_util::poll!(&mut room).is_pending() {
            assert_eq!(multiplexer.count_full(), [0, 1]);
            poll_fn(|cx| multiplexer.poll_frame(cx)).await.unwrap();
            sent += MAX_PACKET_DATA;
        }
        assert_eq!((sent, multiplexer.count_full()), (MAX_OUTGOING_BYTES / 2, [0, 0]));
    }

    #[tokio::test]
    async fn multiplexer_tells_the_peer_of_data_that_was_not_sent() {
        let error = "closed before all data was sent".to_owned();
        let windows = |send| Some(TunnelWindows { send, receive: WINDOW_BYTES });
        let (request, response) = (Packet::CloseRequest { connection: 1 }, |error: &str| Packet::CloseResponse {
            error: error.to_owned(),
            connection: 1,
        });
        for (side, windows, length, expected) in [
            (StreamSide::Server, windows(1), 2, response(&error)),
            (StreamSide::Server, windows(1), 1, request.clone()),
            // An agent of the reference.
            (StreamSide::Server, None, 0, request),
            (StreamSide::Agent, windows(1), 2, response(&error)),
            (StreamSide::Agent, windows(1), 1, response("")),
        ] {
            let multiplexer = TunnelMultiplexer::new(side, windows, &Arc::default());
            let tunnel = multiplexer.open(1, "a:1").unwrap();
            if windows.is_none() {
                tunnel.set_close_error("not for the reference");
            }
            tunnel.send(vec![7; length].into());
            let data = Packet::Data { connection: 1, data: vec![7; length.min(1)].into() };
            assert!(sent_packets(&multiplexer).iter().all(|packet| *packet == data));
            drop(tunnel);
            assert_eq!(sent_packets(&multiplexer), [expected], "{side:?}, {length}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn multiplexer_waits_no_more_for_a_tunnel_that_is_dropped() {
        let multiplexer = TunnelMultiplexer::new(StreamSide::Server, None, &Arc::default());
        let tunnel = multiplexer.open(1, "a:1").unwrap();
        while multiplexer.receive(1, vec![7; MAX_PACKET_DATA].into()) != ReceiveOutcome::Full {}
        let dropping = async {
            sleep(Duration::from_millis(10)).await;
            drop(tunnel);
        };
        let began = Instant::now();
        tokio::join!(multiplexer.wait_for_room(1), dropping);
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    }
}
