//! Closing without losing the last answer.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

/// Longer than net/http's `rstAvoidanceDelay` of half a second, which a client with much to send outlives.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is read at most. After that the socket only stays open: what is not read is held back by its window.
/// An HTTP/1.1 client cannot be told to stop and may be a blocking writer, so much is taken from it; an HTTP/2
/// client that sends on after its GOAWAY is a hostile one.
const MOST: usize = 256 << 10;
const MOST_HTTP1: usize = 64 << 20;
/// Pieces read without giving others their turn.
const AT_ONCE: usize = 16;

/// Reads on for a little after our half of a connection is closed.
///
/// A client that still sends its body when the answer is out (413, 401) would meet a closed socket: the kernel
/// answers what nobody reads with a reset, and a reset may overtake the answer.
pub(super) struct Linger {
    end: Option<Pin<Box<Sleep>>>,
    read: usize,
    most: usize,
}

impl Linger {
    /// With `expecting`, more may come although nothing is there yet.
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
                        // Nothing was on its way: nothing to wait for.
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
