//! Serves what the CustomResourceDefinitions of the store define: accepts their names, publishes the catalog, registers
//! their groups, and has what is deleted removed.

mod conditions;
mod names;
mod reconciler;

use std::time::Duration;

use kubeapi::Status;
use store::watch_cache::ResourceCollection;
use tokio::sync::Mutex;

use self::reconciler::CrdReconciler;
use super::builtin_collection;
use super::runner::Controller;
use crate::observe::metrics::WorkQueueRegistry;
use crate::rest::{ApiServer, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

/// The one key: CRDs are looked at together, because they compete for names.
const ALL: &str = "all";

/// Pause after the store could not be read or written.
const PAUSE: Duration = Duration::from_secs(1);

/// The controller of CustomResourceDefinitions.
pub(super) struct CrdController {
    queue: WorkQueue<&'static str>,
    crds: ResourceCollection,
    reconciler: Mutex<CrdReconciler>,
}

impl CrdController {
    /// Reads the CRDs of the store and publishes the catalog. `api_services` is the queue of Local APIServices.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn start(
        api: &ApiServer,
        metrics: &WorkQueueRegistry,
        api_services: WorkQueue<String>,
    ) -> Result<CrdController, Status> {
        let crds = builtin_collection(api, "apiextensions.k8s.io", "customresourcedefinitions")?;
        crds.ensure_loaded().await.map_err(|error| unavailable(&error))?;
        let reconciler = Mutex::new(CrdReconciler::new(api, &crds, api_services));
        let queue = WorkQueue::new(BackOff { initial: PAUSE, max: PAUSE }, metrics.register("crds"));
        queue.add(ALL);
        Ok(CrdController { queue, crds, reconciler })
    }

    /// The CRDs.
    pub(super) fn collection(&self) -> &ResourceCollection {
        &self.crds
    }

    /// Has terminating CRDs removed, which changed before this server led.
    pub(super) async fn queue_terminating(&self) {
        self.reconciler.lock().await.queue_terminating_crds();
    }

    /// Notes that a CRD changed.
    pub(super) fn observe(&self) {
        self.queue.add(ALL);
    }
}

impl Controller for CrdController {
    type Key = &'static str;

    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &WorkQueue<&'static str> {
        &self.queue
    }

    async fn reconcile(&self, _all: &&'static str) -> Result<(), Status> {
        self.reconciler.lock().await.reconcile().await
    }
}
