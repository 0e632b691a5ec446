//! The body of a backend's answer, over HTTP/1.1 or HTTP/2.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::message::BodyError;

/// What a backend says behind its header. It ends only where the backend ended it: what breaks off is an error.
pub struct Answer(Kind);

enum Kind {
    Http1(Incoming),
    Http2(Stream),
}

/// The receiving half of an HTTP/2 stream.
struct Stream {
    from: RecvStream,
    /// What is still to come of `Content-Length`.
    rest: Option<u64>,
    only_trailers: bool,
}

impl From<Incoming> for Answer {
    fn from(from: Incoming) -> Answer {
        Answer(Kind::Http1(from))
    }
}

impl Answer {
    /// The body behind `headers` on a stream.
    pub(super) fn http2(from: RecvStream, headers: &HeaderMap) -> Answer {
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
        let length = lengths.next().filter(|_| lengths.next().is_none());
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let rest = length.or_else(|| from.is_end_stream().then_some(0));
        Answer(Kind::Http2(Stream { from, rest, only_trailers: false }))
    }
}

impl Stream {
    /// A server that has answered in full may reset the stream with NO_ERROR, to be rid of the rest of the
    /// request (RFC 9113, section 8.1); anyone may do so at any other time. A stream that was reset does not
    /// remember whether it had ended before; the length may know. A watch, or half an object, must not pass for
    /// whole.
    fn reset(&self, error: h2::Error) -> Option<Result<Frame<Bytes>, BodyError>> {
        if error.reason() == Some(Reason::NO_ERROR) && self.rest == Some(0) { None } else { Some(Err(error.into())) }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.only_trailers {
            match ready!(self.from.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Given free at once: what is not read on stays in the stream's own window.
                    let _ = self.from.flow_control().release_capacity(data.len());
                    self.rest = self.rest.map(|rest| rest.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(self.reset(error)),
                None => self.only_trailers = true,
            }
        }
        Poll::Ready(match ready!(self.from.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => self.reset(error),
        })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Http1(from) => Pin::new(from).poll_frame(cx).map_err(Into::into),
            Kind::Http2(stream) => stream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Http1(from) => from.is_end_stream(),
            Kind::Http2(stream) => stream.from.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Http1(from) => from.size_hint(),
            Kind::Http2(stream) => stream.rest.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}
