//! A client's body on its way to the backend: counted, bounded, its trailers cleaned, and its beginning kept
//! for a second try.

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

/// How much of a body is kept until the backend answers. Nearly every object of an API is smaller.
const KEPT: usize = 64 << 10;

/// The body of a request as it streams through, from its beginning: what an earlier try has read is given
/// again.
struct Upload {
    source: Rc<Source>,
    try_: u32,
    /// How many of the source's kept pieces this try has given.
    at: usize,
    done: bool,
}

/// What the tries for one request share.
pub(super) struct Source {
    from: RefCell<Received>,
    kept: RefCell<Vec<Bytes>>,
    trailers: RefCell<Option<HeaderMap>>,
    ended: Cell<bool>,
    /// Whether more came than is kept.
    lost: Cell<bool>,
    /// The try that may read; one before it is over, even if its connection does not know it yet.
    try_: Cell<u32>,
    receipt: Rc<Receipt>,
    most: u64,
    fault: Cell<Option<Fault>>,
    identity: Arc<IdentityHeaders>,
    rules: Option<Arc<Rules>>,
}

/// What a client did wrong with its body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is larger than it may be.
    TooLarge,
    /// It broke off, or cannot be read.
    Broken,
}

impl Source {
    /// The body to send on, without `identity` in its trailers, nor what `rules` read in headers; none when there is
    /// nothing to send. `receipt` is asked for only if there is.
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

    /// The body from its first byte, for the next try; none when its beginning is not kept any more. An
    /// earlier try reads nothing more.
    pub(super) fn body(self: &Rc<Source>) -> Option<Body> {
        if self.lost.get() {
            return None;
        }
        self.try_.set(self.try_.get() + 1);
        Some(Body::stream(Upload { source: self.clone(), try_: self.try_.get(), at: 0, done: false }))
    }

    /// There will be no further try: nothing more is kept.
    pub(super) fn forget(&self) {
        self.lost.set(true);
    }

    /// What the client did wrong with it, as far as it was read.
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
            return Poll::Ready(Some(Err("another try took over".into())));
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
