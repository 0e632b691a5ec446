//! Incoming bodies over HTTP/1.1 or HTTP/2.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::BodyError;

/// How long to wait for the end of the stream of a response without a body.
const BODILESS_END_TIMEOUT: Duration = Duration::from_secs(10);

/// The body of a request or response. It ends only if its sender ended it; truncation is an error.
pub struct IncomingBody(Kind);

enum Kind {
    Http1(Incoming),
    Http2(Http2BodyStream),
    Local(super::Body),
}

/// The receiving half of an HTTP/2 stream.
struct Http2BodyStream {
    recv: RecvStream,
    /// The remaining bytes of `Content-Length`.
    remaining: Option<u64>,
    is_ended: bool,
    is_at_trailers: bool,
    /// Bytes read for which the flow-control window was not released yet.
    unreleased: usize,
    /// The maximum of `owed`.
    max_unreleased: usize,
}

impl From<Incoming> for IncomingBody {
    fn from(from: Incoming) -> IncomingBody {
        IncomingBody(Kind::Http1(from))
    }
}

impl From<super::Body> for IncomingBody {
    fn from(from: super::Body) -> IncomingBody {
        IncomingBody(Kind::Local(from))
    }
}

impl IncomingBody {
    /// Creates the body of a stream with `headers`. The flow-control window is released whenever more than `most_owed`
    /// bytes were read. A large value saves WINDOW_UPDATE frames, but all streams of a connection together must stay
    /// below its window.
    pub fn http2(from: RecvStream, headers: &HeaderMap, most_owed: usize) -> IncomingBody {
        let ended = from.is_end_stream();
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
        let length = lengths.next().filter(|_| lengths.next().is_none());
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let rest = length.or_else(|| ended.then_some(0));
        IncomingBody(Kind::Http2(Http2BodyStream {
            recv: from,
            remaining: rest,
            is_ended: ended,
            is_at_trailers: false,
            unreleased: 0,
            max_unreleased: most_owed,
        }))
    }
}

impl IncomingBody {
    /// Replaces the body by an empty one, for a response whose status or request method allows none. A task waits for
    /// the end of the stream for a while; if data arrive instead, `on_data` is called and the stream is reset.
    #[must_use]
    pub fn without_body(self, on_data: impl FnOnce() + 'static) -> IncomingBody {
        if let Kind::Http2(Http2BodyStream { recv: mut from, .. }) = self.0 {
            let mut ending = Box::pin(async move {
                loop {
                    match from.data().await {
                        Some(Ok(data)) if data.is_empty() => {}
                        Some(Ok(_)) => return on_data(),
                        // h2's error for data after the response to a HEAD.
                        Some(Err(error)) if error.is_library() && error.is_reset() => return on_data(),
                        Some(Err(_)) | None => return,
                    }
                }
            });
            // Nearly always the end came with the headers.
            let at_once = ending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if at_once.is_pending() {
                tokio::task::spawn_local(tokio::time::timeout(BODILESS_END_TIMEOUT, ending));
            }
        }
        super::Body::Empty.into()
    }
}

impl Http2BodyStream {
    /// Returns the result of a reset stream. A server may reset it with NO_ERROR after a complete response, to stop the
    /// rest of the request (RFC 9113, section 8.1), but a peer may do so at any other time, too. A reset stream does
    /// not tell whether it had ended before; only `Content-Length` does. A truncated body must not pass for complete.
    fn reset(&self, error: h2::Error) -> Option<Result<Frame<Bytes>, BodyError>> {
        if error.reason() == Some(Reason::NO_ERROR) && self.remaining == Some(0) {
            None
        } else {
            Some(Err(error.into()))
        }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.is_at_trailers {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.remaining = self.remaining.map(|rest| rest.saturating_sub(data.len() as u64));
                    self.is_ended = self.recv.is_end_stream();
                    self.unreleased += data.len();
                    if self.unreleased > self.max_unreleased {
                        // At the latest now; data that are not read stay within the stream's own window.
                        let _ = self.recv.flow_control().release_capacity(std::mem::take(&mut self.unreleased));
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(self.reset(error)),
                None => self.is_at_trailers = true,
            }
        }
        Poll::Ready(match ready!(self.recv.poll_trailers(cx)) {
            Ok(trailers) => trailers.map(|trailers| Ok(Frame::trailers(trailers))),
            Err(error) => self.reset(error),
        })
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Http1(from) => Pin::new(from).poll_frame(cx).map_err(Into::into),
            Kind::Http2(stream) => stream.poll_frame(cx),
            Kind::Local(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Http1(from) => from.is_end_stream(),
            // As of the last frame: querying the stream each time would take a lock.
            Kind::Http2(stream) => stream.is_ended,
            Kind::Local(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Http1(from) => from.size_hint(),
            Kind::Http2(stream) => stream.remaining.map_or_else(SizeHint::default, SizeHint::with_exact),
            Kind::Local(body) => body.size_hint(),
        }
    }
}
