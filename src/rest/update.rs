//! The verb update, and what update and patch have in common: the replacement of a stored object.

use std::sync::Arc;

use http::StatusCode;
use kubeapi::Status;
use kubeapi::field_error::{FieldError, invalid_fields_status};
use kubeapi::list_options::parse_uint64;
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use serde_json::{Map, Value, json};
use store::Key;
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::api_server::ApiServer;
use super::create::{store_new, time_to_live};
use super::errors::{cache_error, modified};
use super::representation::{ReplyContent, ReplyObject, VerbReply};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use super::write_options::WriteOptions;
use super::{metadata, request_body};
use crate::compute::{WorkLimit, map_size, run_counted, run_limited};
use crate::conversion::local_bytes;
use crate::conversion::schema_work;
use crate::kinds::{ObjectUpdate, ValidationSettings, object_warnings, validate_replacement};

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
    let key = target.key(collection)?;
    let mut old = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let mut object = Arc::new(object);
    let is_conditional = !matches!(ObjectMetaView::of_map(&object).resource_version(), "" | "0");
    loop {
        let Some(current) = old else {
            if !target.rules.creates_on_update {
                return Err(target.not_found());
            }
            check_uid(target, (&key, ""), &object)?;
            if !target.subresource.is_empty() {
                return Err(target.not_found());
            }
            if !ObjectMetaView::of_map(&object).resource_version().is_empty() {
                return Err(target.not_found());
            }
            let write = (options.is_dry_run, request.creation);
            let object = store_new(api, collection, target, object, write, warnings).await?;
            return Ok(VerbReply { code: StatusCode::CREATED, content: ReplyContent::Object(object) });
        };
        let write = ReplacementOptions { is_dry_run: options.is_dry_run, is_patch: false };
        // A large object is not kept without need.
        let replacing = if is_conditional { std::mem::take(&mut object) } else { object.clone() };
        match replace(api, collection, target, &current, replacing, write, warnings).await? {
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
    object: Arc<Map<String, Value>>,
    options: ReplacementOptions,
    warnings: &mut Vec<String>,
) -> Result<Replaced, Status> {
    let old_object = Arc::new(api.converter.served_object(&target.kind, collection, old).await?);
    let size = old.bytes().len() + map_size(&object);
    let replacement = {
        let (owned, old, settings) = (target.to_owned_target(), old.clone(), api.settings.clone());
        let prepare = move |limit: &WorkLimit| {
            let (old_object, object) = (Arc::unwrap_or_clone(old_object), Arc::unwrap_or_clone(object));
            Replacement::prepare(&owned.target(), (&old, old_object), object, options, (&settings.validation, limit))
        };
        match schema_work::has_schema_work(&target.kind) {
            true => run_counted(size, prepare).await??,
            false => run_limited(size, prepare).await??,
        }
    };
    let Replacement { object, value, is_complete, is_conditional, is_removed, warnings: added } = replacement;
    warnings.extend(added);
    let key = target.key(collection)?;
    // The last finalizer was removed. With the resourceVersion before the deletion, as in Kubernetes.
    if options.is_dry_run {
        let object = match is_removed {
            true => Value::Object(Arc::unwrap_or_clone(object)),
            false => api.converter.dry_run_object(&target.kind, object).await?,
        };
        return Ok(Replaced::Done(ReplyObject::Unstored(object)));
    }
    let result = match is_removed {
        true => {
            let deleted = collection.delete(&key, old.revision()).await;
            api.note_removed(target);
            deleted.map(|_| ReplyObject::Unstored(Value::Object(Arc::unwrap_or_clone(object))))
        }
        false => {
            let value = match value {
                Some(value) => value,
                None => api.converter.stored_bytes(&target.kind, object.clone()).await?,
            };
            if value == **old.bytes() {
                return Ok(Replaced::Done(ReplyObject::stored(old.clone())));
            }
            let ttl = time_to_live(api, target);
            match collection.update(&key, old.revision(), value.into(), ttl).await {
                Ok(stored) => {
                    schema_work::record_completeness(&target.kind, &stored, is_complete);
                    Ok(ReplyObject::stored(stored))
                }
                Err(error) => Err(error),
            }
        }
    };
    match result {
        Ok(object) => Ok(Replaced::Done(object)),
        Err(Error::Conflict { .. }) if is_conditional && !options.is_patch => Err(modified(target, &target.name)),
        Err(Error::Conflict { current }) => Ok(Replaced::Conflict(current)),
        Err(error) => Err(cache_error(target, error)),
    }
}

/// A replacing object that can be stored.
struct Replacement {
    object: Arc<Map<String, Value>>,
    /// What is stored; none if a webhook converts it.
    value: Option<Vec<u8>>,
    /// As [`schema_work::is_complete`] says. Nothing of a request waits for a compute thread once it is stored.
    is_complete: Option<bool>,
    /// Whether the client gave a resourceVersion.
    is_conditional: bool,
    /// Whether the last finalizer was removed.
    is_removed: bool,
    warnings: Vec<String>,
}

impl Replacement {
    /// Completes and validates an object that replaces `old`, whose content is `old_object`.
    ///
    /// # Errors
    /// Those of [`replace`].
    fn prepare(
        target: &ObjectTarget<'_>,
        (old, mut old_object): (&Stored, Map<String, Value>),
        mut object: Map<String, Value>,
        options: ReplacementOptions,
        (settings, limit): (&ValidationSettings, &WorkLimit),
    ) -> Result<Replacement, Status> {
        // Of a patch, the uid is validated as any other field.
        if !options.is_patch {
            check_uid(target, (old.key(), &old.metadata().uid), &object)?;
        }
        let is_conditional = check_version(target, old, &mut object)?;
        metadata::fill_replacement(target, &old_object, &mut object);
        let (rules, written) = (target.rules, (&target.kind, target.subresource));
        let update = ObjectUpdate { kind: &target.kind, subresource: target.subresource, old: &old_object };
        (rules.begin_update)(&update, &mut object)?;
        (rules.prepare_replacement)(&update, &mut object);
        validate_replacement((settings, limit), written, &mut old_object, &mut object)?;
        let warnings = object_warnings(&target.kind.resource, target.subresource, Some(&old_object), &object);
        drop(old_object);
        let is_removed = metadata::is_removable(&target.kind.resource, &object);
        let value = if is_removed { None } else { local_bytes(&target.kind, &object)? };
        let is_complete = schema_work::is_complete(&target.kind, &object);
        Ok(Replacement { object: Arc::new(object), value, is_complete, is_conditional, is_removed, warnings })
    }
}

/// Compares the resourceVersion of `object` with `old`; returns whether a version is given, and sets it.
fn check_version(target: &ObjectTarget<'_>, old: &Stored, object: &mut Map<String, Value>) -> Result<bool, Status> {
    let version = match ObjectMetaView::of_map(object).resource_version() {
        "" | "0" => None,
        text => Some(parse_uint64(text).map_err(|why| Status::new(500, "", why))?),
    };
    if version.is_some_and(|version| version != old.revision()) {
        return Err(modified(target, &target.name));
    }
    if version.is_none() && !target.rules.allows_unconditional_update {
        let why = "must be specified for an update";
        let error = FieldError::invalid("metadata.resourceVersion", 0_i64, why);
        // With the resource instead of the kind, as in Kubernetes.
        return Err(invalid_fields_status(
            &target.kind.resource.group,
            &target.kind.resource.plural,
            &target.name,
            error,
        ));
    }
    let current = old.revision().to_string();
    change_metadata(object, |metadata| metadata.insert("resourceVersion".to_owned(), json!(current)));
    Ok(version.is_some())
}

/// 409 if `object` has another uid than the one that was found below its key, with the text of
/// `k8s.io/apiserver/pkg/storage/errors.go`. No uid was found of an object that does not exist.
fn check_uid(target: &ObjectTarget<'_>, (key, found): (&Key, &str), object: &Map<String, Value>) -> Result<(), Status> {
    let uid = ObjectMetaView::of_map(object).uid();
    if uid.is_empty() || uid == found {
        return Ok(());
    }
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID \
         in precondition: {uid}, UID in object meta: {found}"
    );
    Err(Status::conflict(&target.kind.resource.group, &target.kind.resource.plural, &target.name, why))
}
