//! The verb update, and what update and patch have in common: the replacement of a stored object.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::create::{store_new, time_to_live};
use super::object_warnings::object_warnings;
use super::representation::{ReplyContent, ReplyObject};
use super::target::ObjectTarget;
use super::validation::validate_replacement;
use super::write_options::WriteOptions;
use super::{ApiRequest, ApiServer, VerbReply, cache_error, custom_object, errors, metadata, request_body, strategy};
use crate::kubeapi::Status;
use crate::kubeapi::field_error::{FieldError, invalid_fields_status};
use crate::kubeapi::list_options::parse_uint64;
use crate::kubeapi::object_meta::{ObjectMetaView, change_metadata};
use crate::watch_cache::{Error, ResourceCollection, Stored};

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
    let decoded = request_body::decode(request, target, options.validation).await?;
    let mut object = decoded.object;
    warnings.extend(decoded.warnings);
    metadata::set_namespace(target, &mut object)?;
    metadata::check_name(target, &object)?;
    warnings.extend(metadata::deduplicate_owners(&mut object, false));
    let key = target.key(collection)?;
    let mut old = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    loop {
        let Some(current) = old else {
            if !strategy::creates_on_update(&target.kind.resource) || !target.subresource.is_empty() {
                return Err(target.not_found());
            }
            if !ObjectMetaView::of_map(&object).resource_version().is_empty() {
                return Err(target.not_found());
            }
            let object = store_new(api, collection, target, object, options.is_dry_run, warnings).await?;
            return Ok(VerbReply { code: StatusCode::CREATED, content: ReplyContent::Object(object) });
        };
        let write = ReplacementOptions { is_dry_run: options.is_dry_run, is_patch: false };
        match replace(api, collection, target, &current, object.clone(), write, warnings).await? {
            Replaced::Done(object) => return Ok(VerbReply::ok(ReplyContent::Object(object))),
            // Only an update without a resourceVersion is tried again.
            Replaced::Conflict(now) => old = now,
        }
    }
}

/// How an object is replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacementOptions {
    /// Nothing is stored.
    pub(super) is_dry_run: bool,
    /// The object is the old one with a patch, which can be applied again to what another writer stored.
    pub(super) is_patch: bool,
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
    let is_conditional = check_version(target, old, &mut object)?;
    // Of a patch, the uid is validated as any other field.
    if !options.is_patch {
        check_uid(target, old, &object)?;
    }
    metadata::fill_replacement(target, &old_object, &mut object);
    strategy::begin_update(&target.kind.resource, target.subresource, &old_object, &mut object)?;
    strategy::prepare_replacement(&target.kind, target.subresource, &old_object, &mut object);
    validate_replacement(&api.settings.validation, target, &old_object, &object)?;
    warnings.extend(object_warnings(&target.kind.resource, target.subresource, Some(&old_object), &object));
    let value = api.converter.stored_bytes(&target.kind, &object).await?;
    let key = target.key(collection)?;
    // The last finalizer was removed.
    let is_removed = metadata::is_removable(&target.kind.resource, &object);
    if options.is_dry_run {
        return Ok(Replaced::Done(ReplyObject::Unstored(Value::Object(object))));
    }
    if !is_removed && value == **old.bytes() {
        return Ok(Replaced::Done(ReplyObject::stored(old.clone())));
    }
    let result = match is_removed {
        // With the resourceVersion before the deletion, as in Kubernetes.
        true => {
            let deleted = collection.delete(&key, old.revision()).await;
            deleted.map(|_| ReplyObject::Unstored(Value::Object(object)))
        }
        false => {
            let ttl = time_to_live(api, target);
            let stored = collection.update(&key, old.revision(), value.into(), ttl).await;
            stored.map(|stored| {
                custom_object::check_written(&target.kind, object, &stored);
                ReplyObject::stored(stored)
            })
        }
    };
    match result {
        Ok(object) => Ok(Replaced::Done(object)),
        Err(Error::Conflict { .. }) if is_conditional && !options.is_patch => {
            Err(errors::modified(target, &target.name))
        }
        Err(Error::Conflict { current }) => Ok(Replaced::Conflict(current)),
        Err(error) => Err(cache_error(target, error)),
    }
}

/// Compares the resourceVersion of `object` with `old`; returns whether a version is given, and sets it.
fn check_version(target: &ObjectTarget<'_>, old: &Stored, object: &mut Map<String, Value>) -> Result<bool, Status> {
    let version = match ObjectMetaView::of_map(object).resource_version() {
        "" | "0" => None,
        text => Some(parse_uint64(text).map_err(|why| Status::new(500, "", why))?),
    };
    if version.is_some_and(|version| version != old.revision()) {
        return Err(errors::modified(target, &target.name));
    }
    if version.is_none() && !strategy::allows_unconditional_update(&target.kind.resource) {
        let why = "must be specified for an update";
        let error = FieldError::invalid("metadata.resourceVersion", 0_i64, why);
        // With the resource instead of the kind, as in Kubernetes.
        return Err(invalid_fields_status(
            &target.kind.resource.group,
            &target.kind.resource.plural,
            &target.name,
            &[error],
        ));
    }
    let current = old.revision().to_string();
    change_metadata(object, |metadata| metadata.insert("resourceVersion".to_owned(), json!(current)));
    Ok(version.is_some())
}

/// 409 if `object` has another uid than `old`, with the text of `k8s.io/apiserver/pkg/storage/errors.go`.
fn check_uid(target: &ObjectTarget<'_>, old: &Stored, object: &Map<String, Value>) -> Result<(), Status> {
    let (uid, found) = (ObjectMetaView::of_map(object).uid(), &old.metadata().uid);
    if uid.is_empty() || uid == &**found {
        return Ok(());
    }
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID \
         in precondition: {uid}, UID in object meta: {found}",
        old.key()
    );
    Err(Status::conflict(&target.kind.resource.group, &target.kind.resource.plural, &target.name, why))
}
