//! The handle of a running gateway, and its shutdown.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::object_store::ObjectStore;
use super::registry_thread::LeaseRelease;
use super::request_observers::ObserverShutdown;
use super::state::GatewayState;
use crate::admin::AdminListener;
use crate::commands::signals::{Shutdown, block_on_signals, shut_down_on_signal};
use crate::commands::threads::join_all;
use crate::config::GatewayConfig;
use crate::config::gateway::ShutdownSettings;
use crate::observe::access::AccessLog;
use crate::process::{Drainer, ShutdownPhase};

/// Time for aborted requests to notify both sides and finish their records.
const CUT_GRACE: Duration = Duration::from_secs(1);

/// Polling interval of [`GatewayHandle::wait_until_served`].
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Timeout of flushing the audit sinks, and of exporting the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// A running gateway.
pub struct GatewayHandle {
    address: SocketAddr,
    /// The admin listener; serves until the process ends.
    admin: Option<AdminListener>,
    drainer: Drainer,
    shutdown: ShutdownSettings,
    request_timeout: Duration,
    /// The accept and worker threads; the others end once these have.
    threads: Vec<JoinHandle<()>>,
    shared: Arc<GatewayState>,
    logs: ShutdownHandles,
}

/// What to finish before the process ends: logs to flush, the Lease to release.
pub(super) struct ShutdownHandles {
    pub(super) access: Arc<AccessLog>,
    /// Audit and tracing.
    pub(super) observers: ObserverShutdown,
    /// The Lease, if leader election is enabled.
    pub(super) lease_release: Option<LeaseRelease>,
    /// The store of the embedded API server.
    pub(super) store: Option<ObjectStore>,
}

impl GatewayHandle {
    pub(super) fn new(
        address: SocketAddr,
        admin: Option<AdminListener>,
        drainer: Drainer,
        config: &GatewayConfig,
        threads: Vec<JoinHandle<()>>,
        shared: Arc<GatewayState>,
        logs: ShutdownHandles,
    ) -> GatewayHandle {
        GatewayHandle {
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

    /// Waits until discovery and OpenAPI serve a resource of the embedded API server, at most `patience`. Before that
    /// kubectl would get and cache discovery without it.
    pub fn wait_until_served(&self, (group, version, resource): (&str, &str, &str), patience: Duration) {
        let path = format!("/openapi/v3/apis/{group}/{version}");
        let is_listed = || {
            self.shared.documents.discovery.load().has_resource(group, version, resource, "")
                && self.shared.documents.openapi.load().has_document_at(&path)
        };
        let end = Instant::now() + patience;
        while !is_listed() && Instant::now() < end {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits for SIGTERM or SIGINT and drains; a second signal ends the process at once.
    pub fn run_until_signal(mut self) -> ExitCode {
        let (access_log, observers) = (self.logs.access.clone(), std::mem::take(&mut self.logs.observers));
        let returning = self.logs.lease_release.take();
        let shutdown = Shutdown {
            serving: &format!("Serving at {}", self.address),
            ending: "running requests are finished",
            timeout: self.shutdown.delay + self.request_timeout.max(self.shutdown.watch_grace) + CUT_GRACE * 3,
        };
        let status = shut_down_on_signal(&shutdown, self.shut_down());
        if let Some(returning) = returning.filter(|_| status == ExitCode::SUCCESS) {
            returning.wait(CUT_GRACE);
        }
        access_log.flush();
        observers.flush(if status == ExitCode::SUCCESS { FLUSH_TIMEOUT } else { CUT_GRACE });
        status
    }

    /// Waits for SIGINT or SIGTERM and ends at once, without a drain.
    pub fn run_until_interrupt(self) -> ExitCode {
        block_on_signals(async |signals| {
            signals.next().await;
            ExitCode::SUCCESS
        })
    }

    /// Shuts down: readiness fails, new requests stop, running requests finish, watches end, in this order.
    pub async fn shut_down(self) {
        self.drainer.advance(ShutdownPhase::Leaving);
        tokio::time::sleep(self.shutdown.delay).await;
        self.drainer.advance(ShutdownPhase::Draining);
        // Requests get the full request timeout, watches only their grace period. The wait ends when all have ended.
        let drainer = self.drainer;
        let shared = self.shared;
        let mut rest = join_all(self.threads);
        let grace = self.shutdown.watch_grace;
        let early = tokio::time::timeout(grace, &mut rest).await.is_ok();
        drainer.advance(ShutdownPhase::Ending);
        let left = self.request_timeout.saturating_sub(grace).max(CUT_GRACE);
        if !early && tokio::time::timeout(left, &mut rest).await.is_err() {
            let running = shared.inflight.count();
            tracing::warn!(requests = running, "drain timeout: running requests are aborted");
            drainer.advance(ShutdownPhase::TimedOut);
            // For their records.
            let _ = tokio::time::timeout(CUT_GRACE, &mut rest).await;
        }
        if let Some(store) = self.logs.store {
            store.close(CUT_GRACE).await;
        }
    }
}
