//! A client connection.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use kubeapi::{Status, User};

use super::GatewayWorker;
use super::requested_host::{requested_host, validate_host};
use crate::authenticate::Peer;
use crate::forward::ConnectionHeaders;
use crate::listen::{AcceptedConnection, ConnectionHandle, HttpProtocol};
use crate::message::{IncomingBody, Refusal};
use http::{HeaderValue, Request};

/// State shared by the requests of one client connection.
pub(in crate::commands::gateway) struct ClientConnection {
    pub(in crate::commands::gateway) worker: Rc<GatewayWorker>,
    pub(in crate::commands::gateway) peer: Peer,
    pub(in crate::commands::gateway) remote: SocketAddr,
    /// The IP address without port, for `X-Forwarded-For`.
    remote_header: HeaderValue,
    /// Number of the connection within the worker.
    id: u64,
    pub(in crate::commands::gateway) handle: ConnectionHandle,
    protocol: HttpProtocol,
    /// Whether the next response closes the connection.
    closing: Cell<bool>,
    /// Whether the client's certificate was trusted for any request so far.
    certificate_trusted: Cell<bool>,
    /// The host of the last request, cached: the next request nearly always has the same.
    last_host: RefCell<Option<HeaderValue>>,
}

impl ClientConnection {
    pub(in crate::commands::gateway) fn new(
        worker: Rc<GatewayWorker>,
        accepted: AcceptedConnection,
    ) -> Rc<ClientConnection> {
        let address = accepted.remote.ip().to_canonical().to_string();
        let connection = Rc::new(ClientConnection {
            peer: Peer::new(accepted.remote, accepted.client_chain),
            remote: accepted.remote,
            remote_header: HeaderValue::from_str(&address).unwrap_or_else(|_| HeaderValue::from_static("unknown")),
            protocol: accepted.protocol,
            handle: accepted.handle,
            closing: Cell::new(false),
            certificate_trusted: Cell::new(false),
            last_host: RefCell::new(None),
            id: worker.header_cache.next_connection_id(),
            worker,
        });
        connection.worker.track(&connection);
        connection
    }

    /// Sends GOAWAY to an HTTP/2 client, which then opens a new connection; running requests finish.
    pub(in crate::commands::gateway) fn send_goaway(&self) {
        if self.protocol == HttpProtocol::Http2 {
            self.handle.close_gracefully();
        }
    }

    /// Sends GOAWAY to anonymous clients and to a share of the others (`--goaway-chance`;
    /// `k8s.io/apiserver/pkg/server/filters/goaway.go`).
    pub(in crate::commands::gateway) fn send_goaway_by_chance(&self, is_anonymous: bool) {
        let chance = self.worker.shared.responses.goaway_chance;
        if chance > 0.0 && fastrand::f64() < chance || is_anonymous {
            self.send_goaway();
        }
    }

    /// Asks the client to use another connection: GOAWAY, or `Connection: close` with this response.
    pub(in crate::commands::gateway) fn close_after_response(&self) {
        self.closing.set(self.protocol == HttpProtocol::Http1);
        self.send_goaway();
    }

    /// Whether a response must carry `Connection: close`.
    pub(in crate::commands::gateway) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Records that a request was authenticated while the client's certificate is trusted.
    pub(in crate::commands::gateway) fn record_certificate_use(&self) {
        if !self.certificate_trusted.get() && !self.peer.chain().is_empty() {
            self.certificate_trusted.set(self.worker.shared.access.authenticator.verify_peer(&self.peer).is_ok());
        }
    }

    /// Why the client's certificate is no longer trusted, if it once was.
    pub(in crate::commands::gateway) fn trust_loss_reason(&self) -> Option<String> {
        if self.certificate_trusted.get() {
            self.worker.shared.access.authenticator.verify_peer(&self.peer).err()
        } else {
            None
        }
    }

    /// The requested host of `request`, as a header value.
    ///
    /// # Errors
    /// The request must be rejected: its host is missing, ambiguous or malformed.
    pub(in crate::commands::gateway) fn requested_host(
        &self,
        request: &Request<IncomingBody>,
    ) -> Result<Option<HeaderValue>, Status> {
        let Some(asked) = requested_host(request)? else { return Ok(None) };
        let mut last = self.last_host.borrow_mut();
        if last.as_ref().is_none_or(|last| last != asked) {
            validate_host(asked)?;
            *last = HeaderValue::from_str(asked).ok();
        }
        Ok(last.clone())
    }

    /// The headers added to requests of `user` for `host`: identity, `X-Forwarded-*`.
    ///
    /// # Errors
    /// The user's identity cannot be encoded in headers.
    pub(in crate::commands::gateway) fn forwarded_headers(
        &self,
        user: &Arc<User>,
        host: Option<HeaderValue>,
    ) -> Result<Rc<ConnectionHeaders>, Refusal> {
        self.worker.header_cache.get_or_build(self.id, user, host, |host| {
            Ok(ConnectionHeaders::new(&*self.worker.identity_headers(user)?, &self.remote_header, host))
        })
    }
}
