//! A backend's answer on its way to the client, byte for byte.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::flow::{Flow, Held, Places};
use super::streams::{Leave, Place};
use crate::egress::{Answer, Lease};
use crate::message::{BodyError, hop_by_hop};
use crate::observe::access::{AccessRecord, End};

/// The body of a relayed answer. It breaks when the backend's does: a watch that was cut must never look
/// like one that ended.
pub(super) struct Relayed {
    flow: Flow,
    record: AccessRecord,
    ended: bool,
    limit: Limit,
    /// Whether what went by so far is nothing, or ends with a newline as whole watch events do.
    between_events: bool,
}

/// What bounds a relayed answer.
pub(super) enum Limit {
    /// A point in time.
    Deadline(Instant),
    /// Only the end of the process, which ends a watch of JSON lines cleanly between two events.
    Watch(Place),
    /// Only the end of the process, which breaks it: half a log or a download must not look like the whole.
    Process(Place),
}

impl Relayed {
    pub(super) fn new(from: Answer, lease: Lease, record: AccessRecord, limit: Limit, places: Places) -> Relayed {
        let flow = Flow::new(Held { from, lease, _places: places });
        let mut relayed = Relayed { flow, record, ended: false, limit, between_events: true };
        if relayed.is_end_stream() {
            relayed.end(End::Complete);
        }
        relayed
    }

    /// The first word counts; a relay dropped without one says that the client went away.
    fn end(&mut self, end: End) {
        if !self.ended {
            self.ended = true;
            self.flow.end(end == End::Complete);
            self.record.ended(end);
        }
    }

    /// Whether the process ends now, although the backend has not ended its answer.
    fn must_leave(&self, cx: &Context<'_>) -> bool {
        match &self.limit {
            Limit::Deadline(_) => false,
            Limit::Watch(place) | Limit::Process(place) => place.asked(cx.waker()) == Leave::Now,
        }
    }

    /// There is more to come: from now on the time counts, whoever is the slower one.
    fn more_to_come(&mut self, cx: &Context<'_>) {
        if let Limit::Deadline(at) = self.limit {
            self.flow.limit(at, cx.waker());
        }
    }

    fn broken(&mut self, end: End, why: &'static str) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.end(end);
        Poll::Ready(Some(Err(why.into())))
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
        let Some(polled) = this.flow.poll(cx) else { return this.broken(End::Timeout, "time ran out") };
        match polled {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    hop_by_hop::strip_trailers(trailers);
                }
                if let Some(data) = frame.data_ref() {
                    this.record.sent(data.len());
                    this.between_events = data.last().is_none_or(|byte| *byte == b'\n');
                }
                // hyper never asks again once this is so: the end must be seen here.
                if this.is_end_stream() {
                    this.end(End::Complete);
                } else {
                    this.more_to_come(cx);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.end(End::Complete);
                Poll::Ready(None)
            }
            // The error itself stays here: hyper would pass on the reason of a reset, and REFUSED_STREAM tells
            // a client that it may send again what was half answered.
            Poll::Ready(Some(Err(_))) => this.broken(End::BackendBroke, "the backend broke its answer off"),
            Poll::Pending if this.must_leave(cx) => this.broken(End::Drained, "the gateway is ending"),
            Poll::Pending => {
                this.more_to_come(cx);
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.flow.with(|held| held.from.is_end_stream()).unwrap_or(false)
    }

    fn size_hint(&self) -> SizeHint {
        self.flow.with(|held| held.from.size_hint()).unwrap_or_default()
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        // Cut while its client was not even looking.
        if self.flow.is_cut() {
            self.end(End::Timeout);
        }
    }
}
