//! The namespaces that every server has (`pkg/controlplane/controller/systemnamespaces`).

use kubeapi::Status;
use serde_json::{Map, Value, json};
use store::watch_cache::{ResourceCollection, WatchEvent, WatchEventKind};

use super::runner::{Controller, FeedEvent};
use super::{builtin_collection, read_latest};
use crate::observe::metrics::WorkQueueRegistry;
use crate::rest::{ApiServer, create_empty, finish_write, new_object};
use crate::work_queue::{BackOff, WorkQueue};

/// Namespaces that kube-apiserver creates.
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The controller that creates the system namespaces, again if one is deleted.
pub(super) struct SystemNamespaceController {
    api: ApiServer,
    namespaces: ResourceCollection,
    queue: WorkQueue<&'static str>,
}

impl SystemNamespaceController {
    /// Creates the system namespaces that do not exist.
    ///
    /// # Errors
    /// The store cannot be written.
    pub(super) async fn start(
        api: &ApiServer,
        metrics: &WorkQueueRegistry,
    ) -> Result<SystemNamespaceController, Status> {
        let namespaces = builtin_collection(api, "", "namespaces")?;
        let queue = WorkQueue::new(BackOff::default(), metrics.register("system_namespaces"));
        let controller = SystemNamespaceController { api: api.clone(), namespaces, queue };
        for name in SYSTEM_NAMESPACES {
            controller.reconcile(&name).await?;
        }
        Ok(controller)
    }

    /// Adds a system namespace that was deleted; all of them when the watch starts.
    pub(super) fn observe(&self, event: &FeedEvent<'_>) {
        match event {
            FeedEvent::Started => SYSTEM_NAMESPACES.into_iter().for_each(|name| self.queue.add(name)),
            FeedEvent::Object(WatchEvent { kind: WatchEventKind::Deleted, object: Some(deleted), .. }) => {
                let deleted = SYSTEM_NAMESPACES.into_iter().find(|name| *name == deleted.name());
                deleted.into_iter().for_each(|name| self.queue.add(name));
            }
            FeedEvent::Object(_) => {}
        }
    }
}

impl Controller for SystemNamespaceController {
    type Key = &'static str;

    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &WorkQueue<&'static str> {
        &self.queue
    }

    async fn reconcile(&self, name: &&'static str) -> Result<(), Status> {
        let (key, existing) = read_latest(&self.namespaces, "", name).await?;
        if existing.is_some() {
            return Ok(());
        }
        let mut object: Map<String, Value> = Map::new();
        object.insert("apiVersion".to_owned(), json!("v1"));
        object.insert("kind".to_owned(), json!("Namespace"));
        object.insert("metadata".to_owned(), json!({"name": name}));
        let value = new_object("", "v1", "namespaces", object)?;
        finish_write(create_empty(&self.api, &self.namespaces, &key, value).await)
    }
}
