//! A backend's answer on its way to the client, byte for byte.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::streams::Place;
use crate::egress::Lease;
use crate::message::BodyError;

/// How an answer came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The last byte was handed to the client's connection.
    Complete,
    /// The client left, or its connection broke.
    ClientGone,
    /// The backend's stream broke off; so did the client's.
    BackendBroke,
    /// The request's time ran out.
    TimedOut,
    /// We ended it because the process ends.
    Ended,
}

/// Learns what became of an answer.
pub trait Observer {
    /// Bytes of the body went by.
    fn carried(&mut self, bytes: usize);
    /// The answer ended; called exactly once.
    fn ended(&mut self, outcome: Outcome);
}

/// The body of a relayed answer. It breaks when the backend's does: a watch that was cut must never look
/// like one that ended.
pub(super) struct Relayed<O: Observer> {
    from: Incoming,
    lease: Lease,
    observer: O,
    outcome: Option<Outcome>,
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

impl<O: Observer> Relayed<O> {
    pub(super) fn new(from: Incoming, lease: Lease, observer: O, limit: Limit) -> Relayed<O> {
        let mut relayed = Relayed { from, lease, observer, outcome: None, limit, whole: true };
        if relayed.from.is_end_stream() {
            relayed.end(Outcome::Complete);
        }
        relayed
    }

    fn end(&mut self, outcome: Outcome) {
        if self.outcome.is_none() {
            self.outcome = Some(outcome);
            if outcome == Outcome::Complete {
                self.lease.finished();
            }
            self.observer.ended(outcome);
        }
    }

    /// Whether the answer must stop here, although the backend has not ended it.
    fn stop(&mut self, cx: &mut Context<'_>) -> Option<Outcome> {
        match &mut self.limit {
            Limit::Deadline(at, sleep) => {
                let at = *at;
                let sleep = sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at.into())));
                sleep.as_mut().poll(cx).is_ready().then_some(Outcome::TimedOut)
            }
            Limit::Process(place) => place.should_end(cx.waker()).then_some(Outcome::Ended),
        }
    }
}

impl<O: Observer + Unpin> Body for Relayed<O> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.from).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.observer.carried(data.len());
                    this.whole = data.last().is_none_or(|byte| *byte == b'\n');
                }
                // hyper never asks again once this is so: the end must be seen here.
                if this.from.is_end_stream() {
                    this.end(Outcome::Complete);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.end(Outcome::Complete);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(error))) => {
                this.end(Outcome::BackendBroke);
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Pending => match this.stop(cx) {
                None => Poll::Pending,
                Some(outcome) => {
                    this.end(outcome);
                    if outcome == Outcome::Ended && this.whole {
                        // Between two events a watch may end cleanly; the client resumes elsewhere.
                        return Poll::Ready(None);
                    }
                    let why = if outcome == Outcome::Ended { "the gateway is ending" } else { "time ran out" };
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

impl<O: Observer> Drop for Relayed<O> {
    fn drop(&mut self) {
        self.end(Outcome::ClientGone);
    }
}
