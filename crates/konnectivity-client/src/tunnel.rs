//! A tunnel: one TCP connection of the agent, as a byte stream here.

use std::collections::VecDeque;
use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::LOG_TARGET;
use super::close::{CLOSE_TIMEOUT, StreamClose};
use super::connection_state::TunnelConnectionState;
use super::failure::{TunnelError, TunnelFailure};
use super::packet::{Packet, encode_data_frame};
use super::proxy_stream::ProxyStream;

/// Limit of a packet's data. An agent's queue counts packets, so larger ones would hold too much of one connection;
/// most writers write no more at a time.
const MAX_PACKET_DATA: usize = 64 << 10;
/// Bytes read ahead of the reader to notice a remote close.
const READ_AHEAD_LIMIT: usize = 64 << 10;
/// How long an agent gets to forward what was sent before it is asked to close: an agent of the reference then drops
/// the rest. It is also how long the remote end may take to respond to a half-closed stream.
const LINGER: Duration = Duration::from_secs(1);

/// A connection through a Konnectivity server and agent.
///
/// Konnectivity cannot close one direction only. `shutdown` waits until everything is sent and both directions were
/// idle for a second, then closes both; what the remote end sent before can still be read.
///
/// Reading ends cleanly only if the remote end reported a close. An agent of the reference does that whether its target
/// closed or was lost, so protocols that must tell them apart need a length or TLS inside.
pub struct KonnectivityTunnel {
    /// `None` only while dropping.
    call: Option<ProxyStream>,
    shared: Arc<TunnelConnectionState>,
    connection: i64,
    /// Data received but not read, each with the flow-control capacity to release.
    inbox: VecDeque<(Bytes, usize)>,
    /// Bytes in the inbox.
    inbox_bytes: usize,
    end: Option<Result<(), TunnelError>>,
    close_state: TunnelCloseState,
    /// Whether a reader is to be woken by the next packet.
    is_reader_waiting: bool,
    last_sent: Option<Instant>,
    last_received: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// State of the local close.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TunnelCloseState {
    Open,
    /// Writing has ended.
    WriteClosed,
    /// A `CloseRequest` was sent.
    CloseRequested,
}

impl KonnectivityTunnel {
    pub(super) fn new(call: ProxyStream, connection: i64, shared: Arc<TunnelConnectionState>) -> KonnectivityTunnel {
        KonnectivityTunnel {
            call: Some(call),
            shared,
            connection,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            end: None,
            close_state: TunnelCloseState::Open,
            is_reader_waiting: false,
            last_sent: None,
            last_received: None,
            timer: None,
        }
    }

    fn call(&mut self) -> Result<&mut ProxyStream, TunnelError> {
        self.call.as_mut().ok_or_else(|| TunnelError::new(TunnelFailure::Lost, "the stream is gone"))
    }

    /// Processes the next packets; ready when there is data or the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.call.as_ref().is_some_and(|call| call.handle.is_abandoned()) {
                self.inbox.clear();
                self.inbox_bytes = 0;
                self.end = Some(Err(TunnelError::new(TunnelFailure::SlowReader, "closed: its reader is too slow")));
            }
            if self.end.is_some() {
                return Poll::Ready(());
            }
            let packet = match self.call() {
                Ok(call) => ready!(call.poll_packet(cx)),
                Err(error) => Err(error),
            };
            match packet {
                Ok(Some((Packet::Data { connection, data }, owed))) if connection == self.connection => {
                    if !data.is_empty() {
                        self.inbox_bytes += data.len();
                        self.inbox.push_back((data, owed));
                        self.last_received = Some(Instant::now());
                        return Poll::Ready(());
                    }
                }
                Ok(Some((Packet::CloseResponse { connection, error }, _))) if connection == self.connection => {
                    let lost = || TunnelError::new(TunnelFailure::Lost, format_args!("closed remotely: {error}"));
                    let fine = error.is_empty() || self.close_state == TunnelCloseState::CloseRequested;
                    self.end = Some(if fine { Ok(()) } else { Err(lost()) });
                }
                Ok(Some((packet, owed))) => {
                    tracing::debug!(target: LOG_TARGET, ?packet, "unexpected Konnectivity packet ignored");
                    if let Some(call) = &self.call {
                        call.handle.release(owed);
                    }
                }
                Ok(None) => {
                    let lost = TunnelError::new(TunnelFailure::Lost, "server ended the stream without CloseResponse");
                    self.end =
                        Some(if self.close_state == TunnelCloseState::CloseRequested { Ok(()) } else { Err(lost) });
                }
                Err(error) => self.end = Some(Err(error)),
            }
        }
    }

    /// Reads ahead for a writer, if no reader does, to notice a remote close.
    fn read_ahead(&mut self, cx: &mut Context<'_>) {
        while !self.is_reader_waiting
            && self.end.is_none()
            && self.inbox_bytes < READ_AHEAD_LIMIT
            && self.poll_next(cx).is_ready()
        {}
    }

    /// Copies data from the inbox to the reader.
    fn copy_to(&mut self, out: &mut ReadBuf<'_>) {
        while out.remaining() > 0
            && let Some((bytes, owed)) = self.inbox.front_mut()
        {
            let length = bytes.len().min(out.remaining());
            out.put_slice(&bytes[..length]);
            bytes.advance(length);
            self.inbox_bytes -= length;
            let owed = if bytes.is_empty() { std::mem::take(owed) } else { 0 };
            if bytes.is_empty() {
                self.inbox.pop_front();
            }
            if let Some(call) = &self.call {
                call.handle.release(owed);
            }
        }
    }

    fn poll_timer(&mut self, at: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        timer.as_mut().poll(cx)
    }

    fn poll_write_slices(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.read_ahead(&mut Context::from_waker(Waker::noop()));
        match &self.end {
            Some(Err(error)) => return Poll::Ready(Err(error.clone().into())),
            Some(Ok(())) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            None if self.close_state != TunnelCloseState::Open => {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            None => {}
        }
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>().min(MAX_PACKET_DATA);
        if length == 0 {
            return Poll::Ready(Ok(0));
        }
        let connection = self.connection;
        let handle = &self.call()?.handle;
        let length = ready!(handle.poll_capacity(cx, length))?;
        handle.send_frame(encode_data_frame(connection, slices, length))?;
        self.last_sent = Some(Instant::now());
        Poll::Ready(Ok(length))
    }
}

impl AsyncRead for KonnectivityTunnel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.is_reader_waiting = false;
        let before = out.filled().len();
        loop {
            this.copy_to(out);
            if out.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let something = out.filled().len() > before;
            if this.inbox.is_empty()
                && let Some(end) = &this.end
            {
                return Poll::Ready(if something { Ok(()) } else { end.clone().map_err(io::Error::from) });
            }
            if this.poll_next(cx).is_ready() {
                continue;
            }
            if something {
                return Poll::Ready(Ok(()));
            }
            this.is_reader_waiting = true;
            if this.close_state != TunnelCloseState::CloseRequested {
                return Poll::Pending;
            }
            // Set when the `CloseRequest` was sent.
            let due = this.timer.as_ref().map_or_else(Instant::now, |timer| timer.deadline());
            ready!(this.poll_timer(due, cx));
            this.end = Some(Err(TunnelError::new(TunnelFailure::CloseTimeout, "close unconfirmed by the remote end")));
        }
    }
}

impl AsyncWrite for KonnectivityTunnel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_slices(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_slices(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection's task sends written data as soon as the socket accepts it.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.close_state == TunnelCloseState::CloseRequested {
            return Poll::Ready(Ok(()));
        }
        this.close_state = TunnelCloseState::WriteClosed;
        loop {
            this.read_ahead(cx);
            if this.end.is_some() {
                return Poll::Ready(Ok(()));
            }
            let Some(last) = this.last_sent.max(this.last_received) else { break };
            let due = last + LINGER;
            if due <= Instant::now() {
                break;
            }
            ready!(this.poll_timer(due, cx));
        }
        let request = Packet::CloseRequest { connection: this.connection };
        this.call()?.handle.send(&request, false)?;
        this.close_state = TunnelCloseState::CloseRequested;
        // Only a reader waits for the response.
        this.timer = Some(Box::pin(sleep_until(Instant::now() + CLOSE_TIMEOUT)));
        Poll::Ready(Ok(()))
    }
}

impl Drop for KonnectivityTunnel {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        let connection = self.connection;
        match (&self.end, self.close_state) {
            // The stream is over, or is to be reset.
            (Some(Err(_)), _) => {}
            (Some(Ok(())), _) => self.shared.close_later(StreamClose::Closed(call)),
            (None, TunnelCloseState::CloseRequested) => {
                self.shared.close_later(StreamClose::CloseRequested(call, connection))
            }
            (None, _) => {
                for (_, owed) in &self.inbox {
                    call.handle.release(*owed);
                }
                let due = self.last_sent.map_or_else(Instant::now, |sent| sent + LINGER);
                self.shared.close_later(StreamClose::Established { call, connection, due });
            }
        }
    }
}
