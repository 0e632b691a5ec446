//! A client connection.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderValue, Request};

use super::host;
use super::worker::Worker;
use crate::authenticate::Peer;
use crate::forward::Signature;
use crate::kubeapi::{Status, User};
use crate::listen::{Accepted, Answering, Closer, Handler, Protocol};
use crate::message::{Received, Refusal};

/// State shared by the requests of one client connection.
pub(super) struct Connection {
    pub(super) worker: Rc<Worker>,
    pub(super) peer: Peer,
    pub(super) remote: SocketAddr,
    /// The IP address without port, for `X-Forwarded-For`.
    remote_header: HeaderValue,
    /// Number of the connection within the worker.
    number: u64,
    pub(super) closer: Closer,
    protocol: Protocol,
    /// Whether the next response closes the connection.
    leaving: Cell<bool>,
    /// Whether the client's certificate was trusted for any request so far.
    trusted: Cell<bool>,
    /// The host of the last request, cached: the next request nearly always has the same.
    host: RefCell<Option<HeaderValue>>,
}

impl Connection {
    pub(super) fn new(worker: Rc<Worker>, accepted: Accepted) -> Rc<Connection> {
        let address = accepted.remote.ip().to_canonical().to_string();
        let connection = Rc::new(Connection {
            peer: Peer::new(accepted.remote, accepted.chain),
            remote: accepted.remote,
            remote_header: HeaderValue::from_str(&address).unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            protocol: accepted.protocol,
            closer: accepted.closer,
            leaving: Cell::new(false),
            trusted: Cell::new(false),
            host: RefCell::new(None),
            number: worker.signatures.number(),
            worker,
        });
        connection.worker.remember(&connection);
        connection
    }

    /// Asks an HTTP/2 client to open a new connection (GOAWAY); running requests finish.
    pub(super) fn ask_to_reconnect(&self) {
        if self.protocol == Protocol::Http2 {
            self.closer.finish();
        }
    }

    /// Asks the client to use another connection: GOAWAY, or `Connection: close` with this response.
    pub(super) fn leave(&self) {
        self.leaving.set(self.protocol == Protocol::Http1);
        self.ask_to_reconnect();
    }

    /// Whether a response must carry `Connection: close`.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Records that a request was authenticated while the client's certificate is trusted.
    pub(super) fn let_in(&self) {
        if !self.trusted.get() && !self.peer.chain().is_empty() {
            self.trusted.set(self.worker.shared.authenticator.trusts(&self.peer).is_ok());
        }
    }

    /// Why the client's certificate is no longer trusted, if it once was.
    pub(super) fn lost_trust(&self) -> Option<String> {
        if self.trusted.get() { self.worker.shared.authenticator.trusts(&self.peer).err() } else { None }
    }

    /// The requested host of `request`, as a header value.
    ///
    /// # Errors
    /// As [`host::asked`]: the request must be rejected.
    pub(super) fn host(&self, request: &Request<Received>) -> Result<Option<HeaderValue>, Status> {
        let Some(asked) = host::asked(request)? else { return Ok(None) };
        let mut last = self.host.borrow_mut();
        if last.as_ref().is_none_or(|last| last != asked) {
            host::check(asked)?;
            *last = HeaderValue::from_str(asked).ok();
        }
        Ok(last.clone())
    }

    /// The headers added to requests of `user` for `host`: identity, `X-Forwarded-*`.
    ///
    /// # Errors
    /// The user's identity cannot be encoded in headers.
    pub(super) fn signature(&self, user: &Arc<User>, host: Option<HeaderValue>) -> Result<Rc<Signature>, Refusal> {
        self.worker.signatures.of(self.number, user, host, |host| {
            Ok(Signature::new(&*self.worker.stamp(user)?, &self.remote_header, host))
        })
    }
}

impl Handler for Connection {
    fn handle(self: Rc<Self>, request: Request<Received>) -> Answering {
        // Allocated first: a future built on the stack would be moved to the heap with all its kilobytes.
        let (room, request) = (Box::new_uninit(), Box::new(request));
        let answering = Box::write(room, super::request::answer(self, request));
        Box::into_pin(answering)
    }
}
