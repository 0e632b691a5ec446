//! The one body type of our answers.

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
    Stream(Pin<Box<dyn http_body::Body<Data = Bytes, Error = BodyError>>>),
}

impl Body {
    /// A body that streams `inner`.
    pub fn stream(inner: impl http_body::Body<Data = Bytes, Error = BodyError> + 'static) -> Body {
        Body::Stream(Box::pin(inner))
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
