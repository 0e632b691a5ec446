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
    fault: Rc<Cell<Option<Fault>>>,
    identity: Arc<IdentityHeaders>,
}

/// What a client did wrong with its body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is larger than it may be.
    TooLarge,
    /// It broke off, or cannot be read.
    Broken,
}

/// The fault that was found so far, if any.
#[derive(Clone, Default)]
pub(super) struct Faults(Rc<Cell<Option<Fault>>>);

impl Faults {
    pub(super) fn get(&self) -> Option<Fault> {
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
    ) -> (Body, Faults) {
        let faults = Faults::default();
        if from.is_end_stream() {
            return (Body::Empty, faults);
        }
        let upload = Upload {
            from,
            received: received(),
            most: most.unwrap_or(u64::MAX),
            fault: faults.0.clone(),
            identity: identity.clone(),
        };
        (Body::stream(upload), faults)
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.from).poll_frame(cx)) else { return Poll::Ready(None) };
        let mut frame = frame.inspect_err(|_| self.fault.set(Some(Fault::Broken)))?;
        if let Some(trailers) = frame.trailers_mut() {
            hop_by_hop::strip_trailers(trailers);
            hop_by_hop::strip_untrusted_request(trailers);
            self.identity.strip(trailers);
        }
        if let Some(data) = frame.data_ref() {
            let total = self.received.get() + data.len() as u64;
            self.received.set(total);
            if total > self.most {
                self.fault.set(Some(Fault::TooLarge));
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
