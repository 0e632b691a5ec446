//! The controllers whose work has to be done once: the leader of several servers with one store runs them.

use std::rc::Rc;
use std::sync::Arc;

use kubeapi::Status;
use store::watch_cache::Notifier;
use tokio::task::{JoinError, JoinSet};

use super::cluster_role_aggregation::ClusterRoleAggregationController;
use super::crd_removal::CrdRemovalController;
use super::crds::CrdController;
use super::default_service_cidr::DefaultServiceCidrController;
use super::garbage_collector::GarbageCollector;
use super::kubernetes_service::KubernetesServiceController;
use super::namespaces::NamespaceController;
use super::runner::Controller;
use super::service_accounts::{NamespaceObjectController, TokenSecretController};
use super::service_addresses::ServiceAddressController;
use super::system_namespaces::SystemNamespaceController;
use super::{EnabledControllers, ManagedController, spawn_feed, spawn_run};
use crate::authenticate::service_accounts::RootCa;
use crate::kubeclient::election::Leadership;
use crate::observe::metrics::{WorkQueueMetrics, WorkQueueRegistry};
use crate::process::Published;
use crate::rest::ApiServer;

/// How a task of the controllers ended: by a panic alone.
pub(super) type LeaderEnd = Option<Result<(), JoinError>>;

/// The controllers of the leader.
pub(super) struct LeaderControllers {
    api: ApiServer,
    enabled: EnabledControllers,
    cluster_role_aggregation: Rc<ClusterRoleAggregationController>,
    /// Metrics of the garbage collector, which is made anew whenever this server leads.
    collector_metrics: Arc<WorkQueueMetrics>,
    crd_removal: Rc<CrdRemovalController>,
    crds: Rc<CrdController>,
    default_service_cidr: Rc<DefaultServiceCidrController>,
    kubernetes_service: Rc<KubernetesServiceController>,
    namespaces: Rc<NamespaceController>,
    namespace_objects: Vec<Rc<NamespaceObjectController>>,
    service_addresses: Rc<ServiceAddressController>,
    system_namespaces: Rc<SystemNamespaceController>,
    token_secrets: Option<Rc<TokenSecretController>>,
}

impl LeaderControllers {
    /// Creates the objects that these controllers keep: the ServiceCIDR and the Service `kubernetes`. Whichever server is
    /// the leader, each has them when it starts. The system namespaces exist already.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub(super) async fn start(
        api: &ApiServer,
        crds: Rc<CrdController>,
        system_namespaces: SystemNamespaceController,
        root_ca: Option<Published<RootCa>>,
        enabled: EnabledControllers,
        metrics: &WorkQueueRegistry,
    ) -> Result<LeaderControllers, Status> {
        let default_service_cidr = DefaultServiceCidrController::start(api, metrics).await?;
        let service_addresses = ServiceAddressController::start(api).await?;
        let kubernetes_service = KubernetesServiceController::start(api, metrics).await?;
        Ok(LeaderControllers {
            api: api.clone(),
            cluster_role_aggregation: Rc::new(ClusterRoleAggregationController::new(api, metrics)?),
            collector_metrics: metrics.register("garbage_collector_attempt_to_delete"),
            crd_removal: Rc::new(CrdRemovalController::new(api)?),
            crds,
            default_service_cidr: Rc::new(default_service_cidr),
            kubernetes_service: Rc::new(kubernetes_service),
            namespaces: Rc::new(NamespaceController::new(api)?),
            namespace_objects: namespace_objects(api, root_ca.clone(), &enabled, metrics)?,
            service_addresses: Rc::new(service_addresses),
            system_namespaces: Rc::new(system_namespaces),
            token_secrets: match enabled.runs(ManagedController::ServiceAccountToken) {
                true => TokenSecretController::new(api, root_ca, metrics)?.map(Rc::new),
                false => None,
            },
            enabled,
        })
    }

    /// Runs the controllers whenever this server leads. Ends if one of them does.
    pub(super) async fn run(&self, notifier: &Notifier, mut leadership: Published<Leadership>) -> LeaderEnd {
        loop {
            let is_leader = leadership.get().is_leader;
            self.set_queues_open(is_leader);
            if !is_leader {
                leadership.changed().await;
                continue;
            }
            let mut tasks = JoinSet::new();
            let collector = Rc::new(GarbageCollector::new(&self.api, self.collector_metrics.clone()));
            self.spawn(&mut tasks, notifier, &collector);
            let lost = async {
                while leadership.get().is_leader {
                    leadership.changed().await;
                }
            };
            tokio::select! {
                () = lost => {}
                ended = tasks.join_next() => return ended,
            }
            // A write in flight may still happen: each has the revision that it replaces, or creates what must not exist.
            tasks.shutdown().await;
            // Even if this server leads again: keys that were being reconciled have no worker any more.
            self.set_queues_open(false);
            collector.queue().set_open(false);
        }
    }

    /// Opens the queues of the controllers, or closes them.
    fn set_queues_open(&self, is_open: bool) {
        self.cluster_role_aggregation.queue().set_open(is_open);
        self.crd_removal.queue().set_open(is_open);
        self.default_service_cidr.queue().set_open(is_open);
        self.kubernetes_service.queue().set_open(is_open);
        self.namespaces.queue().set_open(is_open);
        self.namespace_objects.iter().for_each(|controller| controller.queue().set_open(is_open));
        self.service_addresses.queue().set_open(is_open);
        self.system_namespaces.queue().set_open(is_open);
        self.token_secrets.iter().for_each(|controller| controller.queue().set_open(is_open));
    }

    /// Spawns the controllers.
    fn spawn(&self, tasks: &mut JoinSet<()>, notifier: &Notifier, collector: &Rc<GarbageCollector>) {
        self.spawn_feeds(tasks, notifier);
        let crds = self.crds.clone();
        tasks.spawn_local(async move {
            crds.queue_terminating().await;
            std::future::pending().await
        });
        spawn_run(tasks, &self.crd_removal);
        spawn_run(tasks, &self.default_service_cidr);
        spawn_run(tasks, &self.kubernetes_service);
        spawn_run(tasks, &self.service_addresses);
        spawn_run(tasks, &self.system_namespaces);
        for controller in &self.namespace_objects {
            let followed = controller.clone();
            tasks.spawn_local(async move { followed.follow_content().await });
            spawn_run(tasks, controller);
        }
        if let Some(controller) = &self.token_secrets {
            spawn_run(tasks, controller);
        }
        if self.enabled.runs(ManagedController::ClusterRoleAggregation) {
            spawn_run(tasks, &self.cluster_role_aggregation);
        }
        if self.enabled.runs(ManagedController::GarbageCollector) && self.api.settings().has_collector {
            tasks.spawn_local(collector.clone().run(notifier.clone()));
        }
        if self.enabled.runs(ManagedController::Namespace) {
            spawn_run(tasks, &self.namespaces);
        }
    }

    /// Spawns what adds the keys of the controllers of ServiceAccounts and tokens.
    fn spawn_account_feeds(&self, tasks: &mut JoinSet<()>, notifier: &Notifier) {
        for controller in &self.namespace_objects {
            let observer = controller.clone();
            spawn_feed(tasks, notifier, controller.objects(), move |event| observer.observe_object(event));
        }
        if let Some(controller) = &self.token_secrets {
            let observer = controller.clone();
            spawn_feed(tasks, notifier, controller.secrets(), move |event| observer.observe_secret(event));
            let observer = controller.clone();
            spawn_feed(tasks, notifier, controller.accounts(), move |event| observer.observe_account(event));
        }
    }

    /// Spawns what adds the keys of the controllers of Services and their ranges.
    fn spawn_service_feeds(&self, tasks: &mut JoinSet<()>, notifier: &Notifier) {
        let service_cidr = self.default_service_cidr.clone();
        let service_cidrs = self.default_service_cidr.collection();
        spawn_feed(tasks, notifier, service_cidrs, move |event| service_cidr.observe(event));
        let (addresses, kubernetes) = (self.service_addresses.clone(), self.kubernetes_service.clone());
        spawn_feed(tasks, notifier, self.service_addresses.services(), move |event| {
            addresses.observe_service(event);
            kubernetes.observe_service(event);
        });
        let addresses = self.service_addresses.clone();
        let ip_addresses = self.service_addresses.ip_addresses();
        spawn_feed(tasks, notifier, ip_addresses, move |event| addresses.observe_ip_address(event));
        for collection in self.kubernetes_service.endpoints() {
            let kubernetes = self.kubernetes_service.clone();
            spawn_feed(tasks, notifier, collection, move |event| kubernetes.observe(event));
        }
    }

    /// Spawns what adds the keys of changed objects to the queues.
    fn spawn_feeds(&self, tasks: &mut JoinSet<()>, notifier: &Notifier) {
        self.spawn_service_feeds(tasks, notifier);
        self.spawn_account_feeds(tasks, notifier);
        if self.enabled.runs(ManagedController::ClusterRoleAggregation) {
            let aggregation = self.cluster_role_aggregation.clone();
            let roles = self.cluster_role_aggregation.roles();
            spawn_feed(tasks, notifier, roles, move |event| aggregation.observe(event));
        }
        let (namespaces, system) = (self.namespaces.clone(), self.system_namespaces.clone());
        let namespace_objects = self.namespace_objects.clone();
        let empties_namespaces = self.enabled.runs(ManagedController::Namespace);
        spawn_feed(tasks, notifier, self.namespaces.collection(), move |event| {
            if empties_namespaces {
                namespaces.observe(event);
            }
            system.observe(event);
            namespace_objects.iter().for_each(|controller| controller.observe_namespace(event));
        });
    }
}

/// The controllers of objects that each namespace has.
///
/// # Errors
/// Their kinds are not there.
fn namespace_objects(
    api: &ApiServer,
    root_ca: Option<Published<RootCa>>,
    enabled: &EnabledControllers,
    metrics: &WorkQueueRegistry,
) -> Result<Vec<Rc<NamespaceObjectController>>, Status> {
    let mut controllers = Vec::new();
    if enabled.runs(ManagedController::ServiceAccount) {
        controllers.push(Rc::new(NamespaceObjectController::default_account(api, metrics)?));
    }
    if let Some(root_ca) = root_ca.filter(|_| enabled.runs(ManagedController::RootCaPublisher)) {
        controllers.push(Rc::new(NamespaceObjectController::root_ca(api, root_ca, metrics)?));
    }
    Ok(controllers)
}
