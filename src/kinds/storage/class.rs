//! StorageClasses and VolumeAttributesClasses (`pkg/registry/storage/{storageclass,volumeattributesclass}/strategy.go`).

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_qualified_name;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use super::storage_rules;
use crate::kinds::cells::{CellPrinter, text_at};
use crate::kinds::field_rules::{enum_error, immutable_error, is_same};
use crate::kinds::node_selector::deprecated_label_text;
use crate::kinds::validation::{ValidationInput, invalid_for, items, text, texts};
use crate::kinds::{KindRules, WrittenObject};

pub(super) static STORAGE_CLASS_RULES: KindRules = KindRules {
    validate: validate_storage_class,
    warnings: topology_warnings,
    cells: print_storage_class,
    ..storage_rules("storageclasses")
};

pub(super) static VOLUME_ATTRIBUTES_CLASS_RULES: KindRules = KindRules {
    validate: validate_attributes_class,
    cells: |printer| vec![printer.name(), text_at(printer.object, "/driverName").into(), printer.age()],
    ..storage_rules("volumeattributesclasses")
};

const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 << 10;

/// Validates a StorageClass.
fn validate_storage_class(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_errors();
    errors.extend(driver_errors("provisioner", input.field("provisioner")));
    errors.extend(parameter_errors(input.field("parameters")));
    let policy = input.field("reclaimPolicy");
    if policy != "" {
        errors.extend(enum_error(FieldPath::root("reclaimPolicy"), policy, &["Delete", "Retain"]));
    }
    let (mode, path) = (input.field("volumeBindingMode"), FieldPath::root("volumeBindingMode"));
    if mode.is_null() {
        errors.push(FieldError::required(path, ""));
    }
    errors.extend(enum_error(path, mode, &["Immediate", "WaitForFirstConsumer"]));
    errors.append(topology_errors(input.field("allowedTopologies")));
    errors.append(input.metadata_update_errors());
    if input.old.is_some() {
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            errors.extend(immutable_error(FieldPath::root(field), input.field(field), input.old_field(field)));
        }
    }
    errors
}

/// Errors of the name of a driver, in either case.
fn driver_errors(field: &str, driver: &Value) -> Vec<FieldError> {
    let path = FieldPath::root(field);
    match driver.as_str().unwrap_or_default() {
        "" => vec![FieldError::required(path, "")],
        driver => {
            let lower = driver.to_lowercase();
            invalid_for(path, &lower, check_qualified_name(&lower)).collect()
        }
    }
}

fn parameter_errors(parameters: &Value) -> Vec<FieldError> {
    const PATH: FieldPath<'static> = FieldPath::root("parameters");
    let parameters = || parameters.as_object().into_iter().flatten();
    if parameters().count() > MAX_PARAMETERS {
        return vec![FieldError::too_long(PATH, MAX_PARAMETERS)];
    }
    let unnamed = parameters().filter(|(key, _)| key.is_empty());
    let mut errors: Vec<FieldError> =
        unnamed.map(|(key, _)| FieldError::invalid(PATH, key, "field can not be empty.")).collect();
    let bytes = parameters().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum::<usize>();
    if bytes > MAX_PARAMETER_BYTES {
        errors.push(FieldError::too_long(PATH, MAX_PARAMETER_BYTES));
    }
    errors
}

/// Errors of terms for topologies (`validateAllowedTopologies`).
fn topology_errors(topologies: &Value) -> FieldErrors {
    const PATH: FieldPath<'static> = FieldPath::root("allowedTopologies");
    let terms = topologies.as_array().map_or(&[][..], Vec::as_slice);
    let mut errors = FieldErrors::new();
    // Kubernetes compares with as many empty terms as there are terms, besides those before.
    let mut earlier: BTreeMap<BTreeMap<&str, BTreeSet<&str>>, usize> = BTreeMap::new();
    for (index, term) in terms.iter().enumerate() {
        let path = PATH.index(index);
        let path = path.child("matchLabelExpressions");
        let mut values_by_key = BTreeMap::new();
        for (index, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
            let path = path.index(index);
            let (key, values, values_path) =
                (text(expression, "key"), texts(expression, "values"), path.child("values"));
            if values.is_empty() {
                errors.push(FieldError::required(values_path, ""));
            }
            let mut seen = HashSet::new();
            for (index, value) in values.iter().enumerate() {
                if !seen.insert(*value) {
                    errors.push(FieldError::duplicate(values_path.index(index), *value));
                }
            }
            errors.extend(invalid_for(path.child("key"), key, check_qualified_name(key)));
            if values_by_key.insert(key, values.into_iter().collect::<BTreeSet<_>>()).is_some() {
                errors.push(FieldError::duplicate(path.child("key"), key));
            }
        }
        let empty_count = if values_by_key.is_empty() { terms.len() } else { 0 };
        let count = earlier.get(&values_by_key).copied().unwrap_or(0) + empty_count;
        let left = if errors.is_full() { 0 } else { count };
        errors.extend((0..left).map(|_| FieldError::duplicate(path, "")));
        *earlier.entry(values_by_key).or_default() += 1;
    }
    errors
}

fn topology_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    const PATH: FieldPath<'static> = FieldPath::root("allowedTopologies");
    let mut warnings = Vec::new();
    for (index, term) in written.field("allowedTopologies").as_array().into_iter().flatten().enumerate() {
        let path = PATH.index(index);
        let path = path.child("matchLabelExpressions");
        for (index, expression) in items(term, "matchLabelExpressions").iter().enumerate() {
            let warning = |text| format!("{}: {text}", path.index(index).child("key"));
            warnings.extend(deprecated_label_text(text(expression, "key")).map(warning));
        }
    }
    warnings
}

/// Validates a VolumeAttributesClass.
fn validate_attributes_class(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    if input.old.is_some() {
        for field in ["driverName", "parameters"] {
            if !is_same(input.field(field), input.old_field(field)) {
                errors.push(FieldError::forbidden(field, format!("updates to {field} are forbidden.")));
            }
        }
    }
    errors.append(input.metadata_errors());
    errors.extend(driver_errors("driverName", input.field("driverName")));
    errors.extend(parameter_errors(input.field("parameters")));
    if input.field("parameters").as_object().is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required("parameters", "must contain at least one key/value pair"));
    }
    errors
}

fn print_storage_class(printer: &CellPrinter<'_>) -> Vec<Value> {
    const DEFAULT: [&str; 2] =
        ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let object = printer.object;
    let meta = ObjectMetaView::of(object);
    let is_default = DEFAULT.into_iter().any(|annotation| meta.annotation(annotation) == Some("true"));
    let name = format!("{}{}", meta.name(), if is_default { " (default)" } else { "" });
    vec![
        name.into(),
        text_at(object, "/provisioner").into(),
        object["reclaimPolicy"].as_str().unwrap_or("Delete").into(),
        object["volumeBindingMode"].as_str().unwrap_or("Immediate").into(),
        (object["allowVolumeExpansion"] == true).into(),
        printer.age(),
    ]
}
