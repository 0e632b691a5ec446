//! An ear on a connection: whether the other side still says anything, and what it said last.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls::Failure;

/// What is heard on a connection.
#[derive(Default)]
pub(in crate::egress) struct Ear {
    /// How often bytes came.
    pub(in crate::egress) count: Cell<u64>,
    /// Why none will come any more: h2 forgets all of an error but its text.
    pub(in crate::egress) failed: Cell<Option<Failure>>,
}

/// A stream and an ear on it.
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
    /// When a write fails the other side has hung up, and may have said why just before: that is waited for, which
    /// is not long on a closed socket.
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
