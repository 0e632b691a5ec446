//! The status of a ResourceClaim: who uses it, and the devices that it has (`validateResourceClaimStatusUpdate`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::ip_address::check_interface_address;
use kubeapi::names::check_dns1123_label;
use serde_json::Value;

use super::claim::{RequestNames, reference_errors, request_names, request_reference_errors};
use super::slice::binding_errors;
use super::{MAX_LIST, duplicate_errors, list_errors, opaque_errors, parameters_error, pool_name_errors};
use crate::kinds::field_rules::{IMMUTABLE, condition_errors, enum_error, internal_struct, is_same, text_json};
use crate::kinds::internal_json::internal_value;
use crate::kinds::node_selector::node_selector_errors;
use crate::kinds::storage::driver_name_errors;
use crate::kinds::validation::{NULL, ValidationInput, invalid_for, items, text};
use crate::kinds::{Object, ObjectUpdate};

const STATUS: FieldPath<'static> = FieldPath::root("status");
const MAX_CONSUMERS: usize = 256;
const MAX_CONDITIONS: usize = 8;
const MAX_ADDRESSES: usize = 16;
const MAX_INTERFACE_NAME_BYTES: usize = 256;
const MAX_HARDWARE_ADDRESS_BYTES: usize = 128;

/// A device of a pool, with its share if several claims have it.
fn device_id(device: &Value) -> [&str; 4] {
    ["driver", "pool", "device", "shareID"].map(|field| text(device, field))
}

fn allocated_devices(allocation: &Value) -> HashSet<[&str; 4]> {
    items(&allocation["devices"], "results").iter().map(device_id).collect()
}

/// A write of the status leaves the metadata, and drops what is said of devices that the claim has no more.
pub(super) fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    if update.subresource != "status" {
        return;
    }
    update.keep_metadata(object);
    let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else { return };
    let Some(Value::Array(mut devices)) = status.remove("devices") else { return };
    let old_allocation = update.old.get("status").map_or(&NULL, |status| &status["allocation"]);
    let (old, new) = (allocated_devices(old_allocation), allocated_devices(status.get("allocation").unwrap_or(&NULL)));
    devices.retain(|device| !old.contains(&device_id(device)) || new.contains(&device_id(device)));
    if !devices.is_empty() {
        status.insert("devices".to_owned(), devices.into());
    }
}

/// Validates a write of the status.
pub(super) fn validate(input: &ValidationInput<'_>) -> FieldErrors {
    let (status, old) = (input.field("status"), input.old_field("status"));
    let mut errors = input.metadata_update_errors();
    let (consumers, consumers_path) = (items(status, "reservedFor"), STATUS.child("reservedFor"));
    errors.append(list_errors(consumers, MAX_CONSUMERS, &consumers_path, |consumer, path| {
        let absent = ["resource", "name", "uid"].into_iter().filter(|field| text(consumer, field).is_empty());
        absent.map(|field| FieldError::required(path.child(field), "")).collect()
    }));
    if consumers.len() <= MAX_CONSUMERS {
        errors.extend(duplicate_errors(consumers.iter().map(|consumer| text(consumer, "uid")), &consumers_path));
    }
    let (devices, devices_path) = (items(status, "devices"), STATUS.child("devices"));
    let allocated = allocated_devices(&status["allocation"]);
    errors.append(list_errors(devices, usize::MAX, &devices_path, |device, path| {
        device_status_errors(device, &allocated, path)
    }));
    let mut seen = HashSet::new();
    for (index, device) in devices.iter().enumerate() {
        if !seen.insert(device_id(device)) {
            errors.push(FieldError::duplicate(devices_path.index(index), shown_device(device)));
        }
    }
    if !consumers.is_empty() {
        let is_new = |consumer: &Value| !items(old, "reservedFor").contains(consumer);
        if status["allocation"].is_null() {
            let why = "may not be specified when `allocated` is not set";
            errors.push(FieldError::forbidden(consumers_path, why));
        } else if input.metadata().deletion_timestamp().is_some() && consumers.iter().any(is_new) {
            let why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
            errors.push(FieldError::forbidden(consumers_path, why));
        }
    }
    let (allocation, path) = (&status["allocation"], STATUS.child("allocation"));
    match (allocation.is_null(), old["allocation"].is_null()) {
        (true, _) => {}
        (false, true) => {
            let names = request_names(&input.field("spec")["devices"]);
            errors.append(allocation_errors(allocation, &names, &path));
        }
        (false, false) if is_same(allocation, &old["allocation"]) => {}
        (false, false) => {
            let value = internal_value("*resource.AllocationResult", allocation);
            errors.push(FieldError::invalid(path, value, IMMUTABLE));
        }
    }
    errors
}

/// A device as errors show it.
fn shown_device(device: &Value) -> BadValue {
    let names = [("Driver", "driver"), ("Pool", "pool"), ("Device", "device"), ("ShareID", "shareID")];
    internal_struct(&names.map(|(name, field)| (name, text_json(device, field))))
}

fn device_status_errors(device: &Value, allocated: &HashSet<[&str; 4]>, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = device_name_errors(device, path);
    if let Some(share) = device["shareID"].as_str() {
        errors.extend(share_error(share, path.child("shareID")));
    }
    if !allocated.contains(&device_id(device)) {
        let why = "must be an allocated device in the claim";
        errors.push(FieldError::invalid(path, shown_device(device), why));
    }
    let (conditions, conditions_path) = (items(device, "conditions"), path.child("conditions"));
    if conditions.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(conditions_path, conditions.len(), MAX_CONDITIONS));
    }
    errors.append(condition_errors(conditions, &conditions_path));
    if !device["data"].is_null() {
        errors.extend(parameters_error(&device["data"], false, path.child("data")));
    }
    errors.append(network_errors(&device["networkData"], &path.child("networkData")));
    errors
}

/// Errors of the driver, pool and name of a device.
fn device_name_errors(device: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors: FieldErrors = driver_name_errors(path.child("driver"), text(device, "driver")).into();
    errors.append(pool_name_errors(path.child("pool"), text(device, "pool")));
    let name = text(device, "device");
    errors.extend(invalid_for(path.child("device"), name, check_dns1123_label(name)));
    errors
}

/// The error of the id of a share (`validateUID`).
fn share_error(share: &str, path: FieldPath<'_>) -> Option<FieldError> {
    const NORMAL: &str = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase \
                          hexadecimal characters";
    // Texts of Go's package uuid.
    let why = match share.len() {
        32 | 36 | 38 | 45 if uuid::Uuid::try_parse(share).is_ok() => {
            let is_normal = share.len() == 36 && share.to_lowercase() == share;
            return (!is_normal).then(|| FieldError::invalid(path, share, NORMAL));
        }
        32 | 36 | 38 | 45 => "invalid UUID format".to_owned(),
        length => format!("invalid UUID length: {length}"),
    };
    Some(FieldError::invalid(path, share, format!("error validating uid: {why}")))
}

fn network_errors(network: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for (field, limit) in [("interfaceName", MAX_INTERFACE_NAME_BYTES), ("hardwareAddress", MAX_HARDWARE_ADDRESS_BYTES)]
    {
        if text(network, field).len() > limit {
            errors.push(FieldError::too_long(path.child(field), limit));
        }
    }
    let (addresses, path) = (items(network, "ips"), path.child("ips"));
    errors.append(list_errors(addresses, MAX_ADDRESSES, &path, |address, path| {
        check_interface_address(path, address.as_str().unwrap_or_default()).into()
    }));
    if addresses.len() <= MAX_ADDRESSES {
        errors.extend(duplicate_errors(addresses.iter().filter_map(Value::as_str), &path));
    }
    errors
}

/// Errors of an allocation that is new.
fn allocation_errors(allocation: &Value, names: &RequestNames<'_>, path: &FieldPath<'_>) -> FieldErrors {
    let (devices, devices_path) = (&allocation["devices"], path.child("devices"));
    let results_path = devices_path.child("results");
    let mut errors = list_errors(items(devices, "results"), MAX_LIST, &results_path, |result, path| {
        let mut errors = request_reference_errors(text(result, "request"), names, &path.child("request"));
        errors.append(device_name_errors(result, path));
        errors.append(binding_errors(result, path));
        if let Some(share) = result["shareID"].as_str() {
            errors.extend(share_error(share, path.child("shareID")));
        }
        errors
    });
    errors.append(list_errors(
        items(devices, "config"),
        2 * MAX_LIST,
        &devices_path.child("config"),
        |config, path| {
            let mut errors = FieldErrors::new();
            match text(config, "source") {
                "" => errors.push(FieldError::required(path.child("source"), "")),
                _ => errors.extend(enum_error(path.child("source"), &config["source"], &["FromClaim", "FromClass"])),
            }
            errors.append(reference_errors(config, names, path));
            errors.append(opaque_errors(config, false, path));
            errors
        },
    ));
    if !allocation["nodeSelector"].is_null() {
        errors.append(node_selector_errors(&allocation["nodeSelector"], false, &path.child("nodeSelector")));
    }
    errors
}
