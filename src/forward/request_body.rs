//! A client's request body: counted, limited, its trailers filtered, and its beginning kept for a retry.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};

use crate::authenticate::IdentityHeaderMatcher;
use crate::authorize::rbac_proxy::RbacProxyRules;
use crate::message::hop_by_hop::remove_where;
use crate::message::{Body, BodyError, IncomingBody, hop_by_hop};
use crate::observe::access::BodyCounter;

/// Bytes of a body kept for replay until the response head. Nearly all API objects are smaller.
const REPLAY_BUFFER_BYTES: usize = 64 << 10;

/// A request body from its first byte: replays what an earlier attempt has read.
struct ReplayableBody {
    source: Rc<RequestBodySource>,
    attempt: u32,
    /// Number of kept pieces that this attempt has returned.
    at: usize,
    done: bool,
}

/// Request body shared by all attempts of one request.
pub(super) struct RequestBodySource {
    from: RefCell<IncomingBody>,
    replay_buffer: RefCell<Vec<Bytes>>,
    trailers: RefCell<Option<HeaderMap>>,
    ended: Cell<bool>,
    /// Whether more was read than is kept.
    replay_lost: Cell<bool>,
    /// The attempt that may read; earlier ones are over, even if their connections do not know yet.
    attempt: Cell<u32>,
    receipt: Rc<BodyCounter>,
    max_bytes: u64,
    fault: Cell<Option<RequestBodyFault>>,
    identity: Arc<IdentityHeaderMatcher>,
    rules: Option<Arc<RbacProxyRules>>,
}

/// Fault of a client's request body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestBodyFault {
    /// The body exceeds the limit.
    TooLarge,
    /// The body broke off, or cannot be read.
    Broken,
}

impl RequestBodySource {
    /// The body to send, whose trailers are stripped of `identity` headers and of headers that `rules` read; `None` if
    /// it is empty. `receipt` is called only if it is not.
    pub(super) fn new(
        from: IncomingBody,
        limit: Option<u64>,
        identity: &Arc<IdentityHeaderMatcher>,
        rules: Option<Arc<RbacProxyRules>>,
        receipt: impl FnOnce() -> Rc<BodyCounter>,
    ) -> Option<Rc<RequestBodySource>> {
        if from.is_end_stream() {
            return None;
        }
        Some(Rc::new(RequestBodySource {
            from: RefCell::new(from),
            replay_buffer: RefCell::default(),
            trailers: RefCell::default(),
            ended: Cell::new(false),
            replay_lost: Cell::new(false),
            attempt: Cell::new(0),
            receipt: receipt(),
            max_bytes: limit.unwrap_or(u64::MAX),
            fault: Cell::new(None),
            identity: identity.clone(),
            rules,
        }))
    }

    /// The body from its first byte, for the next attempt; `None` if its beginning is no longer kept. Earlier attempts
    /// read nothing more.
    pub(super) fn next_attempt(self: &Rc<RequestBodySource>) -> Option<Body> {
        if self.replay_lost.get() {
            return None;
        }
        self.attempt.set(self.attempt.get() + 1);
        Some(Body::stream(ReplayableBody { source: self.clone(), attempt: self.attempt.get(), at: 0, done: false }))
    }

    /// Stops keeping data: there will be no further attempt.
    pub(super) fn disable_replay(&self) {
        self.replay_lost.set(true);
    }

    /// The client's fault, if one was found so far.
    pub(super) fn fault(&self) -> Option<RequestBodyFault> {
        self.fault.get()
    }

    fn record_fault(&self, fault: RequestBodyFault) {
        self.fault.set(Some(fault));
        self.receipt.mark_broken();
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut from = self.from.borrow_mut();
        let Some(frame) = ready!(Pin::new(&mut *from).poll_frame(cx)) else {
            self.ended.set(true);
            return Poll::Ready(None);
        };
        let mut frame = frame.inspect_err(|_| self.record_fault(RequestBodyFault::Broken))?;
        if let Some(trailers) = frame.trailers_mut() {
            hop_by_hop::strip_trailers(trailers);
            remove_where(trailers, hop_by_hop::is_untrusted_request_header);
            self.identity.strip_trailers(trailers);
            if let Some(rules) = &self.rules {
                remove_where(trailers, |name| rules.reads_header(name));
            }
            self.ended.set(true);
            *self.trailers.borrow_mut() = Some(trailers.clone());
        }
        if let Some(data) = frame.data_ref() {
            let total = self.receipt.record(data);
            if total > self.max_bytes {
                self.record_fault(RequestBodyFault::TooLarge);
                return Poll::Ready(Some(Err("the request's body is too large".into())));
            }
            if total > REPLAY_BUFFER_BYTES as u64 {
                self.replay_lost.set(true);
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl http_body::Body for ReplayableBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let source = this.source.clone();
        if this.attempt != source.attempt.get() {
            return Poll::Ready(Some(Err("superseded by a retry".into())));
        }
        let mut replay = source.replay_buffer.borrow_mut();
        if let Some(data) = replay.get(this.at) {
            this.at += 1;
            return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
        }
        if source.ended.get() {
            let trailers = source.trailers.borrow().clone().filter(|_| !std::mem::replace(&mut this.done, true));
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let frame = ready!(source.poll_next(cx));
        if source.replay_lost.get() {
            replay.clear();
            this.at = 0;
        } else if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            replay.push(data.clone());
            this.at += 1;
        }
        this.done = source.ended.get();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.source.replay_buffer.borrow().len()
            && (self.source.ended.get() || self.source.from.borrow().is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let again: usize = self.source.replay_buffer.borrow().iter().skip(self.at).map(Bytes::len).sum();
        match self.source.from.borrow().size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + again as u64),
            None => SizeHint::default(),
        }
    }
}
