//! Konnectivity packets (`konnectivity-client/proto/client/client.proto`) and their gRPC framing.
//!
//! Types from 64 on are an extension between a server and an agent of this project, which both announce by the
//! metadata [`TUNNEL_WINDOW`]. The reference ignores unknown types.

use std::io::IoSlice;

use bytes::{Buf as _, Bytes, BytesMut};

use super::wire::{self, WireValue};

/// Length of gRPC's message prefix: the compressed flag and the message length.
const GRPC_PREFIX_BYTES: usize = 5;
/// Limit of a message in grpc-go, which all three sides of the protocol use.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Metadata of `/AgentService/Connect`, in the request and in the response: the window of each tunnel in bytes. With it
/// on both sides, [`Packet::WindowUpdate`] and [`Packet::WriteClosed`] are understood.
pub const TUNNEL_WINDOW: &str = "narthex-tunnel-window";

/// Metadata of the response of `/ProxyService/Proxy`: a client that does not read its tunnel blocks no other one.
pub const TUNNEL_FLOW_CONTROL: &str = "narthex-tunnel-flow-control";

/// A message between client, server and agent about one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// The client requests a connection.
    DialRequest {
        /// Go network name, for example `tcp`.
        protocol: String,
        /// Host and port, resolved by the agent.
        address: String,
        /// The client's id of this dial.
        random: i64,
    },
    /// Result of a dial.
    DialResponse {
        /// Error text of the agent or the server; empty on success.
        error: String,
        /// The agent's connection id, never 0.
        connection: i64,
        /// The dial id.
        random: i64,
    },
    /// The client requests that a connection be closed.
    CloseRequest {
        /// The agent's connection id.
        connection: i64,
    },
    /// A connection was closed, by the target or on request.
    CloseResponse {
        /// Error text; mostly empty, even on errors.
        error: String,
        /// The agent's connection id.
        connection: i64,
    },
    /// Data of a connection, in either direction.
    Data {
        /// The agent's connection id.
        connection: i64,
        /// The data. It should not be empty; empty data is ignored.
        data: Bytes,
    },
    /// A dial is canceled.
    CloseDial {
        /// The dial id.
        random: i64,
    },
    /// The agent accepts no further dials.
    Drain,
    /// Extension: the receiver may send this much more data of a connection.
    WindowUpdate {
        /// The agent's connection id.
        connection: i64,
        /// The increment in bytes.
        increment: i64,
    },
    /// Extension: the sender has no more data of a connection; the other direction stays open.
    WriteClosed {
        /// The agent's connection id.
        connection: i64,
    },
    /// An unknown packet type; ignored.
    Unknown(i32),
}

/// Why bytes on a stream are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMessage {
    /// The message is compressed, which was not negotiated.
    Compressed,
    /// The message exceeds the limit.
    TooLong(usize),
    /// The message is not valid protobuf.
    Malformed,
}

impl std::fmt::Display for InvalidMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            InvalidMessage::Compressed => f.write_str("a compressed message"),
            InvalidMessage::TooLong(length) => {
                write!(f, "a message of {length} bytes, the most are {MAX_MESSAGE_BYTES}")
            }
            InvalidMessage::Malformed => f.write_str("a message that is no protobuf"),
        }
    }
}

impl std::error::Error for InvalidMessage {}

/// Values of `PacketType`, each with the field of its content.
mod kind {
    pub(super) const DIAL_REQUEST: (i32, u8) = (0, 2);
    pub(super) const DIAL_RESPONSE: (i32, u8) = (1, 3);
    pub(super) const CLOSE_REQUEST: (i32, u8) = (2, 5);
    pub(super) const CLOSE_RESPONSE: (i32, u8) = (3, 6);
    pub(super) const DATA: (i32, u8) = (4, 4);
    pub(super) const CLOSE_DIAL: (i32, u8) = (5, 7);
    pub(super) const DRAIN: (i32, u8) = (6, 8);
    pub(super) const WINDOW_UPDATE: (i32, u8) = (64, 64);
    pub(super) const WRITE_CLOSED: (i32, u8) = (65, 65);
}

/// Content of a packet: numbers and bytes by field number. All kinds of content use only fields 1 to 3.
#[derive(Clone, Copy, Default)]
struct PacketContent<'b> {
    field: u64,
    numbers: [i64; 4],
    bytes: [&'b [u8]; 4],
}

impl<'b> PacketContent<'b> {
    fn add(&mut self, message: &'b [u8]) -> Result<(), InvalidMessage> {
        for field in wire::read_fields(message) {
            match field.ok_or(InvalidMessage::Malformed)? {
                (number @ 1..=3, WireValue::Number(value)) => self.numbers[number as usize] = value.cast_signed(),
                (number @ 1..=3, WireValue::Bytes(bytes)) => self.bytes[number as usize] = bytes,
                _ => {}
            }
        }
        Ok(())
    }

    fn text(&self, number: usize) -> String {
        String::from_utf8_lossy(self.bytes[number]).into_owned()
    }
}

impl Packet {
    /// Decodes one message. As in the reference, the type decides: content of another kind is ignored.
    ///
    /// # Errors
    /// The message is not valid protobuf.
    pub fn decode(message: &Bytes) -> Result<Packet, InvalidMessage> {
        let (mut number, mut content) = (0, PacketContent::default());
        for field in wire::read_fields(message) {
            match field.ok_or(InvalidMessage::Malformed)? {
                // An enum is an int32, whatever was written.
                (1, WireValue::Number(value)) => number = value as i32,
                (field @ (2..=8 | 64..=65), WireValue::Bytes(inner)) => {
                    if content.field != field {
                        content = PacketContent { field, ..PacketContent::default() };
                    }
                    content.add(inner)?;
                }
                _ => {}
            }
        }
        let of = |(kind, field): (i32, u8)| {
            (kind == number).then(|| if content.field == u64::from(field) { content } else { PacketContent::default() })
        };
        Ok(if let Some(data) = of(kind::DATA) {
            let bytes = data.bytes[3];
            // Data that waits must not hold a message that is mostly something else.
            let is_copied = bytes.len() * 2 < message.len();
            let bytes = if is_copied { Bytes::copy_from_slice(bytes) } else { message.slice_ref(bytes) };
            Packet::Data { connection: data.numbers[1], data: bytes }
        } else if let Some(dial) = of(kind::DIAL_RESPONSE) {
            Packet::DialResponse { error: dial.text(1), connection: dial.numbers[2], random: dial.numbers[3] }
        } else if let Some(close) = of(kind::CLOSE_RESPONSE) {
            Packet::CloseResponse { error: close.text(1), connection: close.numbers[2] }
        } else if let Some(close) = of(kind::CLOSE_REQUEST) {
            Packet::CloseRequest { connection: close.numbers[1] }
        } else if let Some(dial) = of(kind::DIAL_REQUEST) {
            Packet::DialRequest { protocol: dial.text(1), address: dial.text(2), random: dial.numbers[3] }
        } else if let Some(dial) = of(kind::CLOSE_DIAL) {
            Packet::CloseDial { random: dial.numbers[1] }
        } else if of(kind::DRAIN).is_some() {
            Packet::Drain
        } else if let Some(update) = of(kind::WINDOW_UPDATE) {
            Packet::WindowUpdate { connection: update.numbers[1], increment: update.numbers[2] }
        } else if let Some(end) = of(kind::WRITE_CLOSED) {
            Packet::WriteClosed { connection: end.numbers[1] }
        } else {
            Packet::Unknown(number)
        })
    }

    /// Encodes the packet as one framed gRPC message.
    pub fn encode_frame(&self) -> Bytes {
        if let Packet::Data { connection, data } = self {
            return encode_data_frame(*connection, &[IoSlice::new(data)], data.len());
        }
        let mut inner = Vec::new();
        let ((number, field), inner) = match self {
            Packet::DialRequest { protocol, address, random } => {
                wire::write_text(&mut inner, 1, protocol);
                wire::write_text(&mut inner, 2, address);
                wire::write_number(&mut inner, 3, random.cast_unsigned());
                (kind::DIAL_REQUEST, inner)
            }
            Packet::DialResponse { error, connection, random } => {
                wire::write_text(&mut inner, 1, error);
                wire::write_number(&mut inner, 2, connection.cast_unsigned());
                wire::write_number(&mut inner, 3, random.cast_unsigned());
                (kind::DIAL_RESPONSE, inner)
            }
            Packet::CloseRequest { connection } => {
                wire::write_number(&mut inner, 1, connection.cast_unsigned());
                (kind::CLOSE_REQUEST, inner)
            }
            Packet::CloseResponse { error, connection } => {
                wire::write_text(&mut inner, 1, error);
                wire::write_number(&mut inner, 2, connection.cast_unsigned());
                (kind::CLOSE_RESPONSE, inner)
            }
            Packet::CloseDial { random } => {
                wire::write_number(&mut inner, 1, random.cast_unsigned());
                (kind::CLOSE_DIAL, inner)
            }
            Packet::Drain => (kind::DRAIN, inner),
            Packet::WindowUpdate { connection, increment } => {
                wire::write_number(&mut inner, 1, connection.cast_unsigned());
                wire::write_number(&mut inner, 2, increment.cast_unsigned());
                (kind::WINDOW_UPDATE, inner)
            }
            Packet::WriteClosed { connection } => {
                wire::write_number(&mut inner, 1, connection.cast_unsigned());
                (kind::WRITE_CLOSED, inner)
            }
            Packet::Data { .. } => (kind::DATA, inner),
            Packet::Unknown(number) => ((*number, 0), inner),
        };
        let mut out = vec![0; GRPC_PREFIX_BYTES];
        if number != 0 {
            wire::write_number(&mut out, 1, i64::from(number).cast_unsigned());
        }
        if field != 0 {
            wire::write_bytes(&mut out, field, &inner);
        }
        let length = (out.len() - GRPC_PREFIX_BYTES) as u32;
        out[1..GRPC_PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
        out.into()
    }
}

/// Encodes the first `length` bytes of `slices` as a framed [`Packet::Data`], copying them once. There must be as many,
/// and no more than a message can hold.
pub(super) fn encode_data_frame(connection: i64, slices: &[IoSlice<'_>], length: usize) -> Bytes {
    let mut out = encode_data_head(connection, length, length);
    let mut left = length;
    for slice in slices {
        let piece = &slice[..slice.len().min(left)];
        out.extend_from_slice(piece);
        left -= piece.len();
    }
    out.into()
}

/// Encodes what precedes `length` bytes of data in a framed [`Packet::Data`], with room for `more` bytes after it.
pub fn encode_data_head(connection: i64, length: usize, more: usize) -> Vec<u8> {
    let connection = connection.cast_unsigned();
    let inner = 1 + wire::varint_length(connection) + 1 + wire::varint_length(length as u64) + length;
    let message = 2 + 1 + wire::varint_length(inner as u64) + inner;
    let mut out = Vec::with_capacity(GRPC_PREFIX_BYTES + message - length + more);
    out.push(0);
    out.extend_from_slice(&(message as u32).to_be_bytes());
    wire::write_number(&mut out, 1, kind::DATA.0 as u64);
    wire::write_length(&mut out, kind::DATA.1, inner);
    wire::write_number(&mut out, 1, connection);
    wire::write_length(&mut out, 3, length);
    out
}

/// Decodes packets from a stream that arrives in arbitrary pieces.
#[derive(Debug, Default)]
pub struct PacketDecoder {
    prefix: [u8; GRPC_PREFIX_BYTES],
    /// Bytes of the prefix received so far.
    prefix_length: usize,
    /// A partially received message.
    message: BytesMut,
}

/// A decoded packet, and where its data lies.
#[derive(Debug, PartialEq, Eq)]
pub struct DecodedPacket {
    /// The packet.
    pub packet: Packet,
    /// Whether the message was in one piece of the input. The data of a [`Packet::Data`] then is a slice of it, unless
    /// the message is mostly something else.
    pub is_shared: bool,
}

impl PacketDecoder {
    /// Removes the next packet from the front of `piece`, or all of it if the packet is incomplete.
    ///
    /// # Errors
    /// The stream is invalid and must not be read further.
    pub fn decode(&mut self, piece: &mut Bytes) -> Result<Option<DecodedPacket>, InvalidMessage> {
        let missing = (GRPC_PREFIX_BYTES - self.prefix_length).min(piece.len());
        self.prefix[self.prefix_length..self.prefix_length + missing].copy_from_slice(&piece[..missing]);
        piece.advance(missing);
        self.prefix_length += missing;
        if self.prefix_length < GRPC_PREFIX_BYTES {
            return Ok(None);
        }
        let [compressed, a, b, c, d] = self.prefix;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if compressed != 0 {
            return Err(InvalidMessage::Compressed);
        }
        if length > MAX_MESSAGE_BYTES {
            return Err(InvalidMessage::TooLong(length));
        }
        if self.message.is_empty() && piece.len() >= length {
            self.prefix_length = 0;
            return Ok(Some(DecodedPacket { packet: Packet::decode(&piece.split_to(length))?, is_shared: true }));
        }
        let missing = (length - self.message.len()).min(piece.len());
        self.message.extend_from_slice(&piece[..missing]);
        piece.advance(missing);
        if self.message.len() < length {
            return Ok(None);
        }
        self.prefix_length = 0;
        let message = std::mem::take(&mut self.message).freeze();
        Ok(Some(DecodedPacket { packet: Packet::decode(&message)?, is_shared: false }))
    }

    /// Whether the stream may end here: between two messages.
    pub fn is_at_boundary(&self) -> bool {
        self.prefix_length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Vec<Packet> {
        vec![
            Packet::DialRequest { protocol: "tcp".to_owned(), address: "a:443".to_owned(), random: i64::MAX },
            Packet::DialResponse { error: "dial tcp: refused".to_owned(), connection: 0, random: 42 },
            Packet::DialResponse { error: String::new(), connection: 5, random: 42 },
            Packet::CloseRequest { connection: 300 },
            Packet::CloseResponse { error: String::new(), connection: 1 },
            Packet::Data { connection: 5, data: Bytes::from_static(b"hello") },
            Packet::Data { connection: -1, data: Bytes::from(vec![7; 70_000]) },
            Packet::Data { connection: 5, data: Bytes::new() },
            Packet::CloseDial { random: -7 },
            Packet::Drain,
            Packet::WindowUpdate { connection: 5, increment: 1 << 20 },
            Packet::WriteClosed { connection: 5 },
            Packet::Unknown(66),
            Packet::Unknown(-1),
        ]
    }

    #[test]
    fn data_of_a_padded_message_does_not_hold_the_message() {
        let mut message =
            Packet::Data { connection: 5, data: Bytes::from(vec![7; 1000]) }.encode_frame().slice(5..).to_vec();
        // An unknown field of 2,000 bytes.
        message.extend_from_slice(&[0xfa, 0x01, 0xd0, 0x0f]);
        message.extend_from_slice(&[0; 2000]);
        let message = Bytes::from(message);
        let Ok(Packet::Data { connection: 5, data }) = Packet::decode(&message) else { panic!() };
        assert_eq!(data, [7; 1000][..]);
        assert!(!message.as_ptr_range().contains(&data.as_ptr()));
    }

    #[test]
    fn packet_encoding_matches_reference() {
        let dial = Packet::DialRequest { protocol: "tcp".to_owned(), address: "a:1".to_owned(), random: 42 };
        assert_eq!(dial.encode_frame(), &b"\0\0\0\0\x0e\x12\x0c\x0a\x03tcp\x12\x03a:1\x18\x2a"[..]);
        let data = Packet::Data { connection: 5, data: Bytes::from_static(b"hi") };
        assert_eq!(data.encode_frame(), &b"\0\0\0\0\x0a\x08\x04\x22\x06\x08\x05\x1a\x02hi"[..]);
        let refused = Bytes::from_static(b"\x08\x01\x1a\x05\x0a\x01x\x18\x2a");
        let expected = Packet::DialResponse { error: "x".to_owned(), connection: 0, random: 42 };
        assert_eq!(Packet::decode(&refused), Ok(expected));
        assert_eq!(Packet::decode(&Bytes::from_static(b"\x08\x06\x42\x00")), Ok(Packet::Drain));
    }

    #[test]
    fn packet_decoder_is_independent_of_splits() {
        let packets = every_kind();
        let stream: Vec<u8> = packets.iter().flat_map(|packet| packet.encode_frame().to_vec()).collect();
        for size in [1, 2, 5, 7, 64, 16_384, stream.len()] {
            let (mut frames, mut read) = (PacketDecoder::default(), Vec::new());
            for piece in stream.chunks(size) {
                let mut piece = Bytes::copy_from_slice(piece);
                while let Some(next) = frames.decode(&mut piece).unwrap() {
                    read.push(next.packet);
                }
                assert!(piece.is_empty());
            }
            assert_eq!(read, packets, "in pieces of {size}");
            assert!(frames.is_at_boundary());
        }
    }

    #[test]
    fn packet_decode_truncated_never_panics() {
        for packet in every_kind().into_iter().filter(|packet| *packet != Packet::Drain) {
            let message = packet.encode_frame().slice(GRPC_PREFIX_BYTES..);
            for cut in 0..message.len().min(40) {
                assert_ne!(Packet::decode(&message.slice(..cut)), Ok(packet.clone()));
            }
        }
        let mut frames = PacketDecoder::default();
        let mut cut = Packet::Drain.encode_frame().slice(..6);
        assert_eq!(frames.decode(&mut cut), Ok(None));
        assert!(!frames.is_at_boundary());
    }

    #[test]
    fn packet_decoder_rejects_invalid_prefix_early() {
        let read = |bytes: &'static [u8]| PacketDecoder::default().decode(&mut Bytes::from_static(bytes));
        assert_eq!(read(b"\x01\0\0\0\x01x"), Err(InvalidMessage::Compressed));
        assert_eq!(read(b"\0\0\x40\0\x01"), Err(InvalidMessage::TooLong(MAX_MESSAGE_BYTES + 1)));
        assert_eq!(read(b"\0\0\x40\0\0"), Ok(None));
        assert_eq!(read(b"\0\0\0\0\x01\xff"), Err(InvalidMessage::Malformed));
    }

    #[test]
    fn packet_type_decides_which_content_counts() {
        // DATA with the content of a dial response.
        let packet = Packet::decode(&Bytes::from_static(b"\x08\x04\x1a\x05\x0a\x01x\x18\x2a")).unwrap();
        assert_eq!(packet, Packet::Data { connection: 0, data: Bytes::new() });
        // Of two contents the last one counts; the same one twice is merged.
        let packet = Packet::decode(&Bytes::from_static(b"\x08\x04\x1a\x02\x18\x2a\x22\x02\x08\x05\x22\x03\x1a\x01x"));
        assert_eq!(packet, Ok(Packet::Data { connection: 5, data: Bytes::from_static(b"x") }));
    }

    #[test]
    fn packet_data_from_several_slices() {
        let slices = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cdef")];
        let expected = Packet::Data { connection: 9, data: Bytes::from_static(b"abcd") };
        assert_eq!(encode_data_frame(9, &slices, 4), expected.encode_frame());
    }
}
