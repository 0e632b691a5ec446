//! Reads more from a stream without TLS than its reader asks for.
//!
//! A peer that sends the data of many requests on one connection has often sent more by then, and each read would be a
//! system call. TLS has buffers of its own.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::egress::dial::connection_limit::ConnectionSlot;
use crate::egress::dial::transport::TransportStream;
use crate::tls::StreamBuffer;

/// A read of this size is not read ahead.
const MAX_READ_AHEAD: usize = 64 << 10;

/// An open connection with optional read-ahead.
pub struct ReadAhead {
    transport: TransportStream,
    is_enabled: bool,
    buffered: StreamBuffer,
    /// Counts the connection, if it is counted.
    slot: Option<ConnectionSlot>,
}

impl ReadAhead {
    /// A connection without read-ahead.
    pub(in crate::egress) fn new(transport: TransportStream) -> ReadAhead {
        ReadAhead { transport, is_enabled: false, buffered: StreamBuffer::default(), slot: None }
    }

    /// A connection that returns `bytes`, received already, before reading.
    pub(in crate::egress) fn with_prefix(bytes: &[u8], transport: TransportStream) -> ReadAhead {
        ReadAhead { transport, is_enabled: false, buffered: StreamBuffer::exact(bytes), slot: None }
    }

    /// Holds `slot` until the connection is dropped.
    pub(in crate::egress) fn attach_slot(&mut self, slot: ConnectionSlot) {
        self.slot = Some(slot);
    }

    /// Has the connection reset instead of closed in order when this is dropped, where the transport can do that.
    pub fn reset_on_drop(&self) {
        self.transport.reset_on_drop();
    }

    /// Enables read-ahead; for connections shared by many requests.
    pub(in crate::egress) fn enable(&mut self) {
        self.is_enabled = true;
    }
}

impl AsyncRead for ReadAhead {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.buffered.unread().is_empty() {
            if !this.is_enabled || out.remaining() >= MAX_READ_AHEAD {
                return Pin::new(&mut this.transport).poll_read(cx, out);
            }
            ready!(this.buffered.poll_fill(&mut this.transport, cx))?;
        }
        this.buffered.read_into(out);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReadAhead {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn read_ahead_keeps_byte_order() {
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
            let mut reader = ReadAhead::new(TransportStream::Tcp(socket));
            let mut got = vec![0; 1000];
            reader.read_exact(&mut got).await.unwrap();
            if ahead {
                reader.enable();
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
            assert_eq!(reader.buffered.capacity(), 0);
        }
    }

    #[tokio::test]
    async fn read_ahead_prefix_comes_first_and_is_not_recycled() {
        let (near, mut far) = tokio::net::UnixStream::pair().unwrap();
        let mut reader = ReadAhead::with_prefix(b"first ", TransportStream::Unix(near));
        far.write_all(b"second").await.unwrap();
        far.shutdown().await.unwrap();
        let mut got = Vec::new();
        reader.enable();
        reader.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"first second");
        assert!(StreamBuffer::spare_lengths().iter().all(|length| *length == StreamBuffer::BYTES));
    }
}
