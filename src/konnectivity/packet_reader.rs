//! Reads packets from a gRPC stream.

use bytes::Bytes;
use h2::RecvStream;
use konnectivity_client::{InvalidMessage, Packet, PacketDecoder};

use super::stream_counter::StreamCounter;

/// Received bytes of an incomplete packet beyond which HTTP/2's flow control counts them as read: a packet may be longer
/// than the window of its stream.
const MAX_HELD_BYTES: usize = 512 << 10;

/// Why there is no next packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PacketReadError {
    /// The stream was reset, or its connection is lost.
    Stream(String),
    /// The content is no packet.
    Invalid(InvalidMessage),
}

impl std::fmt::Display for PacketReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PacketReadError::Stream(error) => f.write_str(error),
            PacketReadError::Invalid(invalid) => invalid.fmt(f),
        }
    }
}

/// The receiving half of a gRPC stream.
pub(super) struct PacketReader {
    body: RecvStream,
    /// Bytes received that HTTP/2's flow control still counts as unread.
    unreleased: usize,
    decoder: PacketDecoder,
    /// Bytes received but not decoded.
    piece: Bytes,
    counter: Option<StreamCounter>,
}

impl PacketReader {
    pub(super) fn new(body: RecvStream) -> PacketReader {
        PacketReader { body, unreleased: 0, decoder: PacketDecoder::default(), piece: Bytes::new(), counter: None }
    }

    /// As [`PacketReader::new`], and counts packets and errors.
    pub(super) fn counted(body: RecvStream, counter: StreamCounter) -> PacketReader {
        PacketReader { counter: Some(counter), ..PacketReader::new(body) }
    }

    /// The next packet; `None` at the end of the stream.
    ///
    /// # Errors
    /// The stream was reset, or its content is no packet.
    pub(super) async fn next(&mut self) -> Result<Option<Packet>, PacketReadError> {
        let held = self.take_unreleased();
        self.release(held);
        self.next_held(true).await
    }

    /// As [`PacketReader::next`], but its bytes count as unread until they are released. If `may_release`, those of an
    /// incomplete packet do not beyond [`MAX_HELD_BYTES`].
    pub(super) async fn next_held(&mut self, may_release: bool) -> Result<Option<Packet>, PacketReadError> {
        loop {
            if !self.piece.is_empty() {
                match self.decoder.decode(&mut self.piece) {
                    Ok(Some(decoded)) => {
                        self.count(|counter| counter.record(&decoded.packet));
                        return Ok(Some(decoded.packet));
                    }
                    Ok(None) => {}
                    Err(invalid) => {
                        self.count(|counter| counter.record_invalid(invalid));
                        return Err(PacketReadError::Invalid(invalid));
                    }
                }
            }
            if may_release && self.unreleased >= MAX_HELD_BYTES {
                let held = self.take_unreleased();
                self.release(held);
            }
            match self.body.data().await {
                Some(Ok(piece)) => {
                    self.unreleased += piece.len();
                    self.piece = piece;
                }
                Some(Err(error)) => {
                    self.count(|counter| counter.record_error(&error));
                    return Err(PacketReadError::Stream(error.to_string()));
                }
                None if self.decoder.is_at_boundary() => return Ok(None),
                None => return Err(PacketReadError::Stream("the stream ended within a packet".to_owned())),
            }
        }
    }

    fn count(&self, record: impl FnOnce(&StreamCounter)) {
        if let Some(counter) = &self.counter {
            record(counter);
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
