//! Controllers of the embedded API server: each brings one kind of object into the state that it should have. All have
//! the same runner, with a work queue each.
//!
//! They run on the thread `embedded-api`, above the watch cache: they follow its collections and write as clients do. Of
//! several servers with one store, the leader runs those whose work has to be done once.

mod bootstrap_objects;
mod cluster_role_aggregation;
mod crd_removal;
mod crds;
mod default_service_cidr;
mod enabled;
mod garbage_collector;
mod identity_leases;
mod kubernetes_service;
mod leader;
mod local_api_services;
mod namespaces;
mod policy_reconciliation;
mod rbac_policy;
mod runner;
mod service_accounts;
mod service_addresses;
mod stored_lease;
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
use self::crds::CrdController;
pub use self::enabled::{EnabledControllers, ManagedController};
use self::identity_leases::refuse_living_kube_apiserver;
use self::leader::LeaderControllers;
use self::local_api_services::LocalApiServiceController;
use self::rbac_policy::RbacPolicyFeed;
use self::runner::{Controller, FeedEvent, follow, run};
pub use self::stored_lease::StoredLeases;
use self::system_namespaces::SystemNamespaceController;
use crate::authenticate::service_accounts::RootCa;
use crate::kubeclient::election::Leadership;
use crate::observe::metrics::WorkQueueRegistry;
use crate::process::{Published, ShutdownPhase};
use crate::rest::{ApiServer, unavailable};

/// The controllers of one embedded API server.
pub struct Controllers {
    api: ApiServer,
    /// None if nothing is written.
    bootstrap_objects: Option<Rc<BootstrapObjectController>>,
    crds: Rc<CrdController>,
    /// None if nothing is written.
    leader: Option<LeaderControllers>,
    local_api_services: Rc<LocalApiServiceController>,
    policy: Rc<RbacPolicyFeed>,
}

impl Controllers {
    /// Publishes what the CustomResourceDefinitions of the store define, and creates the objects that every server has:
    /// the system namespaces, the Local APIServices, the ServiceCIDR, the Service `kubernetes`, PriorityClasses, the
    /// configuration of flow control, and the bootstrap policy; nothing with `--etcd-access=read-only`. Publishes the policy
    /// of the stored roles and bindings.
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
        let crds = Rc::new(CrdController::start(api, metrics, local_api_services.queue().clone()).await?);
        let (mut leader, mut bootstrap_objects) = (None, None);
        if api.settings().is_read_only {
            api.note_bootstrap_objects();
        } else {
            if api.settings().shares_store {
                refuse_living_kube_apiserver(api).await?;
            }
            // First: a system namespace that is created deletes what it finds.
            api.report_leftovers().await?;
            let system_namespaces = SystemNamespaceController::start(api, metrics).await?;
            local_api_services.start().await?;
            let controllers =
                LeaderControllers::start(api, crds.clone(), system_namespaces, root_ca, enabled, metrics).await?;
            leader = Some(controllers);
            // Before the policy is read.
            bootstrap_objects = Some(Rc::new(BootstrapObjectController::start(api, metrics).await));
        }
        let policy = Rc::new(RbacPolicyFeed::start(api).await?);
        Ok(Controllers { api: api.clone(), bootstrap_objects, crds, leader, local_api_services, policy })
    }

    /// Runs the controllers on this thread until the process drains: some in each server, and those of the leader while this
    /// one leads. The thread should run `notifier`.
    pub async fn run(mut self, notifier: Notifier, leadership: Published<Leadership>) {
        let mut drain = self.api.drain().clone();
        let mut tasks = JoinSet::new();
        self.spawn_everywhere(&mut tasks, &notifier);
        let leader = self.leader.take();
        let leading = async {
            match leader {
                Some(controllers) => controllers.run(&notifier, leadership).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            () = drain.wait_for(ShutdownPhase::Draining) => return,
            ended = tasks.join_next() => ended,
            ended = leading => ended,
        };
        // They do not end by themselves. The policy may be one of them: rights must not stay as they are.
        self.api.note_ended_controller();
        tracing::error!("a controller has ended: {ended:?}; restart the process");
    }

    /// Spawns what each server runs: what it serves and enforces depends on it.
    fn spawn_everywhere(&self, tasks: &mut JoinSet<()>, notifier: &Notifier) {
        let crds = self.crds.clone();
        spawn_feed(tasks, notifier, self.crds.collection(), move |_| crds.observe());
        for (number, collection) in self.policy.collections().enumerate() {
            let policy = self.policy.clone();
            spawn_feed(tasks, notifier, collection, move |event| policy.observe(number, event));
        }
        spawn_run(tasks, &self.crds);
        if self.api.settings().is_read_only {
            return;
        }
        let services = self.local_api_services.clone();
        spawn_feed(tasks, notifier, self.local_api_services.collection(), move |event| services.observe(event));
        spawn_run(tasks, &self.local_api_services);
        if let Some(controller) = &self.bootstrap_objects {
            spawn_run(tasks, controller);
        }
    }
}

/// Spawns a task that reconciles the keys of a controller.
fn spawn_run<C: Controller + 'static>(tasks: &mut JoinSet<()>, controller: &Rc<C>) {
    let controller = controller.clone();
    tasks.spawn_local(async move { run(&*controller).await });
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
