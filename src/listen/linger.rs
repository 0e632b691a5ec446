//! Lingering close: closes a connection without losing the last response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// Longer than net/http's `rstAvoidanceDelay` of half a second, which is too short for a client with a large body.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum bytes read. After that the socket only stays open, and its window holds back the rest.
/// An HTTP/1.1 client cannot be told to stop and may be a blocking writer, so its limit is large. An HTTP/2
/// client that sends on after GOAWAY is hostile.
const MOST: usize = 256 << 10;
const MOST_HTTP1: usize = 64 << 20;
/// Reads per poll, before other tasks get their turn.
const AT_ONCE: usize = 16;

/// Reads on for a short time after our half of a connection is closed.
///
/// A client may still send its body after the response (413, 401). If the socket were closed, the kernel would
/// answer unread data with a reset, and the reset may overtake the response.
pub(super) struct Linger {
    end: Option<Pin<Box<Sleep>>>,
    read: usize,
    most: usize,
}

impl Linger {
    /// With `expecting`, it waits for data even if none has arrived yet.
    pub(super) fn new(expecting: bool, http2: bool) -> Linger {
        let most = if http2 { MOST } else { MOST_HTTP1 };
        Linger { end: expecting.then(|| Box::pin(tokio::time::sleep(PATIENCE))), read: 0, most }
    }

    /// Ready when nothing is left to read, when the client has closed, or after two seconds.
    pub(super) fn poll<T: AsyncRead + Unpin>(&mut self, stream: &mut T, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(end) = self.end.as_mut().filter(|_| self.read > self.most) {
            return end.as_mut().poll(cx).map(Ok);
        }
        let mut space = [0; 4096];
        for _ in 0..AT_ONCE {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut *stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    self.read += buffer.filled().len();
                    let end = self.end.get_or_insert_with(|| Box::pin(tokio::time::sleep(PATIENCE)));
                    if end.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    return match &mut self.end {
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
