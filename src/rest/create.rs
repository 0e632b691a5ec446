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

use super::admission::CERTIFICATE_REQUESTS;
use super::api_server::ApiServer;
use super::errors::cache_error;
use super::representation::{ReplyContent, ReplyObject, VerbReply};
use super::request::ApiRequest;
use super::service_allocation::{self, ServiceReservation};
use super::target::ObjectTarget;
use super::write::ObjectWrite;
use super::write_options::WriteOptions;
use super::{metadata, namespace, request_body};
use crate::authorize::CreateAuthorization;
use crate::kinds::RemovalRule;

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
    let mut attempt = 1;
    loop {
        // Decoded again only for another generated name: nothing else needs a second copy of the object.
        let decoded = request_body::decode_new(request, target, options.validation).await?;
        let mut object = decoded.object;
        if attempt == 1 {
            warnings.extend(decoded.warnings);
        }
        metadata::set_namespace(target, &mut object)?;
        let meta = ObjectMetaView::of_map(&object);
        let is_generated = meta.name().is_empty();
        if !options.is_dry_run && meta.resource_version().parse::<u64>().is_ok_and(|version| version > 0) {
            return Err(Status::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        let write = (options.is_dry_run, request.creation);
        match store_new(api, collection, target, object, write, warnings).await? {
            Created::Object(object) => {
                return Ok(VerbReply { code: StatusCode::CREATED, content: ReplyContent::Object(object) });
            }
            Created::Exists(_) if is_generated && !options.is_dry_run && attempt < NAME_ATTEMPTS => attempt += 1,
            Created::Exists(status) => return Err(status),
        }
    }
}

/// Outcome of an attempt to store a new object.
pub(super) enum Created {
    /// The object.
    Object(ReplyObject),
    /// There is one of its name: 409.
    Exists(Status),
}

/// Completes, validates and stores a new object, if the request may create one: its verb may be another.
///
/// # Errors
/// 403 and 404 for its namespace, 422 for an invalid object.
pub(super) async fn store_new(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    mut object: Map<String, Value>,
    (is_dry_run, creation): (bool, &CreateAuthorization<'_>),
    warnings: &mut Vec<String>,
) -> Result<Created, Status> {
    // A Service reserves addresses, which a request may do only if it may create one.
    if target.rules.allocates_addresses {
        creation.check().await?;
    }
    let mut conditions = creation_conditions(api, target, &object).await?;
    api.admit_new(target, &mut object).await?;
    let object = api.check_escalation(target, creation, None, object).await?;
    let version = ObjectMetaView::of_map(&object).resource_version().to_owned();
    let mut write = ObjectWrite::new(target, object, None);
    if target.kind.resource.group_resource() == CERTIFICATE_REQUESTS {
        write = write.with_requester(creation.user());
    }
    let (write, reservation) = service_allocation::begin_write(api, target, write, is_dry_run).await?;
    let mut write = write.run(&api.settings).await?;
    warnings.append(&mut write.warnings);
    creation.check().await?;
    warnings.extend(api.note_creation(&target.kind, is_dry_run));
    let name = ObjectMetaView::of_map(&write.object).name().to_owned();
    let key = target.key_of(collection, target.namespace, &name)?;
    let exists = || Status::already_exists(&target.kind.resource.group, &target.kind.resource.plural, &name);
    if is_dry_run {
        collection.ensure_loaded().await.map_err(|error| cache_error(target, error))?;
        if collection.get(&key).is_some() {
            return Ok(Created::Exists(exists()));
        }
        let mut object = Arc::unwrap_or_clone(write.object);
        if !version.is_empty() {
            change_metadata(&mut object, |metadata| metadata.insert("resourceVersion".to_owned(), version.into()));
        }
        let object = api.converter.dry_run_object(&target.kind, Arc::new(object)).await?;
        return Ok(Created::Object(ReplyObject::Unstored(object)));
    }
    let value = Bytes::from(write.stored_value(api, target).await?);
    let created = loop {
        if target.rules.removal == RemovalRule::Namespace {
            break namespace::create_empty(api, collection, &key, value).await;
        }
        let ttl = time_to_live(api, target);
        match collection.create_if(&key, value.clone(), ttl, conditions).await {
            // The namespace or the CRD changed, or is being deleted.
            Err(Error::ConditionFailed(_)) => conditions = creation_conditions(api, target, &write.object).await?,
            created => break created,
        }
    };
    match created {
        Ok(stored) => {
            write.note_stored(target, &stored);
            reservation.into_iter().for_each(ServiceReservation::commit);
            Ok(Created::Object(ReplyObject::stored(stored)))
        }
        Err(Error::Conflict { .. }) => Ok(Created::Exists(exists())),
        Err(error) => Err(cache_error(target, error)),
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
