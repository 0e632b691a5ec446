//! Reads more from a socket than TLS asks for.
//!
//! rustls reads 4 KiB at a time. A backend that answers many requests on one connection has often sent more by then,
//! and each read would be a system call.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::allowance::Place;
use super::carrier::Carrier;

/// Size of a read-ahead buffer.
const AHEAD: usize = 64 << 10;
/// Spare buffers kept per thread.
const SPARES: usize = 4;

thread_local! {
    /// Spare buffers. A connection owns a buffer only while it holds unread data, so idle connections have none.
    static SPARE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// An open connection with optional read-ahead.
pub struct ReadAhead {
    carrier: Carrier,
    ahead: bool,
    left: Option<Left>,
    /// Counts the connection, if it is counted.
    place: Option<Place>,
}

/// Data read from the socket but not yet consumed.
struct Left {
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
}

impl ReadAhead {
    /// A connection without read-ahead.
    pub(super) fn new(carrier: Carrier) -> ReadAhead {
        ReadAhead { carrier, ahead: false, left: None, place: None }
    }

    /// A connection that returns `bytes`, received already, before reading.
    pub(super) fn after(bytes: &[u8], carrier: Carrier) -> ReadAhead {
        let left = Left { buffer: bytes.into(), from: 0, to: bytes.len() };
        ReadAhead { carrier, ahead: false, left: (!bytes.is_empty()).then_some(left), place: None }
    }

    /// Holds `place` until the connection is dropped.
    pub(super) fn keep(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Has the connection reset instead of closed in order when this is dropped, where the transport can do that.
    pub fn break_off(&self) {
        self.carrier.break_off();
    }

    /// Enables read-ahead; for connections shared by many requests.
    pub(super) fn begin(&mut self) {
        self.ahead = true;
    }
}

fn give_back(buffer: Box<[u8]>) {
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < SPARES && buffer.len() == AHEAD {
            spare.push(buffer);
        }
    });
}

impl Left {
    /// Copies as much as fits; returns whether nothing is left.
    fn give(&mut self, out: &mut ReadBuf<'_>) -> bool {
        let n = out.remaining().min(self.to - self.from);
        out.put_slice(&self.buffer[self.from..self.from + n]);
        self.from += n;
        self.from == self.to
    }
}

impl AsyncRead for ReadAhead {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.left.is_none() {
            if !this.ahead || out.remaining() >= AHEAD {
                return Pin::new(&mut this.carrier).poll_read(cx, out);
            }
            let mut buffer = SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; AHEAD].into_boxed_slice());
            let mut space = ReadBuf::new(&mut buffer);
            let read = Pin::new(&mut this.carrier).poll_read(cx, &mut space);
            let to = space.filled().len();
            if !matches!(read, Poll::Ready(Ok(()))) || to == 0 {
                give_back(buffer);
                ready!(read)?;
                return Poll::Ready(Ok(()));
            }
            this.left = Some(Left { buffer, from: 0, to });
        }
        if let Some(left) = &mut this.left
            && left.give(out)
            && let Some(left) = this.left.take()
        {
            give_back(left.buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReadAhead {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.carrier).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.carrier).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.carrier.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn every_byte_comes_in_order_whatever_is_asked_for() {
        for ahead in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut sender, _) = listener.accept().await.unwrap();
            let sent: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
            let copy = sent.clone();
            let sending = tokio::spawn(async move {
                sender.write_all(&copy).await.unwrap();
                sender.shutdown().await.unwrap();
            });
            let mut reader = ReadAhead::new(Carrier::Tcp(socket));
            let mut got = vec![0; 1000];
            reader.read_exact(&mut got).await.unwrap();
            if ahead {
                reader.begin();
            }
            for size in [1, 5, 4096, 100_000, 65_536, 7].into_iter().cycle() {
                let mut piece = vec![0; size];
                let n = reader.read(&mut piece).await.unwrap();
                if n == 0 {
                    break;
                }
                got.extend_from_slice(&piece[..n]);
            }
            sending.await.unwrap();
            assert!(got == sent, "ahead: {ahead}");
            assert!(reader.left.is_none());
        }
    }

    #[tokio::test]
    async fn what_was_read_already_comes_first_and_is_not_kept_for_others() {
        let (near, mut far) = tokio::net::UnixStream::pair().unwrap();
        let mut reader = ReadAhead::after(b"first ", Carrier::Unix(near));
        far.write_all(b"second").await.unwrap();
        far.shutdown().await.unwrap();
        let mut got = Vec::new();
        reader.begin();
        reader.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"first second");
        assert!(SPARE.with_borrow(|spare| spare.iter().all(|buffer| buffer.len() == AHEAD)));
    }
}
