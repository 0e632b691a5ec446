//! Deletion of the objects of a definition that is being deleted (`pkg/controller/finalizer/crd_finalizer.go` of
//! apiextensions-apiserver).

use std::time::Duration;

use serde_json::{Map, Value};

use crate::kubeapi::Status;
use crate::kubeapi::json::write_stored_json;
use crate::kubeapi::object_meta::{ObjectMetaView, change_metadata};
use crate::resources::ServedKind;
use crate::resources::custom::Definition;
use crate::rest::definition::{CLEANUP_FINALIZER, mark_in_progress};
use crate::rest::delete_options::DeleteOptions;
use crate::rest::errors::unavailable;
use crate::rest::object_removal::{Removed, remove};
use crate::rest::target::ObjectTarget;
use crate::rest::{ApiServer, metadata, stored_object};
use crate::watch_cache::{ListQuery, ResourceCollection};

/// Pause before objects with finalizers are looked at again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Deletes the objects of a definition, then the definition. `kind` is one of its served versions; none if it was never
/// established.
pub(super) async fn remove_definition(
    api: ApiServer,
    definitions: ResourceCollection,
    name: String,
    kind: Option<ServedKind>,
) {
    let mut is_in_progress = false;
    loop {
        let removed = match &kind {
            Some(kind) => remove_objects(&api, kind).await,
            None => Ok(()),
        };
        let result = match removed {
            Ok(()) => finish(&definitions, &name).await,
            Err(status) => Err(status),
        };
        match result {
            Ok(()) => return,
            Err(status) => {
                tracing::warn!(
                    definition = name,
                    "CustomResourceDefinition not removed, tried again: {}",
                    status.message
                );
                is_in_progress = is_in_progress || note_progress(&definitions, &name).await.is_ok();
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Deletes all objects, or marks those with finalizers.
///
/// # Errors
/// 503 while objects remain.
async fn remove_objects(api: &ApiServer, kind: &ServedKind) -> Result<(), Status> {
    let collection = api.collection(&kind.resource)?;
    let list = collection.list(&ListQuery::default()).await.map_err(|error| unavailable(&error))?;
    let (options, mut remaining) = (DeleteOptions::default(), 0_usize);
    for object in list.objects {
        let target = ObjectTarget {
            kind: kind.clone(),
            namespace: object.namespace(),
            name: object.name().into(),
            subresource: "",
        };
        match remove(&collection, &target, object.clone(), &options).await {
            Ok(Removed::Gone(..)) => {}
            Ok(Removed::Marked(_)) => remaining += 1,
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    match remaining {
        0 => Ok(()),
        remaining => Err(Status::service_unavailable(format!("finalizers remain on {remaining} objects"))),
    }
}

/// Notes in the status of the definition that objects remain.
async fn note_progress(definitions: &ResourceCollection, name: &str) -> Result<(), Status> {
    let key = definitions.prefix().key("", name).map_err(Status::internal_error)?;
    let Some(current) = definitions.get_latest(&key).await.map_err(|error| unavailable(&error))? else { return Ok(()) };
    let mut object: Map<String, Value> = stored_object(&current).await?;
    if ObjectMetaView::of_map(&object).deletion_timestamp().is_some() {
        mark_in_progress(&mut object, &metadata::now());
        let value = write_stored_json(&object).bytes;
        definitions.update(&key, current.revision(), value.into(), None).await.map_err(|error| unavailable(&error))?;
    }
    Ok(())
}

/// Removes the finalizer of the definition, and the definition if no other remains.
async fn finish(definitions: &ResourceCollection, name: &str) -> Result<(), Status> {
    let key = definitions.prefix().key("", name).map_err(Status::internal_error)?;
    let Some(current) = definitions.get_latest(&key).await.map_err(|error| unavailable(&error))? else { return Ok(()) };
    let mut object: Map<String, Value> = stored_object(&current).await?;
    if ObjectMetaView::of_map(&object).deletion_timestamp().is_none() {
        return Ok(());
    }
    change_metadata(&mut object, |metadata| {
        if let Some(finalizers) = metadata.get_mut("finalizers").and_then(Value::as_array_mut) {
            finalizers.retain(|finalizer| finalizer != CLEANUP_FINALIZER);
        }
    });
    let result = match ObjectMetaView::of_map(&object).has_finalizers() {
        false => definitions.delete(&key, current.revision()).await.map(drop),
        true => {
            let value = write_stored_json(&object).bytes;
            definitions.update(&key, current.revision(), value.into(), None).await.map(drop)
        }
    };
    result.map_err(|error| unavailable(&error))
}

/// Whether the finalizer of the server is on a definition that is being deleted.
pub(super) fn is_pending(definition: &Definition) -> bool {
    let finalizers = definition.metadata.finalizers.iter().flatten();
    definition.metadata.deletion_timestamp.is_some() && finalizers.into_iter().any(|name| name == CLEANUP_FINALIZER)
}
