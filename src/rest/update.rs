//! The verb update, and what update and patch have in common: the replacement of a stored object.

use std::sync::Arc;

use http::StatusCode;
use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value};
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::api_server::ApiServer;
use super::create::{Created, store_new, time_to_live};
use super::errors::{cache_error, modified};
use super::representation::{ReplyContent, ReplyObject, VerbReply};
use super::request::ApiRequest;
use super::service_allocation;
use super::target::ObjectTarget;
use super::write::{ObjectWrite, ReplacedObject, check_uid};
use super::write_options::WriteOptions;
use super::{metadata, request_body};

/// Replaces an object with the one in the body.
///
/// # Errors
/// 400, 404, 409 `Conflict`, 413, 415, 422.
pub(super) async fn update(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let options = WriteOptions::parse(request.query, "UpdateOptions")?;
    let mut decoded = request_body::decode(request, target, options.validation).await?;
    warnings.append(&mut decoded.warnings);
    let mut object = check_object(target, decoded.object)?;
    let key = target.key(collection)?;
    let mut old = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    loop {
        let Some(current) = old else {
            return create_by_update(api, collection, target, object, (options.is_dry_run, request), warnings).await;
        };
        api.check_signer(target, request.creation, &current, &object).await?;
        object = api.check_escalation(target, request.creation, Some(&current), object).await?;
        let write = ReplacementOptions { is_dry_run: options.is_dry_run, is_patch: false };
        match replace(api, collection, target, &current, object, write, warnings).await? {
            Replaced::Done(object) => return Ok(VerbReply::ok(ReplyContent::Object(object))),
            Replaced::Conflict(now) => old = now,
        }
        // Only an update without a resourceVersion is tried again. Nothing else needs a second copy of the object.
        object = check_object(target, request_body::decode(request, target, options.validation).await?.object)?;
    }
}

/// The object of a body, if it is the one that the path names.
fn check_object(target: &ObjectTarget<'_>, mut object: Map<String, Value>) -> Result<Map<String, Value>, Status> {
    metadata::set_namespace(target, &mut object)?;
    metadata::check_name(target, &object)?;
    Ok(object)
}

/// How an object is replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacementOptions {
    /// Nothing is stored.
    pub(super) is_dry_run: bool,
    /// The object is the old one with a patch, which can be applied again to what another writer stored.
    pub(super) is_patch: bool,
}

/// Creates an object by the verb update, if the kind permits it.
///
/// # Errors
/// 404 if it does not, or if the object says that it existed.
async fn create_by_update(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    object: Map<String, Value>,
    (is_dry_run, request): (bool, &ApiRequest<'_>),
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    if !target.rules.creates_on_update {
        return Err(target.not_found());
    }
    check_uid(target, (&target.key(collection)?, ""), &object)?;
    if !target.subresource.is_empty() || !ObjectMetaView::of_map(&object).resource_version().is_empty() {
        return Err(target.not_found());
    }
    match store_new(api, collection, target, object, (is_dry_run, request.creation), warnings).await? {
        Created::Object(object) => Ok(VerbReply { code: StatusCode::CREATED, content: ReplyContent::Object(object) }),
        Created::Exists(status) => Err(status),
    }
}

/// Result of one attempt to replace an object.
pub(super) enum Replaced {
    /// The object was replaced; with its new state.
    Done(ReplyObject),
    /// Another writer was faster; with what is stored now. The replacement can be tried again.
    Conflict(Option<Arc<Stored>>),
}

/// Replaces `old` with `object`, whose resourceVersion must be that of `old` or empty.
///
/// # Errors
/// 409 for another version and, unless of a patch, another uid, 422 for an invalid object.
pub(super) async fn replace(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    old: &Arc<Stored>,
    mut object: Map<String, Value>,
    options: ReplacementOptions,
    warnings: &mut Vec<String>,
) -> Result<Replaced, Status> {
    let old_object = api.converter.served_object(&target.kind, collection, old).await?;
    api.admit_replacement(target, &old_object, &mut object).await?;
    let replaced = ReplacedObject { stored: old.clone(), object: old_object, is_patch: options.is_patch };
    let write = ObjectWrite::new(target, object, Some(replaced));
    let (write, reservation) = service_allocation::begin_write(api, target, write, options.is_dry_run).await?;
    let mut write = write.run(&api.settings).await?;
    warnings.append(&mut write.warnings);
    let key = target.key(collection)?;
    // The last finalizer was removed. With the resourceVersion before the deletion, as in Kubernetes.
    if options.is_dry_run {
        let object = match write.is_removed {
            true => Value::Object(Arc::unwrap_or_clone(write.object)),
            false => api.converter.dry_run_object(&target.kind, write.object).await?,
        };
        return Ok(Replaced::Done(ReplyObject::Unstored(object)));
    }
    let is_conditional = write.is_conditional;
    let result = match write.is_removed {
        true => {
            let deleted = collection.delete(&key, old.revision()).await;
            api.note_removed(target);
            if target.rules.allocates_addresses && deleted.is_ok() {
                api.release_deleted_service(old).await;
            }
            deleted.map(|_| ReplyObject::Unstored(Value::Object(Arc::unwrap_or_clone(write.object))))
        }
        false => {
            let value = write.stored_value(api, target).await?;
            if value == **old.bytes() {
                return Ok(Replaced::Done(ReplyObject::stored(old.clone())));
            }
            let updated = collection.update(&key, old.revision(), value.into(), time_to_live(api, target)).await;
            if let (Ok(_), Some(reservation)) = (&updated, reservation) {
                reservation.commit();
                api.release_of_service(old, Some(&write.object)).await;
            }
            updated.map(|stored| {
                write.note_stored(target, &stored);
                ReplyObject::stored(stored)
            })
        }
    };
    match result {
        Ok(object) => Ok(Replaced::Done(object)),
        Err(Error::Conflict { .. }) if is_conditional && !options.is_patch => Err(modified(target, &target.name)),
        Err(Error::Conflict { current }) => Ok(Replaced::Conflict(current)),
        Err(error) => Err(cache_error(target, error)),
    }
}
