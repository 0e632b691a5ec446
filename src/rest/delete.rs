//! The verbs delete and deletecollection.

use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::TryStreamExt as _;
use kubeapi::list_options::ListOptions;
use kubeapi::object_meta::change_metadata;
use kubeapi::{Status, StatusDetails};
use serde_json::Value;
use store::Revision;
use store::watch_cache::{ResourceCollection, Stored, StoredList};

use super::api_server::ApiServer;
use super::delete_options::DeleteOptions;
use super::errors::cache_error;
use super::object_removal::{Removed, mark, remove, remove_all};
use super::representation::{ReplyContent, ReplyObject, VerbReply};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use super::{namespace, read};
use crate::conversion::{has_webhook, stored_object};

impl ApiServer {
    /// Frees the addresses of an object that is gone, and tells controllers of it.
    pub(super) async fn note_removal(&self, target: &ObjectTarget<'_>, removed: &Removed) {
        if let Removed::Gone(last, _) = removed {
            self.note_removed(target);
            if target.rules.allocates_addresses {
                self.release_deleted_service(last).await;
            }
        }
    }
}

/// Deletes an object, or marks it if finalizers remain.
///
/// # Errors
/// 404, 409 for preconditions, 422 for options that are not supported; 403 for a namespace that stays.
pub(super) async fn delete(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let options = DeleteOptions::parse(request, api.settings.has_collector).await?;
    warnings.extend(target.rules.deletion_warning.filter(|_| !options.names_policy).map(str::to_owned));
    namespace::check_deletable(api, target)?;
    let key = target.key(collection)?;
    let current = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let current = current.ok_or_else(|| target.not_found())?;
    let removed = remove(collection, target, current, &options).await?;
    if !options.is_dry_run {
        api.note_removal(target, &removed).await;
    }
    let content = match removed {
        Removed::Gone(last, revision) if is_marked_first(target, &last) => {
            ReplyContent::Object(marked_object(target, &last, revision).await?)
        }
        Removed::Gone(last, revision) if target.rules.returns_deleted_object && last.defect().is_none() => {
            ReplyContent::Object(ReplyObject::Stored(last, revision))
        }
        Removed::Gone(last, _) => ReplyContent::Status(deleted_status(target, &last)),
        Removed::Marked(object) => ReplyContent::Object(object),
    };
    Ok(VerbReply::ok(content))
}

/// Deletes the objects that a list selects; returns them as a list.
///
/// # Errors
/// As a list, and as [`delete`] for the first object that cannot be deleted.
pub(super) async fn delete_collection(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let options = DeleteOptions::parse(request, api.settings.has_collector).await?;
    warnings.extend(target.rules.deletion_warning.filter(|_| !options.names_policy).map(str::to_owned));
    let list_options = ListOptions::parse(request.query)?;
    let query = read::list_query(collection, target, &list_options)?;
    let mut list = api.converter.list(&target.kind, collection, &query, |error| cache_error(target, error)).await?;
    if has_webhook(&target.kind) {
        // As upstream, nothing is deleted if the answer cannot be given.
        ReplyContent::List(list.clone()).convert(&api.converter, &target.kind, collection).await?;
        // As they are stored: they may have been converted to be selected.
        list.objects = list.objects.iter().filter_map(|object| collection.get(object.key())).collect();
    }
    let mut deleted = StoredList { objects: Vec::new(), ..list.clone() };
    let mut removals = pin!(remove_all(collection, &target.kind, list.objects, &options).await?);
    while let Some((object, removed)) = removals.try_next().await? {
        if target.rules.allocates_addresses && !options.is_dry_run && matches!(removed, Removed::Gone(..)) {
            api.release_deleted_service(&object).await;
        }
        if object.defect().is_none() {
            deleted.objects.push(object);
        }
    }
    api.note_removed(target);
    Ok(VerbReply::ok(ReplyContent::List(deleted)))
}

/// Whether upstream marks an object in a write of its own before it deletes it.
fn is_marked_first(target: &ObjectTarget<'_>, last: &Stored) -> bool {
    let is_marked = last.metadata().deletion_timestamp.is_some();
    target.rules.deletion_grace.is_some() && !is_marked && last.defect().is_none()
}

/// A deleted object as upstream marks it, although it is deleted in one write.
async fn marked_object(
    target: &ObjectTarget<'_>,
    last: &Arc<Stored>,
    revision: Revision,
) -> Result<ReplyObject, Status> {
    let mut object = stored_object(last).await?;
    mark(target, &mut object, 0);
    change_metadata(&mut object, |metadata| {
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    });
    Ok(ReplyObject::Unstored(Value::Object(object)))
}

/// The Status of a deletion.
fn deleted_status(target: &ObjectTarget<'_>, last: &Stored) -> Status {
    let mut details =
        StatusDetails::for_resource(&target.kind.resource.group, &target.kind.resource.plural, &target.name);
    details.uid = last.metadata().uid.to_string();
    Status::success(details)
}
