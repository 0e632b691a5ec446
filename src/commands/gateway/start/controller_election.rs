//! Which of several gateways with one etcd runs the controllers.

use std::sync::Arc;
use std::time::Duration;

use kubeapi::Status;
use tokio::task::{JoinHandle, spawn_local};

use crate::config::GatewayConfig;
use crate::controllers::StoredLeases;
use crate::kubeclient::election::{self, Leadership};
use crate::observe::metrics::{CallKind, Metrics};
use crate::process::{Drain, Published, Publisher};
use crate::rest::ApiServer;

/// Longest wait for the release of the Lease when the process ends.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The candidacy of this gateway, which has to be started.
pub(super) struct ControllerElection {
    settings: election::Settings,
    publisher: Publisher<Leadership>,
}

/// A candidacy that has started.
pub(super) struct RunningElection(Option<JoinHandle<()>>);

/// Whether this gateway leads, and its candidacy; none if it leads always, or never because it writes nothing.
pub(super) fn controller_election(config: &GatewayConfig) -> (Published<Leadership>, Option<ControllerElection>) {
    let etcd = config.embedded_api.as_ref().and_then(|embedded| embedded.store.etcd());
    match (etcd, config.backends.election.clone()) {
        (Some(etcd), _) if etcd.is_read_only => (Published::fixed(Leadership::default()), None),
        (Some(_), Some(settings)) => {
            let (publisher, leadership) = Published::new(Leadership::candidate(election::new_identity()));
            (leadership, Some(ControllerElection { settings, publisher }))
        }
        _ => (Published::fixed(Leadership::without_election()), None),
    }
}

impl RunningElection {
    /// Starts a candidacy on this thread, if there is one.
    ///
    /// # Errors
    /// 500 if the server has no Leases.
    pub(super) fn start(
        election: Option<ControllerElection>,
        api: &ApiServer,
        metrics: &Arc<Metrics>,
        drain: &Drain,
    ) -> Result<RunningElection, Status> {
        let Some(ControllerElection { settings, publisher }) = election else { return Ok(RunningElection(None)) };
        let leases = StoredLeases::new(api)?;
        spawn_local(record_leadership(publisher.reader(), settings.name.clone(), metrics.clone()));
        let health = metrics.calls().register(CallKind::Lease, &settings.name);
        Ok(RunningElection(Some(spawn_local(election::stand(leases, settings, publisher, health, drain.clone())))))
    }

    /// Waits until the Lease is released: the process drains.
    pub(super) async fn released(self) {
        if let Some(task) = self.0 {
            let _ = tokio::time::timeout(RELEASE_TIMEOUT, task).await;
        }
    }
}

/// Records the leadership in the metrics. Does not end.
async fn record_leadership(mut leadership: Published<Leadership>, lease: String, metrics: Arc<Metrics>) {
    loop {
        metrics.set_leader(&lease, leadership.load().is_leader);
        leadership.changed().await;
    }
}
