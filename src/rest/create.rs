//! The verb create.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value};

use super::object_warnings::object_warnings;
use super::representation::{ReplyContent, ReplyObject};
use super::target::ObjectTarget;
use super::validation::validate_new;
use super::write_options::WriteOptions;
use super::{
    ApiRequest, ApiServer, VerbReply, cache_error, custom_object, metadata, namespace, request_body, strategy,
};
use crate::kubeapi::Status;
use crate::kubeapi::object_meta::{ObjectMetaView, change_metadata};
use crate::watch_cache::{Error, ResourceCollection};

/// Attempts for a generated name that exists (KEP-4420).
const NAME_ATTEMPTS: usize = 8;

/// Stores the object in the body as a new one.
///
/// # Errors
/// 400, 409 `AlreadyExists`, 413, 415, 422; 404 and 403 for the namespace.
pub(super) async fn create(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let options = WriteOptions::parse(request.query, "CreateOptions")?;
    let decoded = request_body::decode(request, target, options.validation).await?;
    let mut object = decoded.object;
    warnings.extend(decoded.warnings);
    metadata::set_namespace(target, &mut object)?;
    let version = ObjectMetaView::of_map(&object).resource_version().parse::<u64>();
    if !options.is_dry_run && version.is_ok_and(|version| version > 0) {
        return Err(Status::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    warnings.extend(metadata::deduplicate_owners(&mut object, false));
    let object = store_new(api, collection, target, object, options.is_dry_run, warnings).await?;
    Ok(VerbReply { code: StatusCode::CREATED, content: ReplyContent::Object(object) })
}

/// Completes, validates and stores a new object.
pub(super) async fn store_new(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    object: Map<String, Value>,
    is_dry_run: bool,
    warnings: &mut Vec<String>,
) -> Result<ReplyObject, Status> {
    namespace::check_active(api, target, &object).await?;
    check_definition(target, ObjectMetaView::of_map(&object).name())?;
    let is_generated = ObjectMetaView::of_map(&object).name().is_empty();
    let version = ObjectMetaView::of_map(&object).resource_version().to_owned();
    let mut attempt = 1;
    loop {
        let mut object = object.clone();
        metadata::fill_new_object(target, &mut object);
        strategy::begin_create(&target.kind.resource, &mut object)?;
        strategy::prepare_new(&target.kind, &mut object);
        validate_new(&api.settings.validation, target, &object)?;
        warnings.extend(object_warnings(&target.kind.resource, target.subresource, None, &object));
        let name = ObjectMetaView::of_map(&object).name().to_owned();
        let key = target.key_of(collection, target.namespace, &name)?;
        let exists = || Status::already_exists(&target.kind.resource.group, &target.kind.resource.plural, &name);
        if is_dry_run {
            collection.ensure_loaded().await.map_err(|error| cache_error(target, error))?;
            return match collection.get(&key) {
                Some(_) => Err(exists()),
                None => {
                    if !version.is_empty() {
                        change_metadata(&mut object, |metadata| {
                            metadata.insert("resourceVersion".to_owned(), version.into())
                        });
                    }
                    Ok(ReplyObject::Unstored(Value::Object(object)))
                }
            };
        }
        let value = api.converter.stored_bytes(&target.kind, &object).await?;
        match collection.create(&key, value.into(), time_to_live(api, target)).await {
            Ok(stored) => {
                custom_object::check_written(&target.kind, object, &stored);
                return Ok(ReplyObject::stored(stored));
            }
            Err(Error::Conflict { .. }) if is_generated && attempt < NAME_ATTEMPTS => attempt += 1,
            Err(Error::Conflict { .. }) => return Err(exists()),
            Err(error) => return Err(cache_error(target, error)),
        }
    }
}

/// Refuses a new object of a custom resource whose definition is being deleted.
///
/// # Errors
/// 403.
fn check_definition(target: &ObjectTarget<'_>, name: &str) -> Result<(), Status> {
    let is_terminating = target.kind.resource.custom.as_ref().is_some_and(|custom| custom.is_terminating);
    if !is_terminating {
        return Ok(());
    }
    let (group, plural) = target.kind.resource.group_resource();
    let qualified = format!("{plural}.{group}");
    let message = format!(
        "{qualified} {name:?} is forbidden: create not allowed while custom resource definition is terminating"
    );
    Err(Status::new(403, "Forbidden", message).with_resource(group, plural, name))
}

/// How long the store keeps an object of the kind; none is for ever.
pub(super) fn time_to_live(api: &ApiServer, target: &ObjectTarget<'_>) -> Option<Duration> {
    (target.kind.resource.custom.is_none() && target.kind.resource.plural == "events").then_some(api.settings.event_ttl)
}
