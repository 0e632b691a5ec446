//! The chunked coding of a body (RFC 9112, section 7.1), read strictly.
//!
//! Where a chunk ends, a length that is read in two ways makes one answer of two: what is not exactly a size, a line
//! end and as many bytes, is refused.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::Fault;

/// Bytes that all chunk extensions of a body may have together; nobody uses any.
const MOST_EXTENSION_BYTES: usize = 16 << 10;
/// Bytes of the trailers.
const MOST_TRAILER_BYTES: usize = 64 << 10;
/// Trailers.
const MOST_TRAILERS: usize = 100;

/// How far a chunked body was read.
#[derive(Debug, Default)]
pub struct Chunks {
    expected: Expected,
    /// What is left of the chunk.
    rest: u64,
    extension_bytes: usize,
    trailers: Vec<u8>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expected {
    /// The first digit of a size.
    #[default]
    Size,
    /// Another digit of it, or what ends it.
    Digit,
    /// The end of the line, and until then what nobody asked for.
    Extension,
    /// The second half of the end of a size's line.
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    Nothing,
}

/// What was found in a piece.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Bytes of the body; never none.
    Data(Bytes),
    /// The end, and the trailers before it.
    End(Option<HeaderMap>),
    /// All of the piece was read, and there is more to come.
    More,
}

impl Chunks {
    /// Reads on in `piece`, whose beginning is taken away as far as it was read. Behind the end nothing is taken.
    ///
    /// # Errors
    /// What is not the chunked coding.
    pub fn read(&mut self, piece: &mut Bytes) -> Result<Step, Fault> {
        let mut at = 0;
        while self.expected != Expected::Nothing && at < piece.len() {
            if self.expected == Expected::Data {
                let _ = piece.split_to(at);
                let data = piece.split_to(usize::try_from(self.rest).map_or(piece.len(), |rest| rest.min(piece.len())));
                self.rest -= data.len() as u64;
                if self.rest == 0 {
                    self.expected = Expected::DataCr;
                }
                return Ok(Step::Data(data));
            }
            let byte = piece[at];
            at += 1;
            self.expected = self.byte(byte)?;
        }
        let _ = piece.split_to(at);
        if self.expected == Expected::Nothing { Ok(Step::End(self.take_trailers()?)) } else { Ok(Step::More) }
    }

    /// Whether `rest`, which comes next, ends the body here, without trailers.
    pub(super) fn ends_with(&self, rest: &[u8]) -> bool {
        self.expected == Expected::DataCr && rest.starts_with(b"\r\n0\r\n\r\n")
    }

    fn byte(&mut self, byte: u8) -> Result<Expected, Fault> {
        let nonsense = |what| Err(Fault::Nonsense(what));
        Ok(match (self.expected, byte) {
            (Expected::Size | Expected::Digit, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                // Four bits more would not fit.
                if self.rest >> 60 != 0 {
                    return nonsense("the size of a chunk is out of bounds");
                }
                self.rest = self.rest << 4 | u64::from(digit);
                Expected::Digit
            }
            (Expected::Digit | Expected::Extension, b'\r') => Expected::SizeLf,
            (Expected::Digit, b';' | b' ' | b'\t') => Expected::Extension,
            (Expected::Size | Expected::Digit, _) => return nonsense("the size of a chunk is no number"),
            (Expected::Extension, b'\n') => return nonsense("a chunk's size ends with half a line end"),
            (Expected::Extension, _) => {
                self.extension_bytes += 1;
                if self.extension_bytes > MOST_EXTENSION_BYTES {
                    return nonsense("its chunks have extensions without end");
                }
                Expected::Extension
            }
            (Expected::SizeLf, b'\n') if self.rest == 0 => Expected::Trailers,
            (Expected::SizeLf, b'\n') => Expected::Data,
            (Expected::SizeLf, _) => return nonsense("a chunk's size ends with half a line end"),
            (Expected::DataCr, b'\r') => Expected::DataLf,
            (Expected::DataLf, b'\n') => Expected::Size,
            (Expected::DataCr | Expected::DataLf, _) => return nonsense("a chunk is longer than its size"),
            (Expected::Trailers, _) => {
                self.trailers.push(byte);
                if self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n") {
                    Expected::Nothing
                } else if self.trailers.len() > MOST_TRAILER_BYTES {
                    return nonsense("its trailers have no end");
                } else {
                    Expected::Trailers
                }
            }
            (Expected::Data | Expected::Nothing, _) => self.expected,
        })
    }

    fn take_trailers(&mut self) -> Result<Option<HeaderMap>, Fault> {
        let text = std::mem::take(&mut self.trailers);
        if text.len() <= 2 {
            return Ok(None);
        }
        let nonsense = Fault::Nonsense("its trailers are no header lines");
        let mut lines = [httparse::EMPTY_HEADER; MOST_TRAILERS];
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

    /// The body, its trailers, and what is behind it.
    type Read = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

    /// What is read if it comes in pieces of this size.
    fn read(text: &[u8], size: usize) -> Result<Read, String> {
        let (mut chunks, mut body, mut rest) = (Chunks::default(), Vec::new(), Bytes::copy_from_slice(text));
        loop {
            let mut piece = rest.split_to(size.min(rest.len()));
            if piece.is_empty() {
                return Err("it has no end".to_owned());
            }
            loop {
                match chunks.read(&mut piece).map_err(|fault| fault.to_string())? {
                    Step::Data(data) => body.extend_from_slice(&data),
                    Step::More => break,
                    Step::End(trailers) => return Ok((body, trailers, [&piece[..], &rest[..]].concat())),
                }
            }
        }
    }

    #[test]
    fn bodies_are_read_however_they_are_cut() {
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
    fn what_could_be_read_in_two_ways_is_refused() {
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
    fn nothing_grows_without_end() {
        let extension = format!("1;{}\r\nx\r\n", "x".repeat(1000)).repeat(20);
        assert!(read(extension.as_bytes(), 100).unwrap_err().contains("extensions without end"));
        let trailers = format!("0\r\n{}", "X: 1\r\n".repeat(20_000));
        assert!(read(trailers.as_bytes(), 1000).unwrap_err().contains("trailers have no end"));
        let many = format!("0\r\n{}\r\n", "X: 1\r\n".repeat(101));
        assert!(read(many.as_bytes(), 1000).unwrap_err().contains("no header lines"));
    }

    #[test]
    fn an_end_that_is_there_already_is_known() {
        let mut chunks = Chunks::default();
        let mut text = Bytes::from_static(b"2\r\nab\r\n0\r\n\r\n");
        assert_eq!(chunks.read(&mut text).unwrap(), Step::Data(Bytes::from_static(b"ab")));
        assert!(chunks.ends_with(&text));
        assert!(!chunks.ends_with(b"\r\n0\r\nX: 1\r\n\r\n"));
        assert!(!chunks.ends_with(b"\r\n0\r\n\r"));
        assert!(!chunks.ends_with(b"\r\n00\r\n\r\n"));
    }
}
