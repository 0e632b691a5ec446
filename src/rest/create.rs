//! The verb create.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use kubeapi::Status;
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use serde_json::{Map, Value};
use store::CommitCondition;
use store::watch_cache::{Error, ResourceCollection};

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::representation::{ReplyContent, ReplyObject, VerbReply};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use super::write_options::WriteOptions;
use super::{metadata, namespace, request_body};
use crate::authorize::CreateAuthorization;
use crate::compute::{WorkLimit, map_size, run_counted, run_limited};
use crate::conversion::local_bytes;
use crate::conversion::schema_work;
use crate::kinds::{RemovalRule, ValidationSettings, object_warnings, validate_new};

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
    let object = Arc::new(object);
    let write = (options.is_dry_run, request.creation);
    let object = store_new(api, collection, target, object, write, warnings).await?;
    Ok(VerbReply { code: StatusCode::CREATED, content: ReplyContent::Object(object) })
}

/// Completes, validates and stores a new object, if the request may create one: its verb may be another.
pub(super) async fn store_new(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    mut given: Arc<Map<String, Value>>,
    (is_dry_run, creation): (bool, &CreateAuthorization<'_>),
    warnings: &mut Vec<String>,
) -> Result<ReplyObject, Status> {
    let mut conditions = creation_conditions(api, target, &given).await?;
    let is_generated = ObjectMetaView::of_map(&given).name().is_empty();
    let version = ObjectMetaView::of_map(&given).resource_version().to_owned();
    let size = map_size(&given);
    let mut attempt = 1;
    loop {
        let NewObject { object, value, is_complete, warnings: added } = {
            // Only a generated name is tried again. A large object is not kept without need.
            let object = if is_generated { given.clone() } else { std::mem::take(&mut given) };
            let (owned, settings) = (target.to_owned_target(), api.settings.clone());
            let prepare = move |limit: &WorkLimit| {
                NewObject::prepare(&owned.target(), Arc::unwrap_or_clone(object), (&settings.validation, limit))
            };
            match schema_work::has_schema_work(&target.kind) {
                true => run_counted(size, prepare).await??,
                false => run_limited(size, prepare).await??,
            }
        };
        warnings.extend(added);
        creation.check().await?;
        let name = ObjectMetaView::of_map(&object).name().to_owned();
        let key = target.key_of(collection, target.namespace, &name)?;
        let exists = || Status::already_exists(&target.kind.resource.group, &target.kind.resource.plural, &name);
        if is_dry_run {
            collection.ensure_loaded().await.map_err(|error| cache_error(target, error))?;
            return match collection.get(&key) {
                Some(_) => Err(exists()),
                None => {
                    let mut object = Arc::unwrap_or_clone(object);
                    if !version.is_empty() {
                        change_metadata(&mut object, |metadata| {
                            metadata.insert("resourceVersion".to_owned(), version.into())
                        });
                    }
                    let object = api.converter.dry_run_object(&target.kind, Arc::new(object)).await?;
                    Ok(ReplyObject::Unstored(object))
                }
            };
        }
        let value = match value {
            Some(value) => value,
            None => api.converter.stored_bytes(&target.kind, object.clone()).await?,
        };
        let value = Bytes::from(value);
        let created = loop {
            if target.rules.removal == RemovalRule::Namespace {
                break namespace::create_empty(api, collection, &key, value).await;
            }
            let ttl = time_to_live(api, target);
            match collection.create_if(&key, value.clone(), ttl, conditions).await {
                // The namespace or the CRD changed, or is being deleted.
                Err(Error::ConditionFailed(_)) => conditions = creation_conditions(api, target, &object).await?,
                created => break created,
            }
        };
        match created {
            Ok(stored) => {
                schema_work::record_completeness(&target.kind, &stored, is_complete);
                return Ok(ReplyObject::stored(stored));
            }
            Err(Error::Conflict { .. }) if is_generated && attempt < NAME_ATTEMPTS => {
                attempt += 1;
                conditions = creation_conditions(api, target, &object).await?;
            }
            Err(Error::Conflict { .. }) => return Err(exists()),
            Err(error) => return Err(cache_error(target, error)),
        }
    }
}

/// A new object that can be stored.
struct NewObject {
    object: Arc<Map<String, Value>>,
    /// What is stored; none if a webhook converts it.
    value: Option<Vec<u8>>,
    /// As [`schema_work::is_complete`] says. Nothing of a request waits for a compute thread once it is stored.
    is_complete: Option<bool>,
    warnings: Vec<String>,
}

impl NewObject {
    /// Completes and validates a new object.
    ///
    /// # Errors
    /// 422, and 504 if validation takes too long.
    fn prepare(
        target: &ObjectTarget<'_>,
        mut object: Map<String, Value>,
        (settings, limit): (&ValidationSettings, &WorkLimit),
    ) -> Result<NewObject, Status> {
        metadata::fill_new_object(target, &mut object);
        (target.rules.begin_create)(&mut object)?;
        (target.rules.prepare_new)(&target.kind, &mut object);
        validate_new((settings, limit), (&target.kind, target.subresource), &mut object)?;
        let warnings = object_warnings(&target.kind.resource, target.subresource, None, &object);
        let value = local_bytes(&target.kind, &object)?;
        let is_complete = schema_work::is_complete(&target.kind, &object);
        Ok(NewObject { object: Arc::new(object), value, is_complete, warnings })
    }
}

/// Checks that the namespace and the CRD of a new object accept it. The conditions hold that for the commit: what
/// is created is deleted with them, or not created.
///
/// # Errors
/// 404 and 403.
async fn creation_conditions(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    object: &Map<String, Value>,
) -> Result<Vec<CommitCondition>, Status> {
    let namespace = namespace::check_active(api, target, object).await?;
    let crd = check_crd(api, target, ObjectMetaView::of_map(object).name()).await?;
    Ok(namespace.into_iter().chain(crd).collect())
}

/// Refuses a new object of a custom resource whose CRD is being deleted, or is another one.
///
/// # Errors
/// 403, and 404 for a CRD that is gone.
async fn check_crd(api: &ApiServer, target: &ObjectTarget<'_>, name: &str) -> Result<Option<CommitCondition>, Status> {
    let Some(custom) = &target.kind.resource.custom else { return Ok(None) };
    let crds = api.builtin_collection("apiextensions.k8s.io", "customresourcedefinitions");
    let crds = crds.ok_or_else(Status::not_found)?;
    let key = target.key_of(&crds, "", &custom.crd_name)?;
    let current = crds.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let current = current.filter(|current| *current.metadata().uid == *custom.uid).ok_or_else(Status::not_found)?;
    if !custom.is_terminating && current.metadata().deletion_timestamp.is_none() {
        return Ok(Some(CommitCondition::At(key, current.revision())));
    }
    let (group, plural) = target.kind.resource.group_resource();
    let why = "create not allowed while custom resource definition is terminating";
    Err(Status::object_forbidden(group, plural, name, why))
}

/// How long the store keeps an object of the kind; none is for ever.
pub(super) fn time_to_live(api: &ApiServer, target: &ObjectTarget<'_>) -> Option<Duration> {
    target.rules.expires.then_some(api.settings.event_ttl)
}
