//! The thread that watches the registry (a directory, a kube-apiserver or the embedded API server, or both) and writes
//! APIService conditions.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::task::spawn_local;

use super::settings::EgressSettings;
use crate::availability::{AvailabilityMap, StatusTarget, StatusWriter};
use crate::commands::threads::TaskThreads;
use crate::kubeclient::election::{self, Leadership};
use crate::observe::health::HealthCheck;
use crate::observe::metrics::{CallKind, Metrics};
use crate::process::{Drain, Problem, Published, Publisher};
use crate::registry::{
    self, ApiServiceStatuses, ClusterClient, ClusterSource, ClusterState, Registry, RegistryDirectory,
    RegistryFollower, StoredObjects,
};
use crate::route::RouteTable;

/// Inputs of the registry thread.
pub(super) struct RegistryThread {
    pub(super) directory: Option<RegistryDirectory>,
    pub(super) cluster: Option<ClusterSource>,
    /// The embedded API server as a source, instead of a kube-apiserver.
    pub(super) embedded: Option<EmbeddedRegistry>,
    /// Leader election among the writers of conditions, if it is enabled.
    pub(super) election: Option<election::Settings>,
    pub(super) publisher: Publisher<Registry>,
    pub(super) threads: TaskThreads,
    pub(super) availability: AvailabilityMap,
    pub(super) egress: EgressSettings,
    pub(super) metrics: Arc<Metrics>,
    pub(super) drain: Drain,
}

/// The embedded API server as a source of the registry.
pub(super) struct EmbeddedRegistry {
    pub(super) objects: StoredObjects,
    /// Limits of what its objects may configure.
    pub(super) settings: registry::Settings,
    /// Whether this gateway writes the conditions of APIServices.
    pub(super) leadership: Published<Leadership>,
}

/// The state of the watched kube-apiserver and of the leader election.
#[derive(Clone)]
pub(super) struct ClusterStatus {
    pub(super) state: Published<ClusterState>,
    pub(super) leadership: Published<Leadership>,
}

/// Waits for the release of the Lease.
pub(super) struct LeaseRelease(Receiver<()>);

impl LeaseRelease {
    /// Waits until the Lease is released, or `patience` is over.
    pub(super) fn wait(&self, patience: Duration) {
        // If the thread ended, there is nothing to wait for.
        let _ = self.0.recv_timeout(patience);
    }
}

/// Label value of the source in metrics.
const SOURCE: &str = "kube-apiserver";

impl RegistryThread {
    /// Starts the thread. It ends with the process.
    ///
    /// # Errors
    /// The thread cannot be spawned.
    pub(super) fn start(self) -> Result<(Option<ClusterStatus>, Option<LeaseRelease>), Problem> {
        let RegistryThread {
            directory,
            cluster,
            embedded,
            election,
            publisher,
            threads,
            availability: board,
            egress,
            metrics,
            drain,
        } = self;
        if let Some(embedded) = embedded {
            threads.spawn("registry", async move || {
                embedded.run(directory, publisher, board, &metrics, drain).await;
            })?;
            return Ok((None, None));
        }
        let Some(cluster) = cluster else {
            threads.spawn("registry", async move || {
                let following = RegistryFollower { directory, cluster: None };
                following.run(publisher, drain, |_| {}).await;
            })?;
            return Ok((None, None));
        };
        let (returned, returning) = channel();
        let (state_publisher, state) = Published::new(cluster.state());
        let first = match &election {
            Some(_) => Leadership::candidate(election::new_identity()),
            None => Leadership::without_election(),
        };
        let (leadership_publisher, leadership) = Published::new(first);
        let status = ClusterStatus { state, leadership };
        let shown_status = status.clone();
        threads.spawn("registry", async move || {
            let (client, watching) = cluster.client(egress.dialer());
            let statuses = ApiServiceStatuses::default();
            let announcer = StatusWriter {
                target: StatusTarget::Client(client.clone()),
                registry: publisher.reader(),
                statuses: statuses.clone(),
                availability: board,
                leadership: shown_status.leadership.clone(),
                health: metrics.calls().register(CallKind::ApiServiceStatus, ""),
            };
            spawn_local(announcer.run(drain.clone()));
            let lease = election.as_ref().map(|election| election.name.clone());
            let election_task = election.map(|election| {
                let health = metrics.calls().register(CallKind::Lease, &election.name);
                let drain = drain.clone();
                spawn_local(async move {
                    election::stand(client, election, leadership_publisher, health, drain).await;
                    let _ = returned.send(());
                })
            });
            spawn_local(record_metrics(shown_status, lease, metrics));
            let following = RegistryFollower { directory, cluster: Some((watching, state_publisher, statuses)) };
            following.run(publisher, drain, |_| {}).await;
            if let Some(election_task) = election_task {
                // Awaited, so that the Lease is released before the thread ends.
                let _ = election_task.await;
            }
        })?;
        Ok((Some(status), Some(LeaseRelease(returning))))
    }
}

impl EmbeddedRegistry {
    /// Publishes the registry and writes conditions, until the process ends.
    async fn run(
        self,
        directory: Option<RegistryDirectory>,
        publisher: Publisher<Registry>,
        availability: AvailabilityMap,
        metrics: &Arc<Metrics>,
        drain: Drain,
    ) {
        let statuses = ApiServiceStatuses::default();
        let writer = StatusWriter {
            target: StatusTarget::Store(self.objects.api_services.clone()),
            registry: publisher.reader(),
            statuses: statuses.clone(),
            availability,
            leadership: self.leadership,
            health: metrics.calls().register(CallKind::ApiServiceStatus, ""),
        };
        spawn_local(writer.run(drain.clone()));
        let notifier = self.objects.notifier.clone();
        spawn_local(async move { notifier.run().await });
        let source = ClusterClient::of_store(self.objects, self.settings);
        let (state_publisher, _state) = Published::new(ClusterState::default());
        let following = RegistryFollower { directory, cluster: Some((source, state_publisher, statuses)) };
        following.run(publisher, drain, |_| {}).await;
    }
}

/// Records the state of the kube-apiserver and the leadership in the metrics.
async fn record_metrics(mut status: ClusterStatus, lease: Option<String>, metrics: Arc<Metrics>) {
    let health = metrics.calls().register(CallKind::Registry, "");
    loop {
        let state = status.state.get();
        if state.complete || state.failing.is_some() {
            health.record_watch(&state.server, state.failing.as_ref().map(|(since, why)| (*since, why.as_str())));
        }
        metrics.set_registry_source_up(SOURCE, status.is_synced());
        if let Some(lease) = &lease {
            metrics.set_leader(lease, status.leadership.load().is_leader);
        }
        tokio::select! {
            () = status.state.changed() => {}
            () = status.leadership.changed() => {}
        }
    }
}

impl ClusterStatus {
    /// Whether the registry is complete and up to date.
    fn is_synced(&self) -> bool {
        let state = self.state.load();
        state.complete && state.failing.is_none()
    }

    /// A readiness check: ready once the registry was complete; notes when it is not up to date.
    pub(super) fn check(&self, table: &Published<RouteTable>) -> HealthCheck {
        let (table, seen) = (table.clone(), self.clone());
        HealthCheck::with_note("registry", move || match (table.load().complete, seen.is_synced()) {
            (false, _) => Err("APIServices not listed from the kube-apiserver yet".to_owned()),
            (true, false) => Ok(Some("kube-apiserver cannot be watched; its last known objects stay in use".into())),
            (true, true) => Ok(None),
        })
    }
}
