//! A gateway that runs, and how it comes to its end.

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

/// What is cut gets this long to say so to both sides, and in its record.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often it is looked whether an API is known by now.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// For the sinks of audit events to take what is left.
const FLUSH: Duration = Duration::from_secs(5);

/// A running gateway.
pub struct Running {
    address: SocketAddr,
    /// Serves the operator until the process ends.
    admin: Option<Admin>,
    drainer: Drainer,
    shutdown: Shutdown,
    request_timeout: Duration,
    /// Those that accept and serve; the others end by themselves once these have.
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    logs: Logs,
}

/// What was recorded last is written before the process ends.
pub(super) struct Logs {
    pub(super) access: Arc<AccessLog>,
    pub(super) audit: Option<audit::Ending>,
    /// What others wait for is given back, too.
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

    /// Where clients are served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the operator is served.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.local_addr)
    }

    /// Waits until discovery and OpenAPI know of a group, a version of it and a resource in that; not longer than
    /// `patience`. Until then kubectl would be told that there is no such thing, and keep that in mind.
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

    /// Waits for SIGTERM or SIGINT and ends in good order; a second signal ends at once.
    pub fn until_signal(mut self) -> ExitCode {
        let (access_log, audit) = (self.logs.access.clone(), self.logs.audit.take());
        let returning = self.logs.returning.take();
        let status = end_in_order("what runs is finished", self.end());
        if let Some(returning) = returning.filter(|_| status == ExitCode::SUCCESS) {
            returning.wait(LAST_WORDS);
        }
        access_log.flush();
        if let Some(audit) = audit {
            audit.flush(if status == ExitCode::SUCCESS { FLUSH } else { LAST_WORDS });
        }
        status
    }

    /// Waits for SIGINT or SIGTERM and ends at once: nothing behind this is worth waiting for.
    pub fn until_interrupt(self) -> ExitCode {
        with_signals(async |signals| {
            signals.next().await;
            ExitCode::SUCCESS
        })
    }

    /// Readiness goes off, new requests stop, what runs is finished, watches end, in this order.
    pub async fn end(self) {
        self.drainer.advance(Phase::Leaving);
        tokio::time::sleep(self.shutdown.delay).await;
        self.drainer.advance(Phase::Draining);
        // Requests get their full time; watches only the grace they were granted. Nobody waits for more than runs.
        let drainer = self.drainer;
        let shared = self.shared;
        let mut rest = over(self.threads);
        let grace = self.shutdown.watch_grace;
        let early = tokio::time::timeout(grace, &mut rest).await.is_ok();
        drainer.advance(Phase::Ending);
        let left = self.request_timeout.saturating_sub(grace).max(LAST_WORDS);
        if !early && tokio::time::timeout(left, &mut rest).await.is_err() {
            let running = shared.reading.running.count() + shared.mutating.running.count();
            tracing::warn!(requests = running, "ending although some requests still run: their time is up");
            drainer.advance(Phase::Over);
            // For their records.
            let _ = tokio::time::timeout(LAST_WORDS, &mut rest).await;
        }
    }
}
