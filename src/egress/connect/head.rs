//! Incremental parser for the response head to CONNECT. No I/O.

/// Limit of a response head, as in `k8s.io/apiserver/pkg/server/egressselector`.
pub(super) const LONGEST: usize = 1 << 20;

/// Collects the bytes of a response until its head is complete.
#[derive(Default)]
pub struct Answer {
    bytes: Vec<u8>,
    /// How many bytes were searched for the end of the head, and where the current line begins.
    looked: usize,
    line: usize,
}

/// Response head to CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code, 100 to 999.
    pub status: u16,
    /// The whole head as text, for the log.
    pub text: String,
}

/// Why a response head is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// It does not begin with `HTTP/1.`.
    NotHttp,
    /// It begins with `HTTP/1.`, but has no valid status line.
    Malformed,
    /// It does not end within [`LONGEST`] bytes.
    TooLong,
}

/// Prefix of every valid response: HTTP/1.0 and HTTP/1.1.
const BEGINNING: &[u8] = b"HTTP/1.";

impl Answer {
    /// Appends `piece`; returns the head once it is complete. Informational responses are skipped (RFC 9110, section
    /// 15.2), except 101, which is final and never valid for CONNECT.
    ///
    /// # Errors
    /// Returned as soon as the head is known to be invalid.
    pub fn take(&mut self, piece: &[u8]) -> Result<Option<Head>, HeadError> {
        self.bytes.extend_from_slice(piece);
        while let Some(end) = self.end()? {
            let rest = self.bytes.split_off(end);
            let head = std::mem::replace(&mut self.bytes, rest);
            (self.looked, self.line) = (0, 0);
            let head = Head { status: status(&head)?, text: String::from_utf8_lossy(&head).into_owned() };
            if !matches!(head.status, 100 | 102..200) {
                return Ok(Some(head));
            }
        }
        Ok(None)
    }

    /// Bytes after the head, or the incomplete head.
    pub fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// End of the head: after the first empty line. As in Go and hyper, the CR of a line end is optional.
    fn end(&mut self) -> Result<Option<usize>, HeadError> {
        let begun = self.bytes.len().min(BEGINNING.len());
        if self.bytes[..begun] != BEGINNING[..begun] {
            return Err(HeadError::NotHttp);
        }
        while let Some(length) = self.bytes[self.looked..].iter().position(|byte| *byte == b'\n') {
            let next = self.looked + length + 1;
            let empty = matches!(&self.bytes[self.line..next], b"\n" | b"\r\n");
            (self.looked, self.line) = (next, next);
            if next > LONGEST {
                return Err(HeadError::TooLong);
            }
            if empty {
                return Ok(Some(next));
            }
        }
        self.looked = self.bytes.len();
        if self.looked > LONGEST { Err(HeadError::TooLong) } else { Ok(None) }
    }
}

/// Parses the status line of a complete head: `HTTP/1.x`, a space, three digits, then a space or the line end.
fn status(head: &[u8]) -> Result<u16, HeadError> {
    let line = head.strip_prefix(BEGINNING).ok_or(HeadError::NotHttp)?;
    let [b'0' | b'1', b' ', digits @ ..] = line else { return Err(HeadError::Malformed) };
    let ([a @ b'1'..=b'9', b, c, b' ' | b'\r' | b'\n', ..], true) =
        (digits, digits.iter().take(3).all(u8::is_ascii_digit))
    else {
        return Err(HeadError::Malformed);
    };
    Ok([a, b, c].into_iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status and remaining bytes, parsed at once and byte by byte.
    fn read(bytes: &[u8]) -> Result<Option<(u16, Vec<u8>)>, HeadError> {
        let mut whole = Answer::default();
        let at_once = whole.take(bytes).map(|head| head.map(|head| (head.status, whole.rest().to_vec())));
        let mut answer = Answer::default();
        let mut by_byte = Ok(None);
        for (number, byte) in bytes.iter().enumerate() {
            match answer.take(&[*byte]) {
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
    fn a_head_ends_at_the_first_empty_line_and_nothing_behind_it_is_taken() {
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
    fn what_is_no_answer_is_told_apart() {
        for bytes in [
            &b"\x16\x03\x01"[..],
            b"SSH-2.0",
            b"HTTPS/1.1 200",
            b"HTTP/2 200 OK\r\n\r\n",
            b"\r\n",
            b"http/1.1 200\r\n\r\n",
        ] {
            assert_eq!(read(bytes), Err(HeadError::NotHttp), "{bytes:?}");
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
            assert_eq!(read(format!("{line}\r\n\r\n").as_bytes()), Err(HeadError::Malformed), "{line}");
        }
    }

    #[test]
    fn a_head_without_end_ends() {
        let mut answer = Answer::default();
        assert_eq!(answer.take(b"HTTP/1.1 200 OK\r\n"), Ok(None));
        let line = [&[b'a'; 1022][..], b"\r\n"].concat();
        let told = (0..2000).find_map(|lines| answer.take(&line).err().map(|error| (lines, error)));
        assert_eq!(told, Some((1023, HeadError::TooLong)));
        let mut one = Answer::default();
        assert_eq!(one.take(b"HTTP/1.1 200 "), Ok(None));
        assert_eq!(one.take(&vec![b'a'; LONGEST]), Err(HeadError::TooLong));
    }
}
