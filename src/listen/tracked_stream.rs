//! A client's stream that reports its activity.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connections::{CloseMode, ConnectionTracker};
use super::h2_frame_tracker::FrameTracker;
use super::lingering_close::LingeringClose;
use crate::tls::ServerTlsStream;

/// A stream that reports reads and writes to its [`ConnectionTracker`].
pub(super) struct TrackedStream<T> {
    stream: T,
    connection: Arc<ConnectionTracker>,
    /// Tracks incomplete frames of an HTTP/2 client.
    frames: Option<FrameTracker>,
    /// Set once our half is closed.
    linger: Option<LingeringClose>,
}

/// A client's TLS connection, tracked.
pub(super) type ClientStream = TrackedStream<ServerTlsStream<TcpStream>>;

impl<T> TrackedStream<T> {
    pub(super) fn new(stream: T, lifetime: Arc<ConnectionTracker>) -> TrackedStream<T> {
        let blocks = lifetime.http2.then(FrameTracker::new);
        TrackedStream { stream, connection: lifetime, frames: blocks, linger: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut this.stream).poll_read(cx, buffer));
        match &mut this.frames {
            Some(blocks) => this.connection.on_frames_received(blocks.observe(&buffer.filled()[before..])),
            None => this.connection.on_bytes_received(),
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TrackedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.connection.record_activity();
        Poll::Ready(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices));
        self.connection.record_activity();
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        if self.connection.on_flushed() {
            // The response may continue.
            cx.waker().wake_by_ref();
        }
        Poll::Ready(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        // A tunnel may be half-closed; its other half is read elsewhere.
        if this.connection.is_upgraded() {
            return Poll::Ready(Ok(()));
        }
        // Closed without a request to close: then because of what its client still sends.
        let (expecting, http2) = (this.connection.close_mode() == CloseMode::None, this.connection.http2);
        this.linger.get_or_insert_with(|| LingeringClose::new(expecting, http2)).poll(&mut this.stream, cx)
    }
}
