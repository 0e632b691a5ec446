//! A TLS stream that reports the alert of the server when a write fails.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// With TLS 1.3 a server refuses a client certificate after the client has finished its handshake: it sends an alert and
/// closes the connection. A client that writes at that time only sees a broken pipe, although the alert has arrived.
pub(super) struct AlertStream<S> {
    stream: S,
    failed_write: Option<io::Error>,
}

impl<S: AsyncRead + Unpin> AlertStream<S> {
    pub(super) fn new(stream: S) -> AlertStream<S> {
        AlertStream { stream, failed_write: None }
    }

    /// After a failed write, waits for the end of what the server has sent: its alert, or else the error of the write.
    /// That takes no time, as the connection is closed.
    fn with_alert<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match polled {
            Poll::Ready(Err(error)) => {
                self.failed_write.get_or_insert(error);
            }
            polled if self.failed_write.is_none() => return polled,
            _ => {}
        }
        let mut scratch = [0; 1024];
        let reason = loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Err(reason) if crate::tls::rustls_error(&reason).is_some() => break Some(reason),
                _ => break None,
            }
        };
        let failed = self.failed_write.take();
        Poll::Ready(Err(reason.or(failed).unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AlertStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, out)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for AlertStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.with_alert(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, buffers);
        this.with_alert(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        this.with_alert(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Its writes fail; its reads end with what the test gives.
    struct BrokenStream(Option<io::Error>);

    impl AsyncRead for BrokenStream {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(self.0.take().map_or(Ok(()), Err))
        }
    }

    impl AsyncWrite for BrokenStream {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn alert_stream_reports_the_alert_behind_a_broken_pipe() {
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA);
        for (reason, expected) in [
            (Some(io::Error::new(io::ErrorKind::InvalidData, alert)), "UnknownCA"),
            (Some(io::ErrorKind::ConnectionReset.into()), "broken pipe"),
            (None, "broken pipe"),
        ] {
            let error = AlertStream::new(BrokenStream(reason)).write_all(b"a").await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
