//! A client's stream that reports its activity.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::blocks::Blocks;
use super::lifetime::{End, Lifetime};
use super::linger::Linger;

/// A stream that reports reads and writes to its [`Lifetime`].
pub(super) struct Observed<T> {
    stream: T,
    lifetime: Arc<Lifetime>,
    /// Tracks incomplete frames of an HTTP/2 client.
    blocks: Option<Blocks>,
    /// Set once our half is closed.
    linger: Option<Linger>,
}

impl<T> Observed<T> {
    pub(super) fn new(stream: T, lifetime: Arc<Lifetime>) -> Observed<T> {
        let blocks = lifetime.http2.then(Blocks::new);
        Observed { stream, lifetime, blocks, linger: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Observed<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut this.stream).poll_read(cx, buffer));
        match &mut this.blocks {
            Some(blocks) => this.lifetime.frames_came(blocks.follow(&buffer.filled()[before..])),
            None => this.lifetime.bytes_came(),
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Observed<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.lifetime.moved();
        Poll::Ready(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices));
        self.lifetime.moved();
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        if self.lifetime.flushed() {
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
        if this.lifetime.is_upgraded() {
            return Poll::Ready(Ok(()));
        }
        // Closed without a request to close: then because of what its client still sends.
        let (expecting, http2) = (this.lifetime.told() == End::No, this.lifetime.http2);
        this.linger.get_or_insert_with(|| Linger::new(expecting, http2)).poll(&mut this.stream, cx)
    }
}
