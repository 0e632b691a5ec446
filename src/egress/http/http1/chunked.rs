//! Strict decoder of the chunked transfer coding (RFC 9112, section 7.1).
//!
//! A chunk length that can be read in two ways makes two responses of one (response splitting). Anything but a size, a
//! line end and exactly as many bytes is rejected.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Http1Error;

/// Limit of all chunk extensions of a body, in bytes.
const MAX_EXTENSION_BYTES: usize = 16 << 10;
/// Limit of the trailers, in bytes.
const MAX_TRAILER_BYTES: usize = 64 << 10;
/// Limit of the number of trailers.
const MAX_TRAILERS: usize = 100;

/// Decoder of a chunked body.
#[derive(Debug, Default)]
pub struct ChunkedDecoder {
    expected: ChunkedState,
    /// Bytes left of the current chunk, or its size as far as read.
    rest: u64,
    extension_bytes: usize,
    trailers: Vec<u8>,
}

/// What the decoder expects next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkedState {
    /// First digit of a chunk size.
    #[default]
    Size,
    /// Another digit of the size, or its end.
    Digit,
    /// A chunk extension, which is ignored, up to the line end.
    Extension,
    /// The LF of a chunk size's line.
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Done,
}

/// Result of one decoding step.
#[derive(Debug, PartialEq, Eq)]
pub enum ChunkedStep {
    /// Body bytes; never empty.
    Data(Bytes),
    /// End of the body, with its trailers.
    End(Option<HeaderMap>),
    /// The input is used up; more is needed.
    NeedMore,
}

impl ChunkedDecoder {
    /// Decodes from `piece` and removes what was decoded from its front. Bytes after the end of the body stay.
    ///
    /// # Errors
    /// The input violates the chunked coding.
    pub fn decode(&mut self, piece: &mut Bytes) -> Result<ChunkedStep, Http1Error> {
        let mut at = 0;
        while self.expected != ChunkedState::Done && at < piece.len() {
            if self.expected == ChunkedState::Data {
                let _ = piece.split_to(at);
                let data = piece.split_to(usize::try_from(self.rest).map_or(piece.len(), |rest| rest.min(piece.len())));
                self.rest -= data.len() as u64;
                if self.rest == 0 {
                    self.expected = ChunkedState::DataCr;
                }
                return Ok(ChunkedStep::Data(data));
            }
            let byte = piece[at];
            at += 1;
            self.expected = self.decode_byte(byte)?;
        }
        let _ = piece.split_to(at);
        if self.expected == ChunkedState::Done {
            Ok(ChunkedStep::End(self.take_trailers()?))
        } else {
            Ok(ChunkedStep::NeedMore)
        }
    }

    /// Whether `rest`, the next input, ends the body without trailers.
    pub(super) fn ends_with(&self, rest: &[u8]) -> bool {
        self.expected == ChunkedState::DataCr && rest.starts_with(b"\r\n0\r\n\r\n")
    }

    fn decode_byte(&mut self, byte: u8) -> Result<ChunkedState, Http1Error> {
        let nonsense = |what| Err(Http1Error::InvalidResponse(what));
        Ok(match (self.expected, byte) {
            (ChunkedState::Size | ChunkedState::Digit, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                // Four bits more would not fit.
                if self.rest >> 60 != 0 {
                    return nonsense("a chunk size is too large");
                }
                self.rest = self.rest << 4 | u64::from(digit);
                ChunkedState::Digit
            }
            (ChunkedState::Digit | ChunkedState::Extension, b'\r') => ChunkedState::SizeLf,
            (ChunkedState::Digit, b';' | b' ' | b'\t') => ChunkedState::Extension,
            (ChunkedState::Size | ChunkedState::Digit, _) => return nonsense("a chunk size is not a number"),
            (ChunkedState::Extension, b'\n') => return nonsense("a chunk size does not end with CRLF"),
            (ChunkedState::Extension, _) => {
                self.extension_bytes += 1;
                if self.extension_bytes > MAX_EXTENSION_BYTES {
                    return nonsense("its chunk extensions are too long");
                }
                ChunkedState::Extension
            }
            (ChunkedState::SizeLf, b'\n') if self.rest == 0 => ChunkedState::Trailers,
            (ChunkedState::SizeLf, b'\n') => ChunkedState::Data,
            (ChunkedState::SizeLf, _) => return nonsense("a chunk size does not end with CRLF"),
            (ChunkedState::DataCr, b'\r') => ChunkedState::DataLf,
            (ChunkedState::DataLf, b'\n') => ChunkedState::Size,
            (ChunkedState::DataCr | ChunkedState::DataLf, _) => return nonsense("a chunk is longer than its size"),
            (ChunkedState::Trailers, _) => {
                self.trailers.push(byte);
                if self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n") {
                    ChunkedState::Done
                } else if self.trailers.len() > MAX_TRAILER_BYTES {
                    return nonsense("its trailers are too long");
                } else {
                    ChunkedState::Trailers
                }
            }
            (ChunkedState::Data | ChunkedState::Done, _) => self.expected,
        })
    }

    fn take_trailers(&mut self) -> Result<Option<HeaderMap>, Http1Error> {
        let text = std::mem::take(&mut self.trailers);
        if text.len() <= 2 {
            return Ok(None);
        }
        let nonsense = Http1Error::InvalidResponse("its trailers are malformed");
        let mut lines = [httparse::EMPTY_HEADER; MAX_TRAILERS];
        let Ok(httparse::Status::Complete((end, lines))) = httparse::parse_headers(&text, &mut lines) else {
            return Err(nonsense);
        };
        let mut trailers = HeaderMap::with_capacity(lines.len());
        for line in lines {
            match (HeaderName::from_bytes(line.name.as_bytes()), HeaderValue::from_bytes(line.value)) {
                (Ok(name), Ok(value)) if end == text.len() => drop(trailers.append(name, value)),
                _ => return Err(nonsense),
            }
        }
        Ok(Some(trailers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Body, trailers, and the bytes after the body.
    type Read = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

    /// Decodes `text` in pieces of `size` bytes.
    fn read(text: &[u8], size: usize) -> Result<Read, String> {
        let (mut chunks, mut body, mut rest) = (ChunkedDecoder::default(), Vec::new(), Bytes::copy_from_slice(text));
        loop {
            let mut piece = rest.split_to(size.min(rest.len()));
            if piece.is_empty() {
                return Err("it has no end".to_owned());
            }
            loop {
                match chunks.decode(&mut piece).map_err(|fault| fault.to_string())? {
                    ChunkedStep::Data(data) => body.extend_from_slice(&data),
                    ChunkedStep::NeedMore => break,
                    ChunkedStep::End(trailers) => return Ok((body, trailers, [&piece[..], &rest[..]].concat())),
                }
            }
        }
    }

    #[test]
    fn chunked_body_is_decoded_at_any_split() {
        let trailers = Some(HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("4 2"))]));
        for (text, body, trailers, behind) in [
            ("0\r\n\r\n", "", None, ""),
            ("5\r\nhello\r\n0\r\n\r\n", "hello", None, ""),
            ("5\r\nhello\r\n00B\r\n, my\r\nworld\r\n0000\r\n\r\nHTTP", "hello, my\r\nworld", None, "HTTP"),
            ("a;name=value\r\n0123456789\r\n0 ;x\r\n\r\n", "0123456789", None, ""),
            ("1\r\nx\r\n0\r\nX-Sum: 4 2\r\n\r\n0", "x", trailers, "0"),
        ] {
            for size in 1..=text.len() {
                let read = read(text.as_bytes(), size).unwrap();
                assert_eq!(read, (body.into(), trailers.clone(), behind.into()), "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn chunked_body_ambiguous_is_rejected() {
        for text in [
            "\r\n\r\n",
            "5\nhello\r\n0\r\n\r\n",
            "5;a\nhello\r\n0\r\n\r\n",
            "5\r\rhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            "+5\r\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n0\r\n\r\n",
            "4\r\nhello\r\n0\r\n\r\n",
            "6\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "10000000000000000\r\nx",
            "ffffffffffffffff0\r\nx",
            "0\r\nno trailer\r\n\r\n",
            "0\r\nX Y: 1\r\n\r\n",
            "0\r\nX: 1\r\n 2\r\n\r\n",
            "0\r\nX: \u{1}\r\n\r\n",
        ] {
            for size in 1..=text.len() {
                read(text.as_bytes(), size).expect_err(text);
            }
        }
    }

    #[test]
    fn chunked_body_extensions_and_trailers_are_bounded() {
        let extension = format!("1;{}\r\nx\r\n", "x".repeat(1000)).repeat(20);
        assert!(read(extension.as_bytes(), 100).unwrap_err().contains("extensions are too long"));
        let trailers = format!("0\r\n{}", "X: 1\r\n".repeat(20_000));
        assert!(read(trailers.as_bytes(), 1000).unwrap_err().contains("trailers are too long"));
        let many = format!("0\r\n{}\r\n", "X: 1\r\n".repeat(101));
        assert!(read(many.as_bytes(), 1000).unwrap_err().contains("trailers are malformed"));
    }

    #[test]
    fn chunked_body_end_in_buffer_is_detected() {
        let mut chunks = ChunkedDecoder::default();
        let mut text = Bytes::from_static(b"2\r\nab\r\n0\r\n\r\n");
        assert_eq!(chunks.decode(&mut text).unwrap(), ChunkedStep::Data(Bytes::from_static(b"ab")));
        assert!(chunks.ends_with(&text));
        assert!(!chunks.ends_with(b"\r\n0\r\nX: 1\r\n\r\n"));
        assert!(!chunks.ends_with(b"\r\n0\r\n\r"));
        assert!(!chunks.ends_with(b"\r\n00\r\n\r\n"));
    }
}
