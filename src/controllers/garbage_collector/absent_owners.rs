//! Owners that were deleted. Their kind may not be served any more when their dependents are judged.

use std::collections::{HashMap, VecDeque};

use store::watch_cache::{OwnerReference, Stored};

use crate::resources::Resource;

/// Owners that are remembered. Upstream's `absentOwnerCache` has 500.
const MAX_OWNERS: usize = 16_384;

/// The owners that were deleted last, by uid. A uid is never used again.
#[derive(Default)]
pub(super) struct AbsentOwners {
    owners: HashMap<Box<str>, AbsentOwner>,
    /// Their uids, the oldest first.
    order: VecDeque<Box<str>>,
}

#[derive(PartialEq)]
struct AbsentOwner {
    group: Box<str>,
    kind: Box<str>,
    namespace: Box<str>,
    name: Box<str>,
}

impl AbsentOwners {
    /// Notes that an object was deleted.
    pub(super) fn insert(&mut self, resource: &Resource, object: &Stored) {
        let uid = &object.metadata().uid;
        let owner = AbsentOwner {
            group: (*resource.group).into(),
            kind: (*resource.kind).into(),
            namespace: object.namespace().into(),
            name: object.name().into(),
        };
        if self.owners.insert(uid.clone(), owner).is_some() {
            return;
        }
        self.order.push_back(uid.clone());
        if self.order.len() > MAX_OWNERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.owners.remove(&oldest);
        }
    }

    /// Whether the owner of an object in `namespace` was deleted. Another version of its group names it as well.
    pub(super) fn contains(&self, namespace: &str, reference: &OwnerReference) -> bool {
        self.owners.get(&reference.uid).is_some_and(|owner| {
            let group = reference.api_version.split_once('/').map_or("", |(group, _)| group);
            let is_in_scope = owner.namespace.is_empty() || *owner.namespace == *namespace;
            is_in_scope && *owner.group == *group && owner.kind == reference.kind && owner.name == reference.name
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use store::{Key, KeyValue, Prefix};

    use super::*;
    use crate::resources::builtin::builtin_kinds;

    fn deleted(number: usize) -> Stored {
        let prefix = Prefix::parse("/registry/deployments/").unwrap();
        let key = Key::parse(&format!("/registry/deployments/ns/d{number}")).unwrap();
        let value = Bytes::from(format!(r#"{{"metadata":{{"uid":"u{number}"}}}}"#));
        Stored::new(Arc::new(KeyValue { key, value, created: 1, revision: 1, expires: None }), &prefix, &[])
    }

    #[test]
    fn absent_owners_are_those_of_the_kind_and_namespace_and_the_oldest_are_forgotten() {
        let mut owners = AbsentOwners::default();
        let deployments = builtin_kinds().resource("apps", "deployments").unwrap();
        owners.insert(deployments, &deleted(0));
        let reference = |api_version: &str, kind: &str, name: &str| OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: name.into(),
            uid: "u0".into(),
            ..OwnerReference::default()
        };
        for (namespace, api_version, kind, name, expected) in [
            ("ns", "apps/v1", "Deployment", "d0", true),
            ("ns", "apps/v1beta1", "Deployment", "d0", true),
            ("other", "apps/v1", "Deployment", "d0", false),
            ("ns", "v1", "Deployment", "d0", false),
            ("ns", "apps/v1", "ReplicaSet", "d0", false),
            ("ns", "apps/v1", "Deployment", "d1", false),
        ] {
            let found = owners.contains(namespace, &reference(api_version, kind, name));
            assert_eq!(found, expected, "{namespace} {api_version} {kind} {name}");
        }
        (1..=MAX_OWNERS).for_each(|number| owners.insert(deployments, &deleted(number)));
        assert_eq!((owners.owners.len(), owners.order.len()), (MAX_OWNERS, MAX_OWNERS));
        assert!(!owners.contains("ns", &reference("apps/v1", "Deployment", "d0")));
    }
}
