//! Body of a backend's response, relayed to the client byte for byte.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use kubeapi::User;

use super::backend::WorkerBackend;
use super::endpoint_watches::WatchRegistration;
use super::header_rewrite::ResponseHeaderPolicy;
use super::long_running_responses::{DrainSignal, LongRunningSlot};
use super::unread_watch::UnreadWatch;
use super::watch_framing::WatchFraming;
use crate::egress::ConnectionGuard;
use crate::message::{self, BodyError, IncomingBody, StreamingBody, UnreadEnd};
use crate::observe::access::{AccessRecord, EndReason};
use crate::process::Deadline;
use crate::route;

/// In-flight permits of a request, held until the last byte of its response.
pub type InflightPermits = [Option<route::InflightPermit>; 2];

/// Body of a forwarded response. It breaks off if the backend's does: a truncated response must not look complete.
///
/// A watch in JSON or protobuf is complete after every event. If its backend is gone it ends there, as API servers end
/// watches all the time, and the client resumes. Of a broken stream client-go makes an error event and lists again
/// (`apimachinery/pkg/watch/streamwatcher.go`).
struct StreamedBody {
    source: ResponseBodySource,
    record: AccessRecord,
    ended: bool,
    /// Set once the backend had to be waited for.
    deadline: Option<Deadline>,
    /// Set while the client reads too little, until it has caught up.
    unread: Option<UnreadWatch>,
    /// Set once it ends because of the slow client: bytes of the current event that may still be sent.
    remaining_event_bytes: Option<usize>,
}

/// A backend's response body and what is held until its end.
pub(super) struct ResponseBodySource {
    pub(super) from: IncomingBody,
    pub(super) guard: ConnectionGuard,
    /// Policy that filters the trailers.
    pub(super) headers: Rc<ResponseHeaderPolicy>,
    pub(super) end_condition: EndCondition,
    pub(super) _permits: InflightPermits,
    /// The user, for long-running responses.
    pub(super) user: Option<Arc<User>>,
}

/// The body of a forwarded response, before it has its access record.
pub struct ForwardedBody(ForwardedContent);

enum ForwardedContent {
    Streamed(ResponseBodySource),
    /// An upgraded connection, and what starts to copy its bytes.
    Tunnel(Box<dyn FnOnce(AccessRecord)>),
}

/// What ends a forwarded response.
pub(super) enum EndCondition {
    /// A deadline, for a slow backend. The body is not polled while the client does not read, so the client's
    /// connection enforces the same deadline ([`ConnectionHandle::set_response_deadline`]).
    ///
    /// [`ConnectionHandle::set_response_deadline`]: crate::listen::ConnectionHandle::set_response_deadline
    Deadline(Instant, Option<OutcomeReporter>),
    /// Only the end of the process or of its endpoint, which ends a watch cleanly between two events.
    Watch(LongRunningSlot, WatchFraming, WatchRegistration),
    /// Only the end of the process, which breaks it off: a truncated log or download must not look complete.
    Process(LongRunningSlot, Option<OutcomeReporter>),
}

/// Reports the outcome of a response at its end: a success if complete, a failure if broken off. Not used for responses
/// that are judged by their head: errors and long-running ones.
pub(super) struct OutcomeReporter {
    pub(super) backend: Rc<WorkerBackend>,
    pub(super) index: usize,
}

impl EndCondition {
    fn outcome_reporter(&self) -> Option<&OutcomeReporter> {
        match self {
            EndCondition::Deadline(_, merit) | EndCondition::Process(_, merit) => merit.as_ref(),
            EndCondition::Watch(..) => None,
        }
    }
}

impl ForwardedBody {
    pub(super) fn streamed(source: ResponseBodySource) -> ForwardedBody {
        ForwardedBody(ForwardedContent::Streamed(source))
    }

    pub(super) fn tunnel(start: impl FnOnce(AccessRecord) + 'static) -> ForwardedBody {
        ForwardedBody(ForwardedContent::Tunnel(Box::new(start)))
    }

    /// Starts to forward the body or the tunnel, with whose end `record` ends.
    pub fn start(self, record: AccessRecord) -> message::Body {
        match self.0 {
            ForwardedContent::Streamed(source) => message::Body::streaming(StreamedBody::new(source, record)),
            ForwardedContent::Tunnel(start) => {
                start(record);
                message::Body::Empty
            }
        }
    }
}

impl StreamedBody {
    fn new(source: ResponseBodySource, record: AccessRecord) -> StreamedBody {
        let mut relayed =
            StreamedBody { source, record, ended: false, deadline: None, unread: None, remaining_event_bytes: None };
        if relayed.is_end_stream() {
            relayed.record_end(EndReason::Complete);
        }
        relayed
    }

    /// Records the end. The first call counts; without one the client is taken to have gone away.
    fn record_end(&mut self, end: EndReason) {
        if !self.ended {
            self.ended = true;
            if end == EndReason::Complete {
                self.source.guard.finish();
            }
            if let Some(OutcomeReporter { backend, index }) = self.source.end_condition.outcome_reporter() {
                match end {
                    EndReason::Complete => backend.record_success(*index),
                    // If the client breaks off its request, the backend's stream ends, too.
                    EndReason::BackendBroke if !self.record.is_broken_by_client() => backend.record_broken_body(*index),
                    _ => {}
                }
            }
            self.record.set_end(end);
        }
    }

    /// Whether to stop waiting for a backend that sends nothing now; and why.
    fn check_end_condition(&mut self, cx: &Context<'_>) -> Option<(EndReason, &'static str)> {
        match &self.source.end_condition {
            EndCondition::Deadline(at, _) => {
                let deadline = self.deadline.get_or_insert_with(|| Deadline::at(*at));
                deadline.has_elapsed(cx.waker()).then_some((EndReason::Timeout, "the request timeout expired"))
            }
            EndCondition::Watch(slot, ..) | EndCondition::Process(slot, _) => (slot.poll_signal(cx.waker())
                == DrainSignal::Now)
                .then_some((EndReason::Drained, "the gateway is shutting down")),
        }
    }

    fn fail(&mut self, end: EndReason, why: &'static str) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.record_end(end);
        Poll::Ready(Some(Err(why.into())))
    }

    /// Whether this is a watch between two events.
    fn is_at_event_boundary(&self) -> bool {
        matches!(&self.source.end_condition, EndCondition::Watch(_, events, _) if events.is_at_event_boundary())
    }

    /// Whether this is a watch between two events that should be drained.
    fn should_drain(&self, cx: &Context<'_>) -> bool {
        match &self.source.end_condition {
            EndCondition::Watch(slot, events, watching) => {
                events.is_at_event_boundary()
                    && (slot.poll_signal(cx.waker()) > DrainSignal::Continue || watching.take_drain_turn())
            }
            _ => false,
        }
    }
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Some(rest) = this.remaining_event_bytes {
            return this.poll_rest_of_event(cx, rest);
        }
        // Checked before polling the backend: one that never pauses could not be drained otherwise.
        if !this.ended && this.should_drain(cx) {
            // The client resumes elsewhere.
            this.record_end(EndReason::Drained);
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.source.from).poll_frame(cx) {
            Poll::Ready(Some(Ok(mut frame))) => {
                if let Some(trailers) = frame.trailers_mut() {
                    this.source.headers.apply_to_trailers(trailers);
                }
                if let Some(data) = frame.data_ref() {
                    this.record.record_response_body(data);
                    if this.unread.as_mut().is_some_and(|unread| unread.record_read(data.len())) {
                        this.unread = None;
                    }
                    if let EndCondition::Watch(_, events, _) = &mut this.source.end_condition {
                        events.observe(data);
                    }
                }
                // hyper does not poll again once this is so: the end must be noticed here.
                if this.is_end_stream() {
                    this.record_end(EndReason::Complete);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                this.record_end(EndReason::Complete);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) if this.is_at_event_boundary() => {
                this.record_end(EndReason::BackendBroke);
                Poll::Ready(None)
            }
            // The error itself is not passed on: hyper would forward the reason of a reset, and REFUSED_STREAM would
            // tell the client that it may retry.
            Poll::Ready(Some(Err(_))) => this.fail(EndReason::BackendBroke, "the backend's response broke off"),
            Poll::Pending => {
                this.unread = None;
                match this.check_end_condition(cx) {
                    Some((end, why)) => this.fail(end, why),
                    None => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.source.from.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.from.size_hint()
    }
}

impl StreamedBody {
    /// Sends the rest of an event that was begun, at most `rest` bytes; then ends.
    fn poll_rest_of_event(
        &mut self,
        cx: &mut Context<'_>,
        rest: usize,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let EndCondition::Watch(_, events, _) = &mut self.source.end_condition else {
            return self.fail(EndReason::SlowClient, "the client does not read it");
        };
        if !events.is_at_event_boundary()
            && let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut self.source.from).poll_frame(cx)
            && let Ok(mut data) = frame.into_data()
        {
            if let Some(end) = events.last_event_end(&data) {
                data.truncate(end);
            }
            events.observe(&data);
            if data.len() <= rest {
                self.remaining_event_bytes = Some(rest - data.len());
                self.record.record_response_body(&data);
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
        if self.is_at_event_boundary() {
            self.record_end(EndReason::SlowClient);
            return Poll::Ready(None);
        }
        self.fail(EndReason::SlowClient, "the client does not read it, and its last event is incomplete")
    }
}

impl StreamingBody for StreamedBody {
    fn poll_unread(mut self: Pin<&mut Self>, cx: &mut Context<'_>, queued: usize) -> Poll<UnreadEnd> {
        let this = &mut *self;
        // Responses with a deadline end anyway.
        let Some(user) = this.source.user.as_ref().filter(|_| !this.ended) else { return Poll::Pending };
        let mut unread = this.unread.take().unwrap_or_else(UnreadWatch::new);
        let Some(most) = unread.poll_expired(this.record.control_plane(), &user.name, cx) else {
            this.unread = Some(unread);
            return Poll::Pending;
        };
        this.remaining_event_bytes = most.checked_sub(queued);
        if this.remaining_event_bytes.is_none() {
            this.record_end(EndReason::SlowClient);
            return Poll::Ready(UnreadEnd::Reset);
        }
        Poll::Ready(UnreadEnd::Finish(Box::new(unread)))
    }
}

impl Drop for StreamedBody {
    fn drop(&mut self) {
        // The deadline may have passed while the body was not polled.
        if let EndCondition::Deadline(at, _) = self.source.end_condition
            && !self.ended
            && Instant::now() >= at
        {
            self.record_end(EndReason::Timeout);
        }
    }
}
