//! A client's stream of which some received bytes are replaced before the HTTP library sees them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Decides about received bytes, piece by piece.
pub(crate) trait StreamRewriter {
    /// The length of the next bytes that can be processed, and what becomes of them; none if more must arrive. It gets
    /// the same bytes again then, with those that arrived.
    ///
    /// # Errors
    /// The connection cannot go on.
    fn next_piece(&mut self, bytes: &[u8]) -> io::Result<Option<(usize, RewrittenPiece)>>;
}

/// What becomes of received bytes.
pub(crate) enum RewrittenPiece {
    /// They pass as they are.
    Unchanged,
    /// These bytes, which may be none, take their place.
    Replaced(BytesMut),
}

/// A stream whose received bytes pass through a [`StreamRewriter`].
pub(crate) struct RewrittenStream<S, R> {
    stream: S,
    rewriter: R,
    /// Bytes received but not processed.
    pending: BytesMut,
    /// Bytes processed but not read.
    output: BytesMut,
    /// Whether pending bytes may be processed once the output is read.
    is_behind: bool,
}

/// Bytes of output from which no further piece is processed before some are read.
const MAX_OUTPUT: usize = 64 << 10;

impl<S, R> RewrittenStream<S, R> {
    pub(super) fn new(stream: S, rewriter: R) -> RewrittenStream<S, R> {
        RewrittenStream { stream, rewriter, pending: BytesMut::new(), output: BytesMut::new(), is_behind: false }
    }
}

impl<S, R: StreamRewriter> RewrittenStream<S, R> {
    /// Processes what is complete of `bytes`. Returns the number of leading bytes that pass where they are, if they may
    /// stay `in_place`, and the number of bytes processed. Others that pass are added to the output.
    fn process(&mut self, bytes: &[u8], mut in_place: bool) -> io::Result<(usize, usize)> {
        let (mut position, mut passed) = (0, 0);
        loop {
            self.is_behind = self.output.len() >= MAX_OUTPUT;
            if self.is_behind {
                break;
            }
            let Some((length, piece)) = self.rewriter.next_piece(&bytes[position..])? else { break };
            match piece {
                RewrittenPiece::Unchanged if in_place => passed += length,
                RewrittenPiece::Unchanged => self.output.extend_from_slice(&bytes[position..position + length]),
                RewrittenPiece::Replaced(frames) => {
                    in_place = false;
                    self.output.extend_from_slice(&frames);
                }
            }
            position += length;
        }
        Ok((passed, position))
    }
}

impl<S: AsyncRead + Unpin, R: StreamRewriter + Unpin> AsyncRead for RewrittenStream<S, R> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.output.is_empty() {
                let length = this.output.len().min(out.remaining());
                out.put_slice(&this.output.split_to(length));
                if this.output.is_empty() {
                    // An idle connection holds no buffer.
                    this.output = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            if this.is_behind {
                let mut pending = std::mem::take(&mut this.pending);
                let (_, processed) = this.process(&pending, false)?;
                this.pending = pending.split_off(processed);
                continue;
            }
            let before = out.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, out))?;
            let received = &out.filled()[before..];
            if received.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let result = if this.pending.is_empty() {
                let result = this.process(received, true);
                if let Ok((_, processed)) = &result {
                    this.pending.extend_from_slice(&received[*processed..]);
                }
                result
            } else {
                let mut pending = std::mem::take(&mut this.pending);
                pending.extend_from_slice(received);
                let result = this.process(&pending, false);
                if let Ok((_, processed)) = &result {
                    this.pending = pending.split_off(*processed);
                }
                result
            };
            // An error comes without bytes.
            out.set_filled(before);
            let (passed, _) = result?;
            out.set_filled(before + passed);
            if passed > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin, R: Unpin> AsyncWrite for RewrittenStream<S, R> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
