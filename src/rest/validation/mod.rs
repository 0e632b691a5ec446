//! Validation of objects by the rules of their kinds, with Kubernetes' texts and order
//! (`pkg/apis/*/validation`, `k8s.io/apiserver/pkg/registry/rest/create.go` and `update.go`).

mod api_service;
mod config_data;
mod definition;
mod endpoint_slice;
mod endpoints;
mod event;
mod lease;
mod namespace;
mod service;
mod service_addresses;
mod service_update;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub(super) use self::definition::definition_warnings;
pub(super) use self::service_addresses::cluster_ip_errors;

use super::custom_object;
use super::target::ObjectTarget;
use crate::kubeapi::Status;
use crate::kubeapi::field_error::{FieldError, FieldPath, invalid_fields_status};
use crate::kubeapi::names::NameRule;
use crate::kubeapi::object_meta::{ObjectMetaView, validate_object_meta, validate_object_meta_update};
use crate::registry;
use crate::resources::Resource;
use crate::resources::builtin::event_conversion::stored_resource;

static NULL: Value = Value::Null;

const METADATA: FieldPath<'static> = FieldPath::root("metadata");

/// Protocols of a port.
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Settings of validation.
#[derive(Clone, Debug, Default)]
pub struct ValidationSettings {
    /// Limits of what an APIService may configure.
    pub registry: registry::Settings,
    /// Whether CustomResourceDefinitions may have rules, which are not enforced (`--allow-unenforced-rules`).
    pub allows_unenforced_rules: bool,
}

/// An object to validate, and the one that it replaces.
#[derive(Clone, Copy)]
struct ValidationInput<'v> {
    target: &'v ObjectTarget<'v>,
    object: &'v Map<String, Value>,
    old: Option<&'v Map<String, Value>>,
    settings: &'v ValidationSettings,
}

/// Validates a new object.
///
/// # Errors
/// 422 for invalid metadata or fields.
pub(super) fn validate_new(
    settings: &ValidationSettings,
    target: &ObjectTarget<'_>,
    object: &Map<String, Value>,
) -> Result<(), Status> {
    let input = ValidationInput { target, object, old: None, settings };
    let mut errors = kind_errors(&input);
    if errors.is_empty() {
        errors = input.common_errors();
    }
    input.result(&errors)
}

/// Validates an object that replaces `old`, which has a resourceVersion.
///
/// # Errors
/// 422 for changes that are not allowed, and for invalid fields.
pub(super) fn validate_replacement(
    settings: &ValidationSettings,
    target: &ObjectTarget<'_>,
    old: &Map<String, Value>,
    object: &Map<String, Value>,
) -> Result<(), Status> {
    let input = ValidationInput { target, object, old: Some(old), settings };
    let mut errors = input.common_errors();
    errors.extend(kind_errors(&input));
    input.result(&errors)
}

/// The rule that names of the resource's objects must follow.
fn name_rule(resource: &Resource) -> NameRule {
    match resource.group_resource() {
        ("", "namespaces" | "services") => NameRule::DnsLabel,
        ("apiregistration.k8s.io", "apiservices") => NameRule::PathSegment,
        _ => NameRule::DnsSubdomain,
    }
}

/// The errors by the rules of the kind.
fn kind_errors(input: &ValidationInput<'_>) -> Vec<FieldError> {
    let target = input.target;
    if let Some(version) = target.kind.version.custom() {
        let resource = &target.kind.resource;
        if let Some(error) = custom_object::kind_error(&target.kind, input.object) {
            return vec![error];
        }
        let mut errors = match input.old {
            Some(_) => input.metadata_change_errors(),
            None => validate_object_meta(input.metadata(), resource.is_namespaced, name_rule(resource), &METADATA),
        };
        errors.extend(custom_object::validation_errors(version, target.subresource, input.old, input.object));
        return errors;
    }
    match (&*target.kind.resource.group, &*target.kind.resource.plural, target.subresource) {
        ("apiregistration.k8s.io", "apiservices", _) => api_service::validate_api_service(input),
        ("apiextensions.k8s.io", "customresourcedefinitions", subresource) => {
            definition::validate_definition(input, subresource)
        }
        ("", "configmaps", _) => config_data::validate_config_map(input),
        ("", "secrets", _) => config_data::validate_secret(input),
        ("", "namespaces", subresource) => namespace::validate_namespace(input, subresource),
        ("", "services", "status") => service::validate_service_status(input),
        ("", "services", _) => service::validate_service(input),
        ("", "endpoints", _) => endpoints::validate_endpoints(input),
        ("", "events", _) => event::validate_event(input, false),
        ("events.k8s.io", "events", _) => event::validate_event(input, true),
        ("coordination.k8s.io", "leases", _) => lease::validate_lease(input),
        ("discovery.k8s.io", "endpointslices", _) => endpoint_slice::validate_endpoint_slice(input),
        _ => {
            let mut errors = input.metadata_update_errors();
            errors.extend(input.metadata_errors());
            errors
        }
    }
}

impl<'v> ValidationInput<'v> {
    /// A field of the object; null if absent.
    fn field(&self, name: &str) -> &'v Value {
        self.object.get(name).unwrap_or(&NULL)
    }

    /// A field of the object that is replaced; null if absent.
    fn old_field(&self, name: &str) -> &'v Value {
        self.old.and_then(|old| old.get(name)).unwrap_or(&NULL)
    }

    fn metadata(&self) -> ObjectMetaView<'v> {
        ObjectMetaView::of_map(self.object)
    }

    /// Errors of the metadata, which hold for every resource (`validateCommonFields`).
    fn common_errors(&self) -> Vec<FieldError> {
        let is_namespaced = self.target.kind.resource.is_namespaced;
        let mut errors = validate_object_meta(self.metadata(), is_namespaced, NameRule::PathSegment, &METADATA);
        errors.extend(self.metadata_change_errors());
        errors
    }

    /// Errors of the metadata by the resource's rule for names (`ValidateObjectMeta`).
    fn metadata_errors(&self) -> Vec<FieldError> {
        let resource = &self.target.kind.resource;
        let rule = name_rule(resource);
        let mut errors = validate_object_meta(self.metadata(), resource.is_namespaced, rule, &METADATA);
        errors.extend(finalizer_errors(self.metadata()));
        errors
    }

    /// Errors of the metadata beside that of the replaced object (`ValidateObjectMetaUpdate`); none for a new one.
    fn metadata_update_errors(&self) -> Vec<FieldError> {
        let mut errors = self.metadata_change_errors();
        if self.old.is_some() {
            errors.extend(finalizer_errors(self.metadata()));
        }
        errors
    }

    fn metadata_change_errors(&self) -> Vec<FieldError> {
        let old = self.old.map(ObjectMetaView::of_map);
        old.map_or_else(Vec::new, |old| validate_object_meta_update(self.metadata(), old, &METADATA))
    }

    fn result(&self, errors: &[FieldError]) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        let resource = stored_resource(&self.target.kind.resource);
        Err(invalid_fields_status(&resource.group, &resource.kind, self.metadata().name(), errors))
    }
}

/// Finalizers in the metadata without a domain that are no standard ones.
fn finalizer_errors(meta: ObjectMetaView<'_>) -> Vec<FieldError> {
    let path = METADATA.child("finalizers");
    let finalizers = meta.finalizers().enumerate();
    finalizers.filter_map(|(index, name)| legacy_finalizer_error(&path.index(index), name)).collect()
}

/// The error of a finalizer without a domain that is no standard one (`validateKubeFinalizerName`).
fn legacy_finalizer_error(path: &FieldPath<'_>, name: &str) -> Option<FieldError> {
    const STANDARD: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
    let is_wrong = !name.contains('/') && !STANDARD.contains(&name);
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    is_wrong.then(|| FieldError::invalid(path, name, why))
}

/// An error of a value for each sentence.
fn invalid_for(path: FieldPath<'_>, value: &str, sentences: Vec<String>) -> impl Iterator<Item = FieldError> {
    sentences.into_iter().map(move |why| FieldError::invalid(path, value, why))
}

/// A text field; empty if absent.
fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object[field].as_str().unwrap_or_default()
}

/// A list field; empty if absent.
fn items<'v>(object: &'v Value, field: &str) -> &'v [Value] {
    object[field].as_array().map_or(&[], Vec::as_slice)
}

/// The texts of a list field.
fn texts<'v>(object: &'v Value, field: &str) -> Vec<&'v str> {
    items(object, field).iter().filter_map(Value::as_str).collect()
}

/// The protocol of a port: required, and one of those that exist.
fn protocol_error(port: &Value, path: &FieldPath<'_>) -> Option<FieldError> {
    match text(port, "protocol") {
        "" => Some(FieldError::required(path.child("protocol"), "")),
        protocol if PROTOCOLS.contains(&protocol) => None,
        protocol => Some(FieldError::not_supported(path.child("protocol"), protocol, &PROTOCOLS)),
    }
}
