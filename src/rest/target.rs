//! The resource, namespace and name that a request is for.

use std::borrow::Cow;

use kubeapi::names::check_path_segment;
use kubeapi::{GoQuoted, RequestInfo, Status};
use store::Key;
use store::watch_cache::ResourceCollection;

use crate::kinds::{KindRules, RemovalRule, rules};
use crate::resources::ServedKind;
use crate::resources::catalog::{CatalogEntry, ResourceCatalog};

/// The object or collection that a request is for.
pub(super) struct ObjectTarget<'r> {
    pub(super) kind: ServedKind,
    /// The rules of the kind, looked up once.
    pub(super) rules: &'static KindRules,
    /// Namespace; empty for cluster-scoped objects, and for all namespaces.
    pub(super) namespace: &'r str,
    /// Name; empty for a collection.
    pub(super) name: Cow<'r, str>,
    /// Subresource; empty for the object itself.
    pub(super) subresource: &'r str,
}

/// A target with its own texts, for work on a compute thread.
#[derive(Clone)]
pub(super) struct OwnedTarget {
    kind: ServedKind,
    rules: &'static KindRules,
    namespace: String,
    name: String,
    subresource: String,
}

impl OwnedTarget {
    pub(super) fn target(&self) -> ObjectTarget<'_> {
        ObjectTarget {
            kind: self.kind.clone(),
            rules: self.rules,
            namespace: &self.namespace,
            name: Cow::Borrowed(&self.name),
            subresource: &self.subresource,
        }
    }
}

impl<'r> ObjectTarget<'r> {
    /// An object of a kind, or its subresource.
    pub(super) fn new(
        kind: ServedKind,
        namespace: &'r str,
        name: impl Into<Cow<'r, str>>,
        subresource: &'r str,
    ) -> ObjectTarget<'r> {
        let rules = rules(&kind.resource);
        ObjectTarget { kind, rules, namespace, name: name.into(), subresource }
    }

    /// The target with its own texts.
    pub(super) fn to_owned_target(&self) -> OwnedTarget {
        OwnedTarget {
            kind: self.kind.clone(),
            rules: self.rules,
            namespace: self.namespace.to_owned(),
            name: self.name.clone().into_owned(),
            subresource: self.subresource.to_owned(),
        }
    }

    /// Determines the object or collection that the request is for.
    ///
    /// # Errors
    /// 404 for an unknown resource or subresource, or a namespace where none belongs. 405 for a verb that is not served,
    /// and for writes of objects that the gateway makes.
    pub(super) fn parse(catalog: &ResourceCatalog, info: &'r RequestInfo<'r>) -> Result<ObjectTarget<'r>, Status> {
        let entry = catalog.find(info.api_group, info.api_version, info.resource).ok_or_else(Status::not_found)?;
        let ServedKind { resource, version } = &entry.kind;
        // `/api/v1/namespaces/x` is in the namespace `x` for authorization, and cluster-scoped for storage.
        let namespace = if resource.is_namespaced { info.namespace } else { "" };
        let rules = rules(resource);
        let is_own_namespace = rules.removal == RemovalRule::Namespace && info.namespace == &*info.name;
        if !resource.is_namespaced && !info.namespace.is_empty() && !is_own_namespace {
            return Err(Status::not_found());
        }
        let subresource = info.subresource;
        if !subresource.is_empty() && entry.is_custom() && version.subresource(subresource).is_none() {
            return Err(Status::object_not_found(&resource.group, &resource.plural, &info.name));
        }
        if !entry.is_custom() && !has_route(entry, info) {
            return Err(Status::not_found());
        }
        // The name of a list or watch comes from its field selector, which selects by itself.
        let is_collection = matches!(&*info.verb, "list" | "watch" | "deletecollection");
        let name = if is_collection { Cow::Borrowed("") } else { info.name.clone() };
        let needs_namespace = resource.is_namespaced && namespace.is_empty() && !is_collection;
        if needs_namespace && info.verb != "create" {
            return Err(Status::not_found());
        }
        // Those of a CRD have no routes: a path without the namespace is of no resource.
        if entry.is_custom()
            && resource.is_namespaced
            && namespace.is_empty()
            && !matches!(&*info.verb, "list" | "watch")
        {
            return Err(Status::not_found());
        }
        let needs_name = !is_collection && (info.verb != "create" || !subresource.is_empty());
        let target = ObjectTarget { kind: entry.kind.clone(), rules, namespace, name, subresource };
        let verbs = if subresource.is_empty() { entry.answered_verbs() } else { entry.subresource_verbs(subresource) };
        // A collection is deleted in one namespace at a time.
        let is_one_collection = info.verb != "deletecollection" || !resource.is_namespaced || !namespace.is_empty();
        let has_place = needs_name != target.name.is_empty() && is_one_collection;
        if entry.is_custom() && (needs_namespace || !is_one_collection) {
            return Err(Status::not_found());
        }
        if verbs.contains(&&*info.verb) && !needs_namespace && has_place {
            return Ok(target);
        }
        if entry.is_generated() {
            return Err(Status::method_not_allowed(entry.why_generated()));
        }
        Err(target.method_not_allowed(&info.verb))
    }

    /// 405 with Kubernetes' text, which is another one for custom resources (`NewMethodNotSupported`).
    pub(super) fn method_not_allowed(&self, verb: &str) -> Status {
        let resource = &self.kind.resource;
        if resource.custom.is_none() {
            return Status::method_not_allowed("the server does not allow this method on the requested resource");
        }
        let qualified = format!("{}.{}", resource.plural, resource.group);
        Status::method_not_allowed(format!("{verb} is not supported on resources of kind {}", GoQuoted(&qualified)))
            .with_resource(&resource.group, &resource.plural, "")
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
        check_name_parameter(name)?;
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

/// Checks the name of an object that is to be found (`NamespaceKeyFunc` in
/// `k8s.io/apiserver/pkg/registry/generic/registry/store.go`).
///
/// # Errors
/// 400 for no name, and for one that cannot be a segment of a path.
pub(super) fn check_name_parameter(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    let wrong = check_path_segment(name);
    if !wrong.is_empty() {
        return Err(Status::bad_request(format!("Name parameter invalid: {}: {}", GoQuoted(name), wrong.join(";"))));
    }
    Ok(())
}

/// Whether a kube-apiserver has a route for a path of a built-in resource, whatever the method: one for each subresource,
/// and `/api/v1/watch/…` for the objects alone.
fn has_route(entry: &CatalogEntry, info: &RequestInfo<'_>) -> bool {
    let is_served = info.subresource.is_empty() || !entry.subresource_verbs(info.subresource).is_empty();
    // What follows is a path of what listens there.
    let ends_there = info.subresource == "proxy" || info.parts.split('/').count() <= 3;
    is_served && ends_there && info.verb != "proxy" && (info.verb != "watch" || info.subresource.is_empty())
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kubeapi::{CanonicalPath, Query, StatusDetails};

    use super::*;

    fn code(method: &str, path: &str) -> (u16, String) {
        let catalog = ResourceCatalog::new(|_| true);
        let path = CanonicalPath::parse(path).unwrap();
        let query = Query::parse("");
        let info = RequestInfo::parse(&Method::from_bytes(method.as_bytes()).unwrap(), &path, &query).unwrap();
        match ObjectTarget::parse(&catalog, &info) {
            Ok(_) => (200, String::new()),
            Err(status) => {
                assert_eq!(status.details.as_deref(), Some(&StatusDetails::default()), "{}", path.decoded());
                (status.code, format!("{}: {}", status.reason, status.message))
            }
        }
    }

    /// As a kube-apiserver answers them.
    #[test]
    fn subresource_that_is_not_served_is_not_found() {
        let not_found = (404, "NotFound: the server could not find the requested resource".to_owned());
        let not_allowed =
            (405, "MethodNotAllowed: the server does not allow this method on the requested resource".to_owned());
        for (method, path) in [
            ("GET", "/api/v1/namespaces/n/configmaps/c/status"),
            ("DELETE", "/api/v1/namespaces/n/configmaps/c/other"),
            ("GET", "/api/v1/namespaces/n/services/s/status/more"),
            ("GET", "/api/v1/watch/namespaces/n/services/s/status"),
            ("GET", "/api/v1/proxy/namespaces/n/services/s"),
        ] {
            assert_eq!(code(method, path), not_found, "{method} {path}");
        }
        for (method, path) in [
            ("DELETE", "/api/v1/namespaces/n/services/s/status"),
            ("POST", "/api/v1/namespaces/n/services/s/status"),
            ("POST", "/api/v1/configmaps"),
            ("PUT", "/api/v1/namespaces/n/configmaps"),
            ("POST", "/api/v1/namespaces/n/configmaps/c"),
            ("DELETE", "/api/v1/configmaps"),
        ] {
            assert_eq!(code(method, path), not_allowed, "{method} {path}");
        }
        for (method, path) in [
            ("PUT", "/api/v1/namespaces/n/services/s/status"),
            ("PUT", "/api/v1/namespaces/n/finalize"),
            ("GET", "/api/v1/namespaces/n/pods/p/log"),
            ("POST", "/api/v1/namespaces/n/pods/p/exec"),
            ("GET", "/api/v1/namespaces/n/services/s/proxy/path/on"),
            ("PUT", "/api/v1/nodes/n/proxy"),
            ("POST", "/api/v1/namespaces/n/pods/p/eviction"),
            ("POST", "/api/v1/namespaces/n/serviceaccounts/s/token"),
            ("GET", "/apis/apps/v1/namespaces/n/deployments/d/scale"),
            ("PUT", "/apis/certificates.k8s.io/v1/certificatesigningrequests/c/approval"),
            ("GET", "/api/v1/watch/namespaces/n/services/s"),
            ("GET", "/api/v1/watch/configmaps"),
        ] {
            assert_eq!(code(method, path).0, 200, "{method} {path}");
        }
    }
}
