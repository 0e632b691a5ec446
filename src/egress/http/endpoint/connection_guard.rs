//! RAII guards of a request's connection and counts until the last byte of the response.

use std::cell::Cell;
use std::rc::Rc;

use super::Endpoint;
use crate::egress::http::http1::Http1Connection;
use crate::egress::http::http2::Http2Connection;
use crate::egress::http::upload_task::UploadTask;

/// Guard of a request's connection to its endpoint.
///
/// Dropping it early is safe: an HTTP/1.1 connection whose response was not read to the end is closed, an HTTP/2 stream
/// is reset.
pub struct ConnectionGuard {
    connection: GuardedConnection,
    pending: Option<PendingRequest>,
}

enum GuardedConnection {
    Http1 { endpoint: Rc<Endpoint>, connection: Http1Connection },
    Http2 { upload: Option<UploadTask>, _stream: ActiveStream },
    Dedicated { _connection: Http1Connection },
    Returned,
}

/// Counts one request of an endpoint, for load balancing.
pub(in crate::egress) struct PendingRequest {
    endpoint: Rc<Endpoint>,
    is_long_running: bool,
}

impl PendingRequest {
    pub(in crate::egress) fn new(endpoint: &Rc<Endpoint>) -> PendingRequest {
        adjust_count(&endpoint.short_lived, 1);
        PendingRequest { endpoint: endpoint.clone(), is_long_running: false }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        adjust_count(if self.is_long_running { &self.endpoint.long_running } else { &self.endpoint.short_lived }, -1);
    }
}

/// Counts one active stream of an HTTP/2 connection.
pub(in crate::egress) struct ActiveStream(pub(in crate::egress) Rc<Http2Connection>);

impl ActiveStream {
    pub(in crate::egress) fn new(connection: &Rc<Http2Connection>) -> ActiveStream {
        adjust_count(&connection.active, 1);
        ActiveStream(connection.clone())
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        adjust_count(&self.0.active, -1);
        self.0.touch();
    }
}

fn adjust_count(count: &Cell<usize>, by: isize) {
    count.set(count.get().saturating_add_signed(by));
}

impl ConnectionGuard {
    pub(in crate::egress) fn http1(
        endpoint: &Rc<Endpoint>,
        http1_connection: Http1Connection,
        pending: PendingRequest,
    ) -> ConnectionGuard {
        ConnectionGuard {
            connection: GuardedConnection::Http1 { endpoint: endpoint.clone(), connection: http1_connection },
            pending: Some(pending),
        }
    }

    pub(in crate::egress) fn http2(
        stream: ActiveStream,
        upload: Option<UploadTask>,
        pending: PendingRequest,
    ) -> ConnectionGuard {
        ConnectionGuard { connection: GuardedConnection::Http2 { upload, _stream: stream }, pending: Some(pending) }
    }

    /// Guard of a connection that carries this request only.
    pub fn dedicated(connection: Http1Connection) -> ConnectionGuard {
        ConnectionGuard { connection: GuardedConnection::Dedicated { _connection: connection }, pending: None }
    }

    /// Marks the request as long-running: it is counted apart from those that end soon.
    pub fn mark_long_running(&mut self) {
        if let Some(pending) = &mut self.pending
            && !std::mem::replace(&mut pending.is_long_running, true)
        {
            adjust_count(&pending.endpoint.short_lived, -1);
            adjust_count(&pending.endpoint.long_running, 1);
        }
    }

    /// Marks the response as read to its end: an HTTP/1.1 connection can be reused.
    pub fn finish(&mut self) {
        match std::mem::replace(&mut self.connection, GuardedConnection::Returned) {
            GuardedConnection::Http1 { endpoint, connection } => endpoint.return_idle(connection),
            // The backend may still read the rest of the request.
            GuardedConnection::Http2 { upload: Some(mut upload), .. } => upload.detach(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::egress::{Address, EgressRoute, EndpointKey, Host, HttpVersion, Pool, Resolver, TransportSecurity};

    #[test]
    fn connection_guard_counts_long_running_requests_apart() {
        let key = EndpointKey {
            address: Address::tcp(Host::Name("a".to_owned()), 1),
            security: TransportSecurity::Plaintext(HttpVersion::Http1),
            connect_timeout: Duration::from_secs(1),
            egress_route: EgressRoute::Direct,
            preserve_host: false,
        };
        let endpoint = Pool::new(Resolver::System).endpoint(&key);
        let lease = || ConnectionGuard {
            connection: GuardedConnection::Returned,
            pending: Some(PendingRequest::new(&endpoint)),
        };
        let (mut watch, get) = (lease(), lease());
        watch.mark_long_running();
        watch.mark_long_running();
        assert_eq!((endpoint.pending(), endpoint.short_lived()), (2, 1));
        drop(get);
        assert_eq!((endpoint.pending(), endpoint.short_lived()), (1, 0));
        drop(watch);
        assert_eq!((endpoint.pending(), endpoint.short_lived()), (0, 0));
    }
}
