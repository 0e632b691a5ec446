//! Fields that field selectors may name: the labels of each kind (`AddFieldLabelConversionFunc` in
//! `pkg/apis/*/conversion.go`), and where their values are (`ToSelectableFields` in `pkg/registry/*/strategy.go`).

use std::collections::BTreeSet;

use kubeapi::GoQuoted;
use kubeapi::protobuf::table::GoType;
use store::watch_cache::DeclaredField;

use super::rules;
use crate::resources::builtin::builtin_kinds;
use crate::resources::builtin::event_conversion::stored_field_name;
use crate::resources::{Resource, ServedKind};

/// Fields of a built-in kind that field selectors may name besides the name and the namespace.
pub struct SelectableFields {
    /// Their labels.
    pub labels: &'static [&'static str],
    /// Other names that clients have for labels.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Where the values of labels are, if elsewhere: the first that is present counts.
    pub paths: &'static [(&'static str, &'static [&'static str])],
    /// The text for a label that the kind does not have.
    pub unsupported: fn(&ServedKind, &str) -> String,
}

impl SelectableFields {
    /// None.
    pub(super) const NONE: SelectableFields = SelectableFields {
        labels: &[],
        aliases: &[],
        paths: &[],
        unsupported: |_, label| format!("field label not supported: {label}"),
    };

    /// Fields whose labels are where their values are.
    pub(super) const fn of(labels: &'static [&'static str]) -> SelectableFields {
        SelectableFields { labels, ..SelectableFields::NONE }
    }
}

/// The declared field of which a selector's label is one name.
///
/// # Errors
/// Kubernetes' text for a label that the kind does not have.
pub fn resolve_label(kind: &ServedKind, label: &str) -> Result<String, String> {
    let resource = &*kind.resource;
    let (own_labels, selectable) = (own_labels(kind), &rules(resource).selectable);
    // Kinds without labels of their own take both names of metadata, whatever their scope.
    let has_namespace = resource.is_namespaced || resource.custom.is_none() && own_labels.is_empty();
    if label == "metadata.name" || label == "metadata.namespace" && has_namespace {
        return Ok(label.to_owned());
    }
    if let Some((_, name)) = selectable.aliases.iter().find(|(alias, _)| *alias == label) {
        return Ok((*name).to_owned());
    }
    if own_labels.contains(&label) {
        return Ok(stored_field_name(resource, label));
    }
    if own_labels.is_empty() && resource.custom.is_none() {
        let quoted = GoQuoted(label);
        return Err(format!("{quoted} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""));
    }
    Err((selectable.unsupported)(kind, label))
}

/// The text of a kind that names itself.
pub(super) fn unsupported_with_kind(kind: &ServedKind, label: &str) -> String {
    format!("field label not supported for {}, Kind={}: {label}", kind.api_version(), kind.resource.kind)
}

/// The fields of stored objects that selectors of some version may name.
pub fn declared_fields(resource: &Resource) -> Vec<DeclaredField> {
    stored_labels(resource).into_iter().map(|label| declare(resource, label)).collect()
}

/// Labels of some version, by their names in the stored one.
pub fn stored_labels(resource: &Resource) -> BTreeSet<&str> {
    match &resource.custom {
        Some(custom) => {
            custom.versions.iter().flat_map(|version| &version.selectable_fields).map(String::as_str).collect()
        }
        None => rules(resource).selectable.labels.iter().copied().collect(),
    }
}

/// A field of a stored object. One of a built-in kind that is absent has the zero value of its type in Go; one of a custom
/// resource is empty.
fn declare(resource: &Resource, label: &str) -> DeclaredField {
    if resource.custom.is_some() {
        return DeclaredField::new(label, &[label]);
    }
    let elsewhere = rules(resource).selectable.paths.iter().find(|(name, _)| *name == label);
    let paths = elsewhere.map_or(std::slice::from_ref(&label), |(_, paths)| paths);
    let zero = paths.first().map_or("", |path| zero_value(resource, path));
    DeclaredField::new(label, paths).with_zero_value(zero)
}

/// What Go writes of an absent field: `false` and `0`, nothing for a text or a pointer.
fn zero_value(resource: &Resource, path: &str) -> &'static str {
    let messages = &builtin_kinds().messages;
    let mut message = resource.versions.first().and_then(|version| version.message());
    let mut field_type = None;
    for name in path.split('.') {
        field_type = message.and_then(|id| messages.field(id, name)).map(|(field, _)| &field.go_type);
        message = match field_type.map(GoType::target) {
            Some(GoType::Message(id)) => Some(*id),
            _ => None,
        };
    }
    match field_type {
        Some(GoType::Bool) => "false",
        Some(GoType::Int32 | GoType::Int64) => "0",
        _ => "",
    }
}

/// Labels of a version besides `metadata.name` and `metadata.namespace`.
fn own_labels(kind: &ServedKind) -> Vec<&str> {
    match kind.version.custom() {
        Some(version) => version.selectable_fields.iter().map(String::as_str).collect(),
        None => rules(&kind.resource).selectable.labels.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(group: &str, version: &str, plural: &str) -> ServedKind {
        builtin_kinds().find(group, version, plural).unwrap()
    }

    /// What a selector of a label compares with, for an object of a resource.
    fn value_of(group: &str, version: &str, plural: &str, label: &str, object: &serde_json::Value) -> String {
        let kind = kind(group, version, plural);
        let name = resolve_label(&kind, label).unwrap();
        let stored = crate::resources::builtin::event_conversion::stored_resource(&kind.resource);
        let field = declared_fields(stored).into_iter().find(|field| field.name() == name).unwrap();
        field.value(object.to_string().as_bytes())
    }

    #[test]
    fn selectable_fields_that_are_absent_have_zero_values() {
        let empty = json!({"metadata": {"name": "a"}});
        for (group, version, plural, label, zero) in [
            ("", "v1", "nodes", "spec.unschedulable", "false"),
            ("", "v1", "pods", "spec.hostNetwork", "false"),
            ("", "v1", "pods", "spec.nodeName", ""),
            ("", "v1", "pods", "spec.host", ""),
            ("", "v1", "pods", "status.phase", ""),
            ("", "v1", "pods", "status.podIP", ""),
            ("", "v1", "pods", "status.podIPs", ""),
            ("", "v1", "replicationcontrollers", "status.replicas", "0"),
            ("", "v1", "secrets", "type", ""),
            ("", "v1", "services", "spec.clusterIP", ""),
            ("", "v1", "events", "source", ""),
            ("batch", "v1", "jobs", "status.successful", "0"),
            ("events.k8s.io", "v1", "events", "regarding.uid", ""),
            ("resource.k8s.io", "v1", "resourceslices", "spec.nodeName", ""),
        ] {
            assert_eq!(value_of(group, version, plural, label, &empty), zero, "{plural} {label}");
        }
    }

    #[test]
    fn selectable_fields_are_read_where_upstream_reads_them() {
        let pod = json!({"spec": {"hostNetwork": true, "nodeName": "n"}, "status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "::1"}]}});
        for (label, value) in
            [("spec.hostNetwork", "true"), ("spec.host", "n"), ("status.podIP", "10.0.0.1"), ("status.podIPs", "")]
        {
            assert_eq!(value_of("", "v1", "pods", label, &pod), value, "{label}");
        }
        let pod = json!({"status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.1"}]}});
        assert_eq!(value_of("", "v1", "pods", "status.podIP", &pod), "10.0.0.2");
        let job = json!({"status": {"succeeded": 3, "successful": 4}});
        assert_eq!(value_of("batch", "v1", "jobs", "status.successful", &job), "3");
        let event = json!({"source": {}, "reportingComponent": "r", "involvedObject": {"uid": "u"}});
        assert_eq!(value_of("", "v1", "events", "source", &event), "r");
        assert_eq!(value_of("events.k8s.io", "v1", "events", "regarding.uid", &event), "u");
        assert_eq!(value_of("events.k8s.io", "v1", "events", "reportingController", &event), "r");
    }

    #[test]
    fn field_label_of_no_field_is_refused_with_upstream_text() {
        let known = |label: &str| {
            Err(format!("{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""))
        };
        let unsupported = |label: &str| Err(format!("field label not supported: {label}"));
        for (group, version, plural, label, expected) in [
            ("", "v1", "configmaps", "x", known("x")),
            ("apps", "v1", "replicasets", "status.replicas", known("status.replicas")),
            ("", "v1", "persistentvolumes", "metadata.namespace", Ok("metadata.namespace".to_owned())),
            ("", "v1", "nodes", "metadata.namespace", unsupported("metadata.namespace")),
            ("", "v1", "namespaces", "name", unsupported("name")),
            ("", "v1", "pods", "spec.hostname", unsupported("spec.hostname")),
            ("events.k8s.io", "v1", "events", "source", unsupported("source")),
            ("", "v1", "events", "regarding.uid", unsupported("regarding.uid")),
            (
                "batch",
                "v1",
                "jobs",
                "status.succeeded",
                Err("field label \"status.succeeded\" not supported for Job".to_owned()),
            ),
            (
                "resource.k8s.io",
                "v1",
                "resourceslices",
                "metadata.namespace",
                Err("field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: metadata.namespace"
                    .to_owned()),
            ),
        ] {
            assert_eq!(resolve_label(&kind(group, version, plural), label), expected, "{plural} {label}");
        }
    }
}
