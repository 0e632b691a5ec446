//! Records activity on a connection: the number of reads, and the last error.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls::ConnectionFailure;

/// Activity of a connection.
#[derive(Default)]
pub(in crate::egress) struct ConnectionActivity {
    /// Number of reads.
    pub(in crate::egress) read_count: Cell<u64>,
    /// Error that ended the connection: h2 keeps only the text of errors.
    pub(in crate::egress) failure: Cell<Option<ConnectionFailure>>,
}

/// A stream that records its activity.
pub(in crate::egress) struct ActivityStream<T> {
    pub(in crate::egress) stream: T,
    pub(in crate::egress) activity: Rc<ConnectionActivity>,
}

impl<T: AsyncRead + Unpin> AsyncRead for ActivityStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        match &result {
            Ok(()) => self.activity.read_count.set(self.activity.read_count.get() + 1),
            Err(error) => self.activity.failure.set(Some(ConnectionFailure::from_io(error))),
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncRead + Unpin> ActivityStream<T> {
    /// After a failed write, first reads the reason that the closing peer may have sent (a TLS alert); that takes no
    /// time on a closed socket.
    fn record_write_error<R>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if let Poll::Ready(Err(error)) = &result
            && self.activity.failure.get().is_none()
        {
            let mut space = [0; 64];
            let mut buffer = ReadBuf::new(&mut space);
            let last_words = match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Err(error) => ConnectionFailure::from_io(&error),
                Ok(()) => ConnectionFailure::from_io(error),
            };
            self.activity.failure.set(Some(last_words));
        }
        result
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ActivityStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_write_error(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.record_write_error(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.record_write_error(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
