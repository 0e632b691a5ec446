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
const END_OF_NO_BODY: Duration = Duration::from_secs(10);

/// The body of a request or response. It ends only if its sender ended it; truncation is an error.
pub struct Received(Kind);

enum Kind {
    Http1(Incoming),
    Http2(Stream),
    Made(super::Body),
}

/// The receiving half of an HTTP/2 stream.
struct Stream {
    from: RecvStream,
    /// The remaining bytes of `Content-Length`.
    rest: Option<u64>,
    ended: bool,
    only_trailers: bool,
    /// Bytes read for which the flow-control window was not released yet.
    owed: usize,
    /// The maximum of `owed`.
    most_owed: usize,
}

impl From<Incoming> for Received {
    fn from(from: Incoming) -> Received {
        Received(Kind::Http1(from))
    }
}

impl From<super::Body> for Received {
    fn from(from: super::Body) -> Received {
        Received(Kind::Made(from))
    }
}

impl Received {
    /// Creates the body of a stream with `headers`. The flow-control window is released whenever more than `most_owed`
    /// bytes were read. A large value saves WINDOW_UPDATE frames, but all streams of a connection together must stay
    /// below its window.
    pub fn http2(from: RecvStream, headers: &HeaderMap, most_owed: usize) -> Received {
        let ended = from.is_end_stream();
        let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
        let length = lengths.next().filter(|_| lengths.next().is_none());
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let rest = length.or_else(|| ended.then_some(0));
        Received(Kind::Http2(Stream { from, rest, ended, only_trailers: false, owed: 0, most_owed }))
    }
}

impl Received {
    /// Replaces the body by an empty one, for a response whose status or request method allows none. A task waits for
    /// the end of the stream for a while; if data arrive instead, `on_data` is called and the stream is reset.
    #[must_use]
    pub fn without_body(self, on_data: impl FnOnce() + 'static) -> Received {
        if let Kind::Http2(Stream { mut from, .. }) = self.0 {
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
                tokio::task::spawn_local(tokio::time::timeout(END_OF_NO_BODY, ending));
            }
        }
        super::Body::Empty.into()
    }
}

impl Stream {
    /// Returns the result of a reset stream. A server may reset it with NO_ERROR after a complete response, to stop the
    /// rest of the request (RFC 9113, section 8.1), but a peer may do so at any other time, too. A reset stream does
    /// not tell whether it had ended before; only `Content-Length` does. A truncated body must not pass for complete.
    fn reset(&self, error: h2::Error) -> Option<Result<Frame<Bytes>, BodyError>> {
        if error.reason() == Some(Reason::NO_ERROR) && self.rest == Some(0) { None } else { Some(Err(error.into())) }
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if !self.only_trailers {
            match ready!(self.from.poll_data(cx)) {
                Some(Ok(data)) => {
                    self.rest = self.rest.map(|rest| rest.saturating_sub(data.len() as u64));
                    self.ended = self.from.is_end_stream();
                    self.owed += data.len();
                    if self.owed > self.most_owed {
                        // At the latest now; data that are not read stay within the stream's own window.
                        let _ = self.from.flow_control().release_capacity(std::mem::take(&mut self.owed));
                    }
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

impl Body for Received {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Http1(from) => Pin::new(from).poll_frame(cx).map_err(Into::into),
            Kind::Http2(stream) => stream.poll_frame(cx),
            Kind::Made(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Http1(from) => from.is_end_stream(),
            // As of the last frame: querying the stream each time would take a lock.
            Kind::Http2(stream) => stream.ended,
            Kind::Made(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Http1(from) => from.size_hint(),
            Kind::Http2(stream) => stream.rest.map_or_else(SizeHint::default, SizeHint::with_exact),
            Kind::Made(body) => body.size_hint(),
        }
    }
}
