//! Lingering close: closes a connection without losing the last response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// Longer than net/http's `rstAvoidanceDelay` of half a second, which is too short for a client with a large body.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes read. After that the socket only stays open, and its window holds back the rest.
/// An HTTP/1.1 client cannot be told to stop and may be a blocking writer, so its limit is large. An HTTP/2
/// client that sends on after GOAWAY is hostile.
const MAX_READ_HTTP2: usize = 256 << 10;
const MAX_READ_HTTP1: usize = 64 << 20;
/// Reads per poll, before other tasks get their turn.
const READS_PER_POLL: usize = 16;

/// Reads on for a short time after our half of a connection is closed.
///
/// A client may still send its body after the response (413, 401). If the socket were closed, the kernel would
/// answer unread data with a reset, and the reset may overtake the response.
pub(super) struct LingeringClose {
    timeout: Option<Pin<Box<Sleep>>>,
    read: usize,
    max_read: usize,
}

impl LingeringClose {
    /// With `expecting`, it waits for data even if none has arrived yet.
    pub(super) fn new(expecting: bool, http2: bool) -> LingeringClose {
        let max_read = if http2 { MAX_READ_HTTP2 } else { MAX_READ_HTTP1 };
        LingeringClose { timeout: expecting.then(|| Box::pin(tokio::time::sleep(LINGER_TIMEOUT))), read: 0, max_read }
    }

    /// Ready when nothing is left to read, when the client has closed, or after two seconds.
    pub(super) fn poll<T: AsyncRead + Unpin>(&mut self, stream: &mut T, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(end) = self.timeout.as_mut().filter(|_| self.read > self.max_read) {
            return end.as_mut().poll(cx).map(Ok);
        }
        let mut space = [0; 4096];
        for _ in 0..READS_PER_POLL {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.read += buffer.filled().len();
                    let end = self.timeout.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER_TIMEOUT)));
                    if end.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    return match &mut self.timeout {
                        // No data has arrived, so there is nothing to wait for.
                        None => Poll::Ready(Ok(())),
                        Some(end) => end.as_mut().poll(cx).map(Ok),
                    };
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
