//! A client's body on its way to the backend: counted, bounded, its trailers cleaned.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;

use crate::authenticate::IdentityHeaders;
use crate::message::{Body, BodyError, hop_by_hop};

/// The body of a request as it streams through.
pub(super) struct Upload {
    from: Incoming,
    received: Rc<Cell<u64>>,
    most: u64,
    exceeded: Rc<Cell<bool>>,
    identity: Arc<IdentityHeaders>,
}

/// Whether a body turned out larger than it may be.
#[derive(Clone, Default)]
pub(super) struct Exceeded(Rc<Cell<bool>>);

impl Exceeded {
    pub(super) fn get(&self) -> bool {
        self.0.get()
    }
}

impl Upload {
    /// The body to send on, without `identity` in its trailers; `received` is asked for only if there is one.
    pub(super) fn of(
        from: Incoming,
        most: Option<u64>,
        identity: &Arc<IdentityHeaders>,
        received: impl FnOnce() -> Rc<Cell<u64>>,
    ) -> (Body, Exceeded) {
        let exceeded = Exceeded::default();
        if from.is_end_stream() {
            return (Body::Empty, exceeded);
        }
        let upload = Upload {
            from,
            received: received(),
            most: most.unwrap_or(u64::MAX),
            exceeded: exceeded.0.clone(),
            identity: identity.clone(),
        };
        (Body::stream(upload), exceeded)
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.from).poll_frame(cx)) else { return Poll::Ready(None) };
        let mut frame = frame?;
        if let Some(trailers) = frame.trailers_mut() {
            hop_by_hop::strip_trailers(trailers);
            hop_by_hop::strip_untrusted_request(trailers);
            self.identity.strip(trailers);
        }
        if let Some(data) = frame.data_ref() {
            let total = self.received.get() + data.len() as u64;
            self.received.set(total);
            if total > self.most {
                self.exceeded.set(true);
                return Poll::Ready(Some(Err("the request's body is too large".into())));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.from.size_hint()
    }
}
