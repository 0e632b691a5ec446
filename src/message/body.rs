//! The one body type of our answers.

use std::any::Any;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Why a body broke off; the stream of the client is then reset, never ended cleanly.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// An answer's body: nothing, some bytes at hand, or a stream.
///
/// A stream is boxed so that what hyper keeps for an open watch stays small.
#[derive(Default)]
pub enum Body {
    /// No bytes.
    #[default]
    Empty,
    /// All bytes at hand.
    Full(Bytes),
    /// Bytes that are still to come; stays on the thread it was made on.
    Stream(Pin<Box<dyn Streamed>>),
}

/// A body that streams, and can be told that nobody reads it.
pub trait Streamed: http_body::Body<Data = Bytes, Error = BodyError> {
    /// The client reads nothing, and `queued` bytes wait to be sent to it. Ready when the stream must end.
    fn poll_unread(self: Pin<&mut Self>, cx: &mut Context<'_>, queued: usize) -> Poll<UnreadEnd> {
        let _ = (cx, queued);
        Poll::Pending
    }
}

/// How a stream ends whose client does not read.
pub enum UnreadEnd {
    /// Its body gives a bounded rest and then ends; both may wait for the client. The value is dropped when the client has
    /// taken them.
    Finish(Box<dyn Any>),
    /// At once: nothing more may wait for the client.
    Reset,
}

pin_project_lite::pin_project! {
    /// A body for which a client may take all the time that it has.
    struct Patient<B> {
        #[pin]
        inner: B,
    }
}

impl<B: http_body::Body<Data = Bytes, Error = BodyError>> http_body::Body for Patient<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.project().inner.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: http_body::Body<Data = Bytes, Error = BodyError>> Streamed for Patient<B> {}

impl Body {
    /// A body that streams `inner`.
    pub fn stream(inner: impl http_body::Body<Data = Bytes, Error = BodyError> + 'static) -> Body {
        Body::Stream(Box::pin(Patient { inner }))
    }

    /// A body that streams `inner`, which knows what to do when nobody reads it.
    pub fn streamed(inner: impl Streamed + 'static) -> Body {
        Body::Stream(Box::pin(inner))
    }

    /// As [`Streamed::poll_unread`].
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
