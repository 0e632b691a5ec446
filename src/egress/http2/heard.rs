//! Records activity on a connection: the number of reads, and the last error.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls::Failure;

/// Activity of a connection.
#[derive(Default)]
pub(in crate::egress) struct Ear {
    /// Number of reads.
    pub(in crate::egress) count: Cell<u64>,
    /// Error that ended the connection: h2 keeps only the text of errors.
    pub(in crate::egress) failed: Cell<Option<Failure>>,
}

/// A stream that records its activity.
pub(in crate::egress) struct Heard<T> {
    pub(in crate::egress) stream: T,
    pub(in crate::egress) ear: Rc<Ear>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        match &result {
            Ok(()) => self.ear.count.set(self.ear.count.get() + 1),
            Err(error) => self.ear.failed.set(Some(Failure::of(error))),
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncRead + Unpin> Heard<T> {
    /// When a write fails the peer has closed, and may have sent the reason (a TLS alert) just before: it is read
    /// first, which takes no time on a closed socket.
    fn written<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if let Poll::Ready(Err(error)) = &written
            && self.ear.failed.get().is_none()
        {
            let mut space = [0; 64];
            let mut buffer = ReadBuf::new(&mut space);
            let last_words = match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Err(error) => Failure::of(&error),
                Ok(()) => Failure::of(error),
            };
            self.ear.failed.set(Some(last_words));
        }
        written
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Heard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
