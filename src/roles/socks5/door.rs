//! What the connections of one thread share, and how that thread serves them.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::connection;
use super::users::Users;
use crate::egress::{DIAL_TIMEOUT, Destination, DestinationPattern, DialError, Dialler, Opened, Way};
use crate::listen::Incoming;
use crate::observe::Metrics;
use crate::observe::access::Tunnels;
use crate::process::{Drain, Published};

/// One thread's share of the door.
pub(super) struct Door {
    /// Who may come; everybody when none.
    pub(super) users: Option<Published<Users>>,
    /// Where to; one must match.
    pub(super) allow: Arc<[DestinationPattern]>,
    pub(super) handshake_timeout: Duration,
    pub(super) dialler: Dialler,
    /// The selection that all connections go through; directly when none.
    pub(super) selection: Option<String>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tunnels: Tunnels,
}

impl Door {
    /// Opens the way to `destination`; none if the selection is no more.
    pub(super) async fn dial(&self, destination: &Destination) -> Option<Result<Opened, DialError>> {
        let way = match &self.selection {
            None => Way::Direct,
            Some(name) => self.dialler.ways().load().configured(name)?.clone(),
        };
        Some(self.dialler.open(&way, destination, DIAL_TIMEOUT).await)
    }

    /// Serves until no more connections come and all that came are over.
    pub(super) async fn run(
        self,
        mut incoming: mpsc::UnboundedReceiver<Incoming>,
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
