//! Deletion of the objects of a CRD that is being deleted (`pkg/controller/finalizer/crd_finalizer.go` of
//! apiextensions-apiserver).

use std::cell::RefCell;
use std::collections::HashMap;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use serde_json::{Map, Value};
use store::CommitCondition;
use store::watch_cache::{Error, ListQuery, ResourceCollection};

use super::runner::Controller;
use super::{builtin_collection, read_latest};
use crate::conversion::stored_object;
use crate::kinds::crd::{CLEANUP_FINALIZER, mark_in_progress};
use crate::resources::ServedKind;
use crate::resources::custom::Crd;
use crate::rest::{ApiServer, CrdIdentity, now, remove_objects, unavailable};
use crate::work_queue::WorkQueue;

/// Attempts to remove a CRD in which objects were created meanwhile, without a pause.
const ATTEMPTS: usize = 10;

/// The controller that removes terminating CustomResourceDefinitions. [`super::crds`] adds them.
pub(super) struct CrdRemovalController {
    api: ApiServer,
    crds: ResourceCollection,
    /// The kinds of the CRDs in the queue, as they were first found: a client may make versions unserved meanwhile.
    kinds: RefCell<HashMap<CrdIdentity, ServedKind>>,
}

impl CrdRemovalController {
    /// # Errors
    /// 500 if the server has no CRDs.
    pub(super) fn new(api: &ApiServer) -> Result<CrdRemovalController, Status> {
        let crds = builtin_collection(api, "apiextensions.k8s.io", "customresourcedefinitions")?;
        Ok(CrdRemovalController { api: api.clone(), crds, kinds: RefCell::default() })
    }

    /// One of the served versions of a CRD; none if it was never established.
    fn served_kind(&self, crd: &CrdIdentity) -> Option<ServedKind> {
        if let Some(kind) = self.kinds.borrow().get(crd) {
            return Some(kind.clone());
        }
        let catalog = self.api.catalog().get();
        let (_, group) = crd.name.split_once('.')?;
        let is_of_crd = |kind: &&ServedKind| kind.resource.custom.as_ref().is_some_and(|custom| custom.uid == crd.uid);
        let kind = catalog.in_group(group).map(|entry| &entry.kind).find(is_of_crd).cloned()?;
        self.kinds.borrow_mut().insert(crd.clone(), kind.clone());
        Some(kind)
    }
}

impl Controller for CrdRemovalController {
    type Key = CrdIdentity;

    const CONCURRENCY: usize = 5;

    fn queue(&self) -> &WorkQueue<CrdIdentity> {
        &self.api.removal_queues().crds
    }

    async fn reconcile(&self, crd: &CrdIdentity) -> Result<(), Status> {
        self.remove(crd).await?;
        self.kinds.borrow_mut().remove(crd);
        Ok(())
    }
}

impl CrdRemovalController {
    /// Deletes the objects of a terminating CRD, then the CRD.
    ///
    /// # Errors
    /// 503 while objects remain.
    async fn remove(&self, crd: &CrdIdentity) -> Result<(), Status> {
        let (api, crds) = (&self.api, &self.crds);
        let key = crds.prefix().key("", &crd.name).map_err(Status::internal_error)?;
        for _ in 0..ATTEMPTS {
            // Another CRD may have the name meanwhile: its objects stay.
            let current = crds.get_latest(&key).await.map_err(|error| unavailable(&error))?;
            let current = current.filter(|current| {
                *current.metadata().uid == *crd.uid && current.metadata().deletion_timestamp.is_some()
            });
            let Some(current) = current else { return Ok(()) };
            let kind = self.served_kind(crd);
            let removed = match &kind {
                Some(kind) => remove_all_objects(api, kind).await,
                None => Ok(()),
            };
            if let Err(status) = removed {
                // The next attempt writes it.
                let _ = note_progress(crds, &crd.name).await;
                return Err(status);
            }
            match finish(api, crds, crd).await {
                Ok(()) => return Ok(()),
                // Committed before the CRD was marked, and seen only now.
                Err(Error::ConditionFailed(CommitCondition::Empty(prefix))) => {
                    if kind.is_none() {
                        let current = CommitCondition::At(key.clone(), current.revision());
                        let objects = api.delete_below(&prefix, &current).await?;
                        let crd = &crd.name;
                        tracing::warn!(
                            crd,
                            objects,
                            "objects of a CustomResourceDefinition that was not served deleted"
                        );
                    }
                }
                // Changed meanwhile.
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(unavailable(&error)),
            }
        }
        Err(Status::service_unavailable("the CRD or its objects change while it is being removed"))
    }
}

/// Deletes all objects, or marks those with finalizers.
///
/// # Errors
/// 503 while objects remain.
async fn remove_all_objects(api: &ApiServer, kind: &ServedKind) -> Result<(), Status> {
    let collection = api.collection(&kind.resource)?;
    let list = collection.list(&ListQuery::default()).await.map_err(|error| unavailable(&error))?;
    let mut remaining = 0_usize;
    remove_objects(&collection, kind, list.objects, async |_| {
        remaining += 1;
        Ok(())
    })
    .await?;
    match remaining {
        0 => Ok(()),
        remaining => Err(Status::service_unavailable(format!("finalizers remain on {remaining} objects"))),
    }
}

/// Notes in the status of the CRD that objects remain.
async fn note_progress(crds: &ResourceCollection, name: &str) -> Result<(), Status> {
    let (key, current) = read_latest(crds, "", name).await?;
    let Some(current) = current else { return Ok(()) };
    let mut object: Map<String, Value> = stored_object(&current).await?;
    if ObjectMetaView::of_map(&object).deletion_timestamp().is_some() {
        mark_in_progress(&mut object, &now());
        let value = write_stored_json(&object).bytes;
        if value != **current.bytes() {
            let updated = crds.update(&key, current.revision(), value.into(), None).await;
            updated.map_err(|error| unavailable(&error))?;
        }
    }
    Ok(())
}

/// Removes the finalizer of the CRD, and the CRD if no other remains. The store checks in the same step that
/// there is no object.
///
/// # Errors
/// [`Error::ConditionFailed`] if there are objects, [`Error::Conflict`], and errors of the store.
async fn finish(api: &ApiServer, crds: &ResourceCollection, crd: &CrdIdentity) -> Result<(), Error> {
    let key = crds.prefix().key("", &crd.name)?;
    let Some(current) = crds.get_latest(&key).await? else { return Ok(()) };
    let unreadable = |status: Status| Error::Store(store::Error::Unavailable(status.message.into()));
    let mut object: Map<String, Value> = stored_object(&current).await.map_err(unreadable)?;
    if *current.metadata().uid != *crd.uid || ObjectMetaView::of_map(&object).deletion_timestamp().is_none() {
        return Ok(());
    }
    change_metadata(&mut object, |metadata| {
        if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
            finalizers.retain(|finalizer| finalizer != CLEANUP_FINALIZER);
        }
    });
    let conditions = api.crd_prefix(&crd.name).map(CommitCondition::Empty).into_iter().collect();
    match ObjectMetaView::of_map(&object).has_finalizers() {
        false => crds.delete_if(&key, current.revision(), conditions).await.map(drop),
        true => {
            let value = write_stored_json(&object).bytes;
            crds.update_if(&key, current.revision(), value.into(), None, conditions).await.map(drop)
        }
    }
}

/// Whether the finalizer of the server is on a CRD that is being deleted.
pub(super) fn needs_cleanup(crd: &Crd) -> bool {
    let finalizers = crd.metadata.finalizers.iter().flatten();
    crd.metadata.deletion_timestamp.is_some() && finalizers.into_iter().any(|name| name == CLEANUP_FINALIZER)
}
