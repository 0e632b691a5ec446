//! The state that the connections of a worker thread share, and their dials.

use std::sync::Arc;
use std::time::Duration;

use super::users::Users;
use crate::egress::{DIAL_TIMEOUT, Destination, DestinationPattern, DialError, Dialer, EgressRoute, OpenedStream};
use crate::observe::Metrics;
use crate::observe::access::TunnelAccessLog;
use crate::process::Published;

/// The state of one worker thread.
pub(super) struct Socks5Worker {
    /// Users with passwords; without them no authentication is required.
    pub(super) users: Option<Published<Users>>,
    /// Allowed destinations; one pattern must match.
    pub(super) allowed_destinations: Arc<[DestinationPattern]>,
    pub(super) handshake_timeout: Duration,
    pub(super) dialer: Dialer,
    /// The egress selection for all connections; direct if none.
    pub(super) selection: Option<String>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tunnels: TunnelAccessLog,
}

impl Socks5Worker {
    /// Dials `destination`; none if the egress selection no longer exists.
    pub(super) async fn dial(&self, destination: &Destination) -> Option<Result<OpenedStream, DialError>> {
        let route = match &self.selection {
            None => EgressRoute::Direct,
            Some(name) => self.dialer.routes().load().get_configured(name)?.clone(),
        };
        Some(self.dialer.open(&route, destination, DIAL_TIMEOUT).await)
    }
}
