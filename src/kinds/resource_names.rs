//! Names and amounts of resources such as `cpu` and `requests.storage` (`pkg/apis/core/helper/helpers.go`,
//! `pkg/apis/core/validation/validation.go`).

use std::cmp::Ordering;

use kubeapi::field_error::{FieldError, FieldPath};
use kubeapi::names::check_qualified_name;
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::field_rules::typed_text;

/// Resources that a container has.
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Resources that a quota counts besides objects.
const QUOTA_AMOUNTS: [&str; 10] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// Objects that a quota counts.
const QUOTA_OBJECTS: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Whether a resource is one that quotas have (`IsStandardQuotaResourceName`).
pub(super) fn is_quota_resource(name: &str) -> bool {
    QUOTA_AMOUNTS.contains(&name)
        || QUOTA_OBJECTS.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

/// Whether a resource is Kubernetes' own (`IsNativeResource`).
pub(super) fn is_native_resource(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is one that a device plugin or the like defines (`IsExtendedResourceName`).
pub(super) fn is_extended_resource(name: &str) -> bool {
    !is_native_resource(name)
        && !name.starts_with("requests.")
        && check_qualified_name(&format!("requests.{name}")).is_empty()
}

/// Errors of the name of a resource (`ValidateResourceName`).
pub(super) fn resource_name_errors(path: FieldPath<'_>, name: &str) -> Vec<FieldError> {
    let invalid = |why: String| FieldError::invalid(path, typed_text(name), why);
    let mut errors: Vec<FieldError> = check_qualified_name(name).into_iter().map(invalid).collect();
    let is_standard = is_quota_resource(name) || name == "storage";
    if errors.is_empty() && !name.contains('/') && !is_standard {
        errors.push(invalid("must be a standard resource type or fully qualified".to_owned()));
    }
    errors
}

/// Errors of the name of a resource of containers (`ValidateContainerResourceName`).
pub(super) fn container_resource_errors(path: FieldPath<'_>, name: &str) -> Vec<FieldError> {
    let mut errors = resource_name_errors(path, name);
    let is_standard = CONTAINER_RESOURCES.contains(&name) || name.starts_with("hugepages-");
    let why = if !name.contains('/') {
        (!is_standard).then_some("must be a standard resource for containers")
    } else {
        let is_valid = is_native_resource(name) || is_extended_resource(name);
        (!is_valid).then_some("doesn't follow extended resource name standard")
    };
    errors.extend(why.map(|why| FieldError::invalid(path, typed_text(name), why)));
    errors
}

/// Errors of the name of a resource of a quota (`ValidateResourceQuotaResourceName`).
pub(super) fn quota_resource_errors(path: FieldPath<'_>, name: &str) -> Vec<FieldError> {
    let mut errors = resource_name_errors(path, name);
    if !name.contains('/') && !is_quota_resource(name) {
        errors.push(FieldError::invalid(path, typed_text(name), "must be a standard resource for quota"));
    }
    errors
}

/// The amounts of a list of resources; none for what is no quantity.
pub(super) fn amounts(list: &Value) -> impl Iterator<Item = (&str, Quantity)> {
    let amounts = list.as_object().into_iter().flatten();
    amounts.filter_map(|(name, amount)| Some((name.as_str(), Quantity::parse(amount.as_str()?).ok()?)))
}

/// The amount of one resource of a list.
pub(super) fn amount_of(list: &Value, name: &str) -> Option<Quantity> {
    Quantity::parse(list[name].as_str()?).ok()
}

/// The error of an amount that is negative (`ValidateNonnegativeQuantity`).
pub(super) fn negative_amount_error(path: FieldPath<'_>, amount: &Quantity) -> Option<FieldError> {
    let is_negative = amount.sign() == Ordering::Less;
    is_negative.then(|| FieldError::invalid(path, &amount.to_string(), "must be greater than or equal to 0"))
}

/// The error of an amount that is not positive (`ValidatePositiveQuantityValue`).
pub(super) fn unpositive_amount_error(path: FieldPath<'_>, amount: &Quantity) -> Option<FieldError> {
    let is_wrong = amount.sign() != Ordering::Greater;
    is_wrong.then(|| FieldError::invalid(path, &amount.to_string(), "must be greater than zero"))
}

/// Errors of the amount of a resource: objects and devices are counted (`ValidateResourceQuantityValue`).
pub(super) fn amount_errors(path: FieldPath<'_>, name: &str, amount: &Quantity) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = negative_amount_error(path, amount).into_iter().collect();
    let is_counted = QUOTA_OBJECTS.contains(&name) || is_extended_resource(name);
    if is_counted && amount.milli_value() % 1000 != 0 {
        errors.push(FieldError::invalid(path, typed_text(&amount.to_string()), "must be an integer"));
    }
    errors
}
