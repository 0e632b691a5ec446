//! Controllers of the embedded API server: each brings one kind of object into the state that it should have. All have
//! the same runner, with a work queue each.
//!
//! They run on the thread `embedded-api`, above the watch cache: they follow its collections and write as clients do.

mod bootstrap_objects;
mod cluster_role_aggregation;
mod crd_removal;
mod crds;
mod default_service_cidr;
mod enabled;
mod garbage_collector;
mod kubernetes_service;
mod local_api_services;
mod namespaces;
mod policy_reconciliation;
mod rbac_policy;
mod runner;
mod service_accounts;
mod service_addresses;
mod system_namespaces;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;

use kubeapi::Status;
use store::Key;
use store::watch_cache::{Notifier, ResourceCollection, Stored};
use tokio::task::JoinSet;

use self::bootstrap_objects::BootstrapObjectController;
use self::cluster_role_aggregation::ClusterRoleAggregationController;
use self::crd_removal::CrdRemovalController;
use self::crds::CrdController;
use self::default_service_cidr::DefaultServiceCidrController;
pub use self::enabled::{EnabledControllers, ManagedController};
use self::garbage_collector::GarbageCollector;
use self::kubernetes_service::KubernetesServiceController;
use self::local_api_services::LocalApiServiceController;
use self::namespaces::NamespaceController;
use self::rbac_policy::RbacPolicyFeed;
use self::runner::{Controller as _, FeedEvent, follow, run};
use self::service_accounts::{NamespaceObjectController, TokenSecretController};
use self::service_addresses::ServiceAddressController;
use self::system_namespaces::SystemNamespaceController;
use crate::authenticate::service_accounts::RootCa;
use crate::observe::metrics::WorkQueueRegistry;
use crate::process::{Published, ShutdownPhase};
use crate::rest::{ApiServer, unavailable};

/// The controllers of one embedded API server.
pub struct Controllers {
    api: ApiServer,
    enabled: EnabledControllers,
    bootstrap_objects: BootstrapObjectController,
    cluster_role_aggregation: Rc<ClusterRoleAggregationController>,
    crds: Rc<CrdController>,
    crd_removal: Rc<CrdRemovalController>,
    default_service_cidr: Rc<DefaultServiceCidrController>,
    garbage_collector: Rc<GarbageCollector>,
    kubernetes_service: Rc<KubernetesServiceController>,
    local_api_services: Rc<LocalApiServiceController>,
    namespaces: Rc<NamespaceController>,
    namespace_objects: Vec<Rc<NamespaceObjectController>>,
    policy: Rc<RbacPolicyFeed>,
    service_addresses: Rc<ServiceAddressController>,
    system_namespaces: Rc<SystemNamespaceController>,
    token_secrets: Option<Rc<TokenSecretController>>,
}

impl Controllers {
    /// Publishes what the CustomResourceDefinitions of the store define, and creates the objects that every server has:
    /// the system namespaces, the Local APIServices, the ServiceCIDR, the Service `kubernetes`, PriorityClasses, the
    /// configuration of flow control, and the bootstrap policy. Publishes the policy of the stored roles and bindings.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub async fn start(
        api: &ApiServer,
        root_ca: Option<Published<RootCa>>,
        enabled: EnabledControllers,
        metrics: &WorkQueueRegistry,
    ) -> Result<Controllers, Status> {
        let local_api_services = Rc::new(LocalApiServiceController::new(api, metrics)?);
        let crds = CrdController::start(api, metrics, local_api_services.queue().clone()).await?;
        // First: a system namespace that is created deletes what it finds.
        api.report_leftovers().await?;
        let system_namespaces = SystemNamespaceController::start(api, metrics).await?;
        local_api_services.start().await?;
        let default_service_cidr = DefaultServiceCidrController::start(api, metrics).await?;
        let service_addresses = ServiceAddressController::start(api).await?;
        let kubernetes_service = KubernetesServiceController::start(api, metrics).await?;
        // Before the policy is read.
        let bootstrap_objects = BootstrapObjectController::start(api, metrics).await;
        Ok(Controllers {
            api: api.clone(),
            bootstrap_objects,
            cluster_role_aggregation: Rc::new(ClusterRoleAggregationController::new(api, metrics)?),
            crds: Rc::new(crds),
            crd_removal: Rc::new(CrdRemovalController::new(api)?),
            default_service_cidr: Rc::new(default_service_cidr),
            garbage_collector: Rc::new(GarbageCollector::new(api, metrics)),
            kubernetes_service: Rc::new(kubernetes_service),
            local_api_services,
            namespaces: Rc::new(NamespaceController::new(api)?),
            namespace_objects: namespace_objects(api, root_ca.clone(), &enabled, metrics)?,
            policy: Rc::new(RbacPolicyFeed::start(api).await?),
            service_addresses: Rc::new(service_addresses),
            system_namespaces: Rc::new(system_namespaces),
            token_secrets: match enabled.runs(ManagedController::ServiceAccountToken) {
                true => TokenSecretController::new(api, root_ca, metrics)?.map(Rc::new),
                false => None,
            },
            enabled,
        })
    }

    /// Runs the controllers on this thread until the process drains. The thread should run `notifier`.
    pub async fn run(self, notifier: Notifier) {
        let mut drain = self.api.drain().clone();
        let mut tasks = JoinSet::new();
        self.spawn_feeds(&mut tasks, &notifier);
        self.run_accounts(&mut tasks);
        let Controllers {
            enabled,
            bootstrap_objects,
            crds,
            crd_removal,
            local_api_services,
            namespaces,
            system_namespaces,
            ..
        } = self;
        tasks.spawn_local(async move { run(&bootstrap_objects).await });
        let (default_service_cidr, kubernetes_service) = (self.default_service_cidr, self.kubernetes_service);
        let service_addresses = self.service_addresses;
        tasks.spawn_local(async move { run(&*service_addresses).await });
        tasks.spawn_local(async move { run(&*default_service_cidr).await });
        tasks.spawn_local(async move { run(&*kubernetes_service).await });
        tasks.spawn_local(async move { run(&*crds).await });
        tasks.spawn_local(async move { run(&*crd_removal).await });
        tasks.spawn_local(async move { run(&*local_api_services).await });
        if enabled.runs(ManagedController::ClusterRoleAggregation) {
            let aggregation = self.cluster_role_aggregation;
            tasks.spawn_local(async move { run(&*aggregation).await });
        }
        if enabled.runs(ManagedController::GarbageCollector) && self.api.settings().has_collector {
            tasks.spawn_local(self.garbage_collector.run(notifier));
        }
        if enabled.runs(ManagedController::Namespace) {
            tasks.spawn_local(async move { run(&*namespaces).await });
        }
        tasks.spawn_local(async move { run(&*system_namespaces).await });
        tokio::select! {
            () = drain.wait_for(ShutdownPhase::Draining) => {}
            // They do not end by themselves. The policy may be one of them: rights must not stay as they are.
            Some(ended) = tasks.join_next() => {
                self.api.note_ended_controller();
                tracing::error!("a controller has ended: {ended:?}; restart the process");
            }
        }
    }

    /// Runs the controllers of ServiceAccounts and tokens.
    fn run_accounts(&self, tasks: &mut JoinSet<()>) {
        for controller in self.namespace_objects.iter().cloned() {
            let followed = controller.clone();
            tasks.spawn_local(async move { followed.follow_content().await });
            tasks.spawn_local(async move { run(&*controller).await });
        }
        if let Some(controller) = self.token_secrets.clone() {
            tasks.spawn_local(async move { run(&*controller).await });
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
        let crds = self.crds.clone();
        spawn_feed(tasks, notifier, self.crds.collection(), move |_| crds.observe());
        let services = self.local_api_services.clone();
        spawn_feed(tasks, notifier, self.local_api_services.collection(), move |event| services.observe(event));
        self.spawn_service_feeds(tasks, notifier);
        self.spawn_account_feeds(tasks, notifier);
        for (number, collection) in self.policy.collections().enumerate() {
            let policy = self.policy.clone();
            spawn_feed(tasks, notifier, collection, move |event| policy.observe(number, event));
        }
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

/// Spawns a task that calls `observe` with the events of a collection.
fn spawn_feed(
    tasks: &mut JoinSet<()>,
    notifier: &Notifier,
    collection: &ResourceCollection,
    observe: impl FnMut(&FeedEvent<'_>) + 'static,
) {
    let (collection, notifier) = (collection.clone(), notifier.clone());
    tasks.spawn_local(async move { follow(&collection, &notifier, observe).await });
}

/// The latest object of a name, with its key.
///
/// # Errors
/// The name cannot be part of a key, or the store cannot be read.
async fn read_latest(
    collection: &ResourceCollection,
    namespace: &str,
    name: &str,
) -> Result<(Key, Option<Arc<Stored>>), Status> {
    let key = collection.prefix().key(namespace, name).map_err(Status::internal_error)?;
    let latest = collection.get_latest(&key).await.map_err(|error| unavailable(&error))?;
    Ok((key, latest))
}

/// The collection of a built-in resource.
///
/// # Errors
/// 500 if there is no such resource.
fn builtin_collection(api: &ApiServer, group: &str, plural: &str) -> Result<ResourceCollection, Status> {
    api.builtin_collection(group, plural).ok_or_else(|| Status::internal_error(format_args!("no {plural}")))
}
