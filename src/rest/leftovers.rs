//! Objects that outlived their namespace or their CRD. None is left by this server; stores written by versions
//! before may have some, and so has a namespace whose finalizer a client removed by hand.
//!
//! They are reported at start and stay as they are: they cannot be told from objects whose namespace was lost. What
//! counts is that nobody inherits them: when the namespace is created, what is below its name is deleted first. Objects
//! of a missing CRD are served again when it is created, as in Kubernetes, save those in a namespace that was
//! created in the meantime.

use std::collections::{BTreeMap, BTreeSet};

use kubeapi::Status;
use store::watch_cache::Error;
use store::{CommitCondition, KeyError, Prefix};

use crate::resources::builtin::event_conversion::stored_resource;

use super::api_server::ApiServer;
use super::errors::unavailable;

/// Maximum number of names in a log line.
const MAX_NAMES: usize = 10;

impl ApiServer {
    /// The conditions that a namespace has no objects, of any resource that the store may have.
    ///
    /// # Errors
    /// The name cannot be part of a key.
    pub(crate) fn emptiness_of(&self, namespace: &str) -> Result<Vec<CommitCondition>, KeyError> {
        let below = self.namespaced_prefixes()?;
        below.iter().map(|prefix| Ok(CommitCondition::Empty(prefix.namespace(namespace)?))).collect()
    }

    /// Prefixes of all resources that may have objects in namespaces, served or not.
    fn namespaced_prefixes(&self) -> Result<BTreeSet<Prefix>, KeyError> {
        let builtin = self.settings.catalog.entries().iter().map(|entry| &entry.kind.resource);
        let builtin = builtin.filter(|resource| resource.is_namespaced && resource.custom.is_none());
        let mut prefixes = builtin
            .map(|resource| self.resource_prefix(stored_resource(resource)))
            .collect::<Result<BTreeSet<Prefix>, KeyError>>()?;
        prefixes.extend(self.crd_prefixes());
        prefixes.extend(self.orphaned.lock().iter().cloned());
        Ok(prefixes)
    }

    /// Prefixes of the resources of all CRDs that are stored.
    fn crd_prefixes(&self) -> BTreeSet<Prefix> {
        let crds = self.builtin_collection("apiextensions.k8s.io", "customresourcedefinitions");
        let Some(crds) = crds else { return BTreeSet::new() };
        let snapshot = crds.snapshot();
        let stored = snapshot.range(crds.prefix(), None);
        stored.filter_map(|crd| self.crd_prefix(crd.name())).collect()
    }

    /// Prefix of the resource of a CRD, by its name; none for one whose group is built in.
    pub(crate) fn crd_prefix(&self, name: &str) -> Option<Prefix> {
        let (plural, group) = name.split_once('.')?;
        let is_custom = group.contains('.') && !self.has_builtin_group(group);
        Prefix::of_custom(&self.settings.key_root, group, plural).ok().filter(|_| is_custom)
    }

    /// Deletes what is below a prefix, whatever its finalizers, as long as `condition` is met. Returns how many objects were
    /// deleted.
    ///
    /// # Errors
    /// 503 if the store cannot be read or written.
    pub(crate) async fn delete_below(&self, prefix: &Prefix, condition: &CommitCondition) -> Result<usize, Status> {
        let deleted = self.collections.delete_below(prefix, condition).await;
        deleted.map_err(|error| unavailable(&Error::Store(error)))
    }

    /// Reports objects whose namespace or CRD does not exist.
    ///
    /// # Errors
    /// 503 if the store cannot be read.
    pub(crate) async fn report_leftovers(&self) -> Result<(), Status> {
        let (Ok(root), Some(namespaces)) =
            (Prefix::parse(&format!("{}/", self.settings.key_root)), self.builtin_collection("", "namespaces"))
        else {
            return Ok(());
        };
        let loaded = self.collections.load(&root).await.map_err(|error| unavailable(&Error::Store(error)))?;
        namespaces.ensure_loaded().await.map_err(|error| unavailable(&error))?;
        let namespaces: BTreeSet<String> = namespaces
            .snapshot()
            .range(namespaces.prefix(), None)
            .map(|namespace| namespace.name().to_owned())
            .collect();
        let known = self.namespaced_prefixes().map_err(Status::internal_error)?;
        let crds = self.crd_prefixes();
        let (mut by_namespace, mut by_crd) = (BTreeMap::new(), BTreeMap::new());
        for record in &loaded.records {
            let Some(prefix) = self.prefix_of(record.key.as_str(), &known) else { continue };
            if self.is_of_crd(&prefix) && !crds.contains(&prefix) && !self.is_builtin_prefix(&prefix) {
                *by_crd.entry(prefix.to_string()).or_insert(0_usize) += 1;
                self.orphaned.lock().insert(prefix.clone());
            }
            if let Some((namespace, _)) = record.key.split_below(&prefix)
                && !namespace.is_empty()
                && !namespaces.contains(namespace)
            {
                *by_namespace.entry(namespace.to_owned()).or_insert(0_usize) += 1;
            }
        }
        report(&by_namespace, "a namespace", "they are deleted when the namespace is created");
        report(&by_crd, "a CustomResourceDefinition", "they are served again when it is created");
        Ok(())
    }

    fn is_builtin_prefix(&self, prefix: &Prefix) -> bool {
        self.has_builtin_group(self.first_part(prefix))
    }

    /// The prefix of the resource of a key.
    fn prefix_of(&self, key: &str, known: &BTreeSet<Prefix>) -> Option<Prefix> {
        let root = self.settings.key_root.len() + 1;
        // `<plural>/` or, of a CRD, `<group>/<plural>/`.
        [0, 1].into_iter().find_map(|slashes| {
            let (end, _) = key.get(root..)?.match_indices('/').nth(slashes)?;
            let prefix = Prefix::parse(&key[..=root + end]).ok()?;
            (known.contains(&prefix) || (slashes == 1 && self.is_of_crd(&prefix))).then_some(prefix)
        })
    }

    /// Whether a prefix is that of a custom resource: its first part is a group, which has a dot.
    fn is_of_crd(&self, prefix: &Prefix) -> bool {
        self.first_part(prefix).contains('.')
    }

    /// What follows the root in a prefix.
    fn first_part<'p>(&self, prefix: &'p Prefix) -> &'p str {
        let below_root = prefix.as_str().get(self.settings.key_root.len() + 1..).unwrap_or_default();
        below_root.split('/').next().unwrap_or_default()
    }
}

fn report(counts: &BTreeMap<String, usize>, of: &str, then: &str) {
    if counts.is_empty() {
        return;
    }
    let (objects, names): (usize, Vec<&str>) =
        (counts.values().sum(), counts.keys().take(MAX_NAMES).map(String::as_str).collect());
    let (missing, names) = (counts.len(), names.join(", "));
    tracing::warn!(objects, missing, names, "store has objects of {of} that does not exist; {then}");
}

#[cfg(test)]
mod tests {
    use store::{Expect, Key, Mutation, Store as _};

    use super::super::namespace::create_empty;
    use super::super::test_support::{CRD, keys, object, server};
    use super::*;

    #[tokio::test]
    async fn namespace_created_again_has_nothing_of_its_predecessor() {
        let (store, api) = server(&[
            ("/registry/secrets/old/a", object("a")),
            ("/registry/services/specs/old/a", object("a")),
            ("/registry/secrets/older/a", object("a")),
            // Of a CRD that is not served, and of one that does not exist.
            (CRD, object("foos.example.com")),
            ("/registry/example.com/foos/old/a", object("a")),
            ("/registry/example.org/bars/old/a", object("a")),
            ("/registry/example.org/bars/of-cluster", object("a")),
        ])
        .await;
        api.report_leftovers().await.unwrap();
        let namespaces = api.builtin_collection("", "namespaces").unwrap();
        let key = namespaces.prefix().key("", "old").unwrap();
        create_empty(&api, &namespaces, &key, object("old").to_string().into()).await.unwrap();
        assert_eq!(keys(&store, "/registry/secrets/").await, ["/registry/secrets/older/a"]);
        assert_eq!(keys(&store, "/registry/services/specs/").await, [""; 0]);
        assert_eq!(keys(&store, "/registry/example.com/").await, [""; 0]);
        assert_eq!(keys(&store, "/registry/example.org/").await, ["/registry/example.org/bars/of-cluster"]);
        // One that exists keeps what it has.
        let put = Key::parse("/registry/secrets/old/b").unwrap();
        store.commit(&put, Expect::Absent, Mutation::put(object("b").to_string())).await.unwrap();
        let again = create_empty(&api, &namespaces, &key, object("old").to_string().into()).await;
        assert!(matches!(again, Err(Error::Conflict { current: Some(_) })));
        assert_eq!(keys(&store, "/registry/secrets/old/").await, ["/registry/secrets/old/b"]);
    }
}
