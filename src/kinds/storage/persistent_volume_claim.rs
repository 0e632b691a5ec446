//! PersistentVolumeClaims (`pkg/registry/core/persistentvolumeclaim/strategy.go`, `pkg/api/persistentvolumeclaim/util.go`).

use kubeapi::GoQuoted;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain, check_qualified_name};
use kubeapi::object_meta::ObjectMetaView;
use kubeapi::quantity::Quantity;
use serde_json::{Value, json};

use super::{
    CLASS_ANNOTATION, access_mode_errors, class_of, format_access_modes, printed_phase, text_or_unset,
    volume_mode_error,
};
use crate::kinds::cells::{CellPrinter, text_at};
use crate::kinds::field_rules::{
    IMMUTABLE, immutable_error, is_invalid_selector, is_same, label_selector_errors, typed_text,
};
use crate::kinds::initial_status::reset_status;
use crate::kinds::internal_json::internal_diff;
use crate::kinds::resource_names::{amount_errors, amount_of, amounts, is_native_resource, unpositive_amount_error};
use crate::kinds::validation::{ValidationInput, invalid_for, items, text};
use crate::kinds::{KindRules, Object, ObjectUpdate, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    returns_deleted_object: true,
    prepare_new: |kind, object| {
        reset_status(kind, object, &json!({}));
        unite_data_sources(object, false);
    },
    prepare_replacement,
    validate: |input| match input.subresource {
        "status" => validate_status(input),
        _ => validate_claim(input),
    },
    warnings: claim_warnings,
    cells: print_claim,
    ..KindRules::of("", "persistentvolumeclaims")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    if update.subresource.is_empty() {
        let old_spec = update.old.get("spec").unwrap_or(&Value::Null);
        let is_in_use = !old_spec["dataSource"].is_null() || !old_spec["dataSourceRef"].is_null();
        unite_data_sources(object, is_in_use);
    }
}

/// Drops a data source of an unknown kind, and one in another namespace, unless the claim had one before. Completes
/// `dataSource` and `dataSourceRef` from each other (`EnforceDataSourceBackwardsCompatibility`, `NormalizeDataSources`).
fn unite_data_sources(object: &mut Object, is_in_use: bool) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let field = |spec: &Object, name: &str| spec.get(name).cloned().unwrap_or_default();
    let in_namespace = |reference: &Value| !text(reference, "namespace").is_empty();
    if in_namespace(&field(spec, "dataSourceRef")) && !is_in_use {
        spec.remove("dataSourceRef");
    }
    let source = field(spec, "dataSource");
    let is_known = match (text(&source, "kind"), text(&source, "apiGroup")) {
        ("PersistentVolumeClaim", group) => group.is_empty(),
        ("VolumeSnapshot", group) => group == "snapshot.storage.k8s.io",
        _ => false,
    };
    if !is_in_use && field(spec, "dataSourceRef").is_null() && !is_known {
        spec.remove("dataSource");
    }
    let (source, reference) = (field(spec, "dataSource"), field(spec, "dataSourceRef"));
    let without_namespace = |mut reference: Value| {
        if let Some(reference) = reference.as_object_mut() {
            reference.remove("namespace");
        }
        reference
    };
    match (source.is_null(), reference.is_null()) {
        (false, true) => drop(spec.insert("dataSourceRef".to_owned(), source)),
        (true, false) if !in_namespace(&reference) => {
            spec.insert("dataSource".to_owned(), without_namespace(reference));
        }
        _ => {}
    }
}

/// Validates a PersistentVolumeClaim.
fn validate_claim(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    errors.append(input.metadata_errors());
    errors.append(spec_errors(input.field("spec"), input.old_field("spec")));
    if input.old.is_some() {
        errors.append(change_errors(input));
    }
    errors
}

fn spec_errors(spec: &Value, old_spec: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if items(spec, "accessModes").is_empty() {
        errors.push(FieldError::required(SPEC.child("accessModes"), "at least 1 access mode is required"));
    }
    let allows_any_value = is_invalid_selector(&old_spec["selector"]);
    errors.append(label_selector_errors(&spec["selector"], allows_any_value, &SPEC.child("selector")));
    errors.append(access_mode_errors(spec, &SPEC));
    let resources = SPEC.child("resources");
    let path = resources.key("storage");
    match amount_of(&spec["resources"]["requests"], "storage") {
        None => errors.push(FieldError::required(path, "")),
        Some(amount) => match unpositive_amount_error(path, &amount) {
            Some(error) => errors.push(error),
            None => errors.extend(amount_errors(path, "storage", &amount)),
        },
    }
    if let Some(class) = spec["storageClassName"].as_str().filter(|class| !class.is_empty()) {
        errors.extend(invalid_for(SPEC.child("storageClassName"), class, check_dns1123_subdomain(class)));
    }
    errors.extend(volume_mode_error(spec, &SPEC));
    errors.append(data_source_errors(spec, old_spec));
    if let Some(class) = spec["volumeAttributesClassName"].as_str().filter(|class| !class.is_empty()) {
        let path = SPEC.child("volumeAttributesClassName");
        errors.extend(invalid_for(path, class, check_dns1123_subdomain(class)));
    }
    errors
}

fn data_source_errors(spec: &Value, old_spec: &Value) -> FieldErrors {
    const FIELDS: [&str; 2] = ["dataSource", "dataSourceRef"];
    let allows_any_group = FIELDS.into_iter().any(|field| !old_spec[field]["apiGroup"].is_null());
    let mut errors = FieldErrors::new();
    for field in FIELDS.into_iter().filter(|field| !spec[*field].is_null()) {
        let (source, path) = (&spec[field], SPEC.child(field));
        let (kind, group) = (text(source, "kind"), text(source, "apiGroup"));
        let empty = ["name", "kind"].into_iter().filter(|field| text(source, field).is_empty());
        errors.extend(empty.map(|field| FieldError::required(path.child(field), "")));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(path, kind, why));
        }
        if !group.is_empty() && !allows_any_group {
            errors.extend(invalid_for(path.child("apiGroup"), group, check_dns1123_subdomain(group)));
        }
        let namespace = text(source, "namespace");
        if field == "dataSourceRef" && !namespace.is_empty() {
            errors.extend(invalid_for(path.child("namespace"), namespace, check_dns1123_label(namespace)));
        }
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if source.is_null() || reference.is_null() {
        return errors;
    }
    // The value that Go shows is a path, which has no fields that it writes.
    let shown = || BadValue::from_json("{}".to_owned());
    let is_equal = ["apiGroup", "kind", "name"].into_iter().all(|field| source[field] == reference[field]);
    if !text(reference, "namespace").is_empty() {
        let why = "may not be specified when dataSourceRef.namespace is specified";
        errors.push(FieldError::invalid(SPEC, shown(), why));
    } else if !is_equal {
        errors.push(FieldError::invalid(SPEC, shown(), "must match dataSourceRef"));
    }
    errors
}

/// What may change in the specification.
const CHANGEABLE: &str = "resources.requests and volumeAttributesClassName for bound claims";

fn change_errors(input: &ValidationInput<'_>) -> FieldErrors {
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    let (status, old_status) = (input.field("status"), input.old_field("status"));
    let meta = input.metadata();
    let old_meta = input.old.map(ObjectMetaView::of_map);
    let (annotation, old_annotation) =
        (meta.annotation(CLASS_ANNOTATION), old_meta.and_then(|meta| meta.annotation(CLASS_ANNOTATION)));
    let mut errors = FieldErrors::new();
    let (mut new, mut old) = (spec.clone(), old_spec.clone());
    let copy = |from: &Value, to: &mut Value, field: &str| {
        if let Some(to) = to.as_object_mut() {
            match &from[field] {
                Value::Null => drop(to.remove(field)),
                value => drop(to.insert(field.to_owned(), value.clone())),
            }
        }
    };
    if text(old_spec, "volumeName").is_empty() {
        copy(spec, &mut old, "volumeName");
    }
    let (class, old_class) = (spec["storageClassName"].as_str(), old_spec["storageClassName"].as_str());
    let is_upgraded = old_annotation.is_some()
        && old_class.is_none()
        && class == old_annotation
        && (annotation.is_none() || annotation == old_annotation);
    if is_upgraded {
        copy(&Value::Null, &mut new, "storageClassName");
    } else {
        if annotation.unwrap_or_default() != old_annotation.unwrap_or_default() {
            let metadata = FieldPath::root("metadata");
            let path = metadata.child("annotations");
            let shown = annotation.unwrap_or_default();
            errors.push(FieldError::invalid(path.child(CLASS_ANNOTATION), shown, IMMUTABLE));
        }
        if class.is_some() && old_class.is_none() && (old_annotation.is_none() || old_annotation == class) {
            copy(old_spec, &mut new, "storageClassName");
        }
    }
    let old_request = &old_spec["resources"]["requests"];
    if status["phase"] == "Bound" {
        if let Some(Value::Object(requests)) = new.pointer_mut("/resources/requests") {
            requests.insert("storage".to_owned(), old_request["storage"].clone());
        }
        copy(old_spec, &mut new, "volumeAttributesClassName");
    }
    if !is_same_spec(&new, &old) {
        let diff = internal_diff("core.PersistentVolumeClaimSpec", &old, &new).unwrap_or_default();
        let why = format!("spec is immutable after creation except {CHANGEABLE}\n{diff}");
        errors.push(FieldError::forbidden(SPEC, why));
    }
    let size = |list: &Value| amount_of(list, "storage");
    let new_size = size(&spec["resources"]["requests"]);
    if is_less(&new_size, &size(old_request)) && !is_less(&size(&old_status["capacity"]), &new_size) {
        let resources = SPEC.child("resources");
        let path = resources.child("requests");
        let why = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(path.child("storage"), why));
    }
    let mode = FieldPath::root("volumeMode");
    errors.extend(immutable_error(mode, &spec["volumeMode"], &old_spec["volumeMode"]));
    let field = "volumeAttributesClassName";
    if spec[field] != old_spec[field] && !old_status["currentVolumeAttributesClassName"].is_null() {
        let to = match spec[field].as_str() {
            None => "nil",
            Some("") => "empty string",
            Some(_) => return errors,
        };
        let why = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.push(FieldError::forbidden(SPEC.child(field), why));
    }
    errors
}

/// Whether an amount is less than another one; an absent one is nothing.
fn is_less(amount: &Option<Quantity>, other: &Option<Quantity>) -> bool {
    let zero = Quantity::parse("0").ok();
    let or_zero = |amount: &Option<Quantity>| amount.clone().or_else(|| zero.clone());
    or_zero(amount) < or_zero(other)
}

/// Whether two specifications are equal, however their amounts are written.
fn is_same_spec(spec: &Value, old: &Value) -> bool {
    let without_amounts = |spec: &Value| {
        let mut spec = spec.clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("resources");
        }
        spec
    };
    let is_same_list = |field: &str| {
        let (new, old) = (&spec["resources"][field], &old["resources"][field]);
        let count = |list: &Value| list.as_object().map_or(0, serde_json::Map::len);
        count(new) == count(old) && amounts(new).all(|(name, amount)| amount_of(old, name) == Some(amount))
    };
    is_same(&without_amounts(spec), &without_amounts(old)) && ["requests", "limits"].into_iter().all(is_same_list)
}

/// Validates the status of a claim.
fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    const RESIZE_STATUSES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let status = input.field("status");
    let mut errors = input.metadata_update_errors();
    if items(input.field("spec"), "accessModes").is_empty() {
        let path = FieldPath::root("Spec");
        errors.push(FieldError::required(path.child("accessModes"), ""));
    }
    let capacity = STATUS.child("capacity");
    for (name, amount) in amounts(&status["capacity"]) {
        errors.extend(whole_amount_error(capacity.key(name), &amount));
    }
    let path = STATUS.child("allocatedResourceStatuses");
    for (name, resize) in status["allocatedResourceStatuses"].as_object().into_iter().flatten() {
        errors.extend(resource_key_errors(path, name));
        if !resize.as_str().is_some_and(|resize| RESIZE_STATUSES.contains(&resize)) {
            errors.push(FieldError::not_supported(path, typed_text(name), &RESIZE_STATUSES));
        }
    }
    let path = STATUS.child("allocatedResources");
    for (name, amount) in amounts(&status["allocatedResources"]) {
        let wrong = resource_key_errors(path, name);
        if !wrong.is_empty() {
            errors.extend(wrong);
            continue;
        }
        match whole_amount_error(path.key(name), &amount) {
            Some(error) => errors.push(error),
            None => errors.extend(amount_errors(path.key(name), "storage", &amount)),
        }
    }
    errors
}

/// The error of an amount that is negative when it is rounded (`validateBasicResource`).
fn whole_amount_error(path: FieldPath<'_>, amount: &Quantity) -> Option<FieldError> {
    let value = amount.value();
    (value < 0).then(|| FieldError::invalid(path, value, "must be a valid resource quantity"))
}

fn resource_key_errors(path: FieldPath<'_>, name: &str) -> Vec<FieldError> {
    let errors: Vec<FieldError> = invalid_for(path, name, check_qualified_name(name)).collect();
    if errors.is_empty() && is_native_resource(name) && name != "storage" {
        return vec![FieldError::not_supported(path, name, &["storage"])];
    }
    errors
}

fn claim_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    if !written.subresource.is_empty() {
        return Vec::new();
    }
    let mut warnings = Vec::new();
    if ObjectMetaView::of_map(written.object).annotation(CLASS_ANNOTATION).is_some() {
        let why = "deprecated since v1.8; use \"storageClassName\" attribute instead";
        warnings.push(format!("metadata.annotations[{CLASS_ANNOTATION}]: {why}"));
    }
    for list in ["requests", "limits"] {
        let amount = amount_of(&written.field("spec")["resources"][list], "storage");
        if let Some(amount) = amount.filter(|amount| amount.milli_value() % 1000 != 0) {
            let amount = amount.to_string();
            let quoted = GoQuoted(&amount);
            warnings.push(format!(
                "spec.resources.{list}[storage]: fractional byte value {quoted} is invalid, must be an integer"
            ));
        }
    }
    warnings
}

fn print_claim(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let (spec, status) = (object.get("spec").unwrap_or(&Value::Null), object.get("status").unwrap_or(&Value::Null));
    let volume = text_at(spec, "/volumeName");
    let (capacity, modes) = match volume {
        "" => (String::new(), String::new()),
        _ => (status["capacity"]["storage"].as_str().unwrap_or("0").to_owned(), format_access_modes(status)),
    };
    vec![
        printer.name(),
        printed_phase(object).into(),
        volume.into(),
        capacity.into(),
        modes.into(),
        class_of(object).into(),
        text_or_unset(spec, "volumeAttributesClassName").into(),
        printer.age(),
        text_or_unset(spec, "volumeMode").into(),
    ]
}
