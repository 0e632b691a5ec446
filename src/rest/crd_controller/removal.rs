//! Deletion of the objects of a CRD that is being deleted (`pkg/controller/finalizer/crd_finalizer.go` of
//! apiextensions-apiserver).

use std::pin::pin;

use futures_util::stream::TryStreamExt as _;
use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use serde_json::{Map, Value};
use store::CommitCondition;
use store::watch_cache::{Error, ListQuery, ResourceCollection};

use crate::conversion::stored_object;
use crate::kinds::crd::{CLEANUP_FINALIZER, mark_in_progress};
use crate::resources::ServedKind;
use crate::resources::custom::Crd;
use crate::rest::api_server::ApiServer;
use crate::rest::delete_options::DeleteOptions;
use crate::rest::errors::unavailable;
use crate::rest::metadata;
use crate::rest::object_removal::{Removed, remove_all};
use crate::rest::removals::RemovalTarget;

/// Attempts to remove a CRD in which objects were created meanwhile, without a pause.
const ATTEMPTS: usize = 10;

/// Deletes the objects of a CRD that is marked, then the CRD, on this thread.
pub(super) fn start_removal(api: &ApiServer, crds: &ResourceCollection, known: &Crd, kind: Option<ServedKind>) {
    let (name, uid) = (known.metadata.name.clone(), known.metadata.uid.clone());
    let (removals, api, crds) = (api.removals.clone(), api.clone(), crds.clone());
    removals.start(RemovalTarget::Crd(uid.clone()), move || {
        let (api, crds, kind) = (api.clone(), crds.clone(), kind.clone());
        let (name, uid) = (name.clone(), uid.clone());
        async move { remove_crd(&api, &crds, (&name, &uid), kind.as_ref()).await }
    });
}

/// Attempts to remove a CRD. `kind` is one of its served versions; none if it was never established.
///
/// # Errors
/// 503 while objects remain.
async fn remove_crd(
    api: &ApiServer,
    crds: &ResourceCollection,
    (name, uid): (&str, &str),
    kind: Option<&ServedKind>,
) -> Result<(), Status> {
    let key = crds.prefix().key("", name).map_err(Status::internal_error)?;
    for _ in 0..ATTEMPTS {
        // Another CRD may have the name meanwhile: its objects stay.
        let current = crds.get_latest(&key).await.map_err(|error| unavailable(&error))?;
        let current = current
            .filter(|current| *current.metadata().uid == *uid && current.metadata().deletion_timestamp.is_some());
        let Some(current) = current else { return Ok(()) };
        let removed = match kind {
            Some(kind) => remove_objects(api, kind).await,
            None => Ok(()),
        };
        if let Err(status) = removed {
            // The next attempt writes it.
            let _ = note_progress(crds, name).await;
            return Err(status);
        }
        match finish(api, crds, (name, uid)).await {
            Ok(()) => return Ok(()),
            // Committed before the CRD was marked, and seen only now.
            Err(Error::ConditionFailed(CommitCondition::Empty(prefix))) => {
                if kind.is_none() {
                    let current = CommitCondition::At(key.clone(), current.revision());
                    let objects = api.delete_below(&prefix, &current).await?;
                    tracing::warn!(definition = name, objects, "objects of a definition that was not served deleted");
                }
            }
            // Changed meanwhile.
            Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(unavailable(&error)),
        }
    }
    Err(Status::service_unavailable("the definition or its objects change while it is being removed"))
}

/// Deletes all objects, or marks those with finalizers.
///
/// # Errors
/// 503 while objects remain.
async fn remove_objects(api: &ApiServer, kind: &ServedKind) -> Result<(), Status> {
    let collection = api.collection(&kind.resource)?;
    let list = collection.list(&ListQuery::default()).await.map_err(|error| unavailable(&error))?;
    let (options, mut remaining) = (DeleteOptions::default(), 0_usize);
    let mut removals = pin!(remove_all(&collection, kind, list.objects, &options).await?);
    while let Some((_, removed)) = removals.try_next().await? {
        remaining += usize::from(matches!(removed, Removed::Marked(_)));
    }
    match remaining {
        0 => Ok(()),
        remaining => Err(Status::service_unavailable(format!("finalizers remain on {remaining} objects"))),
    }
}

/// Notes in the status of the CRD that objects remain.
async fn note_progress(crds: &ResourceCollection, name: &str) -> Result<(), Status> {
    let key = crds.prefix().key("", name).map_err(Status::internal_error)?;
    let Some(current) = crds.get_latest(&key).await.map_err(|error| unavailable(&error))? else { return Ok(()) };
    let mut object: Map<String, Value> = stored_object(&current).await?;
    if ObjectMetaView::of_map(&object).deletion_timestamp().is_some() {
        mark_in_progress(&mut object, &metadata::now());
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
async fn finish(api: &ApiServer, crds: &ResourceCollection, (name, uid): (&str, &str)) -> Result<(), Error> {
    let key = crds.prefix().key("", name)?;
    let Some(current) = crds.get_latest(&key).await? else { return Ok(()) };
    let unreadable = |status: Status| Error::Store(store::Error::Unavailable(status.message.into()));
    let mut object: Map<String, Value> = stored_object(&current).await.map_err(unreadable)?;
    if *current.metadata().uid != *uid || ObjectMetaView::of_map(&object).deletion_timestamp().is_none() {
        return Ok(());
    }
    change_metadata(&mut object, |metadata| {
        if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
            finalizers.retain(|finalizer| finalizer != CLEANUP_FINALIZER);
        }
    });
    let conditions = api.crd_prefix(name).map(CommitCondition::Empty).into_iter().collect();
    match ObjectMetaView::of_map(&object).has_finalizers() {
        false => crds.delete_if(&key, current.revision(), conditions).await.map(drop),
        true => {
            let value = write_stored_json(&object).bytes;
            crds.update_if(&key, current.revision(), value.into(), None, conditions).await.map(drop)
        }
    }
}

/// Whether the finalizer of the server is on a CRD that is being deleted.
pub(super) fn is_pending(crd: &Crd) -> bool {
    let finalizers = crd.metadata.finalizers.iter().flatten();
    crd.metadata.deletion_timestamp.is_some() && finalizers.into_iter().any(|name| name == CLEANUP_FINALIZER)
}
