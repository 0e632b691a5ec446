//! Requests of an HTTP/2 client that h2 would reset or answer itself.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use http::uri::{Authority, Scheme};
use http::{HeaderName, HeaderValue, Method};

use super::header_check::{check_name_length, check_value, shown};
use super::http2_headers::{DecodedHeader, HeaderList, HeaderReview, ReceivedHeaders};
use super::request_target::{check_target, loggable_target};
use crate::message::MalformedRequest;

/// Maximum number of headers of a request: h2's map of headers holds some more.
const MAX_HEADERS: usize = 24_000;
/// Maximum length of a header name: the client's table may hold it, and a literal of a few bytes repeat it.
const MAX_NAME_BYTES: usize = 1024;
/// Headers of a refused request that its answer and its log line need.
const KEPT_HEADERS: [&[u8]; 3] = [b"accept", b"user-agent", b"audit-id"];
/// Maximum length of the value of such a header.
const MAX_KEPT_BYTES: usize = 1024;

/// The refused requests of a connection that h2 has not handed over yet, in the order of their streams.
#[derive(Clone, Default)]
pub(super) struct RefusedStreams(Rc<RefCell<VecDeque<(u32, MalformedRequest)>>>);

impl RefusedStreams {
    /// Why the request of `stream_id` is refused, if it is. h2 hands requests over in the order of their streams.
    pub(super) fn take(&self, stream_id: u32) -> Option<MalformedRequest> {
        let mut refused = self.0.borrow_mut();
        while refused.front().is_some_and(|(id, _)| *id < stream_id) {
            refused.pop_front();
        }
        refused.pop_front_if(|(id, _)| *id == stream_id).map(|(_, malformed)| malformed)
    }
}

/// Reviews the requests of one connection.
pub(super) struct RequestReview {
    max_header_bytes: usize,
    last_stream: u32,
    refused: RefusedStreams,
}

impl RequestReview {
    pub(super) fn new(max_header_bytes: usize, refused: RefusedStreams) -> RequestReview {
        RequestReview { max_header_bytes, last_stream: 0, refused }
    }
}

impl HeaderReview for RequestReview {
    fn review(&mut self, received: &ReceivedHeaders<'_>) -> Option<HeaderList> {
        // Trailers.
        if received.stream_id <= self.last_stream {
            return None;
        }
        self.last_stream = received.stream_id;
        match check_request(received, self.max_header_bytes) {
            Ok(None) => None,
            Ok(Some(path)) => {
                let mut list = HeaderList::default();
                for header in received.headers.as_slice() {
                    match header.name.as_bytes() {
                        b":path" => list.push(b":path", &path),
                        _ => list.push_received(header),
                    }
                }
                Some(list)
            }
            Err(malformed) => {
                self.refused.0.borrow_mut().push_back((received.stream_id, malformed));
                Some(what_remains(received))
            }
        }
    }
}

/// An acceptable request in place of a refused one.
fn what_remains(received: &ReceivedHeaders<'_>) -> HeaderList {
    let find =
        |header_name: &[u8]| received.headers.iter().find(|(name, _)| *name == header_name).map(|(_, value)| value);
    let method = find(b":method").and_then(|method| Method::from_bytes(method).ok());
    let mut list = HeaderList::default();
    let method = method.filter(|method| method != Method::CONNECT).unwrap_or(Method::GET);
    list.push(b":method", method.as_str().as_bytes());
    list.push(b":scheme", b"https");
    list.push(b":path", &loggable_target(find(b":path").unwrap_or_default()));
    for name in KEPT_HEADERS {
        if let Some(value) = find(name).filter(|it| it.len() <= MAX_KEPT_BYTES && HeaderValue::from_bytes(it).is_ok()) {
            list.push(name, value);
        }
    }
    list
}

/// Pseudo-headers of a request.
#[derive(Default)]
struct PseudoHeaders<'h> {
    method: Option<&'h [u8]>,
    scheme: Option<&'h [u8]>,
    authority: Option<&'h [u8]>,
    path: Option<&'h [u8]>,
    protocol: Option<&'h [u8]>,
}

/// Checks what h2 checks. Returns the escaped path if it must be escaped.
fn check_request(received: &ReceivedHeaders<'_>, max_header_bytes: usize) -> Result<Option<Vec<u8>>, MalformedRequest> {
    let headers = received.headers;
    if headers.is_too_large() {
        return Err(MalformedRequest::header_too_large(format!(
            "the header has {} bytes, less than {max_header_bytes} are accepted",
            headers.size()
        )));
    }
    if headers.len() > MAX_HEADERS {
        let length = headers.len();
        return Err(MalformedRequest::header_too_large(format!(
            "the header has {length} lines, the most are {MAX_HEADERS}"
        )));
    }
    let invalid = |message: String| Err(MalformedRequest::invalid(message));
    let mut pseudo = PseudoHeaders::default();
    let (mut regular, mut content_length) = (false, None);
    for header in headers.as_slice() {
        let (name, value) = (header.name.as_bytes(), header.value.as_bytes());
        if name.first() == Some(&b':') {
            let field = match name {
                b":method" => &mut pseudo.method,
                b":scheme" => &mut pseudo.scheme,
                b":authority" => &mut pseudo.authority,
                b":path" => &mut pseudo.path,
                b":protocol" => &mut pseudo.protocol,
                _ => return invalid(format!("{} is no pseudo-header of a request", shown(name))),
            };
            if regular || field.replace(value).is_some() {
                return invalid(format!("the pseudo-header {} is repeated or comes after a header", shown(name)));
            }
            continue;
        }
        regular = true;
        check_header(header)?;
        if name == b"content-length" {
            let length = std::str::from_utf8(value).ok().filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
            let Some(length) = length.filter(|it| it.len() <= 19).and_then(|it| it.parse::<u64>().ok()) else {
                return invalid(format!("the Content-Length {} is not a number", shown(value)));
            };
            if *content_length.get_or_insert(length) != length {
                return invalid("the request has two different Content-Lengths".to_owned());
            }
        }
    }
    if let Some(length) = content_length.filter(|length| *length > 0 && received.ends_stream) {
        return invalid(format!("the Content-Length is {length}, but the request has no body"));
    }
    check_pseudo_headers(&pseudo)
}

fn check_pseudo_headers(pseudo: &PseudoHeaders<'_>) -> Result<Option<Vec<u8>>, MalformedRequest> {
    let invalid = |message: String| Err(MalformedRequest::invalid(message));
    let Some(method) = pseudo.method else { return invalid("the request has no :method".to_owned()) };
    if Method::from_bytes(method).is_err() {
        return invalid(format!("invalid method {}", shown(method)));
    }
    if let Some(authority) = pseudo.authority
        && Authority::try_from(authority).is_err()
    {
        return invalid(format!("invalid :authority {}", shown(authority)));
    }
    if pseudo.protocol.is_some() {
        return invalid("the request has :protocol, and extended CONNECT is not served".to_owned());
    }
    if method == b"CONNECT" {
        return match (pseudo.scheme, pseudo.path) {
            (None, None) => Ok(None),
            _ => invalid("a CONNECT request has neither :scheme nor :path".to_owned()),
        };
    }
    match pseudo.scheme {
        None => return invalid("the request has no :scheme".to_owned()),
        Some(scheme) if Scheme::try_from(scheme).is_err() => {
            return invalid(format!("invalid :scheme {}", shown(scheme)));
        }
        Some(_) => {}
    }
    match pseudo.path {
        None => invalid("the request has no :path".to_owned()),
        Some(path) if path != b"*" && path.first() != Some(&b'/') => {
            invalid(format!("invalid :path {}: it does not begin with \"/\"", shown(path)))
        }
        Some(path) => check_target(path),
    }
}

/// Checks one header line that is no pseudo-header. Texts that the client repeats by its table are read once.
fn check_header(header: &DecodedHeader) -> Result<(), MalformedRequest> {
    let invalid = |message: String| Err(MalformedRequest::invalid(message));
    let name = header.name.as_bytes();
    header.name.check_once(|name| {
        check_name_length(name, MAX_NAME_BYTES)?;
        match name.iter().any(u8::is_ascii_uppercase) || HeaderName::from_bytes(name).is_err() {
            true => invalid(format!("invalid header name {}", shown(name))),
            false => Ok(()),
        }
    })?;
    match name {
        b"connection" | b"transfer-encoding" | b"upgrade" | b"keep-alive" | b"proxy-connection" => {
            return invalid(format!("the header {} is not allowed over HTTP/2 (RFC 9113, 8.2.2)", shown(name)));
        }
        b"te" if header.value.as_bytes() != b"trailers" => {
            return invalid("the header TE may only be \"trailers\" over HTTP/2 (RFC 9113, 8.2.2)".to_owned());
        }
        _ => {}
    }
    header.value.check_once(|value| check_value(name, value))
}
