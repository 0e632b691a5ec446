//! Writes request heads and parses response heads (RFC 9112).

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, request, response};

use super::{ChunkedDecoder, Http1Error};
use crate::message::hop_by_hop;

/// Limit of header lines of a response.
const MAX_HEADERS: usize = 4096;
/// Header lines that are parsed without an allocation.
const USUAL_HEADERS: usize = 100;
/// Limit of a response head, in bytes.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// Limit of empty lines before a status line, in bytes.
const MAX_EMPTY_LINE_BYTES: usize = 16;

/// Length of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestBodyLength {
    /// No body and no length header: the method implies that there is none.
    Unspecified,
    /// Number of bytes.
    Exact(u64),
    /// Unknown: chunked coding.
    Chunked,
}

/// Writes the head of a request in origin form.
pub(super) fn write_request_head(out: &mut Vec<u8>, parts: &request::Parts, length: RequestBodyLength) {
    let mut put = |pieces: &[&[u8]]| pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    put(&[parts.method.as_str().as_bytes(), b" ", path.as_bytes(), b" HTTP/1.1\r\n"]);
    for (name, value) in &parts.headers {
        // The body length is stated once, by the gateway. Cookies are written below.
        if name != CONTENT_LENGTH && name != TRANSFER_ENCODING && name != COOKIE {
            put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
    }
    // An HTTP/2 client may send a line for each cookie; HTTP/1.1 has one line (RFC 9113, section 8.2.3).
    let mut cookies = parts.headers.get_all(COOKIE).iter();
    if let Some(first) = cookies.next() {
        put(&[b"cookie: ", first.as_bytes()]);
        cookies.for_each(|cookie| put(&[b"; ", cookie.as_bytes()]));
        put(&[b"\r\n"]);
    }
    match length {
        RequestBodyLength::Unspecified => put(&[b"\r\n"]),
        RequestBodyLength::Exact(length) => put(&[b"content-length: ", length.to_string().as_bytes(), b"\r\n\r\n"]),
        RequestBodyLength::Chunked => put(&[b"transfer-encoding: chunked\r\n\r\n"]),
    }
}

/// How the end of a response body is determined.
#[derive(Debug)]
pub enum BodyFraming {
    /// By length: bytes left of the body.
    Length(u64),
    /// By the chunked coding.
    Chunked(Box<ChunkedDecoder>),
    /// By the end of the connection.
    Close,
}

/// Head of an HTTP/1.1 response.
#[derive(Debug)]
pub struct Http1ResponseHead {
    /// Status and headers.
    pub parts: response::Parts,
    /// Framing of the body.
    pub framing: BodyFraming,
    /// Whether the connection can be reused after this response.
    pub keep_alive: bool,
}

impl Http1ResponseHead {
    /// Parses the response head at the beginning of `bytes`, for a request of this method. Returns the head and its
    /// length, or `None` if it is incomplete.
    ///
    /// # Errors
    /// The head is not HTTP/1, or its body framing is ambiguous.
    pub fn parse(bytes: &[u8], method: &Method) -> Result<Option<(Http1ResponseHead, usize)>, Http1Error> {
        let mut lines = [const { MaybeUninit::uninit() }; USUAL_HEADERS];
        let mut read = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let mut parsed = config.parse_response_with_uninit_headers(&mut read, bytes, &mut lines);
        let mut more_lines = Vec::new();
        if parsed == Err(httparse::Error::TooManyHeaders) {
            more_lines.resize_with(MAX_HEADERS, MaybeUninit::uninit);
            read = httparse::Response::new(&mut []);
            parsed = config.parse_response_with_uninit_headers(&mut read, bytes, &mut more_lines);
        }
        let end = match parsed {
            Ok(httparse::Status::Complete(end)) => end,
            Ok(httparse::Status::Partial) if bytes.len() > MAX_HEAD_BYTES => {
                return Err(Http1Error::InvalidResponse("its head is too long"));
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(Http1Error::InvalidResponse("it has too many header lines"));
            }
            Err(httparse::Error::HeaderName | httparse::Error::HeaderValue | httparse::Error::NewLine) => {
                return Err(Http1Error::InvalidResponse("a header line is malformed"));
            }
            Err(httparse::Error::Status) => {
                return Err(Http1Error::InvalidResponse("its status line is malformed"));
            }
            Err(_) => return Err(Http1Error::InvalidResponse("it does not begin with HTTP/1")),
        };
        let mut parts = http::Response::new(()).into_parts().0;
        parts.version = if read.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let status = read.code.and_then(|code| StatusCode::from_u16(code).ok());
        parts.status = status.ok_or(Http1Error::InvalidResponse("its status is out of bounds"))?;
        // Values are slices of a copy of the head, so that they do not keep the whole read buffer.
        let text = Bytes::copy_from_slice(&bytes[..end]);
        parts.headers.reserve(read.headers.len());
        for line in read.headers.iter() {
            let from = line.value.as_ptr() as usize - bytes.as_ptr() as usize;
            let value = HeaderValue::from_maybe_shared(text.slice(from..from + line.value.len()));
            match (HeaderName::from_bytes(line.name.as_bytes()), value) {
                (Ok(name), Ok(value)) => drop(parts.headers.append(name, value)),
                _ => return Err(Http1Error::InvalidResponse("a header line is malformed")),
            }
        }
        let framing = framing(&mut parts, method)?;
        let keeps = !matches!(framing, BodyFraming::Close) && is_keep_alive(&parts);
        Ok(Some((Http1ResponseHead { parts, framing, keep_alive: keeps }, end)))
    }
}

/// Empty lines before a status line. A few are skipped (httparse skips any number, but parses them again each time).
#[derive(Default)]
pub(super) struct EmptyLines(usize);

impl EmptyLines {
    /// Removes empty lines from the front of `piece`; returns whether nothing is left of it.
    ///
    /// # Errors
    /// There are too many empty lines.
    pub(super) fn skip(&mut self, piece: &mut Bytes) -> Result<bool, Http1Error> {
        let ends = piece.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        self.0 += ends;
        if self.0 > MAX_EMPTY_LINE_BYTES {
            return Err(Http1Error::InvalidResponse("too many empty lines before its status line"));
        }
        piece.advance(ends);
        Ok(piece.is_empty())
    }
}

/// Whether `text` may contain a complete head that ends after `before`, or is too long. Avoids parsing again for every
/// byte received.
pub(super) fn may_be_complete(text: &[u8], before: usize) -> bool {
    let news = &text[before.saturating_sub(3)..];
    text.len() > MAX_HEAD_BYTES
        || news.windows(2).any(|pair| pair == b"\n\n")
        || news.windows(3).any(|it| it == b"\n\r\n")
}

/// Determines the body framing (RFC 9112, section 6.3).
fn framing(parts: &mut response::Parts, method: &Method) -> Result<BodyFraming, Http1Error> {
    let length = content_length(&mut parts.headers)?;
    let mut codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if let Some(coding) = coding {
        if parts.version == Version::HTTP_10 {
            return Err(Http1Error::InvalidResponse("HTTP/1.0 does not define Transfer-Encoding"));
        }
        // Any other coding would reach the client without the header that names it.
        if !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") || codings.next().is_some() {
            return Err(Http1Error::InvalidResponse("its Transfer-Encoding is not chunked alone"));
        }
        if length.is_some() {
            return Err(Http1Error::InvalidResponse("it has Content-Length beside Transfer-Encoding"));
        }
    }
    let bare = parts.status.is_informational()
        || matches!(parts.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || method == Method::HEAD;
    if bare {
        return Ok(BodyFraming::Length(0));
    }
    Ok(match (coding, length) {
        (Some(_), _) => BodyFraming::Chunked(Box::default()),
        (None, Some(length)) => BodyFraming::Length(length),
        (None, None) => BodyFraming::Close,
    })
}

/// Value of `Content-Length`; equal repeats are merged (RFC 9110, section 8.6).
fn content_length(headers: &mut HeaderMap) -> Result<Option<u64>, Http1Error> {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lines.next() else { return Ok(None) };
    let several = lines.next().is_some();
    let digits = |value: &HeaderValue| {
        let bytes = value.as_bytes();
        let digits = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
        digits.then(|| value.to_str().ok()?.parse::<u64>().ok()).flatten()
    };
    let length = digits(first).ok_or(Http1Error::InvalidResponse("its Content-Length is not a number"))?;
    if several {
        if !headers.get_all(CONTENT_LENGTH).iter().all(|line| digits(line) == Some(length)) {
            return Err(Http1Error::InvalidResponse("it has more than one Content-Length"));
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(Some(length))
}

/// Whether the connection persists: HTTP/1.1 unless `close`, HTTP/1.0 only with `keep-alive`.
fn is_keep_alive(parts: &response::Parts) -> bool {
    let says = |word: &[u8]| {
        let mut options =
            parts.headers.get_all(CONNECTION).iter().flat_map(|line| hop_by_hop::list_items(line.as_bytes()));
        options.any(|option| option.eq_ignore_ascii_case(word))
    };
    // A server that announces a body after a 204 may send it: the next response would begin with it.
    let followed = parts.status == StatusCode::NO_CONTENT
        && (parts.headers.contains_key(TRANSFER_ENCODING)
            || parts.headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0"));
    !followed && !says(b"close") && (parts.version != Version::HTTP_10 || says(b"keep-alive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, method: &Method) -> Result<Option<(Http1ResponseHead, usize)>, Http1Error> {
        Http1ResponseHead::parse(text.as_bytes(), method)
    }

    fn framed(text: &str) -> String {
        match read(&format!("{text}\r\n\r\nbehind"), &Method::GET) {
            Ok(Some((Http1ResponseHead { framing, keep_alive: keeps, .. }, end))) => {
                assert_eq!(end, text.len() + 4);
                let framing = match framing {
                    BodyFraming::Length(length) => length.to_string(),
                    BodyFraming::Chunked(_) => "chunked".to_owned(),
                    BodyFraming::Close => "close".to_owned(),
                };
                format!("{framing} {keeps}")
            }
            Ok(None) => "more".to_owned(),
            Err(fault) => fault.to_string(),
        }
    }

    #[test]
    fn http1_response_framing_and_keep_alive() {
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5", "5 true"),
            ("HTTP/1.1 200\r\ncontent-length: 0", "0 true"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: x, Close", "5 false"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", "chunked true"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding:\tchunked ", "chunked true"),
            ("HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked", "0 true"),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 7", "0 false"),
            ("HTTP/1.1 200 OK", "close false"),
            ("HTTP/1.1 204 No Content", "0 true"),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 7", "0 true"),
            ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x", "0 true"),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5", "5 false"),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive", "5 true"),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive, close", "5 false"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5", "5 true"),
        ] {
            assert_eq!(framed(text), expected, "{text}");
        }
        let head = read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", &Method::HEAD).unwrap().unwrap().0;
        assert!(matches!(head.framing, BodyFraming::Length(0)) && head.keep_alive);
        assert_eq!(head.parts.headers[CONTENT_LENGTH], "5", "what a HEAD was asked for");
    }

    #[test]
    fn http1_response_ambiguous_or_invalid_is_rejected() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
            "HTTP/1.1 200 OK\r\nContent-Length: 5, 5",
            "HTTP/1.1 200 OK\r\nContent-Length: +5",
            "HTTP/1.1 200 OK\r\nContent-Length: -5",
            "HTTP/1.1 200 OK\r\nContent-Length: 0x5",
            "HTTP/1.1 200 OK\r\nContent-Length:",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
            "HTTP/1.1 200 OK\r\nContent-Length : 5",
            "HTTP/1.1 200 OK\r\nA: 1\r\n 2",
            "HTTP/1.1 200 OK\r\nno header",
            "HTTP/1.1 200 OK\r\n: x",
            "HTTP/1.1 200 OK\r\nA: \u{0}",
            "HTTP/2.0 200 OK",
            "HTTP/1.1 2000 OK",
            "HTTP/1.1 099 OK",
            "SSH-2.0-OpenSSH",
            "\u{15}\u{3}\u{3}\u{0}\u{2}\u{2}\u{46}",
        ] {
            let refused = framed(text);
            assert!(refused.starts_with("the answer is not HTTP/1.1: "), "{text}: {refused}");
        }
        let lines = format!("HTTP/1.1 200 OK\r\n{}", "A: 1\r\n".repeat(MAX_HEADERS + 1));
        assert!(framed(&lines).ends_with("too many header lines"));
        let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(MAX_HEAD_BYTES));
        assert!(read(&endless, &Method::GET).unwrap_err().to_string().ends_with("its head is too long"));
    }

    #[test]
    fn http1_response_of_4096_header_lines_is_read() {
        let lines = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: 1\r\n".repeat(4096));
        assert_eq!(read(&lines, &Method::GET).unwrap().unwrap().0.parts.headers.get_all("a").iter().count(), 4096);
    }

    #[test]
    fn http1_request_joins_cookies() {
        let mut request = http::Request::new(());
        for value in ["a=1", "b=2", "c=3; d=4"] {
            request.headers_mut().append("cookie", HeaderValue::from_static(value));
        }
        let mut out = Vec::new();
        write_request_head(&mut out, &request.into_parts().0, RequestBodyLength::Unspecified);
        assert_eq!(String::from_utf8(out).unwrap(), "GET / HTTP/1.1\r\ncookie: a=1; b=2; c=3; d=4\r\n\r\n");
    }

    #[test]
    fn http1_response_head_incomplete_is_awaited() {
        let text = "HTTP/1.1 200 OK\r\nA: 1\r\nB: \u{e9}\r\nA: 2\r\n\r\n";
        for end in 0..text.len() {
            assert!(Http1ResponseHead::parse(&text.as_bytes()[..end], &Method::GET).unwrap().is_none(), "{end}");
        }
        let (head, end) = read(text, &Method::GET).unwrap().unwrap();
        let lines: Vec<_> = head.parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(lines, [("a", &b"1"[..]), ("a", b"2"), ("b", "\u{e9}".as_bytes())]);
        assert_eq!((head.parts.status.as_u16(), end), (200, text.len()));
    }

    #[test]
    fn http1_request_has_one_body_length_header() {
        let mut request = http::Request::new(());
        *request.uri_mut() = "/a%20b?c=d".parse().unwrap();
        *request.method_mut() = Method::PUT;
        for (name, value) in [("host", "h"), ("content-length", "7"), ("transfer-encoding", "x"), ("a", "1"), ("a", "")]
        {
            request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let parts = request.into_parts().0;
        let written = |length| {
            let mut out = Vec::new();
            write_request_head(&mut out, &parts, length);
            String::from_utf8(out).unwrap()
        };
        let head = "PUT /a%20b?c=d HTTP/1.1\r\nhost: h\r\na: 1\r\na: \r\n";
        assert_eq!(written(RequestBodyLength::Unspecified), format!("{head}\r\n"));
        assert_eq!(written(RequestBodyLength::Exact(0)), format!("{head}content-length: 0\r\n\r\n"));
        assert_eq!(written(RequestBodyLength::Chunked), format!("{head}transfer-encoding: chunked\r\n\r\n"));
    }
}
