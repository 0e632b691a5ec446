//! Body of a backend's response, relayed to the client byte for byte.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::backend::Backend;
use super::events::Events;
use super::history::Watching;
use super::rewrite::ResponseHeaders;
use super::streams::{Leave, Place};
use super::unread::Unread;
use crate::egress::Lease;
use crate::kubeapi::User;
use crate::message::{BodyError, Received, Streamed, UnreadEnd};
use crate::observe::access::{AccessRecord, End};
use crate::process::Deadline;
use crate::route;

/// In-flight permits of a request, held until the last byte of its response.
pub type Places = [Option<route::Place>; 2];

/// Body of a relayed response. It breaks off if the backend's does: a truncated response must not look complete.
///
/// A watch in JSON or protobuf is complete after every event. If its backend is gone it ends there, as API servers end
/// watches all the time, and the client resumes. Of a broken stream client-go makes an error event and lists again
/// (`apimachinery/pkg/watch/streamwatcher.go`).
pub(super) struct Relayed {
    from: Received,
    lease: Lease,
    _places: Places,
    record: AccessRecord,
    headers: Rc<ResponseHeaders>,
    ended: bool,
    limit: Limit,
    /// Set once the backend had to be waited for.
    deadline: Option<Deadline>,
    /// The user, for long-running responses.
    user: Option<Arc<User>>,
    /// Set while the client reads too little, until it has caught up.
    unread: Option<Unread>,
    /// Set once it ends because of the slow client: bytes of the current event that may still be sent.
    last: Option<usize>,
}

/// What ends a relayed response.
pub(super) enum Limit {
    /// A deadline, for a slow backend. The body is not polled while the client does not read, so the client's
    /// connection enforces the same deadline ([`Closer::answer_by`]).
    ///
    /// [`Closer::answer_by`]: crate::listen::Closer::answer_by
    Deadline(Instant, Option<Merit>),
    /// Only the end of the process or of its endpoint, which ends a watch cleanly between two events.
    Watch(Place, Events, Watching),
    /// Only the end of the process, which breaks it off: a truncated log or download must not look complete.
    Process(Place, Option<Merit>),
}

/// Reports the outcome of a response at its end: a success if complete, a failure if broken off. Not used for responses
/// that are judged by their head: errors and long-running ones.
pub(super) struct Merit {
    pub(super) backend: Rc<Backend>,
    pub(super) index: usize,
}

impl Limit {
    fn merit(&self) -> Option<&Merit> {
        match self {
            Limit::Deadline(_, merit) | Limit::Process(_, merit) => merit.as_ref(),
            Limit::Watch(..) => None,
        }
    }
}

impl Relayed {
    /// Relays `from`. `headers` filters trailers; `user` is set for long-running responses.
    pub(super) fn new(
        from: Received,
        lease: Lease,
        record: AccessRecord,
        headers: Rc<ResponseHeaders>,
        limit: Limit,
        places: Places,
        user: Option<Arc<User>>,
    ) -> Relayed {
        let mut relayed = Relayed {
            from,
            lease,
            _places: places,
            record,
            headers,
            ended: false,
            limit,
            deadline: None,
            user,
            unread: None,
            last: None,
        };
        if relayed.is_end_stream() {
            relayed.end(End::Complete);
        }
        relayed
    }

    /// Records the end. The first call counts; without one the client is taken to have gone away.
    fn end(&mut self, end: End) {
        if !self.ended {
            self.ended = true;
            if end == End::Complete {
                self.lease.finished();
            }
            if let Some(Merit { backend, index }) = self.limit.merit() {
                match end {
                    End::Complete => backend.served(*index),
                    // If the client breaks off its request, the backend's stream ends, too.
                    End::BackendBroke if !self.record.broken_by_client() => backend.broke_off(*index),
                    _ => {}
                }
            }
            self.record.ended(end);
        }
    }

    /// Whether to stop waiting for a backend that sends nothing now; and why.
    fn waits_no_more(&mut self, cx: &Context<'_>) -> Option<(End, &'static str)> {
        match &self.limit {
            Limit::Deadline(at, _) => {
                let deadline = self.deadline.get_or_insert_with(|| Deadline::at(*at));
                deadline.is_over(cx.waker()).then_some((End::Timeout, "the request timeout expired"))
            }
            Limit::Watch(place, ..) | Limit::Process(place, _) => {
                (place.asked(cx.waker()) == Leave::Now).then_some((End::Drained, "the gateway is shutting down"))
            }
        }
    }

    fn broken(&mut self, end: End, why: &'static str) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.end(end);
        Poll::Ready(Some(Err(why.into())))
    }

    /// Whether this is a watch between two events.
    fn may_end(&self) -> bool {
        matches!(&self.limit, Limit::Watch(_, events, _) if events.is_between())
    }

    /// Whether this is a watch between two events that should be drained.
    fn may_leave(&self, cx: &Context<'_>) -> bool {
        match &self.limit {
            Limit::Watch(place, events, watching) => {
                events.is_between() && (place.asked(cx.waker()) > Leave::No || watching.may_leave())
            }
            _ => false,
        }
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Some(rest) = this.last {
            return this.poll_last(cx, rest);
        }
        // Checked before polling the backend: one that never pauses could not be drained otherwise.
        if !this.ended && this.may_leave(cx) {
            // The client resumes elsewhere.
            this.end(End::Drained);
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.from).poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    this.headers.clean_trailers(trailers);
                }
                if let Some(data) = frame.data_ref() {
                    this.record.sends(data);
                    if this.unread.as_mut().is_some_and(|unread| unread.is_read(data.len())) {
                        this.unread = None;
                    }
                    if let Limit::Watch(_, events, _) = &mut this.limit {
                        events.pass(data);
                    }
                }
                // hyper does not poll again once this is so: the end must be noticed here.
                if this.is_end_stream() {
                    this.end(End::Complete);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.end(End::Complete);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) if this.may_end() => {
                this.end(End::BackendBroke);
                Poll::Ready(None)
            }
            // The error itself is not passed on: hyper would forward the reason of a reset, and REFUSED_STREAM would
            // tell the client that it may retry.
            Poll::Ready(Some(Err(_))) => this.broken(End::BackendBroke, "the backend's response broke off"),
            Poll::Pending => {
                this.unread = None;
                match this.waits_no_more(cx) {
                    Some((end, why)) => this.broken(end, why),
                    None => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.from.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.from.size_hint()
    }
}

impl Relayed {
    /// Sends the rest of an event that was begun, at most `rest` bytes; then ends.
    fn poll_last(&mut self, cx: &mut Context<'_>, rest: usize) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let Limit::Watch(_, events, _) = &mut self.limit else {
            return self.broken(End::SlowClient, "the client does not read it");
        };
        if !events.is_between()
            && let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut self.from).poll_frame(cx)
            && let Ok(mut data) = frame.into_data()
        {
            if let Some(end) = events.last_end(&data) {
                data.truncate(end);
            }
            events.pass(&data);
            if data.len() <= rest {
                self.last = Some(rest - data.len());
                self.record.sends(&data);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
        if self.may_end() {
            self.end(End::SlowClient);
            return Poll::Ready(None);
        }
        self.broken(End::SlowClient, "the client does not read it, and its last event is incomplete")
    }
}

impl Streamed for Relayed {
    fn poll_unread(mut self: Pin<&mut Self>, cx: &mut Context<'_>, queued: usize) -> Poll<UnreadEnd> {
        let this = &mut *self;
        // Responses with a deadline end anyway.
        let Some(user) = this.user.as_ref().filter(|_| !this.ended) else { return Poll::Pending };
        let mut unread = this.unread.take().unwrap_or_else(Unread::begin);
        let Some(most) = unread.is_over(&user.name, cx) else {
            this.unread = Some(unread);
            return Poll::Pending;
        };
        this.last = most.checked_sub(queued);
        if this.last.is_none() {
            this.end(End::SlowClient);
            return Poll::Ready(UnreadEnd::Reset);
        }
        Poll::Ready(UnreadEnd::Finish(Box::new(unread)))
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        // The deadline may have passed while the body was not polled.
        if let Limit::Deadline(at, _) = self.limit
            && !self.ended
            && Instant::now() >= at
        {
            self.end(End::Timeout);
        }
    }
}
