//! A backend's answer on its way to the client, byte for byte.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::streams::{Leave, Place};
use super::whole::Whole;
use crate::egress::Lease;
use crate::message::{BodyError, hop_by_hop};
use crate::observe::access::{AccessRecord, End};
use crate::route;

/// The body of a relayed answer. It breaks when the backend's does: a watch that was cut must never look
/// like one that ended.
pub(super) struct Relayed {
    from: Incoming,
    lease: Lease,
    record: AccessRecord,
    ended: bool,
    limit: Limit,
    whole: Whole,
    /// Whether what went by so far is nothing, or ends with a newline as whole watch events do.
    between_events: bool,
    /// Its places among the requests under way.
    _places: Places,
}

/// The places a request takes among those under way, until the last byte of its answer.
pub type Places = [Option<route::Place>; 2];

/// What bounds a relayed answer.
pub(super) enum Limit {
    /// A point in time, and the timer once one is needed.
    Deadline(Instant, Option<Pin<Box<Sleep>>>),
    /// Only the end of the process, which ends a watch of JSON lines cleanly between two events.
    Watch(Place),
    /// Only the end of the process, which breaks it: half a log or a download must not look like the whole.
    Process(Place),
}

impl Relayed {
    pub(super) fn new(
        from: Incoming,
        http2: bool,
        lease: Lease,
        record: AccessRecord,
        limit: Limit,
        places: Places,
    ) -> Relayed {
        let whole = Whole::of(&from, http2);
        let mut relayed =
            Relayed { from, lease, record, ended: false, limit, whole, between_events: true, _places: places };
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
            Limit::Watch(place) | Limit::Process(place) => {
                (place.asked(cx.waker()) == Leave::Now).then_some(End::Drained)
            }
        }
    }

    /// Whether this is a watch between two events, and the process is ending.
    fn may_leave(&self, cx: &Context<'_>) -> bool {
        match &self.limit {
            Limit::Watch(place) => self.between_events && place.asked(cx.waker()) > Leave::No,
            _ => false,
        }
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        // Before the backend is asked: one that never pauses would never let go.
        if !this.ended && this.may_leave(cx) {
            // The client resumes elsewhere.
            this.end(End::Drained);
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.from).poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    hop_by_hop::strip_trailers(trailers);
                }
                if let Some(data) = frame.data_ref() {
                    this.record.sent(data.len());
                    this.whole.passed(data.len());
                    this.between_events = data.last().is_none_or(|byte| *byte == b'\n');
                }
                // hyper never asks again once this is so: the end must be seen here.
                if this.from.is_end_stream() {
                    this.end(End::Complete);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) if this.whole.is_reached(&this.from) => {
                this.end(End::Complete);
                Poll::Ready(None)
            }
            // The error itself stays here: hyper would pass on the reason of a reset, and REFUSED_STREAM tells
            // a client that it may send again what was half answered.
            Poll::Ready(None | Some(Err(_))) => {
                this.end(End::BackendBroke);
                Poll::Ready(Some(Err("the backend broke its answer off".into())))
            }
            Poll::Pending => match this.stop(cx) {
                None => Poll::Pending,
                Some(end) => {
                    this.end(end);
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
