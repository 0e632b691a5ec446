//! Deletions and changes of objects by the garbage collector, with the code of the verbs.

use std::sync::Arc;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::change_metadata;
use serde_json::{Map, Value};
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::api_server::ApiServer;
use super::delete_options::{DeleteOptions, PropagationPolicy};
use super::errors::cache_error;
use super::object_removal::{Removed, remove};
use super::target::ObjectTarget;
use super::{metadata, namespace};
use crate::compute::run_sized;
use crate::conversion::stored_object;
use crate::resources::ServedKind;

/// Attempts to delete an object whose other fields change.
const ATTEMPTS: usize = 10;

impl ApiServer {
    /// Deletes an object as the verb delete does, on condition that it is this one and has the owners that it has here.
    ///
    /// # Errors
    /// 409 if it has other owners meanwhile, 403 for a namespace that stays, and errors of the store.
    pub(crate) async fn delete_collected(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        object: &Arc<Stored>,
        propagation: PropagationPolicy,
    ) -> Result<(), Status> {
        let target = ObjectTarget::new(kind.clone(), object.namespace(), object.name(), "");
        namespace::check_deletable(self, &target)?;
        let mut current = object.clone();
        for attempt in 1.. {
            let options = DeleteOptions {
                uid: Some(object.metadata().uid.to_string()),
                resource_version: Some(current.revision().to_string()),
                propagation: Some(propagation),
                ..DeleteOptions::default()
            };
            let status = match remove(collection, &target, current, &options).await {
                Ok(removed) => {
                    self.note_removal(&target, &removed).await;
                    return Ok(());
                }
                Err(Status { code: 404, .. }) => return Ok(()),
                Err(status) if status.code != 409 || attempt >= ATTEMPTS => return Err(status),
                Err(status) => status,
            };
            let latest = collection.get_latest(object.key()).await.map_err(|error| cache_error(&target, error))?;
            let same = |latest: &Arc<Stored>| latest.metadata().uid == object.metadata().uid;
            let Some(latest) = latest.filter(same) else { return Ok(()) };
            if latest.metadata().owner_references != object.metadata().owner_references {
                return Err(status);
            }
            current = latest;
        }
        Ok(())
    }

    /// Changes the metadata of an object. Deletes it if it is marked and its last finalizer is removed. Returns false if
    /// another writer was faster.
    ///
    /// # Errors
    /// 500 for a value that cannot be read, and errors of the store.
    pub(crate) async fn change_collected(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        object: &Arc<Stored>,
        change: impl FnOnce(&mut Map<String, Value>) + Send + 'static,
    ) -> Result<bool, Status> {
        let target = ObjectTarget::new(kind.clone(), object.namespace(), object.name(), "");
        let mut content = stored_object(object).await?;
        let resource = kind.resource.clone();
        let write = move || {
            change_metadata(&mut content, change);
            let is_removable = metadata::is_removable(&resource, &content);
            (!is_removable).then(|| write_stored_json(&content).bytes)
        };
        let (key, revision) = (object.key(), object.revision());
        let result = match run_sized(object.bytes().len(), write).await? {
            Some(value) if value == **object.bytes() => Ok(()),
            Some(value) => collection.update(key, revision, value.into(), None).await.map(drop),
            None => match collection.delete(key, revision).await {
                Ok(revision) => {
                    self.note_removal(&target, &Removed::Gone(object.clone(), revision)).await;
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        match result {
            Ok(()) => Ok(true),
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(cache_error(&target, error)),
        }
    }
}
