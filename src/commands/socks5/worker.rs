//! A worker thread: state shared by its connections, and serving them.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::connection;
use super::users::Users;
use crate::egress::{DIAL_TIMEOUT, Destination, DestinationPattern, DialError, Dialer, EgressRoute, OpenedStream};
use crate::listen::IncomingConnection;
use crate::observe::Metrics;
use crate::observe::access::TunnelAccessLog;
use crate::process::{Drain, Published};

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
        let way = match &self.selection {
            None => EgressRoute::Direct,
            Some(name) => self.dialer.routes().load().get_configured(name)?.clone(),
        };
        Some(self.dialer.open(&way, destination, DIAL_TIMEOUT).await)
    }

    /// Serves connections until the acceptor has closed and all connections have ended.
    pub(super) async fn run(
        self,
        mut incoming: mpsc::UnboundedReceiver<IncomingConnection>,
        running: Arc<AtomicUsize>,
        drain: Drain,
    ) {
        let door = Rc::new(self);
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                connection = incoming.recv() => match connection {
                    Some(connection) => {
                        running.fetch_add(1, Ordering::Relaxed);
                        tasks.spawn_local(connection::serve(door.clone(), connection, drain.clone()));
                    }
                    None => break,
                },
                Some(_) = tasks.join_next() => {
                    running.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        while tasks.join_next().await.is_some() {
            running.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
