//! What becomes of one object (`attemptToDeleteItem`): deleted if no owner is left, else it loses the owners that are gone.

use std::collections::HashSet;
use std::sync::Arc;

use kubeapi::Status;
use kubeapi::object_meta::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use serde_json::{Map, Value, json};
use store::watch_cache::Stored;

use super::GarbageCollector;
use super::collection_feeds::CollectionFeed;
use super::owners::{ClassifiedOwners, is_deleted_with};
use super::ownership_graph::is_blocking;
use crate::rest::{PropagationPolicy, unavailable};

/// Attempts to change an object that others change.
const ATTEMPTS: usize = 10;

impl GarbageCollector {
    /// The latest state of an object; none if another one has its name meanwhile.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn latest(&self, feed: &CollectionFeed, object: &Stored) -> Result<Option<Arc<Stored>>, Status> {
        let latest = feed.collection().get_latest(object.key()).await.map_err(|error| unavailable(&error))?;
        Ok(latest.filter(|latest| latest.metadata().uid == object.metadata().uid))
    }

    /// Deletes an object that is not being deleted, if none of its owners stays.
    ///
    /// # Errors
    /// 409 if others change it all the time, and errors of the store.
    pub(super) async fn collect(&self, feed: &CollectionFeed, object: Arc<Stored>) -> Result<(), Status> {
        let mut latest = Some(object);
        for _ in 0..ATTEMPTS {
            let Some(object) = latest else { return Ok(()) };
            let metadata = object.metadata();
            if metadata.deletion_timestamp.is_some() || metadata.owner_references.is_empty() {
                return Ok(());
            }
            let Some(owners) = self.classify_owners(&object).await? else { return Ok(()) };
            if self.collect_classified(feed, &object, owners).await? {
                return Ok(());
            }
            latest = self.latest(feed, &object).await?;
        }
        Err(Status::service_unavailable("the object changes all the time"))
    }

    /// Returns false if the object changed meanwhile.
    async fn collect_classified(
        &self,
        feed: &CollectionFeed,
        object: &Arc<Stored>,
        owners: ClassifiedOwners,
    ) -> Result<bool, Status> {
        if owners.has_solid {
            return match owners.removable.is_empty() {
                true => Ok(true),
                false => self.remove_owners(feed, object, owners.removable).await,
            };
        }
        // The owner was looked up in the watch cache, which may be ahead of the graph: dependents that came before the owner's
        // deletion must count.
        let is_foreground = owners.has_waiting && {
            self.feeds.catch_up().await?;
            self.graph.borrow().has_dependents(&object.metadata().uid)
        };
        let has = |finalizer: &str| object.metadata().finalizers.iter().any(|one| **one == *finalizer);
        let propagation = match () {
            () if is_foreground => {
                if self.has_waiting_dependent(&object.metadata().uid).await {
                    // Upstream's way out of a cycle. The object is looked at again in its new state.
                    if self.blocks_an_owner(object) {
                        self.unblock_owners(feed, object).await?;
                        return Ok(false);
                    }
                }
                PropagationPolicy::Foreground
            }
            () if has(ORPHAN_FINALIZER) => PropagationPolicy::Orphan,
            () if has(FOREGROUND_FINALIZER) => PropagationPolicy::Foreground,
            () => PropagationPolicy::Background,
        };
        match self.api.delete_collected(&feed.kind(), feed.collection(), object, propagation).await {
            Ok(()) => {
                tracing::debug!(key = %object.key(), ?propagation, "object without owners deleted");
                Ok(true)
            }
            Err(Status { code: 409, .. }) => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// Removes owners from an object. Returns false if it changed meanwhile.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn remove_owners(
        &self,
        feed: &CollectionFeed,
        object: &Arc<Stored>,
        uids: HashSet<String>,
    ) -> Result<bool, Status> {
        let change = move |metadata: &mut Map<String, Value>| {
            let Some(references) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) else { return };
            references.retain(|reference| !reference["uid"].as_str().is_some_and(|uid| uids.contains(uid)));
            if references.is_empty() {
                metadata.remove("ownerReferences");
            }
        };
        self.api.change_collected(&feed.kind(), feed.collection(), object, change).await
    }

    /// Whether an object blocks the deletion of one of its owners.
    pub(super) fn blocks_an_owner(&self, object: &Stored) -> bool {
        object.metadata().owner_references.iter().any(is_blocking)
    }

    /// Lets all owners of an object be deleted before it. Returns false if it changed meanwhile.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn unblock_owners(&self, feed: &CollectionFeed, object: &Arc<Stored>) -> Result<bool, Status> {
        let change = |metadata: &mut Map<String, Value>| {
            let references = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut);
            for reference in references.into_iter().flatten() {
                if reference["blockOwnerDeletion"] == true {
                    reference["blockOwnerDeletion"] = json!(false);
                }
            }
        };
        self.api.change_collected(&feed.kind(), feed.collection(), object, change).await
    }

    /// Removes a finalizer from an object that is being deleted, and with the last one the object.
    ///
    /// # Errors
    /// 503 if others change it all the time, and errors of the store.
    pub(super) async fn remove_finalizer(
        &self,
        feed: &CollectionFeed,
        object: &Arc<Stored>,
        finalizer: &'static str,
    ) -> Result<(), Status> {
        for _ in 0..ATTEMPTS {
            let latest = self.latest(feed, object).await?;
            let Some(latest) = latest.filter(|latest| is_deleted_with(latest, finalizer)) else { return Ok(()) };
            let change = move |metadata: &mut Map<String, Value>| {
                let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) else { return };
                finalizers.retain(|one| one != finalizer);
                if finalizers.is_empty() {
                    metadata.remove("finalizers");
                }
            };
            if self.api.change_collected(&feed.kind(), feed.collection(), &latest, change).await? {
                return Ok(());
            }
        }
        Err(Status::service_unavailable("the object changes all the time"))
    }
}
