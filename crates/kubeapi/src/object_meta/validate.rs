//! Validation of `metadata` at creation and update, with Kubernetes' texts and order.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use super::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER, ObjectMetaView, OwnerReferenceView};
use crate::GoQuoted;
use crate::field_error::{BadValue, BoundedText, FieldError, FieldErrors, FieldPath};
use crate::json::quote_json_into;
use crate::names::{NameRule, check_label_value, check_qualified_name};

/// Maximum size of all annotations in bytes, keys and values.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Maximum length of a field manager's name in bytes.
const MAX_MANAGER: usize = 128;
/// Maximum size of the finalizers that an error lists, in bytes.
const MAX_LISTED: usize = 16 << 10;
/// Maximum length of a subresource's name in `managedFields`, in bytes.
const MAX_SUBRESOURCE: usize = 256;

/// Validates the metadata of a new object, whose name has been generated if need be
/// (`ValidateObjectMetaAccessor`). `path` is that of the metadata.
pub fn validate_object_meta(
    meta: ObjectMetaView<'_>,
    is_namespaced: bool,
    rule: NameRule,
    path: &FieldPath<'_>,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let base = meta.generate_name();
    if !base.is_empty() {
        errors.extend(
            rule.check(base, true).into_iter().map(|e| FieldError::invalid(path.child("generateName"), base, e)),
        );
    }
    let name = meta.name();
    if name.is_empty() {
        errors.push(FieldError::required(path.child("name"), "name or generateName is required"));
    } else {
        errors.extend(rule.check(name, false).into_iter().map(|e| FieldError::invalid(path.child("name"), name, e)));
    }
    let (namespace, at) = (meta.namespace(), path.child("namespace"));
    match (is_namespaced, namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(at, "")),
        (true, false) => {
            let sentences = NameRule::DnsLabel.check(namespace, false);
            errors.extend(sentences.into_iter().map(|e| FieldError::invalid(at, namespace, e)));
        }
        (false, false) => errors.push(FieldError::forbidden(at, "not allowed on this type")),
        (false, true) => {}
    }
    if meta.generation() < 0 {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(path.child("generation"), meta.generation(), why));
    }
    validate_labels(meta.labels(), &path.child("labels"), &mut errors);
    validate_annotations(meta.annotations(), &path.child("annotations"), &mut errors);
    check_owners(meta, path, &mut errors);
    check_finalizers(meta, path, &mut errors);
    check_managed_fields(meta, path, &mut errors);
    errors
}

/// Validates the metadata of an object that replaces `old` (`ValidateObjectMetaAccessorUpdate`). `path` is that of the
/// metadata.
pub fn validate_object_meta_update(
    new: ObjectMetaView<'_>,
    old: ObjectMetaView<'_>,
    path: &FieldPath<'_>,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if old.deletion_timestamp().is_some() {
        let had: HashSet<&str> = old.finalizers().collect();
        let added: BTreeSet<&str> = new.finalizers().filter(|one| !had.contains(one)).collect();
        if !added.is_empty() {
            let mut list = String::new();
            let mut out = BoundedText::new(&mut list, MAX_LISTED);
            for (at, one) in added.iter().enumerate() {
                // Writing to a String cannot fail.
                let _ = write!(out, "{}{}", if at > 0 { ", " } else { "" }, GoQuoted(one));
            }
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
            );
            errors.push(FieldError::forbidden(path.child("finalizers"), why));
        }
    }
    if new.resource_version().is_empty() {
        errors.push(FieldError::invalid(path.child("resourceVersion"), "", "must be specified for an update"));
    }
    if new.generation() < old.generation() {
        errors.push(FieldError::invalid(path.child("generation"), new.generation(), "must not be decremented"));
    }
    let mut keep = |field: &str, value: BadValue, is_kept: bool| {
        if !is_kept {
            errors.push(FieldError::invalid(path.child(field), value, "field is immutable"));
        }
    };
    keep("name", new.name().into(), new.name() == old.name());
    keep("namespace", new.namespace().into(), new.namespace() == old.namespace());
    keep("uid", new.uid().into(), new.uid() == old.uid());
    let time = |time: Option<&str>| time.filter(|time| !time.is_empty()).map_or(BadValue::null(), BadValue::from);
    let (created, was_created) = (new.creation_timestamp(), old.creation_timestamp());
    keep("creationTimestamp", time(Some(created)), created == was_created);
    let (deleted, was_deleted) = (new.deletion_timestamp(), old.deletion_timestamp());
    keep("deletionTimestamp", time(deleted), deleted == was_deleted);
    let (grace, old_grace) = (new.deletion_grace_period_seconds(), old.deletion_grace_period_seconds());
    keep("deletionGracePeriodSeconds", grace.map_or(BadValue::null(), BadValue::from), grace == old_grace);
    validate_labels(new.labels(), &path.child("labels"), &mut errors);
    validate_annotations(new.annotations(), &path.child("annotations"), &mut errors);
    check_owners(new, path, &mut errors);
    check_managed_fields(new, path, &mut errors);
    errors
}

/// Validates the keys and values of labels, or of a selector of labels (`ValidateLabels`).
pub fn validate_labels<'l>(
    labels: impl Iterator<Item = (&'l str, &'l str)>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    for (key, value) in labels {
        errors.extend(check_qualified_name(key).into_iter().map(|e| FieldError::invalid(path, key, e)));
        errors.extend(check_label_value(value).into_iter().map(|e| FieldError::invalid(path, value, e)));
    }
}

/// Appends the errors of annotations (`ValidateAnnotations`).
pub fn validate_annotations<'a>(
    annotations: impl Iterator<Item = (&'a str, &'a str)>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let mut size = 0;
    for (key, value) in annotations {
        size += key.len() + value.len();
        // The case of the prefix does not matter, unlike that of a label.
        let sentences = check_qualified_name(&key.to_lowercase());
        errors.extend(sentences.into_iter().map(|e| FieldError::invalid(path, key, e)));
    }
    if size > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(path, MAX_ANNOTATIONS));
    }
}

fn check_owners(meta: ObjectMetaView<'_>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let path = path.child("ownerReferences");
    let mut controller: Option<String> = None;
    let mut all: Option<BadValue> = None;
    for owner in meta.owners() {
        let (group, version) = owner.api_version.rsplit_once('/').unwrap_or(("", owner.api_version));
        if version.is_empty() || group.contains('/') {
            errors.push(FieldError::invalid(path.child("apiVersion"), owner.api_version, "version must not be empty"));
        }
        for (field, value) in [("kind", owner.kind), ("name", owner.name), ("uid", owner.uid)] {
            if value.is_empty() {
                errors.push(FieldError::invalid(path.child(field), value, "must not be empty"));
            }
        }
        if (owner.api_version, owner.kind) == ("v1", "Event") {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(path, BadValue::from_json(owner_json(&owner)), why));
        }
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let why = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} \
                         and {this}"
                    );
                    let all = all.get_or_insert_with(|| {
                        let owners: Vec<String> = meta.owners().map(|owner| owner_json(&owner)).collect();
                        BadValue::from_json(format!("[{}]", owners.join(",")))
                    });
                    errors.push(FieldError::invalid(path, all.clone(), why));
                }
            }
        }
    }
}

/// The owner as Go writes it, in the order of its fields.
fn owner_json(owner: &OwnerReferenceView<'_>) -> String {
    let mut json = String::new();
    let texts = [("apiVersion", owner.api_version), ("kind", owner.kind), ("name", owner.name), ("uid", owner.uid)];
    for (key, value) in texts {
        json.push_str(if json.is_empty() { "{\"" } else { ",\"" });
        json.push_str(key);
        json.push_str("\":");
        quote_json_into(&mut json, value);
    }
    for (key, flag) in [("controller", owner.controller), ("blockOwnerDeletion", owner.block_owner_deletion)] {
        if let Some(flag) = flag {
            json.push_str(&format!(",\"{key}\":{flag}"));
        }
    }
    json.push('}');
    json
}

fn check_finalizers(meta: ObjectMetaView<'_>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let path = path.child("finalizers");
    for finalizer in meta.finalizers() {
        let sentences = check_qualified_name(finalizer);
        errors.extend(sentences.into_iter().map(|e| FieldError::invalid(path, finalizer, e)));
    }
    let has = |finalizer: &str| meta.finalizers().any(|one| one == finalizer);
    if has(ORPHAN_FINALIZER) && has(FOREGROUND_FINALIZER) {
        let all: Vec<String> = meta.finalizers().map(str::to_owned).collect();
        let why = format!("finalizer {ORPHAN_FINALIZER} and {FOREGROUND_FINALIZER} cannot be both set");
        errors.push(FieldError::invalid(path, all.as_slice(), why));
    }
}

fn check_managed_fields(meta: ObjectMetaView<'_>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let path = path.child("managedFields");
    for (index, entry) in meta.managed_fields().iter().enumerate() {
        let path = path.index(index);
        let text = |key: &str| entry.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let (operation, fields_type) = (text("operation"), text("fieldsType"));
        if !matches!(operation, "Apply" | "Update") {
            errors.push(FieldError::invalid(path.child("operation"), operation, "must be `Apply` or `Update`"));
        }
        if !matches!(fields_type, "" | "FieldsV1") {
            errors.push(FieldError::invalid(path.child("fieldsType"), fields_type, "must be `FieldsV1`"));
        }
        check_field_manager(text("manager"), &path.child("manager"), errors);
        if text("subresource").len() > MAX_SUBRESOURCE {
            errors.push(FieldError::too_long(path.child("subresource"), MAX_SUBRESOURCE));
        }
    }
}

/// Validates the name of a field manager (`ValidateFieldManager`): at most 128 bytes, printable.
pub fn check_field_manager(manager: &str, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if manager.len() > MAX_MANAGER {
        errors.push(FieldError::too_long(path, MAX_MANAGER));
    }
    let mut shown: Option<BadValue> = None;
    for (at, c) in manager.char_indices().filter(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(c));
        let value = shown.get_or_insert_with(|| manager.into()).clone();
        errors.push(FieldError::invalid(path, value, why));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const PATH: FieldPath<'static> = FieldPath::root("metadata");

    fn with_metadata(metadata: Value) -> Value {
        Value::Object([("metadata".to_owned(), metadata)].into_iter().collect())
    }

    fn created(metadata: Value, is_namespaced: bool) -> Vec<String> {
        let object = with_metadata(metadata);
        let errors = validate_object_meta(ObjectMetaView::of(&object), is_namespaced, NameRule::DnsSubdomain, &PATH);
        errors.iter().map(ToString::to_string).collect()
    }

    fn updated(new: Value, old: Value) -> Vec<String> {
        let (new, old) = (with_metadata(new), with_metadata(old));
        let errors = validate_object_meta_update(ObjectMetaView::of(&new), ObjectMetaView::of(&old), &PATH);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn object_meta_create_errors_match_upstream() {
        assert_eq!(created(json!({"name": "a"}), false), Vec::<String>::new());
        assert_eq!(created(json!({}), true), {
            ["metadata.name: Required value: name or generateName is required", "metadata.namespace: Required value"]
        });
        assert_eq!(created(json!({"name": "a", "namespace": "n"}), false), {
            ["metadata.namespace: Forbidden: not allowed on this type"]
        });
        assert_eq!(
            created(json!({"name": "a", "namespace": "n.m", "generation": -1}), true),
            [
                "metadata.namespace: Invalid value: \"n.m\": must not contain dots",
                "metadata.generation: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
        assert_eq!(
            created(json!({"name": "a", "finalizers": ["orphan", "foregroundDeletion"]}), false),
            [
                "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set",
            ]
        );
        assert_eq!(created(json!({"name": "a", "labels": {"": "x"}}), false)[0], {
            "metadata.labels: Invalid value: \"\": name part must be non-empty"
        });
        assert_eq!(created(json!({"name": "a", "annotations": {"Example.com/a": "x"}}), false), Vec::<String>::new());
        assert_eq!(created(json!({"name": "a", "annotations": {"a": "x".repeat(256 * 1024)}}), false), {
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        });
        assert_eq!(
            created(json!({"name": "a", "managedFields": [{"manager": "a\u{7}", "operation": "x"}]}), false),
            [
                "metadata.managedFields[0].operation: Invalid value: \"x\": must be `Apply` or `Update`",
                "metadata.managedFields[0].manager: Invalid value: \"a\\a\": invalid character U+0007 (at position 1)",
            ]
        );
    }

    #[test]
    fn object_meta_owner_errors_match_upstream() {
        let owner = |version: &str, kind: &str, controller: bool| json!({"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "controller": controller});
        assert_eq!(
            created(json!({"name": "a", "ownerReferences": [{}]}), false),
            [
                "metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty",
                "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ]
        );
        assert_eq!(
            created(json!({"name": "a", "ownerReferences": [owner("v1", "Event", false)]}), false),
            [
                "metadata.ownerReferences: Invalid value: {\"apiVersion\":\"v1\",\"kind\":\"Event\",\"name\":\"o\",\"uid\":\"u\",\"controller\":false}: /v1, Kind=Event is disallowed from being an owner",
            ]
        );
        let two =
            created(json!({"name": "a", "ownerReferences": [owner("v1", "A", true), owner("v1", "B", true)]}), false);
        assert!(two[0].ends_with(
            "Only one reference can have Controller set to true. Found \"true\" in references for A/o and B/o"
        ));
    }

    #[test]
    fn object_meta_update_errors_match_upstream() {
        let old = json!({
            "name": "a", "uid": "u", "resourceVersion": "1", "generation": 2, "finalizers": ["x"],
            "creationTimestamp": "2030-01-01T00:00:00Z", "deletionTimestamp": "2030-01-02T00:00:00Z",
        });
        assert_eq!(updated(old.clone(), old.clone()), Vec::<String>::new());
        let mut new = old.clone();
        new["finalizers"] = json!(["z", "x", "y"]);
        new["resourceVersion"] = json!("");
        new["generation"] = json!(1);
        new["uid"] = json!("v");
        new["deletionTimestamp"] = json!(null);
        new["deletionGracePeriodSeconds"] = json!(5);
        assert_eq!(
            updated(new, old),
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"y\", \"z\"}",
                "metadata.resourceVersion: Invalid value: \"\": must be specified for an update",
                "metadata.generation: Invalid value: 1: must not be decremented",
                "metadata.uid: Invalid value: \"v\": field is immutable",
                "metadata.deletionTimestamp: Invalid value: null: field is immutable",
                "metadata.deletionGracePeriodSeconds: Invalid value: 5: field is immutable",
            ]
        );
    }
}
