//! Writes a request to its connection.

use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::header::TRAILER;
use http::{HeaderMap, HeaderName, HeaderValue, Request, request};
use http_body::{Body as _, Frame};

use super::head::{self, RequestBodyLength};
use super::stream::{Http1CloseReason, Http1Stream};
use crate::egress::http::has_payload;
use crate::egress::http::upload_task::UploadTask;
use crate::message::{Body, hop_by_hop};

/// Body pieces up to this size are copied into the write buffer: one write for all.
const MAX_COPIED_PIECE: usize = 16 << 10;
/// Bytes gathered before a write.
const WRITE_BUFFER_BYTES: usize = 32 << 10;

/// Starts writing `request`.
pub(super) fn write_request(wire: &Rc<Http1Stream>, request: Request<Body>) -> UploadTask {
    let pump = RequestWriter::new(wire.clone(), request);
    wire.begin_request();
    UploadTask::start(pump)
}

/// Writes head and body as fast as the backend accepts them.
struct RequestWriter {
    stream: Rc<Http1Stream>,
    body: Body,
    length: RequestBodyLength,
    /// Values of the header `Trailer`: the trailers that may be sent.
    trailer_names: Vec<HeaderValue>,
    /// Bytes to write next, from `at` on; then `piece`, and `tail` that ends it.
    out: Vec<u8>,
    at: usize,
    piece: Bytes,
    tail: &'static [u8],
    ended: bool,
}

/// The body does not match the length stated in the head, or it broke off.
struct InvalidBodyLength;

impl RequestWriter {
    fn new(wire: Rc<Http1Stream>, request: Request<Body>) -> RequestWriter {
        let (parts, body) = request.into_parts();
        let length = request_body_length(&parts, &body);
        let mut out = Vec::with_capacity(1 << 10);
        head::write_request_head(&mut out, &parts, length);
        let announced = match length {
            RequestBodyLength::Chunked => parts.headers.get_all(TRAILER).iter().cloned().collect(),
            RequestBodyLength::Unspecified | RequestBodyLength::Exact(_) => Vec::new(),
        };
        let ended = matches!(length, RequestBodyLength::Unspecified | RequestBodyLength::Exact(0));
        RequestWriter {
            stream: wire,
            body,
            length,
            trailer_names: announced,
            out,
            at: 0,
            piece: Bytes::new(),
            tail: b"",
            ended,
        }
    }

    /// Takes the next available frames of the body.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), InvalidBodyLength>> {
        while !self.ended && self.piece.is_empty() && self.tail.is_empty() && self.out.len() < WRITE_BUFFER_BYTES {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None if self.length == RequestBodyLength::Chunked => self.push_end(&HeaderMap::new()),
                // The backend would take the next request for the rest of this body.
                None | Some(Err(_)) => return Poll::Ready(Err(InvalidBodyLength)),
                Some(Ok(frame)) => match frame.into_data().map_err(Frame::into_trailers) {
                    Ok(data) => self.push_data(data)?,
                    Err(Ok(trailers)) if self.length == RequestBodyLength::Chunked => self.push_end(&trailers),
                    Err(_) => {}
                },
            }
        }
        Poll::Ready(Ok(()))
    }

    fn push_data(&mut self, data: Bytes) -> Result<(), InvalidBodyLength> {
        if data.is_empty() {
            return Ok(());
        }
        let mut tail: &[u8] = b"";
        match &mut self.length {
            RequestBodyLength::Unspecified => return Err(InvalidBodyLength),
            RequestBodyLength::Exact(rest) => {
                *rest = rest.checked_sub(data.len() as u64).ok_or(InvalidBodyLength)?;
                self.ended = *rest == 0;
            }
            RequestBodyLength::Chunked => {
                self.out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                tail = b"\r\n";
            }
        }
        if data.len() <= MAX_COPIED_PIECE {
            self.out.extend_from_slice(&data);
            self.out.extend_from_slice(tail);
        } else {
            (self.piece, self.tail) = (data, tail);
        }
        Ok(())
    }

    /// Writes the last chunk and the announced ones of `trailers`.
    fn push_end(&mut self, trailers: &HeaderMap) {
        self.ended = true;
        self.out.extend_from_slice(b"0\r\n");
        for (name, value) in trailers {
            if self.is_announced(name) {
                for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                    self.out.extend_from_slice(piece);
                }
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn is_announced(&self, name: &HeaderName) -> bool {
        let mut names = self.trailer_names.iter().flat_map(|line| hop_by_hop::list_items(line.as_bytes()));
        names.any(|announced| announced.eq_ignore_ascii_case(name.as_str().as_bytes()))
    }

    fn pieces(&self) -> [&[u8]; 3] {
        [&self.out[self.at..], &self.piece, self.tail]
    }

    fn advance(&mut self, length: usize) {
        let of_out = length.min(self.out.len() - self.at);
        self.at += of_out;
        if self.at == self.out.len() {
            self.at = 0;
            self.out.clear();
        }
        let of_piece = (length - of_out).min(self.piece.len());
        self.piece.advance(of_piece);
        self.tail = &self.tail[length - of_out - of_piece..];
    }
}

impl Future for RequestWriter {
    type Output = ();

    /// Ends with the request or with the connection; errors are reported by reading the response.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let more = this.poll_fill(cx);
            if let Poll::Ready(Err(InvalidBodyLength)) = more {
                // A truncated request must not be taken for a complete one.
                this.stream.abort(Http1CloseReason::BodyBroken);
                return Poll::Ready(());
            }
            while this.pieces().iter().any(|piece| !piece.is_empty()) {
                match ready!(this.stream.poll_write(cx, &this.pieces().map(IoSlice::new))) {
                    Ok(length) => this.advance(length),
                    Err(_) => return Poll::Ready(()),
                }
            }
            if this.ended || more.is_pending() {
                if ready!(this.stream.poll_flush(cx)).is_err() {
                    return Poll::Ready(());
                }
                if this.ended {
                    this.stream.end_request();
                    return Poll::Ready(());
                }
                return Poll::Pending;
            }
        }
    }
}

/// Length of the body, and whether a header states it.
fn request_body_length(parts: &request::Parts, body: &Body) -> RequestBodyLength {
    match body.size_hint().exact() {
        Some(0) | None if body.is_end_stream() && !has_payload(&parts.method) => RequestBodyLength::Unspecified,
        None if body.is_end_stream() => RequestBodyLength::Exact(0),
        Some(length) => RequestBodyLength::Exact(length),
        None => RequestBodyLength::Chunked,
    }
}
