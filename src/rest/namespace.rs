//! Life of a namespace: what is created needs an active one, and some namespaces stay
//! (`k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle`). What is deleted is emptied by a controller.

use std::sync::Arc;

use bytes::Bytes;
use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value};
use store::watch_cache::{Error, ResourceCollection, Stored};
use store::{CommitCondition, Key};

use super::admission_plugins::AdmissionPlugin;
use super::api_server::ApiServer;
use super::errors::cache_error;
use super::target::ObjectTarget;
use crate::kinds::RemovalRule;
use crate::resources::builtin::builtin_kinds;

/// Namespaces that cannot be deleted.
pub(super) const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Checks that `object` can be created in the namespace of `target`. What is created in it has to be committed with the
/// condition that is returned: that the namespace is still the one that was looked at.
///
/// # Errors
/// 404 for a namespace that does not exist, 403 for one that is being deleted.
pub(super) async fn check_active(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    object: &Map<String, Value>,
) -> Result<Option<CommitCondition>, Status> {
    if target.namespace.is_empty() || !api.has_plugin(AdmissionPlugin::NamespaceLifecycle) {
        return Ok(None);
    }
    let namespaces = builtin_kinds().resource("", "namespaces");
    let namespaces = api.collection(namespaces.ok_or_else(|| Status::internal_error("no namespaces"))?)?;
    let key = namespaces.prefix().key("", target.namespace).map_err(|error| Status::bad_request(error.to_string()))?;
    let namespace = namespaces.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let Some(namespace) = namespace else {
        return Err(Status::object_not_found("", "namespaces", target.namespace));
    };
    if namespace.metadata().deletion_timestamp.is_none() {
        return Ok(Some(CommitCondition::At(key, namespace.revision())));
    }
    let meta = ObjectMetaView::of_map(object);
    let names = [meta.name(), meta.generate_name(), "Unknown"];
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    let ((group, plural), namespace) = (target.kind.resource.group_resource(), target.namespace);
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::object_forbidden(group, plural, name, why);
    status = status.with_cause("NamespaceTerminating", format!("namespace {namespace} is being terminated"));
    let causes = status.details.iter_mut().flat_map(|details| &mut details.causes);
    causes.for_each(|cause| cause.field = "metadata.namespace".into());
    Err(status)
}

/// Refuses the deletion of a namespace that cannot be deleted ([`IMMORTAL`]).
///
/// # Errors
/// 403 for such a namespace.
pub(super) fn check_deletable(api: &ApiServer, target: &ObjectTarget<'_>) -> Result<(), Status> {
    let is_checked = api.has_plugin(AdmissionPlugin::NamespaceLifecycle);
    if !is_checked || target.rules.removal != RemovalRule::Namespace || !IMMORTAL.contains(&&*target.name) {
        return Ok(());
    }
    Err(Status::object_forbidden("", "namespaces", &target.name, "this namespace may not be deleted"))
}

/// Creates a namespace in which there is nothing: what a former namespace of this name left is deleted first. Without
/// the plugin, objects need no namespace, and stay.
///
/// # Errors
/// [`Error::Conflict`] if it exists, and errors of the store.
pub(crate) async fn create_empty(
    api: &ApiServer,
    namespaces: &ResourceCollection,
    key: &Key,
    value: Bytes,
) -> Result<Arc<Stored>, Error> {
    let name = key.split_below(namespaces.prefix()).map_or("", |(_, name)| name);
    let conditions = match api.has_plugin(AdmissionPlugin::NamespaceLifecycle) {
        true => api.emptiness_of(name)?,
        false => Vec::new(),
    };
    loop {
        match namespaces.create_if(key, value.clone(), None, conditions.clone()).await {
            Err(Error::ConditionFailed(CommitCondition::Empty(prefix))) => {
                if let Some(current) = namespaces.get_latest(key).await? {
                    return Err(Error::Conflict { current: Some(current) });
                }
                // Another client may create the namespace meanwhile: what is in that one stays.
                let absent = CommitCondition::Absent(key.clone());
                let objects = api.collections().delete_below(&prefix, &absent).await?;
                let prefix = prefix.as_str();
                tracing::warn!(namespace = name, objects, prefix, "objects of a former namespace deleted");
            }
            outcome => return outcome,
        }
    }
}
