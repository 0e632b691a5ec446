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

use super::head::{self, Length};
use super::wire::{Closed, Wire};
use crate::egress::has_payload;
use crate::egress::pushed::Pushed;
use crate::message::{Body, hop_by_hop};

/// Body pieces up to this size are copied into the write buffer: one write for all.
const SMALL: usize = 16 << 10;
/// Bytes gathered before a write.
const GATHERED: usize = 32 << 10;

/// Starts writing `request`.
pub(super) fn send(wire: &Rc<Wire>, request: Request<Body>) -> Pushed {
    let pump = Pump::new(wire.clone(), request);
    wire.begin();
    Pushed::begin(pump)
}

/// Writes head and body as fast as the backend accepts them.
struct Pump {
    wire: Rc<Wire>,
    body: Body,
    length: Length,
    /// Values of the header `Trailer`: the trailers that may be sent.
    announced: Vec<HeaderValue>,
    /// Bytes to write next, from `at` on; then `piece`, and `tail` that ends it.
    out: Vec<u8>,
    at: usize,
    piece: Bytes,
    tail: &'static [u8],
    ended: bool,
}

/// The body does not match the length stated in the head, or it broke off.
struct Unsent;

impl Pump {
    fn new(wire: Rc<Wire>, request: Request<Body>) -> Pump {
        let (parts, body) = request.into_parts();
        let length = length(&parts, &body);
        let mut out = Vec::with_capacity(1 << 10);
        head::write(&mut out, &parts, length);
        let announced = match length {
            Length::Chunked => parts.headers.get_all(TRAILER).iter().cloned().collect(),
            Length::Unsaid | Length::Exact(_) => Vec::new(),
        };
        let ended = matches!(length, Length::Unsaid | Length::Exact(0));
        Pump { wire, body, length, announced, out, at: 0, piece: Bytes::new(), tail: b"", ended }
    }

    /// Takes the next available frames of the body.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unsent>> {
        while !self.ended && self.piece.is_empty() && self.tail.is_empty() && self.out.len() < GATHERED {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None if self.length == Length::Chunked => self.end(&HeaderMap::new()),
                // The backend would take the next request for the rest of this body.
                None | Some(Err(_)) => return Poll::Ready(Err(Unsent)),
                Some(Ok(frame)) => match frame.into_data().map_err(Frame::into_trailers) {
                    Ok(data) => self.take(data)?,
                    Err(Ok(trailers)) if self.length == Length::Chunked => self.end(&trailers),
                    Err(_) => {}
                },
            }
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, data: Bytes) -> Result<(), Unsent> {
        if data.is_empty() {
            return Ok(());
        }
        let mut tail: &[u8] = b"";
        match &mut self.length {
            Length::Unsaid => return Err(Unsent),
            Length::Exact(rest) => {
                *rest = rest.checked_sub(data.len() as u64).ok_or(Unsent)?;
                self.ended = *rest == 0;
            }
            Length::Chunked => {
                self.out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                tail = b"\r\n";
            }
        }
        if data.len() <= SMALL {
            self.out.extend_from_slice(&data);
            self.out.extend_from_slice(tail);
        } else {
            (self.piece, self.tail) = (data, tail);
        }
        Ok(())
    }

    /// Writes the last chunk and the announced ones of `trailers`.
    fn end(&mut self, trailers: &HeaderMap) {
        self.ended = true;
        self.out.extend_from_slice(b"0\r\n");
        for (name, value) in trailers {
            if self.announces(name) {
                for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                    self.out.extend_from_slice(piece);
                }
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    fn announces(&self, name: &HeaderName) -> bool {
        let mut names = self.announced.iter().flat_map(|line| hop_by_hop::listed(line.as_bytes()));
        names.any(|announced| announced.eq_ignore_ascii_case(name.as_str().as_bytes()))
    }

    fn pieces(&self) -> [&[u8]; 3] {
        [&self.out[self.at..], &self.piece, self.tail]
    }

    fn written(&mut self, length: usize) {
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

impl Future for Pump {
    type Output = ();

    /// Ends with the request or with the connection; errors are reported by reading the response.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            let more = this.poll_more(cx);
            if let Poll::Ready(Err(Unsent)) = more {
                // A truncated request must not be taken for a complete one.
                this.wire.cut(Closed::BodyBroken);
                return Poll::Ready(());
            }
            while this.pieces().iter().any(|piece| !piece.is_empty()) {
                match ready!(this.wire.poll_write(cx, &this.pieces().map(IoSlice::new))) {
                    Ok(length) => this.written(length),
                    Err(_) => return Poll::Ready(()),
                }
            }
            if this.ended || more.is_pending() {
                if ready!(this.wire.poll_flush(cx)).is_err() {
                    return Poll::Ready(());
                }
                if this.ended {
                    this.wire.sent();
                    return Poll::Ready(());
                }
                return Poll::Pending;
            }
        }
    }
}

/// Length of the body, and whether a header states it.
fn length(parts: &request::Parts, body: &Body) -> Length {
    match body.size_hint().exact() {
        Some(0) | None if body.is_end_stream() && !has_payload(&parts.method) => Length::Unsaid,
        None if body.is_end_stream() => Length::Exact(0),
        Some(length) => Length::Exact(length),
        None => Length::Chunked,
    }
}
