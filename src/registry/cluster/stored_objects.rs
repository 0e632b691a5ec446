//! Watches of the store of the embedded API server: the same events as from a kube-apiserver, without a client.

use std::time::Duration;

use serde_json::value::RawValue;
use store::watch_cache::{
    Error, Notifier, ResourceCollection, Selection, Stored, WatchEventKind, WatchQuery, WatchStart,
};
use tokio::time::sleep;

use super::watched_resource::WatchedResource;
use crate::kubeclient::watch::{ReflectorHandler, WatchFailure};

/// Pause after the store could not be read.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The collections of the embedded API server that make a registry.
pub struct StoredObjects {
    /// APIServices.
    pub api_services: ResourceCollection,
    /// Services.
    pub services: ResourceCollection,
    /// EndpointSlices.
    pub endpoint_slices: ResourceCollection,
    /// Wakes the watches. The thread of the registry should run it.
    pub notifier: Notifier,
}

impl StoredObjects {
    /// Lists and watches a collection until the future is dropped.
    pub(super) async fn list_and_watch(&self, kind: &WatchedResource, handler: &impl ReflectorHandler) {
        loop {
            match self.watch_once(kind, handler).await {
                // Behind the history, or the collection is loaded again: list again.
                Ok(()) | Err(Error::Expired { .. }) => {}
                Err(error) => handler.on_error(&WatchFailure::without_response(error.to_string())),
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    async fn watch_once(&self, kind: &WatchedResource, handler: &impl ReflectorHandler) -> Result<(), Error> {
        let (collection, namespace) = match kind {
            WatchedResource::ApiServices => (&self.api_services, None),
            WatchedResource::Services(namespace) => (&self.services, Some(namespace.clone())),
            WatchedResource::EndpointSlices(namespace) => (&self.endpoint_slices, Some(namespace.clone())),
        };
        let query = WatchQuery {
            namespace,
            selection: Selection::default(),
            start: WatchStart::Latest { marks_end: true },
            sends_bookmarks: false,
            timeout: None,
        };
        let mut cursor = collection.watch(query, &self.notifier).await?;
        handler.on_healthy(Duration::ZERO);
        handler.on_list_start();
        let mut is_listed = false;
        while let Some(event) = cursor.next().await? {
            let object = event.object.as_deref().and_then(raw_object);
            match (event.kind, object) {
                (WatchEventKind::InitialEventsEnd, _) => {
                    is_listed = true;
                    handler.on_synced();
                }
                (WatchEventKind::Deleted, Some(object)) => handler.on_delete(&object),
                (_, Some(object)) if is_listed => handler.on_apply(&object),
                (_, Some(object)) => handler.on_item(&object),
                (_, None) => {}
            }
        }
        Ok(())
    }
}

/// The stored JSON with its resourceVersion.
fn raw_object(stored: &Stored) -> Option<Box<RawValue>> {
    serde_json::from_slice(&stored.versioned().concat()).ok()
}
