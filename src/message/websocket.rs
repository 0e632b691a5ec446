//! WebSocket frames of a server (RFC 6455): messages are sent, and what the client sends is ignored except for its control
//! frames.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut as _, BytesMut};

/// What the key of a handshake is hashed with (RFC 6455, section 1.3).
const HANDSHAKE_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Longest payload in bytes of a control frame.
const MAX_CONTROL_BYTES: usize = 125;

/// The bits of the first two bytes of a frame.
const IS_FINAL: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const IS_CONTROL: u8 = 0x08;
const IS_MASKED: u8 = 0x80;

/// Type of a frame that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WebSocketFrame {
    /// A message in UTF-8.
    Text = 1,
    /// A message of bytes.
    Binary = 2,
    /// The end of the connection, with a code.
    Close = 8,
    /// The answer to a ping.
    Pong = 10,
}

/// Code of a close frame: the end of the stream.
pub const CLOSE_NORMAL: u16 = 1000;
/// Code of a close frame: the other side broke the protocol.
pub const CLOSE_PROTOCOL_ERROR: u16 = 1002;

/// The value of `Sec-WebSocket-Accept` for that of `Sec-WebSocket-Key`.
pub fn accept_websocket_key(key: &[u8]) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, HANDSHAKE_GUID].concat()))
}

impl WebSocketFrame {
    /// Appends a whole frame of the type.
    pub fn write(self, payload: &[u8], out: &mut BytesMut) {
        out.put_u8(IS_FINAL | self as u8);
        match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
            (Ok(length @ 0..=125), _) => out.put_u8(length),
            (_, Ok(length)) => {
                out.put_u8(126);
                out.put_u16(length);
            }
            _ => {
                out.put_u8(127);
                out.put_u64(payload.len() as u64);
            }
        }
        out.extend_from_slice(payload);
    }
}

/// What a client's control frame asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientControl {
    /// A pong with this payload.
    Ping(Vec<u8>),
    /// The end of the connection.
    Close,
}

/// A client's frame that breaks the protocol: not masked, reserved bits, or a control frame that is long or in parts.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidFrame;

/// Reads the frames of a client, in parts of any size. Messages are dropped as they come, whatever their length.
#[derive(Debug, Default)]
pub struct ClientFrames {
    /// The head of the frame until it is complete, at most 14 bytes.
    head: Vec<u8>,
    /// Opcode, mask and payload read so far, of a frame whose head is complete.
    frame: Option<OpenFrame>,
}

#[derive(Debug)]
struct OpenFrame {
    opcode: u8,
    mask: [u8; 4],
    remaining: u64,
    /// Of a control frame.
    payload: Vec<u8>,
}

impl ClientFrames {
    /// Reads a part of the stream; returns the last thing that its control frames ask for. Only the last ping of several
    /// needs an answer (section 5.5.3).
    ///
    /// # Errors
    /// [`InvalidFrame`].
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<Option<ClientControl>, InvalidFrame> {
        let mut request = None;
        while !bytes.is_empty() {
            if self.frame.is_none() {
                let taken = self.read_head(bytes)?;
                bytes = &bytes[taken..];
            }
            let Some(frame) = &mut self.frame else { continue };
            let taken = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(bytes.len());
            let (part, rest) = bytes.split_at(taken);
            bytes = rest;
            if frame.opcode & IS_CONTROL != 0 {
                frame.payload.extend_from_slice(part);
            }
            frame.remaining -= taken as u64;
            if frame.remaining > 0 {
                continue;
            }
            match self.frame.take().and_then(OpenFrame::control) {
                Some(ClientControl::Close) => return Ok(Some(ClientControl::Close)),
                Some(ping) => request = Some(ping),
                None => {}
            }
        }
        Ok(request)
    }

    /// Reads bytes of a frame's head; returns their number.
    fn read_head(&mut self, bytes: &[u8]) -> Result<usize, InvalidFrame> {
        let mut taken = 0;
        while self.frame.is_none() && taken < bytes.len() {
            self.head.push(bytes[taken]);
            taken += 1;
            self.frame = parse_head(&self.head)?;
        }
        if self.frame.is_some() {
            self.head.clear();
        }
        Ok(taken)
    }
}

/// The frame of a head; none while the head is not complete.
fn parse_head(head: &[u8]) -> Result<Option<OpenFrame>, InvalidFrame> {
    let [first, second, rest @ ..] = head else { return Ok(None) };
    let (opcode, length) = (first & OPCODE, second & !IS_MASKED);
    let is_control = opcode & IS_CONTROL != 0;
    let is_bad_control = is_control && (usize::from(length) > MAX_CONTROL_BYTES || first & IS_FINAL == 0);
    let is_known = matches!(opcode, 0..=2 | 8..=10);
    if second & IS_MASKED == 0 || first & RESERVED != 0 || is_bad_control || !is_known {
        return Err(InvalidFrame);
    }
    let length_bytes = match length {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let Some((extended, mask)) = rest.split_at_checked(length_bytes) else { return Ok(None) };
    let Ok(mask) = <[u8; 4]>::try_from(mask) else { return Ok(None) };
    let remaining = match length_bytes {
        0 => u64::from(length),
        _ => extended.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
    };
    Ok(Some(OpenFrame { opcode, mask, remaining, payload: Vec::new() }))
}

impl OpenFrame {
    fn control(self) -> Option<ClientControl> {
        match self.opcode {
            8 => Some(ClientControl::Close),
            9 => {
                let unmasked = self.payload.iter().zip(self.mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
                Some(ClientControl::Ping(unmasked.collect()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame as a client sends it.
    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..=125 => frame.push(0x80 | length as u8),
            length @ 126..=0xffff => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&(length as u16).to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[test]
    fn websocket_key_accepted_as_in_rfc_6455() {
        assert_eq!(accept_websocket_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn websocket_frames_have_the_shortest_length() {
        for (length, head) in [
            (0, &[0x81, 0][..]),
            (125, &[0x81, 125]),
            (126, &[0x81, 126, 0, 126]),
            (65_535, &[0x81, 126, 0xff, 0xff]),
            (65_536, &[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = BytesMut::new();
            WebSocketFrame::Text.write(&vec![b'a'; length], &mut out);
            assert_eq!((&out[..head.len()], out.len()), (head, head.len() + length));
        }
        let mut out = BytesMut::new();
        WebSocketFrame::Close.write(&CLOSE_NORMAL.to_be_bytes(), &mut out);
        assert_eq!(&out[..], [0x88, 2, 0x03, 0xe8]);
    }

    /// Whatever the parts in which the bytes arrive.
    #[test]
    fn client_frames_are_dropped_and_control_frames_answered() {
        let mut bytes = masked(0x01, &[7; 70_000]);
        bytes.extend(masked(0x80, &[7; 300]));
        bytes.extend(masked(0x89, b"first"));
        bytes.extend(masked(0x8a, b"a pong"));
        bytes.extend(masked(0x89, b""));
        bytes.extend(masked(0x82, b""));
        bytes.extend(masked(0x89, b"last"));
        for part in [1, 3, 7, 1000, bytes.len()] {
            let mut frames = ClientFrames::default();
            let asked: Vec<_> = bytes.chunks(part).filter_map(|part| frames.read(part).unwrap()).collect();
            assert_eq!(asked.last(), Some(&ClientControl::Ping(b"last".to_vec())), "{part}");
            assert!(frames.head.is_empty() && frames.frame.is_none());
            assert_eq!(frames.read(&masked(0x88, &[3, 0xe8])), Ok(Some(ClientControl::Close)));
            assert_eq!(ClientFrames::default().read(&masked(0x88, b"")), Ok(Some(ClientControl::Close)));
        }
    }

    #[test]
    fn client_frames_that_break_the_protocol_are_refused() {
        for bytes in [
            // Not masked.
            &[0x81, 1, b'a'][..],
            // A reserved bit, as of an extension.
            &masked(0xc1, b"a"),
            // A control frame in parts, and a long one.
            &masked(0x09, b"a"),
            &masked(0x89, &[0; 126]),
            // Unknown opcodes.
            &masked(0x83, b"a"),
            &masked(0x8b, b"a"),
        ] {
            assert_eq!(ClientFrames::default().read(bytes), Err(InvalidFrame), "{bytes:?}");
        }
    }

    /// A frame of the largest length costs no memory.
    #[test]
    fn client_frame_of_any_length_is_not_kept() {
        let mut frames = ClientFrames::default();
        frames.read(&[0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]).unwrap();
        for _ in 0..100 {
            frames.read(&[0; 4096]).unwrap();
        }
        assert_eq!(frames.frame.unwrap().payload.capacity(), 0);
    }
}
