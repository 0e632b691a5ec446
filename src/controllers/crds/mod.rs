//! Serves what the CustomResourceDefinitions of the store define: accepts their names, publishes the catalog, registers
//! their groups, and has what is deleted removed.

mod conditions;
mod known_crds;
mod names;

use std::time::Duration;

use kubeapi::Status;
use store::watch_cache::ResourceCollection;
use tokio::sync::Mutex;

use self::known_crds::KnownCrds;
use super::builtin_collection;
use super::runner::Controller;
use crate::observe::metrics::WorkQueues;
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
    known: Mutex<KnownCrds>,
}

impl CrdController {
    /// Reads the CRDs of the store and publishes the catalog. `api_services` is the queue of Local APIServices.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn start(
        api: &ApiServer,
        metrics: &WorkQueues,
        api_services: WorkQueue<String>,
    ) -> Result<CrdController, Status> {
        let crds = builtin_collection(api, "apiextensions.k8s.io", "customresourcedefinitions")?;
        crds.ensure_loaded().await.map_err(|error| unavailable(&error))?;
        let known = Mutex::new(KnownCrds::new(api, &crds, api_services));
        let queue = WorkQueue::new(BackOff { first: PAUSE, longest: PAUSE }, metrics.add("crds"));
        queue.add(ALL);
        Ok(CrdController { queue, crds, known })
    }

    /// The CRDs.
    pub(super) fn collection(&self) -> &ResourceCollection {
        &self.crds
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
        self.known.lock().await.reconcile().await
    }
}
