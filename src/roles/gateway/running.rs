//! The handle of a running gateway, and its shutdown.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::registering::Returning;
use super::shared::Shared;
use crate::admin::Admin;
use crate::config::GatewayConfig;
use crate::config::gateway::Shutdown;
use crate::observe::access::AccessLog;
use crate::observe::audit;
use crate::process::{Drainer, Phase};
use crate::roles::signals::{end_in_order, with_signals};
use crate::roles::threads::over;

/// Time for aborted requests to notify both sides and finish their records.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Polling interval of [`Running::wait_until_known`].
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Timeout of flushing the audit sinks.
const FLUSH: Duration = Duration::from_secs(5);

/// A running gateway.
pub struct Running {
    address: SocketAddr,
    /// The admin listener; serves until the process ends.
    admin: Option<Admin>,
    drainer: Drainer,
    shutdown: Shutdown,
    request_timeout: Duration,
    /// The accept and worker threads; the others end once these have.
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    logs: Logs,
}

/// What to finish before the process ends: logs to flush, the Lease to release.
pub(super) struct Logs {
    pub(super) access: Arc<AccessLog>,
    pub(super) audit: Option<audit::Ending>,
    /// The Lease, if leader election is enabled.
    pub(super) returning: Option<Returning>,
}

impl Running {
    pub(super) fn new(
        address: SocketAddr,
        admin: Option<Admin>,
        drainer: Drainer,
        config: &GatewayConfig,
        threads: Vec<JoinHandle<()>>,
        shared: Arc<Shared>,
        logs: Logs,
    ) -> Running {
        Running {
            address,
            admin,
            drainer,
            shutdown: config.shutdown.clone(),
            request_timeout: config.forwarding.request_timeout,
            threads,
            shared,
            logs,
        }
    }

    /// The address of the client listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the admin listener.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.local_addr)
    }

    /// Waits until discovery and OpenAPI serve a resource, at most `patience`. Before that kubectl would get and cache
    /// discovery without it.
    pub fn wait_until_known(&self, (group, version, resource): (&str, &str, &str), patience: Duration) {
        let key = format!("apis/{group}/{version}");
        let known = || {
            self.shared.documents.load().knows(group, version, resource, "") && self.shared.openapi.load().lists(&key)
        };
        let end = Instant::now() + patience;
        while !known() && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits for SIGTERM or SIGINT and drains; a second signal ends the process at once.
    pub fn until_signal(mut self) -> ExitCode {
        let (access_log, audit) = (self.logs.access.clone(), self.logs.audit.take());
        let returning = self.logs.returning.take();
        let status = end_in_order("running requests are finished", self.end());
        if let Some(returning) = returning.filter(|_| status == ExitCode::SUCCESS) {
            returning.wait(LAST_WORDS);
        }
        access_log.flush();
        if let Some(audit) = audit {
            audit.flush(if status == ExitCode::SUCCESS { FLUSH } else { LAST_WORDS });
        }
        status
    }

    /// Waits for SIGINT or SIGTERM and ends at once, without a drain.
    pub fn until_interrupt(self) -> ExitCode {
        with_signals(async |signals| {
            signals.next().await;
            ExitCode::SUCCESS
        })
    }

    /// Shuts down: readiness fails, new requests stop, running requests finish, watches end, in this order.
    pub async fn end(self) {
        self.drainer.advance(Phase::Leaving);
        tokio::time::sleep(self.shutdown.delay).await;
        self.drainer.advance(Phase::Draining);
        // Requests get the full request timeout, watches only their grace period. The wait ends when all have ended.
        let drainer = self.drainer;
        let shared = self.shared;
        let mut rest = over(self.threads);
        let grace = self.shutdown.watch_grace;
        let early = tokio::time::timeout(grace, &mut rest).await.is_ok();
        drainer.advance(Phase::Ending);
        let left = self.request_timeout.saturating_sub(grace).max(LAST_WORDS);
        if !early && tokio::time::timeout(left, &mut rest).await.is_err() {
            let running = shared.reading.running.count() + shared.mutating.running.count();
            tracing::warn!(requests = running, "drain timeout: running requests are aborted");
            drainer.advance(Phase::Over);
            // For their records.
            let _ = tokio::time::timeout(LAST_WORDS, &mut rest).await;
        }
    }
}
