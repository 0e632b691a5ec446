//! Validation of objects by the rules of their kinds, with Kubernetes' texts and order (`k8s.io/apiserver/pkg/registry/rest/create.go` and `update.go`).

use kubeapi::Status;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath, invalid_fields_status};
use kubeapi::ip_address::ip_warning;
use kubeapi::names::NameRule;
use kubeapi::object_meta::{ObjectMetaView, validate_object_meta, validate_object_meta_update};
use kubeapi::schema::StepBudget;
use serde_json::{Map, Value};

use super::service_families::ServiceFamilies;
use super::{Object, rules};
use crate::registry;
use crate::resources::ServedKind;
use crate::resources::builtin::event_conversion::stored_resource;

pub(super) static NULL: Value = Value::Null;

pub(super) const METADATA: FieldPath<'static> = FieldPath::root("metadata");

/// Protocols of a port.
pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Settings of validation.
#[derive(Clone, Debug, Default)]
pub struct ValidationSettings {
    /// Limits of what an APIService may configure.
    pub registry: registry::Settings,
    /// Whether CustomResourceDefinitions may have rules, which are not enforced (`--allow-unenforced-rules`).
    pub allows_unenforced_rules: bool,
    /// Address families of Services (`--service-cluster-ip-range`).
    pub service_families: ServiceFamilies,
}

/// An object to validate, and the one that it replaces.
#[derive(Clone, Copy)]
pub(super) struct ValidationInput<'v> {
    pub(super) kind: &'v ServedKind,
    /// The subresource that is written; empty for the object itself.
    pub(super) subresource: &'v str,
    pub(super) object: &'v Object,
    pub(super) old: Option<&'v Object>,
    /// The same as values.
    pub(super) values: (&'v Value, Option<&'v Value>),
    pub(super) settings: &'v ValidationSettings,
    pub(super) budget: &'v dyn StepBudget,
}

/// Validates a new object, which is taken and put back: a schema is for values, and a large object is not copied.
///
/// # Errors
/// 422 for invalid metadata or fields, 504 if its schema takes too many steps.
pub fn validate_new(
    (settings, budget): (&ValidationSettings, &dyn StepBudget),
    (kind, subresource): (&ServedKind, &str),
    object: &mut Object,
) -> Result<(), Status> {
    with_value(object, |value, object| {
        let values = (value, None);
        let input = ValidationInput { kind, subresource, object, old: None, values, settings, budget };
        let mut errors = input.kind_errors();
        if errors.is_empty() {
            errors = input.common_errors();
        }
        input.result(errors)
    })
}

/// Validates an object that replaces `old`, which has a resourceVersion. Both are taken and put back.
///
/// # Errors
/// 422 for changes that are not allowed, and for invalid fields. 504 if its schema takes too many steps.
pub fn validate_replacement(
    (settings, budget): (&ValidationSettings, &dyn StepBudget),
    (kind, subresource): (&ServedKind, &str),
    old: &mut Object,
    object: &mut Object,
) -> Result<(), Status> {
    with_value(object, |value, object| {
        with_value(old, |old_value, old| {
            let values = (value, Some(old_value));
            let input = ValidationInput { kind, subresource, object, old: Some(old), values, settings, budget };
            let mut errors = input.common_errors();
            errors.append(input.kind_errors());
            input.result(errors)
        })
    })
}

/// The errors of an object by the rules of its kind, besides those that hold for every resource.
#[cfg(test)]
pub fn kind_errors(
    (settings, budget): (&ValidationSettings, &dyn StepBudget),
    (kind, subresource): (&ServedKind, &str),
    (old, object): (Option<&Object>, &Object),
) -> FieldErrors {
    let values = (&NULL, None);
    ValidationInput { kind, subresource, object, old, values, settings, budget }.kind_errors()
}

/// Calls `check` with an object as a value and as what it is, without a copy.
fn with_value<T>(object: &mut Map<String, Value>, check: impl FnOnce(&Value, &Map<String, Value>) -> T) -> T {
    let value = Value::Object(std::mem::take(object));
    let empty = Map::new();
    let result = check(&value, value.as_object().unwrap_or(&empty));
    if let Value::Object(checked) = value {
        *object = checked;
    }
    result
}

/// The errors of an object of which only the metadata have rules.
pub(super) fn validate_metadata(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    errors.append(input.metadata_errors());
    errors
}

impl<'v> ValidationInput<'v> {
    /// Errors by the rules of the kind.
    fn kind_errors(&self) -> FieldErrors {
        (rules(&self.kind.resource).validate)(self)
    }

    /// A field of the object; null if absent.
    pub(super) fn field(&self, name: &str) -> &'v Value {
        self.object.get(name).unwrap_or(&NULL)
    }

    /// A field of the object that is replaced; null if absent.
    pub(super) fn old_field(&self, name: &str) -> &'v Value {
        self.old.and_then(|old| old.get(name)).unwrap_or(&NULL)
    }

    pub(super) fn metadata(&self) -> ObjectMetaView<'v> {
        ObjectMetaView::of_map(self.object)
    }

    /// Errors of the metadata, which hold for every resource (`validateCommonFields`).
    fn common_errors(&self) -> FieldErrors {
        let is_namespaced = self.kind.resource.is_namespaced;
        let mut errors = validate_object_meta(self.metadata(), is_namespaced, NameRule::PathSegment, &METADATA);
        errors.append(self.metadata_change_errors());
        errors
    }

    /// Errors of the metadata by the resource's rule for names (`ValidateObjectMeta`).
    pub(super) fn metadata_errors(&self) -> FieldErrors {
        let resource = &self.kind.resource;
        let rule = rules(resource).name_rule;
        let mut errors = validate_object_meta(self.metadata(), resource.is_namespaced, rule, &METADATA);
        errors.append(finalizer_errors(self.metadata()));
        errors
    }

    /// Errors of the metadata by the resource's rule for names, without that for finalizers: some kinds call apimachinery's
    /// `ValidateObjectMeta`.
    pub(super) fn generic_metadata_errors(&self) -> FieldErrors {
        let resource = &self.kind.resource;
        let rule = rules(resource).name_rule;
        validate_object_meta(self.metadata(), resource.is_namespaced, rule, &METADATA)
    }

    /// Errors of the metadata beside that of the replaced object (`ValidateObjectMetaUpdate`); none for a new one.
    pub(super) fn metadata_update_errors(&self) -> FieldErrors {
        let mut errors = self.metadata_change_errors();
        if self.old.is_some() {
            errors.append(finalizer_errors(self.metadata()));
        }
        errors
    }

    pub(super) fn metadata_change_errors(&self) -> FieldErrors {
        let old = self.old.map(ObjectMetaView::of_map);
        old.map_or_else(FieldErrors::new, |old| validate_object_meta_update(self.metadata(), old, &METADATA))
    }

    fn result(&self, errors: FieldErrors) -> Result<(), Status> {
        if !self.budget.spend(0) {
            return Err(validation_too_long());
        }
        if errors.is_empty() {
            return Ok(());
        }
        let resource = stored_resource(&self.kind.resource);
        Err(invalid_fields_status(&resource.group, &resource.kind, self.metadata().name(), errors))
    }
}

/// 504 for an object whose validation by a schema was given up.
fn validation_too_long() -> Status {
    Status::timeout(
        "validation of the object takes too long: its values have too many alternatives or too large patterns in the \
         schema of the CustomResourceDefinition",
    )
}

/// Finalizers in the metadata without a domain that are no standard ones.
fn finalizer_errors(meta: ObjectMetaView<'_>) -> FieldErrors {
    let path = METADATA.child("finalizers");
    let finalizers = meta.finalizers().enumerate();
    finalizers.filter_map(|(index, name)| legacy_finalizer_error(&path.index(index), name)).collect()
}

/// The error of a finalizer without a domain that is no standard one (`validateKubeFinalizerName`).
pub(super) fn legacy_finalizer_error(path: &FieldPath<'_>, name: &str) -> Option<FieldError> {
    const STANDARD: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
    let is_wrong = !name.contains('/') && !STANDARD.contains(&name);
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    is_wrong.then(|| FieldError::invalid(path, name, why))
}

/// An error of a value for each sentence.
pub(super) fn invalid_for(
    path: FieldPath<'_>,
    value: &str,
    sentences: Vec<String>,
) -> impl Iterator<Item = FieldError> {
    sentences.into_iter().map(move |why| FieldError::invalid(path, value, why))
}

/// A text field; empty if absent.
pub(super) fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object[field].as_str().unwrap_or_default()
}

/// A list field; empty if absent.
pub(super) fn items<'v>(object: &'v Value, field: &str) -> &'v [Value] {
    object[field].as_array().map_or(&[], Vec::as_slice)
}

/// The texts of a list field.
pub(super) fn texts<'v>(object: &'v Value, field: &str) -> Vec<&'v str> {
    items(object, field).iter().filter_map(Value::as_str).collect()
}

/// The protocol of a port: required, and one of those that exist.
pub(super) fn protocol_error(port: &Value, path: &FieldPath<'_>) -> Option<FieldError> {
    match text(port, "protocol") {
        "" => Some(FieldError::required(path.child("protocol"), "")),
        protocol if PROTOCOLS.contains(&protocol) => None,
        protocol => Some(FieldError::not_supported(path.child("protocol"), protocol, &PROTOCOLS)),
    }
}

/// Warnings about addresses in a list of texts.
pub(super) fn address_warnings(object: &Value, field: &str, path: &FieldPath<'_>) -> Vec<String> {
    let addresses = items(object, field).iter().enumerate().filter_map(|(index, ip)| Some((index, ip.as_str()?)));
    addresses.filter_map(|(index, ip)| ip_warning(&path.index(index), ip)).collect()
}
