//! A client's request body: counted, limited, its trailers filtered, and its beginning kept for a retry.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};

use crate::authenticate::IdentityHeaders;
use crate::authorize::rbac_proxy::Rules;
use crate::message::hop_by_hop::remove_where;
use crate::message::{Body, BodyError, Received, hop_by_hop};
use crate::observe::access::Receipt;

/// Bytes of a body kept for replay until the response head. Nearly all API objects are smaller.
const KEPT: usize = 64 << 10;

/// A request body from its first byte: replays what an earlier attempt has read.
struct Upload {
    source: Rc<Source>,
    try_: u32,
    /// Number of kept pieces that this attempt has returned.
    at: usize,
    done: bool,
}

/// Request body shared by all attempts of one request.
pub(super) struct Source {
    from: RefCell<Received>,
    kept: RefCell<Vec<Bytes>>,
    trailers: RefCell<Option<HeaderMap>>,
    ended: Cell<bool>,
    /// Whether more was read than is kept.
    lost: Cell<bool>,
    /// The attempt that may read; earlier ones are over, even if their connections do not know yet.
    try_: Cell<u32>,
    receipt: Rc<Receipt>,
    most: u64,
    fault: Cell<Option<Fault>>,
    identity: Arc<IdentityHeaders>,
    rules: Option<Arc<Rules>>,
}

/// Fault of a client's request body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It exceeds the limit.
    TooLarge,
    /// It broke off, or cannot be read.
    Broken,
}

impl Source {
    /// The body to send, whose trailers are stripped of `identity` headers and of headers that `rules` read; `None` if
    /// it is empty. `receipt` is called only if it is not.
    pub(super) fn of(
        from: Received,
        most: Option<u64>,
        identity: &Arc<IdentityHeaders>,
        rules: Option<Arc<Rules>>,
        receipt: impl FnOnce() -> Rc<Receipt>,
    ) -> Option<Rc<Source>> {
        if from.is_end_stream() {
            return None;
        }
        Some(Rc::new(Source {
            from: RefCell::new(from),
            kept: RefCell::default(),
            trailers: RefCell::default(),
            ended: Cell::new(false),
            lost: Cell::new(false),
            try_: Cell::new(0),
            receipt: receipt(),
            most: most.unwrap_or(u64::MAX),
            fault: Cell::new(None),
            identity: identity.clone(),
            rules,
        }))
    }

    /// The body from its first byte, for the next attempt; `None` if its beginning is no longer kept. Earlier attempts
    /// read nothing more.
    pub(super) fn body(self: &Rc<Source>) -> Option<Body> {
        if self.lost.get() {
            return None;
        }
        self.try_.set(self.try_.get() + 1);
        Some(Body::stream(Upload { source: self.clone(), try_: self.try_.get(), at: 0, done: false }))
    }

    /// Stops keeping data: there will be no further attempt.
    pub(super) fn forget(&self) {
        self.lost.set(true);
    }

    /// The client's fault, if one was found so far.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }

    fn blame(&self, fault: Fault) {
        self.fault.set(Some(fault));
        self.receipt.breaks();
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut from = self.from.borrow_mut();
        let Some(frame) = ready!(Pin::new(&mut *from).poll_frame(cx)) else {
            self.ended.set(true);
            return Poll::Ready(None);
        };
        let mut frame = frame.inspect_err(|_| self.blame(Fault::Broken))?;
        if let Some(trailers) = frame.trailers_mut() {
            hop_by_hop::strip_trailers(trailers);
            remove_where(trailers, hop_by_hop::is_untrusted_in_request);
            self.identity.strip_trailers(trailers);
            if let Some(rules) = &self.rules {
                remove_where(trailers, |name| rules.read_header(name));
            }
            self.ended.set(true);
            *self.trailers.borrow_mut() = Some(trailers.clone());
        }
        if let Some(data) = frame.data_ref() {
            let total = self.receipt.passes(data);
            if total > self.most {
                self.blame(Fault::TooLarge);
                return Poll::Ready(Some(Err("the request's body is too large".into())));
            }
            if total > KEPT as u64 {
                self.lost.set(true);
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let source = this.source.clone();
        if this.try_ != source.try_.get() {
            return Poll::Ready(Some(Err("superseded by a retry".into())));
        }
        let mut kept = source.kept.borrow_mut();
        if let Some(data) = kept.get(this.at) {
            this.at += 1;
            return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
        }
        if source.ended.get() {
            let trailers = source.trailers.borrow().clone().filter(|_| !std::mem::replace(&mut this.done, true));
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let frame = ready!(source.poll_next(cx));
        if source.lost.get() {
            kept.clear();
            this.at = 0;
        } else if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            kept.push(data.clone());
            this.at += 1;
        }
        this.done = source.ended.get();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.source.kept.borrow().len()
            && (self.source.ended.get() || self.source.from.borrow().is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let again: usize = self.source.kept.borrow().iter().skip(self.at).map(Bytes::len).sum();
        match self.source.from.borrow().size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + again as u64),
            None => SizeHint::default(),
        }
    }
}
