//! The resource, namespace and name that a request is for.

use std::borrow::Cow;

use crate::kubeapi::{RequestInfo, Status};
use crate::resources::ServedKind;
use crate::resources::catalog::ResourceCatalog;
use crate::storage::Key;
use crate::watch_cache::ResourceCollection;

/// The object or collection that a request is for.
pub(super) struct ObjectTarget<'r> {
    pub(super) kind: ServedKind,
    /// Namespace; empty for cluster-scoped objects, and for all namespaces.
    pub(super) namespace: &'r str,
    /// Name; empty for a collection.
    pub(super) name: Cow<'r, str>,
    /// Subresource: empty, `status` or `finalize`.
    pub(super) subresource: &'r str,
}

impl<'r> ObjectTarget<'r> {
    /// Determines the object or collection that the request is for.
    ///
    /// # Errors
    /// 404 for an unknown resource or subresource, or a namespace where none belongs. 405 for a verb that is not served,
    /// and for writes of a resource that is not stored.
    pub(super) fn parse(catalog: &ResourceCatalog, info: &'r RequestInfo<'r>) -> Result<ObjectTarget<'r>, Status> {
        let entry = catalog.find(info.api_group, info.api_version, info.resource).ok_or_else(Status::not_found)?;
        let ServedKind { resource, version } = &entry.kind;
        // `/api/v1/namespaces/x` is in the namespace `x` for authorization, and cluster-scoped for storage.
        let namespace = if resource.is_namespaced { info.namespace } else { "" };
        let is_own_namespace = resource.plural == "namespaces" && info.namespace == &*info.name;
        if !resource.is_namespaced && !info.namespace.is_empty() && !is_own_namespace {
            return Err(Status::not_found());
        }
        let subresource = info.subresource;
        if !subresource.is_empty() && version.subresource(subresource).is_none() {
            return Err(match entry.is_custom() {
                true => Status::object_not_found(&resource.group, &resource.plural, &info.name),
                false => Status::not_found(),
            });
        }
        // The name of a list or watch comes from its field selector, which selects by itself.
        let is_collection = matches!(&*info.verb, "list" | "watch" | "deletecollection");
        let name = if is_collection { Cow::Borrowed("") } else { info.name.clone() };
        let needs_namespace = resource.is_namespaced && namespace.is_empty() && !is_collection;
        if needs_namespace && info.verb != "create" {
            return Err(Status::not_found());
        }
        let needs_name = !is_collection && (info.verb != "create" || !subresource.is_empty());
        let target = ObjectTarget { kind: entry.kind.clone(), namespace, name, subresource };
        let verbs = if subresource.is_empty() { entry.answered_verbs() } else { entry.subresource_verbs(subresource) };
        // A collection is deleted in one namespace at a time.
        let is_one_collection = info.verb != "deletecollection" || !resource.is_namespaced || !namespace.is_empty();
        let has_place = needs_name != target.name.is_empty() && is_one_collection;
        if verbs.contains(&&*info.verb) && !needs_namespace && has_place {
            return Ok(target);
        }
        if !entry.is_stored() {
            return Err(Status::method_not_allowed(entry.why_not_stored()));
        }
        Err(target.method_not_allowed())
    }

    /// 405 with Kubernetes' text.
    pub(super) fn method_not_allowed(&self) -> Status {
        Status::method_not_allowed("the server does not allow this method on the requested resource")
    }

    /// 404 for an object that does not exist.
    pub(super) fn not_found(&self) -> Status {
        Status::object_not_found(&self.kind.resource.group, &self.kind.resource.plural, &self.name)
    }

    /// The key of the object `name` in `namespace`.
    ///
    /// # Errors
    /// 400 for a name that cannot be part of a key.
    pub(super) fn key_of(&self, collection: &ResourceCollection, namespace: &str, name: &str) -> Result<Key, Status> {
        collection.prefix().key(namespace, name).map_err(|error| Status::bad_request(error.to_string()))
    }

    /// The key of the object that the path names.
    ///
    /// # Errors
    /// 400 for a name that cannot be part of a key.
    pub(super) fn key(&self, collection: &ResourceCollection) -> Result<Key, Status> {
        self.key_of(collection, self.namespace, &self.name)
    }
}
