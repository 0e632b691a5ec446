//! CustomResourceDefinitions (`k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition`).

pub(super) mod validation;

use kubeapi::object_meta::change_metadata;
use serde_json::{Value, json};

use self::validation::{crd_warnings, validate_crd};
use super::{GenerationRule, KindRules, Object, ObjectUpdate, RemovalRule};
use crate::resources::Resource;

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    allows_unconditional_update: false,
    removal: RemovalRule::CustomResourceDefinition,
    prepare_new: |_, object| prepare_new(object),
    prepare_replacement,
    validate: validate_crd,
    warnings: |written| match written.subresource {
        "" => crd_warnings(written.old, written.object),
        _ => Vec::new(),
    },
    ..KindRules::of("apiextensions.k8s.io", "customresourcedefinitions")
};

/// Finalizer of a CRD that has objects.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Whether a resource is that of CustomResourceDefinitions.
pub fn is_crd(resource: &Resource) -> bool {
    resource.group_resource() == RULES.group_resource
}

/// Sets the first status of a new CRD.
fn prepare_new(object: &mut Object) {
    let stored = storage_version(object).map_or(Value::Null, |version| json!([version]));
    let status = json!({"acceptedNames": {"kind": "", "plural": ""}, "conditions": null, "storedVersions": stored});
    object.insert("status".to_owned(), status);
}

/// Keeps the part that is not written, and notes the storage version of a changed CRD.
fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    if update.subresource.is_empty() {
        add_stored_version(object);
    }
}

fn add_stored_version(object: &mut Object) {
    let Some(version) = storage_version(object) else { return };
    let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else { return };
    match status.get_mut("storedVersions") {
        Some(Value::Array(stored)) if stored.iter().any(|name| *name == version) => {}
        Some(Value::Array(stored)) => stored.push(version.into()),
        _ => drop(status.insert("storedVersions".to_owned(), json!([version]))),
    }
}

/// Marks a CRD for deletion: from now on its objects can only be deleted.
pub fn mark(object: &mut Object, now: &str) {
    change_metadata(object, |metadata| {
        let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
        if let Some(all) = finalizers.as_array_mut()
            && !all.iter().any(|name| name == CLEANUP_FINALIZER)
        {
            all.push(json!(CLEANUP_FINALIZER));
        }
    });
    set_terminating(
        object,
        now,
        "InstanceDeletionPending",
        "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
    );
}

/// Notes that objects of the CRD are being deleted and some remain.
pub fn mark_in_progress(object: &mut Object, now: &str) {
    set_terminating(object, now, "InstanceDeletionInProgress", "CustomResource deletion is in progress");
}

/// Sets the condition `Terminating` to true. Its time stays if it was true.
fn set_terminating(object: &mut Object, now: &str, reason: &str, message: &str) {
    let status = object.entry("status").or_insert_with(|| json!({}));
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    if let Some(conditions) = status["conditions"].as_array_mut() {
        let is_terminating = |one: &&Value| one["type"] == "Terminating" && one["status"] == "True";
        let since = conditions.iter().find(is_terminating).map_or(json!(now), |one| one["lastTransitionTime"].clone());
        conditions.retain(|one| one["type"] != "Terminating");
        conditions.push(json!({
            "type": "Terminating", "status": "True", "lastTransitionTime": since, "reason": reason, "message": message,
        }));
    }
}

fn storage_version(object: &Object) -> Option<String> {
    let versions = object.get("spec")?["versions"].as_array()?;
    versions.iter().find(|version| version["storage"] == true)?["name"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(storage: &str) -> Object {
        let object = json!({"spec": {"names": {"plural": "foos", "kind": "Foo"}, "versions": [
            {"name": "v1", "storage": storage == "v1"}, {"name": "v2", "storage": storage == "v2"},
        ]}});
        object.as_object().unwrap().clone()
    }

    #[test]
    fn crd_collects_stored_versions() {
        let mut object = crd("v1");
        prepare_new(&mut object);
        assert_eq!(object["status"]["storedVersions"], json!(["v1"]));
        let mut changed = crd("v2");
        changed.insert("status".to_owned(), object["status"].clone());
        add_stored_version(&mut changed);
        add_stored_version(&mut changed);
        assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
    }

    #[test]
    fn crd_marked_for_deletion_keeps_finalizer_and_condition() {
        let mut object = crd("v1");
        prepare_new(&mut object);
        mark(&mut object, "2026-01-01T00:00:00Z");
        assert_eq!(object["metadata"]["finalizers"], json!([CLEANUP_FINALIZER]));
        assert_eq!(object["status"]["conditions"][0]["reason"], "InstanceDeletionPending");
        mark_in_progress(&mut object, "2026-01-02T00:00:00Z");
        let condition = &object["status"]["conditions"][0];
        assert_eq!(condition["reason"], "InstanceDeletionInProgress");
        assert_eq!(condition["lastTransitionTime"], "2026-01-01T00:00:00Z");
        assert_eq!(object["status"]["conditions"].as_array().unwrap().len(), 1);
    }
}
