//! Requests of an HTTP/1.1 client that hyper would answer itself, with an empty body.
//!
//! Each head is reviewed once it is complete, and reaches hyper then. To know where the next one begins, bodies are
//! followed. Where hyper might read a body in another way, and after an upgrade, all bytes pass unseen.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method};
use parking_lot::Mutex;

use super::header_check::{check_name_length, check_value, shown};
use super::request_target::{MAX_URL_BYTES, check_target, loggable_target};
use super::rewritten_stream::{RewrittenPiece, RewrittenStream, StreamRewriter};
use crate::egress::http::http1::{ChunkedDecoder, ChunkedStep};
use crate::message::MalformedRequest;

/// Maximum number of header lines: a front proxy sends one for each group of the user.
pub(crate) const HTTP1_MAX_HEADERS: usize = 4096;
/// Maximum length of a header name: that of the http crate.
const MAX_NAME_BYTES: usize = u16::MAX as usize;
/// Headers of a refused request that its answer and its log line need.
const KEPT_HEADERS: [&str; 4] = ["host", "accept", "user-agent", "audit-id"];
/// Maximum length of the value of such a header.
const MAX_KEPT_BYTES: usize = 1024;

/// A stream of an HTTP/1.1 client whose requests are reviewed.
pub(crate) type ReviewedHttp1Stream<S> = RewrittenStream<S, Http1RequestReview>;

/// The refused request of a connection, its last one.
#[derive(Clone, Default)]
pub(crate) struct RefusedRequestSlot(Arc<RefusedHead>);

#[derive(Default)]
struct RefusedHead {
    /// Requests that hyper handed over.
    handed_over: AtomicU64,
    /// The number of the refused one among them, and the reason.
    refused: Mutex<Option<(u64, MalformedRequest)>>,
}

impl RefusedRequestSlot {
    /// Counts a request that hyper hands over; why it is refused, if it is.
    pub(crate) fn next(&self) -> Option<MalformedRequest> {
        let number = self.0.handed_over.fetch_add(1, Ordering::Relaxed);
        self.0.refused.lock().take_if(|(refused, _)| *refused == number).map(|(_, malformed)| malformed)
    }
}

/// Reviews the requests on `stream`, whose heads have at most `max_head_bytes`.
pub(crate) fn review_http1<S>(stream: S, max_head_bytes: usize) -> (ReviewedHttp1Stream<S>, RefusedRequestSlot) {
    let refused = RefusedRequestSlot::default();
    let review = Http1RequestReview {
        max_head_bytes,
        position: MessagePosition::Head(HeadSearch::default()),
        heads: 0,
        refused: refused.clone(),
    };
    (RewrittenStream::new(stream, review), refused)
}

/// Reviews the requests of one connection.
pub(crate) struct Http1RequestReview {
    max_head_bytes: usize,
    position: MessagePosition,
    /// Number of requests that hyper got.
    heads: u64,
    refused: RefusedRequestSlot,
}

/// What the next bytes belong to.
enum MessagePosition {
    Head(HeadSearch),
    /// A body of which so many bytes are missing.
    Body(u64),
    ChunkedBody(Box<ChunkedDecoder>),
    /// An upgraded connection, or a body of unknown end.
    Unknown,
    /// A refused request was the last one.
    Refused,
}

/// How far the end of a head was searched, so that a head in many pieces is read once.
#[derive(Clone, Copy, Default)]
struct HeadSearch {
    /// Start of the current line.
    line_start: usize,
    /// Bytes without a line end in it.
    searched: usize,
    /// Whether a line that is not empty was found.
    begun: bool,
}

impl HeadSearch {
    /// The length of the head that begins `bytes`, with the empty line that ends it.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            let from = self.line_start + self.searched;
            let Some(end) = bytes.get(from..)?.iter().position(|byte| *byte == b'\n') else {
                self.searched = bytes.len() - self.line_start;
                return None;
            };
            let (line, next) = (&bytes[self.line_start..from + end], from + end + 1);
            let is_empty = matches!(line, b"" | b"\r");
            if is_empty && self.begun {
                return Some(next);
            }
            self.begun |= !is_empty;
            (self.line_start, self.searched) = (next, 0);
        }
    }
}

impl StreamRewriter for Http1RequestReview {
    fn next_piece(&mut self, bytes: &[u8]) -> io::Result<Option<(usize, RewrittenPiece)>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let passed = match &mut self.position {
            MessagePosition::Head(search) => match search.find_end(bytes) {
                Some(end) if end <= self.max_head_bytes => return Ok(Some((end, self.review_head(&bytes[..end])))),
                None if bytes.len() <= self.max_head_bytes => return Ok(None),
                _ => {
                    let malformed = head_too_large(bytes, self.max_head_bytes);
                    return Ok(Some((bytes.len(), self.refuse(bytes, malformed))));
                }
            },
            MessagePosition::Body(left) => {
                let length = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= length as u64;
                if *left == 0 {
                    self.position = MessagePosition::Head(HeadSearch::default());
                }
                length
            }
            MessagePosition::ChunkedBody(decoder) => {
                let mut rest = Bytes::copy_from_slice(bytes);
                loop {
                    match decoder.decode(&mut rest) {
                        Ok(ChunkedStep::Data(_)) => {}
                        Ok(ChunkedStep::NeedMore) => break,
                        Ok(ChunkedStep::End(_)) => {
                            self.position = MessagePosition::Head(HeadSearch::default());
                            break;
                        }
                        Err(_) => {
                            self.position = MessagePosition::Unknown;
                            break;
                        }
                    }
                }
                match self.position {
                    MessagePosition::Unknown => bytes.len(),
                    _ => bytes.len() - rest.len(),
                }
            }
            MessagePosition::Unknown => bytes.len(),
            MessagePosition::Refused => return Ok(Some((bytes.len(), RewrittenPiece::Replaced(BytesMut::new())))),
        };
        Ok(Some((passed, RewrittenPiece::Unchanged)))
    }
}

impl Http1RequestReview {
    fn review_head(&mut self, head: &[u8]) -> RewrittenPiece {
        match check_head(head) {
            Ok(CheckedHead { replaced: Some(replaced), .. }) if replaced.len() > self.max_head_bytes => {
                self.refuse(head, head_too_large(&replaced, self.max_head_bytes))
            }
            Ok(checked) => {
                self.heads += 1;
                self.position = checked.position;
                checked.replaced.map_or(RewrittenPiece::Unchanged, RewrittenPiece::Replaced)
            }
            Err(malformed) => self.refuse(head, malformed),
        }
    }

    fn refuse(&mut self, head: &[u8], malformed: MalformedRequest) -> RewrittenPiece {
        *self.refused.0.refused.lock() = Some((self.heads, malformed));
        self.position = MessagePosition::Refused;
        RewrittenPiece::Replaced(what_remains(head))
    }
}

/// A head that hyper accepts.
struct CheckedHead {
    /// The head with an escaped URL, if it had to be escaped.
    replaced: Option<BytesMut>,
    position: MessagePosition,
}

/// The lines of a head, without their ends.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty())
}

/// Name and value of a header line; none without a colon.
fn header(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let mut value = &line[colon + 1..];
    // Only these surround a value (RFC 9110, 5.5); others are part of it, and not allowed.
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    Some((&line[..colon], value))
}

/// Method, target and version of a request line; none if there are not exactly three parts.
fn request_line(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut parts = line.split(|byte| *byte == b' ');
    let parts = (parts.next()?, parts.next()?, parts.next()?, parts.next());
    (parts.3.is_none()).then_some((parts.0, parts.1, parts.2))
}

/// Checks what hyper checks.
fn check_head(head: &[u8]) -> Result<CheckedHead, MalformedRequest> {
    let invalid = |message: String| Err(MalformedRequest::invalid(message));
    let mut lines = lines(head);
    let first = lines.next().unwrap_or_default();
    let unseen = || CheckedHead { replaced: None, position: MessagePosition::Unknown };
    // hyper knows the preface of HTTP/2.
    if first.starts_with(b"PRI * HTTP/2") {
        return Ok(unseen());
    }
    let Some((method, target, version)) = request_line(first) else {
        return invalid(format!(
            "malformed request line {}: not a method, a URL without spaces and a version",
            shown(first)
        ));
    };
    if Method::from_bytes(method).is_err() {
        return invalid(format!("invalid method {}", shown(method)));
    }
    if !matches!(version, b"HTTP/1.1" | b"HTTP/1.0") {
        return invalid(format!("the HTTP version {} is not supported", shown(version)));
    }
    let mut body = BodyHeaders::default();
    for (number, line) in lines.enumerate() {
        if number >= HTTP1_MAX_HEADERS {
            return Err(MalformedRequest::header_too_large(format!(
                "the header has more than {HTTP1_MAX_HEADERS} lines"
            )));
        }
        body.add(check_header_line(line)?)?;
    }
    body.check_coding(version == b"HTTP/1.1")?;
    let escaped = match method {
        b"CONNECT" => None,
        _ => check_target(target)?,
    };
    let replaced = escaped.map(|escaped| {
        let start = target.as_ptr() as usize - head.as_ptr() as usize;
        BytesMut::from(&[&head[..start], &escaped, &head[start + target.len()..]].concat()[..])
    });
    let position = if method == b"CONNECT" { MessagePosition::Unknown } else { body.position(version == b"HTTP/1.1") };
    Ok(CheckedHead { replaced, position })
}

/// Name and value of a valid header line.
fn check_header_line(line: &[u8]) -> Result<(&[u8], &[u8]), MalformedRequest> {
    let invalid = |message: String| Err(MalformedRequest::invalid(message));
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return invalid("a header line begins with a space: folded lines are not accepted (RFC 9112, 5.2)".to_owned());
    }
    let Some((name, value)) = header(line) else {
        return invalid("a header line has no colon".to_owned());
    };
    if let Some(byte) = name.iter().find(|byte| !is_token(**byte)) {
        return invalid(format!("invalid header name {}: byte {byte:#04x} is not allowed", shown(name)));
    }
    if name.is_empty() {
        return invalid("a header line has no name".to_owned());
    }
    check_name_length(name, MAX_NAME_BYTES)?;
    check_value(name, value)?;
    Ok((name, value))
}

/// Headers that say where a body ends.
#[derive(Default)]
struct BodyHeaders {
    length: Option<u64>,
    /// Lines of Transfer-Encoding.
    codings: usize,
    /// Whether the last coding is `chunked`.
    is_chunked: bool,
    /// Whether a line has several codings.
    has_others: bool,
    upgrades: bool,
}

impl BodyHeaders {
    fn add(&mut self, (name, value): (&[u8], &[u8])) -> Result<(), MalformedRequest> {
        if name.eq_ignore_ascii_case(b"content-length") && self.codings == 0 {
            let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            // The two largest numbers have a meaning of their own in hyper.
            let length = digits.and_then(|text| text.parse().ok()).filter(|length| *length < u64::MAX - 1);
            let Some(length) = length else {
                return Err(MalformedRequest::invalid(format!("the Content-Length {} is not a number", shown(value))));
            };
            if *self.length.get_or_insert(length) != length {
                return Err(MalformedRequest::invalid("the request has two different Content-Lengths"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.codings += 1;
            let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
            self.is_chunked = last.trim_ascii().eq_ignore_ascii_case(b"chunked");
            self.has_others |= value.contains(&b',');
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.upgrades = true;
        }
        Ok(())
    }

    /// Checks that the end of the body can be found.
    fn check_coding(&self, is_http11: bool) -> Result<(), MalformedRequest> {
        if self.codings > 0 && !is_http11 {
            return Err(MalformedRequest::invalid("Transfer-Encoding is not allowed over HTTP/1.0"));
        }
        if self.codings > 0 && !self.is_chunked {
            return Err(MalformedRequest::invalid("unsupported Transfer-Encoding: only \"chunked\" is accepted last"));
        }
        Ok(())
    }

    /// What follows the head.
    fn position(&self, is_http11: bool) -> MessagePosition {
        match (self.codings, self.length) {
            _ if self.upgrades => MessagePosition::Unknown,
            (0, None | Some(0)) => MessagePosition::Head(HeadSearch::default()),
            (0, Some(length)) => MessagePosition::Body(length),
            (1, None) if self.is_chunked && !self.has_others && is_http11 => {
                MessagePosition::ChunkedBody(Box::default())
            }
            _ => MessagePosition::Unknown,
        }
    }
}

fn head_too_large(head: &[u8], limit: usize) -> MalformedRequest {
    let line = head.iter().position(|byte| *byte == b'\n').unwrap_or(head.len());
    match line > MAX_URL_BYTES {
        true => MalformedRequest::url_too_long(None, MAX_URL_BYTES),
        false => MalformedRequest::header_too_large(format!("the header has more than {limit} bytes")),
    }
}

/// An acceptable request in place of a refused one; hyper closes the connection after it.
fn what_remains(head: &[u8]) -> BytesMut {
    let mut lines = lines(head);
    let mut parts = lines.next().unwrap_or_default().splitn(3, |byte| *byte == b' ');
    let method = parts.next().and_then(|method| Method::from_bytes(method).ok());
    let method = method.filter(|method| method != Method::CONNECT).unwrap_or(Method::GET);
    let mut request = BytesMut::from(method.as_str());
    request.extend_from_slice(b" ");
    request.extend_from_slice(&loggable_target(parts.next().unwrap_or_default()));
    request.extend_from_slice(b" HTTP/1.1\r\nconnection: close\r\n");
    let headers: Vec<(&[u8], &[u8])> = lines.take(HTTP1_MAX_HEADERS).filter_map(header).collect();
    for kept in KEPT_HEADERS {
        if let Some((_, value)) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(kept.as_bytes()))
            && value.len() <= MAX_KEPT_BYTES
            && HeaderValue::from_bytes(value).is_ok()
        {
            for part in [kept.as_bytes(), b": ", value, b"\r\n"] {
                request.extend_from_slice(part);
            }
        }
    }
    request.extend_from_slice(b"\r\n");
    request
}

/// Whether a byte is allowed in the name of a header (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What hyper gets of `bytes`, and why the last request is refused.
    async fn reviewed(bytes: &[u8], piece: usize, limit: usize) -> (String, Option<(u64, u16, String)>) {
        let (client, mut server) = tokio::io::duplex(piece);
        let bytes = bytes.to_vec();
        let writing = tokio::spawn(async move {
            for part in bytes.chunks(piece) {
                server.write_all(part).await.unwrap();
            }
        });
        let (mut stream, refused) = review_http1(client, limit);
        let mut out = Vec::new();
        stream.read_to_end(&mut out).await.unwrap();
        writing.await.unwrap();
        let refused = refused.0.refused.lock().take();
        let refused = refused.map(|(number, why)| (number, why.status().code, why.status().message.clone()));
        (String::from_utf8_lossy(&out).into_owned(), refused)
    }

    #[tokio::test]
    async fn http1_review_escapes_urls_and_follows_bodies() {
        let requests = "POST /<a> HTTP/1.1\r\nContent-Length: 12\r\n\r\nGET /<b> HTTGET /?<c> HTTP/1.1\nhost: <h>\n\n\
            PUT /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nGET /<e> \r\n0\r\n\r\nGET /<f> HTTP/1.0\r\n\r\n\
            GET /g HTTP/1.1\r\nUpgrade: x\r\n\r\nGET /<h> HTTP/1.1\r\n\r\n";
        let expected =
            requests.replace("POST /<a>", "POST /%3Ca%3E").replace("?<c>", "?%3Cc%3E").replace("/<f>", "/%3Cf%3E");
        for piece in [1, 3, 50, 4096] {
            assert_eq!(reviewed(requests.as_bytes(), piece, 8 << 10).await, (expected.clone(), None));
        }
    }

    #[tokio::test]
    async fn http1_review_refuses_by_name() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(9000));
        let url = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a:\r\n".repeat(HTTP1_MAX_HEADERS + 1));
        for (head, code, part) in [
            ("GET /a\u{1} HTTP/1.1\r\n\r\n", 400, "byte 0x01 at position 2"),
            ("GET /a b HTTP/1.1\r\n\r\n", 400, "malformed request line"),
            ("G\u{fc}T / HTTP/1.1\r\n\r\n", 400, "invalid method"),
            ("GET / HTTP/3.0\r\n\r\n", 400, "the HTTP version \"HTTP/3.0\" is not supported"),
            ("GET / HTTP/1.1\r\na b: c\r\n\r\n", 400, "invalid header name \"a b\": byte 0x20"),
            ("GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n", 400, "folded"),
            ("GET / HTTP/1.1\r\na: \u{7}\r\n\r\n", 400, "invalid value of the header \"a\": byte 0x07"),
            ("GET / HTTP/1.1\r\nno\r\n\r\n", 400, "no colon"),
            ("GET / HTTP/1.1\r\ncontent-length: +1\r\n\r\n", 400, "Content-Length"),
            ("GET / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "two different"),
            (&long, 431, "more than 8192 bytes"),
            (&url, 414, "the URL has 70001 bytes, the most are 65534"),
            (&many, 431, "bytes"),
        ] {
            let bytes = format!("GET /first HTTP/1.1\r\n\r\n{head}GET /after HTTP/1.1\r\n\r\n");
            for piece in [7, 100_000] {
                let (out, refused) =
                    reviewed(bytes.as_bytes(), piece, if code == 414 { 1 << 20 } else { 8 << 10 }).await;
                let (number, found, message) = refused.unwrap();
                assert_eq!((number, found, message.contains(part)), (1, code, true), "{message}");
                assert!(out.starts_with("GET /first HTTP/1.1\r\n\r\n") && !out.contains("/after"), "{out}");
                assert!(httparse::Request::new(&mut [httparse::EMPTY_HEADER; 9]).parse(&out.as_bytes()[23..]).is_ok());
            }
        }
    }

    /// A head in pieces of one byte is searched once.
    #[test]
    fn http1_review_search_resumes() {
        let head = format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "x".repeat(4000));
        let mut search = HeadSearch::default();
        for length in 0..head.len() {
            assert_eq!(search.find_end(&head.as_bytes()[..length]), None);
            assert_eq!(search.line_start + search.searched, length, "no byte is left to search again");
        }
        assert_eq!(search.find_end(head.as_bytes()), Some(head.len()));
    }
}
