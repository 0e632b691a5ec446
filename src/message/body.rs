//! The body type of all responses.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// The error of a truncated body; the client's stream is then reset, never ended cleanly.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A response body: empty, in memory, or a stream.
///
/// A stream is boxed, to keep hyper's state of an open watch small.
#[derive(Default)]
pub enum Body {
    /// No bytes.
    #[default]
    Empty,
    /// All bytes in memory.
    Full(Bytes),
    /// A stream of bytes; not `Send`.
    Stream(Pin<Box<dyn StreamingBody>>),
}

/// A streaming body that is notified when the client does not read.
pub trait StreamingBody: http_body::Body<Data = Bytes, Error = BodyError> {
    /// Called while the client does not read and `queued` bytes are waiting. Ready when the stream must end.
    fn poll_unread(self: Pin<&mut Self>, cx: &mut Context<'_>, queued: usize) -> Poll<UnreadEnd> {
        let _ = (cx, queued);
        Poll::Pending
    }
}

/// How the stream of a client that does not read ends.
pub enum UnreadEnd {
    /// The body yields a bounded rest and then ends; both may wait for the client. The value is dropped when the client
    /// has read them.
    Finish(Box<dyn Any>),
    /// The stream is reset at once.
    Reset,
}

/// Streaming body that never ends because its client stops reading: `poll_unread` stays pending.
struct Patient<B>(B);

impl<B: http_body::Body<Data = Bytes, Error = BodyError> + Unpin> http_body::Body for Patient<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl<B: http_body::Body<Data = Bytes, Error = BodyError> + Unpin> StreamingBody for Patient<B> {}

impl Body {
    /// Creates a body that streams `inner`.
    pub fn stream(inner: impl http_body::Body<Data = Bytes, Error = BodyError> + Unpin + 'static) -> Body {
        Body::Stream(Box::pin(Patient(inner)))
    }

    /// Creates a body that streams `inner`, which handles clients that do not read.
    pub fn streaming(inner: impl StreamingBody + 'static) -> Body {
        Body::Stream(Box::pin(inner))
    }

    /// As [`StreamingBody::poll_unread`].
    pub fn poll_unread(&mut self, cx: &mut Context<'_>, queued: usize) -> Poll<UnreadEnd> {
        match self {
            Body::Empty | Body::Full(_) => Poll::Pending,
            Body::Stream(inner) => inner.as_mut().poll_unread(cx, queued),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Body {
        if bytes.is_empty() { Body::Empty } else { Body::Full(bytes) }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        Bytes::from(text).into()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Body::Empty => Poll::Ready(None),
            Body::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Body::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::Stream(inner) => inner.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Empty => true,
            Body::Full(_) => false,
            Body::Stream(inner) => inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Empty => SizeHint::with_exact(0),
            Body::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Stream(inner) => inner.size_hint(),
        }
    }
}
