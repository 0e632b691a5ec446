//! CSIDrivers, CSINodes and CSIStorageCapacities (`pkg/registry/storage/csi*/strategy.go`).

use std::collections::{HashMap, HashSet};

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::json::write_json;
use kubeapi::names::{check_dns1123_subdomain, check_qualified_name};
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::{driver_name_errors, storage_rules};
use crate::kinds::cells::{CellPrinter, items_at, text_at};
use crate::kinds::field_rules::{
    IMMUTABLE, enum_error, immutable_error, internal_struct, is_invalid_selector, is_same, label_selector_errors,
    negative_error, selector_json, text_json, typed_text,
};
use crate::kinds::node_selector::deprecated_label_text;
use crate::kinds::resource_names::negative_amount_error;
use crate::kinds::validation::{ValidationInput, invalid_for, items, text, texts};
use crate::kinds::{GenerationRule, KindRules, Object, ObjectUpdate, WrittenObject};

pub(super) static DRIVER_RULES: KindRules = KindRules {
    // The generation is counted, and does not begin.
    generation: GenerationRule { begins: false, ..GenerationRule::SPEC },
    allows_unconditional_update: false,
    prepare_new: |_, object| drop_disabled_fields(object, false),
    prepare_replacement: |update, object| drop_disabled_fields(object, has_disabled_fields(update)),
    validate: validate_driver,
    warnings: driver_warnings,
    cells: print_driver,
    ..storage_rules("csidrivers")
};

pub(super) static NODE_RULES: KindRules = KindRules {
    allows_unconditional_update: false,
    validate: validate_node,
    cells: |printer| vec![printer.name(), items_at(printer.object, "/spec/drivers").len().into(), printer.age()],
    ..storage_rules("csinodes")
};

pub(super) static CAPACITY_RULES: KindRules = KindRules {
    allows_unconditional_update: false,
    validate: validate_capacity,
    warnings: capacity_warnings,
    cells: print_capacity,
    ..KindRules::of("storage.k8s.io", "csistoragecapacities")
};

const SPEC: FieldPath<'static> = FieldPath::root("spec");

const MAX_NODE_ID_BYTES: usize = 256;
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
const MIN_UPDATE_SECONDS: i64 = 10;

/// A field of a feature that is disabled by default.
const DISABLED_FIELD: &str = "preventPodSchedulingIfMissing";

fn drop_disabled_fields(object: &mut Object, is_in_use: bool) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        && !is_in_use
    {
        spec.remove(DISABLED_FIELD);
    }
}

fn has_disabled_fields(update: &ObjectUpdate<'_>) -> bool {
    update.old.get("spec").is_some_and(|spec| !spec[DISABLED_FIELD].is_null())
}

/// Validates a CSIDriver.
fn validate_driver(input: &ValidationInput<'_>) -> FieldErrors {
    const POLICIES: [&str; 3] = ["File", "None", "ReadWriteOnceWithFSType"];
    const MODES: [&str; 2] = ["Persistent", "Ephemeral"];
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let required = [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ];
    let missing = required.into_iter().filter(|(field, _)| spec[*field].is_null());
    errors.extend(missing.map(|(_, name)| FieldError::required(SPEC.child(name), "")));
    errors.extend(enum_error(SPEC.child("fsGroupPolicy"), &spec["fsGroupPolicy"], &POLICIES));
    errors.append(token_errors(items(spec, "tokenRequests")));
    let modes_path = SPEC.child("volumeLifecycleModes");
    let unsupported = texts(spec, "volumeLifecycleModes").into_iter().filter(|mode| !MODES.contains(mode));
    errors.extend(unsupported.map(|mode| FieldError::not_supported(modes_path, typed_text(mode), &MODES)));
    if spec["seLinuxMount"].is_null() {
        errors.push(FieldError::required(SPEC.child("seLinuxMount"), ""));
    }
    let period = spec["nodeAllocatableUpdatePeriodSeconds"].as_i64();
    if let Some(seconds) = period.filter(|seconds| *seconds < MIN_UPDATE_SECONDS) {
        let why = "must be greater than or equal to 10 seconds";
        errors.push(FieldError::invalid(SPEC.child("nodeAllocatableUpdatePeriodSeconds"), seconds, why));
    }
    let in_secrets = &spec["serviceAccountTokenInSecrets"];
    if !in_secrets.is_null() && items(spec, "tokenRequests").is_empty() {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        let path = SPEC.child("serviceAccountTokenInSecrets");
        errors.push(FieldError::invalid(path, BadValue::from(in_secrets), why));
    }
    if input.old.is_some() {
        let changes = [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")];
        for (field, name) in changes {
            errors.extend(immutable_error(SPEC.child(name), &spec[field], &old_spec[field]));
        }
    }
    errors
}

fn token_errors(requests: &[Value]) -> FieldErrors {
    let path = SPEC.child("tokenRequests");
    let mut errors = FieldErrors::new();
    let mut audiences = HashSet::new();
    for (index, request) in requests.iter().enumerate() {
        let path = path.index(index);
        let audience = text(request, "audience");
        if !audiences.insert(audience) {
            errors.push(FieldError::duplicate(path.child("audience"), audience));
            continue;
        }
        let Some(seconds) = request["expirationSeconds"].as_i64() else { continue };
        let why = match seconds {
            ..MIN_TOKEN_SECONDS => "may not specify a duration less than 10 minutes",
            seconds if seconds > MAX_TOKEN_SECONDS => "may not specify a duration larger than 2^32 seconds",
            _ => continue,
        };
        errors.push(FieldError::invalid(path.child("expirationSeconds"), seconds, why));
    }
    errors
}

fn driver_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    let spec = written.field("spec");
    let old_requests = written.old.map(|old| old.get("spec").map_or(&Value::Null, |spec| &spec["tokenRequests"]));
    let is_changed = old_requests.is_none_or(|old| !is_same(old, &spec["tokenRequests"]));
    let is_warned =
        is_changed && !items(spec, "tokenRequests").is_empty() && spec["serviceAccountTokenInSecrets"].is_null();
    let why = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent \
               possible logging of tokens in volume attributes";
    is_warned.then(|| why.to_owned()).into_iter().collect()
}

fn print_driver(printer: &CellPrinter<'_>) -> Vec<Value> {
    let spec = printer.object.get("spec").unwrap_or(&Value::Null);
    let flag = |field: &str, default: bool| spec[field].as_bool().unwrap_or(default).into();
    let audiences = match spec["tokenRequests"].as_array() {
        None => "<unset>".to_owned(),
        Some(requests) => requests.iter().map(|request| text(request, "audience")).collect::<Vec<_>>().join(","),
    };
    let modes = match texts(spec, "volumeLifecycleModes").join(",") {
        none if none.is_empty() => "<none>".to_owned(),
        modes => modes,
    };
    vec![
        printer.name(),
        flag("attachRequired", true),
        flag("podInfoOnMount", false),
        flag("storageCapacity", false),
        audiences.into(),
        flag("requiresRepublish", false),
        modes.into(),
        printer.age(),
    ]
}

/// Validates a CSINode.
fn validate_node(input: &ValidationInput<'_>) -> FieldErrors {
    let path = SPEC.child("drivers");
    let drivers = items(input.field("spec"), "drivers");
    let mut errors = input.metadata_errors();
    let mut names = HashSet::new();
    for (index, driver) in drivers.iter().enumerate() {
        let path = path.index(index);
        let name = text(driver, "name");
        errors.extend(driver_name_errors(path.child("name"), name));
        errors.extend(node_id_error(path.child("nodeID"), text(driver, "nodeID")));
        let allocatable = path.child("allocatable");
        errors.extend(negative_error(allocatable.child("count"), &driver["allocatable"]["count"]));
        if !names.insert(name) {
            errors.push(FieldError::duplicate(path.child("name"), name));
        }
        let mut keys = HashSet::new();
        for key in texts(driver, "topologyKeys") {
            if key.is_empty() {
                errors.push(FieldError::required(path, ""));
            }
            if !keys.insert(key) {
                errors.push(FieldError::duplicate(path, key));
            }
            errors.extend(invalid_for(path, key, check_qualified_name(key)));
        }
    }
    let mut old_drivers: HashMap<&str, Vec<&Value>> = HashMap::new();
    for driver in items(input.old_field("spec"), "drivers") {
        old_drivers.entry(text(driver, "name")).or_default().push(driver);
    }
    for driver in drivers {
        let olds = old_drivers.get(text(driver, "name")).map_or(&[][..], Vec::as_slice);
        let changed = olds.iter().filter(|old| is_changed_driver(driver, old));
        errors.extend(changed.map(|_| FieldError::invalid(path, internal_driver(driver), IMMUTABLE)));
    }
    errors
}

/// Whether a driver changed in more than what it can allocate.
fn is_changed_driver(driver: &Value, old: &Value) -> bool {
    ["name", "nodeID", "topologyKeys"].into_iter().any(|field| !is_same(&driver[field], &old[field]))
}

/// A driver of a node as Go shows its internal struct, without what it can allocate.
fn internal_driver(driver: &Value) -> BadValue {
    internal_struct(&[
        ("Name", text_json(driver, "name")),
        ("NodeID", text_json(driver, "nodeID")),
        ("TopologyKeys", write_json(&driver["topologyKeys"])),
        ("Allocatable", "null".to_owned()),
    ])
}

fn node_id_error(path: FieldPath<'_>, id: &str) -> Option<FieldError> {
    if id.is_empty() {
        return Some(FieldError::required(path, ""));
    }
    let why = format!("must be {MAX_NODE_ID_BYTES} characters or less");
    (id.len() > MAX_NODE_ID_BYTES).then(|| FieldError::invalid(path, id, why))
}

/// Validates a CSIStorageCapacity.
fn validate_capacity(input: &ValidationInput<'_>) -> FieldErrors {
    const TOPOLOGY: FieldPath<'static> = FieldPath::root("nodeTopology");
    const CLASS: FieldPath<'static> = FieldPath::root("storageClassName");
    let (topology, class) = (input.field("nodeTopology"), input.field("storageClassName"));
    let class_name = class.as_str().unwrap_or_default();
    let mut errors = input.metadata_errors();
    let allows_any_value = is_invalid_selector(input.old_field("nodeTopology"));
    errors.append(label_selector_errors(topology, allows_any_value, &TOPOLOGY));
    errors.extend(invalid_for(CLASS, class_name, check_dns1123_subdomain(class_name)));
    if let Some(Ok(amount)) = input.field("capacity").as_str().map(Quantity::parse) {
        errors.extend(negative_amount_error(FieldPath::root("capacity"), &amount));
    }
    errors.append(input.metadata_update_errors());
    if input.old.is_some() {
        if !is_same(topology, input.old_field("nodeTopology")) {
            errors.push(FieldError::invalid(TOPOLOGY, BadValue::from_json(selector_json(topology)), IMMUTABLE));
        }
        if class != input.old_field("storageClassName") {
            errors.push(FieldError::invalid(CLASS, class_name, IMMUTABLE));
        }
    }
    errors
}

fn capacity_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    const TOPOLOGY: FieldPath<'static> = FieldPath::root("nodeTopology");
    let topology = written.field("nodeTopology");
    let path = TOPOLOGY.child("matchExpressions");
    let mut warnings = Vec::new();
    for (index, expression) in items(topology, "matchExpressions").iter().enumerate() {
        let key = text(expression, "key");
        let warning = |text| format!("{}: {key} is {text}", path.index(index).child("key"));
        warnings.extend(deprecated_label_text(key).map(warning));
    }
    let path = TOPOLOGY.child("matchLabels");
    let labels = topology["matchLabels"].as_object().into_iter().flatten();
    warnings
        .extend(labels.filter_map(|(label, _)| {
            deprecated_label_text(label).map(|text| format!("{}: {text}", path.child(label)))
        }));
    warnings
}

fn print_capacity(printer: &CellPrinter<'_>) -> Vec<Value> {
    let capacity = printer.object["capacity"].as_str().unwrap_or("<unset>");
    vec![printer.name(), text_at(printer.object, "/storageClassName").into(), capacity.into()]
}
