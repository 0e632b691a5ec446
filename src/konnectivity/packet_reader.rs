//! Reads packets from a gRPC stream.

use bytes::Bytes;
use h2::RecvStream;

use crate::egress::proxy::konnectivity::{Packet, PacketDecoder};

/// The receiving half of a gRPC stream.
pub(super) struct PacketReader {
    body: RecvStream,
    /// Bytes received that HTTP/2's flow control still counts as unread.
    unreleased: usize,
    decoder: PacketDecoder,
    /// Bytes received but not decoded.
    piece: Bytes,
}

impl PacketReader {
    pub(super) fn new(body: RecvStream) -> PacketReader {
        PacketReader { body, unreleased: 0, decoder: PacketDecoder::default(), piece: Bytes::new() }
    }

    /// The next packet; `None` at the end of the stream.
    ///
    /// # Errors
    /// The stream was reset, or its content is no packet.
    pub(super) async fn next(&mut self) -> Result<Option<Packet>, String> {
        let held = self.take_unreleased();
        self.release(held);
        self.next_held().await
    }

    /// As [`PacketReader::next`], but its bytes count as unread until they are released.
    pub(super) async fn next_held(&mut self) -> Result<Option<Packet>, String> {
        loop {
            if !self.piece.is_empty()
                && let Some(decoded) = self.decoder.decode(&mut self.piece).map_err(|invalid| invalid.to_string())?
            {
                return Ok(Some(decoded.packet));
            }
            match self.body.data().await {
                Some(Ok(piece)) => {
                    self.unreleased += piece.len();
                    self.piece = piece;
                }
                Some(Err(error)) => return Err(error.to_string()),
                None if self.decoder.is_at_boundary() => return Ok(None),
                None => return Err("the stream ended within a packet".to_owned()),
            }
        }
    }

    /// Number of bytes received since the last call, for [`PacketReader::release`].
    pub(super) fn take_unreleased(&mut self) -> usize {
        std::mem::take(&mut self.unreleased)
    }

    /// Lets the peer send `length` more bytes.
    pub(super) fn release(&mut self, length: usize) {
        if length > 0 {
            // Fails only when the stream is over.
            let _ = self.body.flow_control().release_capacity(length);
        }
    }

    /// The trailers, after the end of the stream.
    pub(super) async fn trailers(&mut self) -> Option<http::HeaderMap> {
        self.body.trailers().await.ok().flatten()
    }
}
