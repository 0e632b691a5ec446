//! The garbage collector: it deletes objects whose owners are gone, and ends deletions that wait for dependents
//! (`pkg/controller/garbagecollector`).
//!
//! Upstream keeps a node with the metadata of every object. Here the watch cache has these; the graph is an index of it,
//! from the uid of an owner to the keys of its dependents. It is fed from stored bytes, so that neither a conversion webhook
//! nor an aggregated API can stop it.

mod absent_owners;
mod collection_feeds;
mod deletion;
mod dependents;
mod foreign_owners;
mod graph_builder;
mod owners;
mod ownership_graph;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kubeapi::Status;
use store::Key;
use store::watch_cache::{Notifier, Stored};
use tokio::sync::Notify;

use self::absent_owners::AbsentOwners;
use self::collection_feeds::CollectionFeeds;
use self::foreign_owners::SuspectedReferences;
use self::ownership_graph::OwnershipGraph;
use super::runner::{Controller, run};
use crate::observe::metrics::WorkQueueMetrics;
use crate::rest::{ApiServer, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

/// Pauses after failures. Upstream's begin with 5 ms and end with 1,000 s.
const BACK_OFF: BackOff = BackOff { initial: Duration::from_millis(50), max: Duration::from_secs(60) };

/// The garbage collector.
pub(super) struct GarbageCollector {
    api: ApiServer,
    graph: RefCell<OwnershipGraph>,
    feeds: CollectionFeeds,
    queue: WorkQueue<CollectorKey>,
    /// Objects that wait for dependents that block their deletion: key by uid.
    blocked: RefCell<HashMap<Arc<str>, Key>>,
    absent: RefCell<AbsentOwners>,
    suspected: SuspectedReferences,
    /// Signaled when all objects have to be looked at.
    scan: Notify,
    /// Whether an object has an owner of a kind that is not served.
    has_deferred: Cell<bool>,
}

/// What the garbage collector looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CollectorKey {
    /// An object that may have no owner, or waits for its dependents.
    Object { key: Key, uid: Arc<str> },
    /// The dependents of an object that is gone.
    Dependents { uid: Arc<str> },
}

impl CollectorKey {
    fn of(object: &Stored) -> CollectorKey {
        CollectorKey::Object { key: object.key().clone(), uid: (*object.metadata().uid).into() }
    }
}

impl fmt::Display for CollectorKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectorKey::Object { key, .. } => key.fmt(f),
            CollectorKey::Dependents { uid } => write!(f, "dependents of uid {uid}"),
        }
    }
}

impl GarbageCollector {
    /// A garbage collector that has to be run.
    pub(super) fn new(api: &ApiServer, metrics: Arc<WorkQueueMetrics>) -> GarbageCollector {
        GarbageCollector {
            api: api.clone(),
            graph: RefCell::default(),
            feeds: CollectionFeeds::new(api),
            queue: WorkQueue::new(BACK_OFF, metrics),
            blocked: RefCell::default(),
            absent: RefCell::default(),
            suspected: SuspectedReferences::default(),
            scan: Notify::new(),
            has_deferred: Cell::new(false),
        }
    }

    /// Follows all collections and collects garbage. Does not end.
    pub(super) async fn run(self: Rc<Self>, notifier: Notifier) {
        let collect = async {
            // Owners that other servers have do not count as absent.
            self.api.wait_for_routes().await;
            // Before that, an owner may seem to have no dependents.
            self.feeds.wait_until_current().await;
            tracing::info!(edges = self.graph.borrow().len(), "garbage collector has the owners of all objects");
            run(&*self).await;
        };
        let follow = self.clone().follow_catalog(notifier);
        tokio::join!(follow, self.scan_on_request(), self.report_foreign_owners(), collect);
    }
}

impl Controller for GarbageCollector {
    type Key = CollectorKey;

    const CONCURRENCY: usize = 20;

    fn queue(&self) -> &WorkQueue<CollectorKey> {
        &self.queue
    }

    async fn reconcile(&self, key: &CollectorKey) -> Result<(), Status> {
        match key {
            CollectorKey::Dependents { uid } => {
                self.collect_dependents(uid).await;
                Ok(())
            }
            CollectorKey::Object { key, uid } => {
                let Some(feed) = self.feeds.of_key(key) else { return Ok(()) };
                let latest = feed.collection().get_latest(key).await.map_err(|error| unavailable(&error))?;
                let Some(object) = latest.filter(|latest| *latest.metadata().uid == **uid) else { return Ok(()) };
                match object.metadata().deletion_timestamp {
                    Some(_) => self.finish_deletion(&feed, &object).await,
                    None => self.collect(&feed, object).await,
                }
            }
        }
    }
}
