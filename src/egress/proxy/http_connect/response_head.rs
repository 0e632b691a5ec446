//! Incremental parser for the response head to CONNECT. No I/O.

/// Limit of a response head, as in `k8s.io/apiserver/pkg/server/egressselector`.
pub(super) const MAX_HEAD_BYTES: usize = 1 << 20;

/// Collects the bytes of a response until its head is complete.
#[derive(Default)]
pub struct ConnectResponseParser {
    bytes: Vec<u8>,
    /// How many bytes were searched for the end of the head, and where the current line begins.
    scanned: usize,
    line_start: usize,
}

/// Response head to CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponseHead {
    /// Status code, 100 to 999.
    pub status: u16,
    /// The whole head as text, for the log.
    pub text: String,
}

/// Why a response head is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectResponseError {
    /// The head does not begin with `HTTP/1.`.
    NotHttp,
    /// The head begins with `HTTP/1.`, but has no valid status line.
    Malformed,
    /// The head does not end within [`MAX_HEAD_BYTES`] bytes.
    TooLong,
}

/// Prefix of every valid response: HTTP/1.0 and HTTP/1.1.
const VERSION_PREFIX: &[u8] = b"HTTP/1.";

impl ConnectResponseParser {
    /// Appends `piece`; returns the head once it is complete. Informational responses are skipped (RFC 9110, section
    /// 15.2), except 101, which is final and never valid for CONNECT.
    ///
    /// # Errors
    /// Returned as soon as the head is known to be invalid.
    pub fn push(&mut self, piece: &[u8]) -> Result<Option<ConnectResponseHead>, ConnectResponseError> {
        self.bytes.extend_from_slice(piece);
        while let Some(end) = self.find_head_end()? {
            let rest = self.bytes.split_off(end);
            let head = std::mem::replace(&mut self.bytes, rest);
            (self.scanned, self.line_start) = (0, 0);
            let head =
                ConnectResponseHead { status: parse_status(&head)?, text: String::from_utf8_lossy(&head).into_owned() };
            if !matches!(head.status, 100 | 102..200) {
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    /// Bytes after the head, or the incomplete head.
    pub fn remaining(&self) -> &[u8] {
        &self.bytes
    }

    /// End of the head: after the first empty line. As in Go and hyper, the CR of a line end is optional.
    fn find_head_end(&mut self) -> Result<Option<usize>, ConnectResponseError> {
        let begun = self.bytes.len().min(VERSION_PREFIX.len());
        if self.bytes[..begun] != VERSION_PREFIX[..begun] {
            return Err(ConnectResponseError::NotHttp);
        }
        while let Some(length) = self.bytes[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let next = self.scanned + length + 1;
            let empty = matches!(&self.bytes[self.line_start..next], b"\n" | b"\r\n");
            (self.scanned, self.line_start) = (next, next);
            if next > MAX_HEAD_BYTES {
                return Err(ConnectResponseError::TooLong);
            }
            if empty {
                return Ok(Some(next));
            }
        }
        self.scanned = self.bytes.len();
        if self.scanned > MAX_HEAD_BYTES { Err(ConnectResponseError::TooLong) } else { Ok(None) }
    }
}

/// Parses the status line of a complete head: `HTTP/1.x`, a space, three digits, then a space or the line end.
fn parse_status(head: &[u8]) -> Result<u16, ConnectResponseError> {
    let line = head.strip_prefix(VERSION_PREFIX).ok_or(ConnectResponseError::NotHttp)?;
    let [b'0' | b'1', b' ', digits @ ..] = line else { return Err(ConnectResponseError::Malformed) };
    let ([a @ b'1'..=b'9', b, c, b' ' | b'\r' | b'\n', ..], true) =
        (digits, digits.iter().take(3).all(u8::is_ascii_digit))
    else {
        return Err(ConnectResponseError::Malformed);
    };
    Ok([a, b, c].into_iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status and remaining bytes, parsed at once and byte by byte.
    fn read(bytes: &[u8]) -> Result<Option<(u16, Vec<u8>)>, ConnectResponseError> {
        let mut whole = ConnectResponseParser::default();
        let at_once = whole.push(bytes).map(|head| head.map(|head| (head.status, whole.remaining().to_vec())));
        let mut answer = ConnectResponseParser::default();
        let mut by_byte = Ok(None);
        for (number, byte) in bytes.iter().enumerate() {
            match answer.push(&[*byte]) {
                Ok(None) => {}
                Ok(Some(head)) => {
                    by_byte = Ok(Some((head.status, bytes[number + 1..].to_vec())));
                    break;
                }
                Err(error) => {
                    by_byte = Err(error);
                    break;
                }
            }
        }
        assert_eq!(at_once, by_byte);
        at_once
    }

    #[test]
    fn connect_response_head_ends_at_first_empty_line() {
        let yes = |status, rest: &[u8]| Ok(Some((status, rest.to_vec())));
        assert_eq!(read(b"HTTP/1.1 200 Connection Established\r\n\r\nhello\r\n\r\n"), yes(200, b"hello\r\n\r\n"));
        assert_eq!(read(b"HTTP/1.0 200\r\nVia: x\r\n\r\n"), yes(200, b""));
        assert_eq!(read(b"HTTP/1.1 407 \nA: b\n\n\x16"), yes(407, b"\x16"));
        assert_eq!(
            read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 \r\nLink: a\r\n\r\nHTTP/1.1 204 \r\n\r\n"),
            yes(204, b"")
        );
        assert_eq!(read(b"HTTP/1.1 101 Switching\r\n\r\n"), yes(101, b""));
        for length in 0.."HTTP/1.1 200 OK\r\nA: b\r\n\r\n".len() {
            assert_eq!(read(&b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n"[..length]), Ok(None), "{length}");
        }
    }

    #[test]
    fn connect_response_not_http_or_malformed_is_rejected() {
        for bytes in [
            &b"\x16\x03\x01"[..],
            b"SSH-2.0",
            b"HTTPS/1.1 200",
            b"HTTP/2 200 OK\r\n\r\n",
            b"\r\n",
            b"http/1.1 200\r\n\r\n",
        ] {
            assert_eq!(read(bytes), Err(ConnectResponseError::NotHttp), "{bytes:?}");
        }
        for line in [
            "HTTP/1.2 200 OK",
            "HTTP/1.1  200",
            "HTTP/1.1 20",
            "HTTP/1.1 2000",
            "HTTP/1.1 2x0 ",
            "HTTP/1.1",
            "HTTP/1.1 099 ",
        ] {
            assert_eq!(read(format!("{line}\r\n\r\n").as_bytes()), Err(ConnectResponseError::Malformed), "{line}");
        }
    }

    #[test]
    fn connect_response_head_too_long_is_rejected() {
        let mut answer = ConnectResponseParser::default();
        assert_eq!(answer.push(b"HTTP/1.1 200 OK\r\n"), Ok(None));
        let line = [&[b'a'; 1022][..], b"\r\n"].concat();
        let told = (0..2000).find_map(|lines| answer.push(&line).err().map(|error| (lines, error)));
        assert_eq!(told, Some((1023, ConnectResponseError::TooLong)));
        let mut one = ConnectResponseParser::default();
        assert_eq!(one.push(b"HTTP/1.1 200 "), Ok(None));
        assert_eq!(one.push(&vec![b'a'; MAX_HEAD_BYTES]), Err(ConnectResponseError::TooLong));
    }
}
