//! A backend's answer on its way to the client, byte for byte.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::streams::Place;
use crate::egress::Lease;
use crate::message::{BodyError, hop_by_hop};
use crate::observe::access::{AccessRecord, End};

/// The body of a relayed answer. It breaks when the backend's does: a watch that was cut must never look
/// like one that ended.
pub(super) struct Relayed {
    from: Incoming,
    lease: Lease,
    record: AccessRecord,
    ended: bool,
    limit: Limit,
    /// Whether what went by so far ends with a newline, as whole watch events do.
    whole: bool,
}

/// What bounds a relayed answer.
pub(super) enum Limit {
    /// A point in time, and the timer once one is needed.
    Deadline(Instant, Option<Pin<Box<Sleep>>>),
    /// Only the end of the process.
    Process(Place),
}

impl Relayed {
    pub(super) fn new(from: Incoming, lease: Lease, record: AccessRecord, limit: Limit) -> Relayed {
        let mut relayed = Relayed { from, lease, record, ended: false, limit, whole: true };
        if relayed.from.is_end_stream() {
            relayed.end(End::Complete);
        }
        relayed
    }

    /// The first word counts; a relay dropped without one says that the client went away.
    fn end(&mut self, end: End) {
        if !self.ended {
            self.ended = true;
            if end == End::Complete {
                self.lease.finished();
            }
            self.record.ended(end);
        }
    }

    /// Whether the answer must stop here, although the backend has not ended it.
    fn stop(&mut self, cx: &mut Context<'_>) -> Option<End> {
        match &mut self.limit {
            Limit::Deadline(at, sleep) => {
                let at = *at;
                let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at.into())));
                sleep.as_mut().poll(cx).is_ready().then_some(End::Timeout)
            }
            Limit::Process(place) => place.should_end(cx.waker()).then_some(End::Drained),
        }
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.from).poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    hop_by_hop::strip_trailers(trailers);
                }
                if let Some(data) = frame.data_ref() {
                    this.record.sent(data.len());
                    this.whole = data.last().is_none_or(|byte| *byte == b'\n');
                }
                // hyper never asks again once this is so: the end must be seen here.
                if this.from.is_end_stream() {
                    this.end(End::Complete);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.end(End::Complete);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                this.end(End::BackendBroke);
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => match this.stop(cx) {
                None => Poll::Pending,
                Some(end) => {
                    this.end(end);
                    if end == End::Drained && this.whole {
                        // Between two events a watch may end cleanly; the client resumes elsewhere.
                        return Poll::Ready(None);
                    }
                    let why = if end == End::Drained { "the gateway is ending" } else { "time ran out" };
                    Poll::Ready(Some(Err(why.into())))
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.from.size_hint()
    }
}
