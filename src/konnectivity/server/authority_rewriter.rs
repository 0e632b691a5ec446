//! Replaces invalid `:authority` values in the requests of an HTTP/2 client.
//!
//! grpc-go sends the path of a Unix socket as `:authority`, escaped or not, and an IPv6 address without brackets. These are
//! no authorities, and h2 resets such requests. Header blocks are decoded and encoded again here; other frames pass.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE_LENGTH: usize = 24;
const FRAME_HEADER_LENGTH: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Maximum payload of the frames that are written, which every peer accepts.
const MAX_PAYLOAD: usize = 16 << 10;
/// Maximum length of an encoded header block.
const MAX_BLOCK_BYTES: usize = 64 << 10;
/// Maximum number of frames of a header block: empty ones are not limited by its length.
const MAX_BLOCK_FRAMES: usize = 64;
/// Maximum length of a decoded header block: repeated references to a long header are short.
const MAX_DECODED_BYTES: usize = 256 << 10;

/// Maximum size of HPACK's dynamic table: what a client may use that was told of no other one (RFC 9113, 6.5.2).
const MAX_TABLE_BYTES: usize = 4096;

/// A stream of an HTTP/2 client whose requests have a valid `:authority`.
pub(super) struct AuthorityRewriter<S> {
    stream: S,
    decoder: loona_hpack::Decoder<'static>,
    /// Bytes received but not processed: an incomplete frame header or header block.
    pending: BytesMut,
    /// Bytes processed but not read.
    output: BytesMut,
    /// Missing bytes of a frame that passes, or of the preface.
    passing: usize,
    block: Option<HeaderBlock>,
}

/// A header block that continues in the next frame.
struct HeaderBlock {
    stream_id: [u8; 4],
    flags: u8,
    fragment: BytesMut,
    frames: usize,
}

impl<S> AuthorityRewriter<S> {
    pub(super) fn new(stream: S) -> AuthorityRewriter<S> {
        let mut decoder = loona_hpack::Decoder::new();
        decoder.set_max_allowed_table_size(MAX_TABLE_BYTES);
        AuthorityRewriter {
            stream,
            decoder,
            pending: BytesMut::new(),
            output: BytesMut::new(),
            passing: PREFACE_LENGTH,
            block: None,
        }
    }

    /// Number of leading bytes that pass as they are.
    fn passing_prefix(&mut self, bytes: &[u8]) -> usize {
        let mut position = 0;
        loop {
            let taken = self.passing.min(bytes.len() - position);
            position += taken;
            self.passing -= taken;
            let rest = &bytes[position..];
            if rest.len() < FRAME_HEADER_LENGTH || matches!(rest[3], HEADERS | CONTINUATION) {
                return position;
            }
            self.passing = payload_length(rest);
            position += FRAME_HEADER_LENGTH;
        }
    }

    /// Processes what is pending.
    fn process(&mut self) -> io::Result<()> {
        loop {
            let pending = std::mem::take(&mut self.pending);
            let passed = self.passing_prefix(&pending);
            self.pending = pending;
            let passed = self.pending.split_to(passed);
            self.output.extend_from_slice(&passed);
            if self.pending.len() < FRAME_HEADER_LENGTH {
                return Ok(());
            }
            let length = payload_length(&self.pending);
            if length > MAX_BLOCK_BYTES {
                return Err(invalid("a header frame is too long"));
            }
            if self.pending.len() < FRAME_HEADER_LENGTH + length {
                return Ok(());
            }
            let header = self.pending.split_to(FRAME_HEADER_LENGTH);
            let payload = self.pending.split_to(length);
            self.header_frame(header[3], header[4], [header[5], header[6], header[7], header[8]], payload)?;
        }
    }

    fn header_frame(&mut self, kind: u8, flags: u8, stream_id: [u8; 4], payload: BytesMut) -> io::Result<()> {
        let mut block = match (kind, self.block.take()) {
            (HEADERS, None) => HeaderBlock { stream_id, flags, fragment: header_fragment(payload, flags)?, frames: 1 },
            (CONTINUATION, Some(mut block)) if block.stream_id == stream_id => {
                block.fragment.extend_from_slice(&payload);
                block.frames += 1;
                block
            }
            _ => return Err(invalid("header frames are out of order")),
        };
        if block.fragment.len() > MAX_BLOCK_BYTES || block.frames > MAX_BLOCK_FRAMES {
            return Err(invalid("a header block is too long"));
        }
        if flags & END_HEADERS == 0 {
            self.block = Some(block);
            return Ok(());
        }
        let headers = self.decode(&block.fragment)?;
        block.fragment.clear();
        for (name, value) in headers {
            let is_invalid = name == b":authority" && http::uri::Authority::try_from(&value[..]).is_err();
            write_header(&mut block.fragment, &name, if is_invalid { b"localhost" } else { &value });
        }
        self.write_block(block);
        Ok(())
    }

    fn decode(&mut self, fragment: &[u8]) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (mut headers, mut length) = (Vec::new(), 0);
        let decoded = self.decoder.decode_with_cb(fragment, |name, value| {
            length += name.len() + value.len() + 32;
            if length <= MAX_DECODED_BYTES {
                headers.push((name.into_owned(), value.into_owned()));
            }
        });
        match decoded {
            Ok(()) if length <= MAX_DECODED_BYTES => Ok(headers),
            Ok(()) => Err(invalid("a header list is too long")),
            Err(error) => Err(invalid(&format!("a header block is invalid: {error:?}"))),
        }
    }

    fn write_block(&mut self, mut block: HeaderBlock) {
        let (mut kind, mut flags) = (HEADERS, block.flags & END_STREAM);
        loop {
            let payload = block.fragment.split_to(block.fragment.len().min(MAX_PAYLOAD));
            if block.fragment.is_empty() {
                flags |= END_HEADERS;
            }
            self.output.put_uint(payload.len() as u64, 3);
            self.output.put_slice(&[kind, flags]);
            self.output.put_slice(&block.stream_id);
            self.output.put_slice(&payload);
            if block.fragment.is_empty() {
                return;
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }

    fn is_passing(&self) -> bool {
        self.pending.is_empty() && self.block.is_none()
    }
}

/// The header block of a HEADERS frame, without padding and priority.
fn header_fragment(mut payload: BytesMut, flags: u8) -> io::Result<BytesMut> {
    let cut = || invalid("a header frame is cut");
    if flags & PADDED != 0 {
        let padding = usize::from(*payload.first().ok_or_else(cut)?);
        payload.advance(1);
        payload.truncate(payload.len().checked_sub(padding).ok_or_else(cut)?);
    }
    if flags & PRIORITY != 0 {
        if payload.len() < 5 {
            return Err(cut());
        }
        payload.advance(5);
    }
    Ok(payload)
}

/// Writes a header as a literal that is not indexed (RFC 7541, 6.2.2).
fn write_header(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.put_u8(0);
    for text in [name, value] {
        let mut length = text.len();
        if length < 127 {
            out.put_u8(length as u8);
        } else {
            out.put_u8(127);
            length -= 127;
            while length >= 128 {
                out.put_u8((length % 128) as u8 | 128);
                length /= 128;
            }
            out.put_u8(length as u8);
        }
        out.put_slice(text);
    }
}

fn payload_length(frame: &[u8]) -> usize {
    usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2])
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<S> {
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
            let before = out.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, out))?;
            if out.filled().len() == before {
                return Poll::Ready(Ok(()));
            }
            if this.is_passing() {
                let received = &out.filled()[before..];
                let passed = this.passing_prefix(received);
                if passed == received.len() {
                    return Poll::Ready(Ok(()));
                }
                this.pending.extend_from_slice(&received[passed..]);
                // An error comes without bytes.
                out.set_filled(before);
                this.process()?;
                out.set_filled(before + passed);
                if passed > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                this.pending.extend_from_slice(&out.filled()[before..]);
                out.set_filled(before);
                this.process()?;
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityRewriter<S> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, stream]);
        frame.extend_from_slice(payload);
        frame
    }

    fn literal(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = BytesMut::new();
        for (name, value) in headers {
            write_header(&mut block, name.as_bytes(), value.as_bytes());
        }
        block.to_vec()
    }

    async fn rewrite(bytes: &[u8], piece: usize) -> io::Result<Vec<u8>> {
        let (client, mut server) = tokio::io::duplex(piece.max(1));
        let bytes = bytes.to_vec();
        let writing = tokio::spawn(async move {
            for part in bytes.chunks(piece) {
                server.write_all(part).await.unwrap();
            }
        });
        let mut out = Vec::new();
        let read = AuthorityRewriter::new(client).read_to_end(&mut out).await;
        writing.abort();
        read.map(|_| out)
    }

    #[tokio::test]
    async fn authority_of_a_unix_socket_is_replaced() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let block = |authority: &str| literal(&[(":method", "POST"), (":authority", authority), ("te", "trailers")]);
        for (authority, expected) in
            [("%2Ftmp%2Ffront.sock", "localhost"), ("/tmp/front.sock", "localhost"), ("", "localhost"), ("a:1", "a:1")]
        {
            let data = frame(0, 0, 1, &[7; 300]);
            let settings = frame(4, 0, 0, &[0; 6]);
            let sent = block(authority);
            let head = frame(HEADERS, END_HEADERS, 1, &sent);
            let bytes = [&preface[..], &settings, &head, &data, &settings].concat();
            let head = frame(HEADERS, END_HEADERS, 1, &block(expected));
            let rewritten = [&preface[..], &settings, &head, &data, &settings].concat();
            let (first, second) = sent.split_at(11);
            let padded = [&[3][..], &[0; 5], first, &[0; 3]].concat();
            let split = [
                &preface[..],
                &settings,
                &frame(HEADERS, PADDED | PRIORITY, 1, &padded),
                &frame(CONTINUATION, END_HEADERS, 1, second),
                &data,
                &settings,
            ]
            .concat();
            for piece in [1, 2, 7, 64, 4096] {
                assert_eq!(rewrite(&bytes, piece).await.unwrap(), rewritten, "{authority} in pieces of {piece}");
                assert_eq!(rewrite(&split, piece).await.unwrap(), rewritten, "{authority} in pieces of {piece}");
            }
        }
    }

    #[tokio::test]
    async fn authority_rewriter_refuses_invalid_header_frames() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for wrong in [
            frame(CONTINUATION, END_HEADERS, 1, &[]),
            frame(HEADERS, END_HEADERS | PADDED, 1, &[9, 0]),
            frame(HEADERS, END_HEADERS | PRIORITY, 1, &[0; 4]),
            frame(HEADERS, END_HEADERS, 1, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            // A dynamic table of more than its limit.
            frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xe2, 0x1f, 0x82]),
            [frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, END_HEADERS, 3, &[])].concat(),
            [frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, 0, 1, &[]).repeat(MAX_BLOCK_FRAMES)].concat(),
        ] {
            let error = rewrite(&[&preface[..], &wrong].concat(), 64).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }

    /// Pieces of header blocks and frames, as a client may string them together.
    const BLOCK_PARTS: &[&[u8]] = &[
        b"\x82",
        b"\x83\x86\x44\x01/",
        b"\x41\x08localhos",
        b"\x41\x04/sok",
        b"\x00\x01a\x01b",
        b"\x40\x01a\x7f",
        b"\xbe",
        b"\x3f\xe1\x1f",
        b"\x20",
        b"\x0f\x2f\x81\xff",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x41\x83\xff\xff\xff",
    ];

    #[test]
    fn authority_rewriter_survives_any_client() {
        bolero::check!().with_iterations(2000).with_max_len(24).for_each(|bytes: &[u8]| {
            let mut stream = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            for pair in bytes.chunks(2) {
                let [kind, part] = *pair else { continue };
                let block = BLOCK_PARTS[usize::from(part) % BLOCK_PARTS.len()];
                let flags = if kind & 4 == 0 { END_HEADERS } else { kind & (PADDED | PRIORITY | END_HEADERS) };
                match kind % 4 {
                    0 => stream.extend_from_slice(block),
                    1 => stream.extend(frame(HEADERS, flags, kind >> 5, &block.repeat(usize::from(part >> 4)))),
                    2 => stream.extend(frame(CONTINUATION, flags, kind >> 5, block)),
                    _ => stream.extend(frame(0, 0, 1, block)),
                }
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (whole, pieces) = runtime.block_on(async { (rewrite(&stream, 4096).await, rewrite(&stream, 3).await) });
            assert_eq!(whole.map_err(|error| error.to_string()), pieces.map_err(|error| error.to_string()));
        });
    }
}
