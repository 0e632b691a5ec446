//! One fault's gateway, backends and load, and the figures before and after it.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::echo_backend::{ExecutionLedger, start_echo_backend};
use crate::measured_load::{Credentials, LoadUser, RunningLoad};
use crate::report::{FaultRow, ResourceUsage};
use crate::support::backend::{Backend, BackendSettings};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually_within};
use crate::support::gateway_fixture::register_things;

/// Descriptors that connections to backends and open files may differ by.
const DESCRIPTOR_TOLERANCE: usize = 12;

/// Idle connections to HTTP/2 backends are kept for 5 minutes: 5,000 watches leave 20.
const DESCRIPTOR_PATIENCE: Duration = Duration::from_secs(360);

/// In this time the allocator returns to the system what was freed; it begins after ten seconds.
const MEMORY_RETURN_TIME: Duration = Duration::from_secs(60);

/// One fault's stage. The gateway ends with it.
pub(crate) struct Stage {
    pub(crate) environment: TestEnvironment,
    pub(crate) gateway: GatewayProcess,
    pub(crate) ledger: ExecutionLedger,
    pub(crate) backends: Vec<Backend>,
    pub(crate) users: Vec<LoadUser>,
    flags: Vec<String>,
    before: ResourceUsage,
}

impl Stage {
    /// `things.example.com/v1` at two backends, one of each protocol.
    pub(crate) async fn start(flags: &[&str]) -> Stage {
        let environment = TestEnvironment::new();
        let ledger = ExecutionLedger::default();
        let mut backends = Vec::new();
        for settings in [BackendSettings::http1(), BackendSettings::http2()] {
            backends.push(start_echo_backend(&environment, settings, &ledger).await);
        }
        Stage::start_with(environment, ledger, backends, flags).await
    }

    /// The same with these backends.
    pub(crate) async fn start_with(
        environment: TestEnvironment,
        ledger: ExecutionLedger,
        backends: Vec<Backend>,
        flags: &[&str],
    ) -> Stage {
        let addresses: Vec<SocketAddr> = backends.iter().map(|backend| backend.address).collect();
        register_things(&environment, &addresses, &[]);
        let gateway = environment.start_gateway(flags);
        Stage::start_at(environment, gateway, ledger, backends, flags).await
    }

    /// The same with a gateway that runs.
    pub(crate) async fn start_at(
        environment: TestEnvironment,
        gateway: GatewayProcess,
        ledger: ExecutionLedger,
        backends: Vec<Backend>,
        flags: &[&str],
    ) -> Stage {
        let users = ["anna", "bert", "carl"].map(|name| LoadUser {
            name: name.to_owned(),
            credentials: Credentials::Certificate(environment.issue_user(name, &["system:masters"])),
            is_denied: false,
        });
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let before = ResourceUsage::default();
        Stage { environment, gateway, ledger, backends, users: users.into(), flags, before }
    }

    /// Warms up, measures, and starts the load that goes on during the fault.
    pub(crate) async fn start_load(&mut self) -> RunningLoad {
        let warm_up = self.new_load();
        warm_up.wait_for_answers(300).await;
        let counts = warm_up.finish().await;
        assert!(counts.failed.is_empty() && counts.wrong.is_empty(), "{:?} {:?}", counts.failed, counts.wrong);
        self.before = ResourceUsage::of_idle(&self.gateway, usize::MAX).await;
        let load = self.new_load();
        load.wait_for_answers(100).await;
        load
    }

    fn new_load(&self) -> RunningLoad {
        let server_ca = self.environment.serving_ca.certificate().clone();
        RunningLoad::start(self.gateway.address, vec![server_ca], self.users.clone())
    }

    /// Ends the load and gives the figures; `excused` are the causes of failures that the fault makes unavoidable.
    pub(crate) async fn finish(self, load: RunningLoad, excused: &'static [&'static str]) -> FaultRow {
        // After the fault all is well.
        load.wait_for_answers(200).await;
        let failed_connections = load.load.failed_connections.load(Ordering::Relaxed);
        let counts = load.finish().await;
        let mut after = ResourceUsage::of_idle(&self.gateway, self.before.descriptors + DESCRIPTOR_TOLERANCE).await;
        if after.kilobytes > self.before.memory_limit() {
            tokio::time::sleep(MEMORY_RETURN_TIME).await;
            after.kilobytes = self.gateway.resident_kilobytes();
        }
        FaultRow {
            counts,
            failed_connections,
            excused,
            before: self.before,
            after,
            note: String::new(),
            problems: Vec::new(),
        }
    }

    /// Starts another gateway at the same address, after the last one has ended.
    pub(crate) fn restart_gateway(&mut self) {
        let port = format!("--secure-port={}", self.gateway.address.port());
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).chain([port.as_str()]).collect();
        self.gateway = self.environment.start_gateway(&flags);
    }
}

impl ResourceUsage {
    /// Memory and descriptors once no client is connected: when the number of descriptors no longer falls, and is at
    /// most `limit`.
    pub(crate) async fn of_idle(gateway: &GatewayProcess, limit: usize) -> ResourceUsage {
        let mut last = usize::MAX;
        let descriptors = eventually_within(DESCRIPTOR_PATIENCE, "the descriptors to be closed", async || {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let count = gateway.descriptor_count();
            let is_settled = count >= last && count <= limit;
            last = count;
            is_settled.then_some(count)
        })
        .await;
        ResourceUsage { kilobytes: gateway.resident_kilobytes(), descriptors }
    }
}
