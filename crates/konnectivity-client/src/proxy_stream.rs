//! One `/ProxyService/Proxy` stream: packets in both directions, within HTTP/2's flow control.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{FlowControl, RecvStream, SendStream};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::failure::{TunnelError, TunnelFailure};
use super::packet::{DecodedPacket, Packet, PacketDecoder, TUNNEL_FLOW_CONTROL};
use super::slow_reader::SlowReaderTracker;
use super::stream_counters::{StreamCountGuard, StreamCounters};

/// Upper bound of a data packet's framing, in bytes.
const OVERHEAD: usize = 32;
/// Minimum payload of a packet while more is to be sent, in bytes.
const MIN_PAYLOAD: usize = 64;

/// A gRPC stream to the server. Dropped before its end, it is reset, and the server cleans up.
pub(super) struct ProxyStream {
    pub(super) handle: Arc<ProxyStreamHandle>,
    decoder: PacketDecoder,
    /// Bytes received from HTTP/2 but not decoded.
    piece: Bytes,
    count_guard: StreamCountGuard,
}

/// The part of a stream shared with the task of its connection.
pub(super) struct ProxyStreamHandle {
    send: Mutex<SendStream<Bytes>>,
    /// Holds what was received but not taken.
    incoming: Mutex<ReceiveState>,
    /// Set by the server's response head.
    flow: Mutex<Option<FlowControl>>,
    /// Number of bytes read by the user.
    read_bytes: AtomicU64,
    pub(super) flow_state: Mutex<StreamFlow>,
    /// Whether the stream was closed because of its slow reader.
    abandoned: AtomicBool,
    has_flow_control: AtomicBool,
}

/// Flow state of a stream's reader and writer.
#[derive(Default)]
pub(super) struct StreamFlow {
    pub(super) slow_reader: SlowReaderTracker,
    /// Since when a writer waits for flow-control capacity.
    pub(super) writer_waits_since: Option<Instant>,
}

/// State of the receiving side.
enum ReceiveState {
    /// No response head yet. The server sends it with its first packet.
    Headers(ResponseFuture),
    Packets(RecvStream),
    Closed,
}

impl ProxyStreamHandle {
    /// Bytes received from the server but not yet read.
    pub(super) fn unread_bytes(&self) -> usize {
        self.flow.lock().as_ref().map_or(0, FlowControl::used_capacity)
    }

    /// Number of bytes read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Relaxed)
    }

    /// Records that `owed` bytes were read and returns their flow-control capacity to the server.
    pub(super) fn release(&self, owed: usize) {
        if owed > 0
            && let Some(flow) = &mut *self.flow.lock()
        {
            self.read_bytes.fetch_add(owed as u64, Relaxed);
            // Fails only when the stream is over; then no capacity is owed.
            let _ = flow.release_capacity(owed);
        }
    }

    /// Whether the stream was closed because of its slow reader.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Whether the server has flow control for each tunnel ([`TUNNEL_FLOW_CONTROL`]): a slow reader blocks no other.
    pub(super) fn has_flow_control(&self) -> bool {
        self.has_flow_control.load(Relaxed)
    }

    /// Resets the stream because of its slow reader, discards what was received, and releases its share of the
    /// connection window. The reader may notice much later.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
        self.send.lock().send_reset(h2::Reason::CANCEL);
        self.release(self.unread_bytes());
        *self.incoming.lock() = ReceiveState::Closed;
    }

    /// Sends a packet that is small enough to need no flow-control capacity; `last` ends the stream.
    pub(super) fn send(&self, packet: &Packet, last: bool) -> Result<(), TunnelError> {
        self.send.lock().send_data(packet.encode_frame(), last).map_err(|error| TunnelError::from_h2(&error))
    }

    /// Ends the sending side.
    pub(super) fn finish(&self) {
        // Fails only when the stream is over already.
        let _ = self.send.lock().send_data(Bytes::new(), true);
    }

    /// Ready with how many of `length` bytes can be sent now, when it is worth a packet; send them at once. Written
    /// bytes are on their way without a flush.
    pub(super) fn poll_capacity(&self, cx: &mut Context<'_>, length: usize) -> Poll<Result<usize, TunnelError>> {
        let mut send = self.send.lock();
        let required = length.min(MIN_PAYLOAD) + OVERHEAD;
        send.reserve_capacity(length + OVERHEAD);
        let mut capacity = send.capacity();
        while capacity < required {
            capacity = match send.poll_capacity(cx) {
                Poll::Ready(Some(granted)) => granted.map_err(|error| TunnelError::from_h2(&error))?,
                Poll::Ready(None) => {
                    let error = TunnelError::new(TunnelFailure::Lost, "the server accepts no more data");
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {
                    self.flow_state.lock().writer_waits_since.get_or_insert_with(Instant::now);
                    return Poll::Pending;
                }
            };
        }
        self.flow_state.lock().writer_waits_since = None;
        Poll::Ready(Ok(length.min(capacity - OVERHEAD)))
    }

    /// Sends a packet that is already framed.
    pub(super) fn send_frame(&self, frame: Bytes) -> Result<(), TunnelError> {
        let mut send = self.send.lock();
        send.send_data(frame, false).map_err(|error| TunnelError::from_h2(&error))?;
        // Returns excess reserved capacity to the other streams.
        send.reserve_capacity(0);
        Ok(())
    }
}

impl ProxyStream {
    pub(super) fn new(answer: ResponseFuture, send: SendStream<Bytes>, counters: &Arc<StreamCounters>) -> ProxyStream {
        let handle = Arc::new(ProxyStreamHandle {
            send: Mutex::new(send),
            incoming: Mutex::new(ReceiveState::Headers(answer)),
            flow: Mutex::default(),
            read_bytes: AtomicU64::new(0),
            flow_state: Mutex::default(),
            abandoned: AtomicBool::new(false),
            has_flow_control: AtomicBool::new(false),
        });
        ProxyStream {
            handle,
            decoder: PacketDecoder::default(),
            piece: Bytes::new(),
            count_guard: StreamCountGuard::new(counters),
        }
    }

    /// The next packet, and how many of its bytes are to be released by [`ProxyStreamHandle::release`] once they are
    /// read. `None` if the server ended the stream in order.
    pub(super) fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<(Packet, usize)>, TunnelError>> {
        let protocol = |why: &dyn std::fmt::Display| TunnelError::new(TunnelFailure::Protocol, why);
        loop {
            if !self.piece.is_empty() {
                let before = self.piece.len();
                let read = self.decoder.decode(&mut self.piece).map_err(|nonsense| protocol(&nonsense))?;
                let owed = match &read {
                    Some(DecodedPacket { packet: Packet::Data { data, .. }, is_shared: true }) => data.len(),
                    _ => 0,
                };
                self.handle.release(before - self.piece.len() - owed);
                match read {
                    Some(read) => return Poll::Ready(Ok(Some((read.packet, owed)))),
                    None => continue,
                }
            }
            let mut incoming = self.handle.incoming.lock();
            match &mut *incoming {
                ReceiveState::Headers(answer) => {
                    let answer = ready!(Pin::new(answer).poll(cx)).map_err(|error| TunnelError::from_h2(&error))?;
                    self.count_guard.record_message();
                    let (head, mut body) = answer.into_parts();
                    *self.handle.flow.lock() = Some(body.flow_control().clone());
                    *incoming = ReceiveState::Packets(body);
                    self.handle.has_flow_control.store(head.headers.contains_key(TUNNEL_FLOW_CONTROL), Relaxed);
                    if head.status != http::StatusCode::OK {
                        let why = format_args!("the server answers {}", head.status).to_string();
                        return Poll::Ready(Err(TunnelError::new(TunnelFailure::Rejected, why)));
                    }
                    // A response without body has its gRPC status in the head (trailers-only).
                    if let Some(status) = grpc_status(&head.headers) {
                        *incoming = ReceiveState::Closed;
                        return Poll::Ready(status.map(|()| None));
                    }
                    let kind = head.headers.get(CONTENT_TYPE);
                    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
                        return Poll::Ready(Err(protocol(&format_args!("unexpected content type {kind:?}"))));
                    }
                }
                ReceiveState::Packets(body) => match ready!(body.poll_data(cx)) {
                    Some(Ok(piece)) => {
                        self.count_guard.record_message();
                        self.piece = piece;
                    }
                    Some(Err(error)) => return Poll::Ready(Err(TunnelError::from_h2(&error))),
                    None if !self.decoder.is_at_boundary() => {
                        return Poll::Ready(Err(protocol(&"the stream ended within a packet")));
                    }
                    None => {
                        let trailers = ready!(body.poll_trailers(cx)).map_err(|error| TunnelError::from_h2(&error))?;
                        *incoming = ReceiveState::Closed;
                        let status = trailers.as_ref().and_then(grpc_status).unwrap_or(Ok(()));
                        return Poll::Ready(status.map(|()| None));
                    }
                },
                ReceiveState::Closed => return Poll::Ready(Ok(None)),
            }
        }
    }
}

/// gRPC status of a finished call, if present.
fn grpc_status(headers: &HeaderMap) -> Option<Result<(), TunnelError>> {
    let code = headers.get("grpc-status")?;
    if code == "0" {
        return Some(Ok(()));
    }
    let text = headers.get("grpc-message").map_or(&b""[..], http::HeaderValue::as_bytes);
    let text = percent_encoding::percent_decode(text).decode_utf8_lossy();
    let why = format_args!("the server refuses with gRPC status {}: {text}", String::from_utf8_lossy(code.as_bytes()))
        .to_string();
    Some(Err(TunnelError::new(TunnelFailure::Rejected, why)))
}
