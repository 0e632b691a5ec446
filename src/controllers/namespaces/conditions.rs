//! Conditions of a namespace that is being deleted, with Kubernetes' texts
//! (`pkg/controller/namespace/deletion/status_condition_utils.go`).

use std::collections::BTreeMap;

use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Value, json};

use crate::resources::Resource;
use crate::rest::now;

/// Most finalizers that a condition names; kube-controller-manager names all.
const MAX_FINALIZERS: usize = 100;

/// What is still in a namespace after an attempt to empty it.
#[derive(Debug, Default)]
pub(super) struct RemainingContent {
    /// Number of objects by `plural.group`.
    resources: BTreeMap<String, usize>,
    /// Number of objects by finalizer.
    finalizers: BTreeMap<String, usize>,
    /// Why objects could not be deleted.
    failures: Vec<String>,
    /// Plural and name of one of the objects.
    example: Option<String>,
}

impl RemainingContent {
    /// Adds an object that has finalizers.
    pub(super) fn add_object(&mut self, resource: &Resource, meta: ObjectMetaView<'_>) {
        *self.resources.entry(format!("{}.{}", resource.plural, resource.group)).or_default() += 1;
        for finalizer in meta.finalizers() {
            if self.finalizers.len() < MAX_FINALIZERS || self.finalizers.contains_key(finalizer) {
                *self.finalizers.entry(finalizer.to_owned()).or_default() += 1;
            }
        }
        self.example.get_or_insert_with(|| format!("{} {}", resource.plural, meta.name()));
    }

    /// Adds an error by which objects of a resource were not deleted.
    pub(super) fn add_failure(&mut self, message: String) {
        self.failures.push(message);
    }

    /// Whether the namespace is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.failures.is_empty()
    }

    /// What remains, for the log.
    pub(super) fn summary(&self) -> String {
        let objects: usize = self.resources.values().sum();
        let finalizers =
            self.example.as_ref().map(|one| format!("finalizers remain on {objects} objects, such as {one}"));
        finalizers.into_iter().chain(self.failures.iter().cloned()).collect::<Vec<_>>().join("; ")
    }

    /// Sets the conditions in the status of the namespace; returns whether they changed. A time is that of the last
    /// change of `status`.
    pub(super) fn set_conditions(&self, status: &mut Value) -> bool {
        let Some(conditions) = status.as_object_mut().map(|status| status.entry("conditions").or_insert(Value::Null))
        else {
            return false;
        };
        if !conditions.is_array() {
            *conditions = json!([]);
        }
        let Some(conditions) = conditions.as_array_mut() else { return false };
        let mut is_changed = false;
        for [kind, status, reason, message] in self.conditions() {
            let new = json!({
                "type": kind, "status": status, "lastTransitionTime": now(), "reason": reason, "message": message,
            });
            let Some(old) = conditions.iter_mut().find(|one| one["type"] == new["type"]) else {
                conditions.push(new);
                is_changed = true;
                continue;
            };
            let is_kept = |field: &str| old[field] == new[field];
            if is_kept("status") && is_kept("reason") && is_kept("message") {
                continue;
            }
            let since = if is_kept("status") { old["lastTransitionTime"].take() } else { Value::Null };
            *old = new;
            if !since.is_null() {
                old["lastTransitionTime"] = since;
            }
            is_changed = true;
        }
        is_changed
    }

    /// Type, status, reason and message of each condition.
    fn conditions(&self) -> [[String; 4]; 5] {
        let condition = |kind: &str, problem: Option<(&str, String)>, reason: &str, message: &str| {
            let (status, reason, message) = match problem {
                Some((reason, message)) => ("True", reason, message),
                None => ("False", reason, message.to_owned()),
            };
            [kind.to_owned(), status.to_owned(), reason.to_owned(), message]
        };
        let failed = || {
            let mut failures = self.failures.clone();
            failures.sort_unstable();
            let (count, list) = (failures.len(), failures.join(", "));
            ("ContentDeletionFailed", format!("Failed to delete all resource types, {count} remaining: {list}"))
        };
        let listed = |counts: &BTreeMap<String, usize>, words: &str| {
            counts
                .iter()
                .map(|(name, count)| format!("{name} {words} {count} resource instances"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let remaining = || {
            let list = listed(&self.resources, "has");
            ("SomeResourcesRemain", format!("Some resources are remaining: {list}"))
        };
        let finalizers = || {
            let list = listed(&self.finalizers, "in");
            ("SomeFinalizersRemain", format!("Some content in the namespace has finalizers remaining: {list}"))
        };
        [
            // All resources are known here.
            condition(
                "NamespaceDeletionDiscoveryFailure",
                None,
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            condition(
                "NamespaceDeletionContentFailure",
                (!self.failures.is_empty()).then(failed),
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            condition(
                "NamespaceContentRemaining",
                (!self.resources.is_empty()).then(remaining),
                "ContentRemoved",
                "All content successfully removed",
            ),
            condition(
                "NamespaceFinalizersRemaining",
                (!self.finalizers.is_empty()).then(finalizers),
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::builtin::builtin_kinds;

    fn remaining(objects: &[(&str, &str, Value)]) -> RemainingContent {
        let mut remaining = RemainingContent::default();
        for (group, plural, finalizers) in objects {
            let object = json!({"metadata": {"name": "a", "finalizers": finalizers}});
            let meta = ObjectMetaView::of_map(object.as_object().unwrap());
            remaining.add_object(builtin_kinds().resource(group, plural).unwrap(), meta);
        }
        remaining
    }

    fn messages(status: &Value) -> Vec<String> {
        let text = |one: &Value| format!("{} {} {}", one["status"], one["reason"], one["message"]).replace('"', "");
        status["conditions"].as_array().unwrap().iter().map(text).collect()
    }

    #[test]
    fn namespace_conditions_name_resources_and_finalizers_with_upstream_texts() {
        let mut content = remaining(&[
            ("", "secrets", json!(["example.com/b", "example.com/a"])),
            ("", "configmaps", json!(["example.com/a"])),
            ("discovery.k8s.io", "endpointslices", json!(["example.com/a"])),
        ]);
        content.add_failure("z failed".to_owned());
        content.add_failure("a failed".to_owned());
        let mut status = json!({"phase": "Terminating"});
        assert!(content.set_conditions(&mut status) && !content.is_empty());
        assert_eq!(
            messages(&status),
            [
                "False ResourcesDiscovered All resources successfully discovered",
                "False ParsedGroupVersions All legacy kube types successfully parsed",
                "True ContentDeletionFailed Failed to delete all resource types, 2 remaining: a failed, z failed",
                "True SomeResourcesRemain Some resources are remaining: configmaps. has 1 resource instances, \
                 endpointslices.discovery.k8s.io has 1 resource instances, secrets. has 1 resource instances",
                "True SomeFinalizersRemain Some content in the namespace has finalizers remaining: \
                 example.com/a in 3 resource instances, example.com/b in 1 resource instances",
            ]
        );
        assert_eq!(content.summary(), "finalizers remain on 3 objects, such as secrets a; z failed; a failed");
    }

    #[test]
    fn namespace_conditions_change_only_when_content_changes() {
        let one = remaining(&[("", "configmaps", json!(["example.com/a"]))]);
        let own = json!({"type": "Own", "status": "True"});
        let mut status = json!({"conditions": [own]});
        assert!(one.set_conditions(&mut status));
        for condition in status["conditions"].as_array_mut().unwrap() {
            condition["lastTransitionTime"] = json!("2020-01-01T00:00:00Z");
        }
        let before = status.clone();
        assert!(!one.set_conditions(&mut status), "nothing changed");
        assert_eq!(status, before);
        // Another count keeps the time, another status does not.
        let two =
            remaining(&[("", "configmaps", json!(["example.com/a"])), ("", "configmaps", json!(["example.com/a"]))]);
        assert!(two.set_conditions(&mut status));
        assert_eq!(
            status["conditions"][4]["message"],
            "Some resources are remaining: configmaps. has 2 resource instances"
        );
        assert_eq!(status["conditions"][4]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert!(RemainingContent::default().set_conditions(&mut status));
        assert_ne!(status["conditions"][4]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert_eq!(
            messages(&status)[4..],
            [
                "False ContentRemoved All content successfully removed",
                "False ContentHasNoFinalizers All content-preserving finalizers finished",
            ]
        );
        assert_eq!(status["conditions"].as_array().unwrap().len(), 6);
    }
}
