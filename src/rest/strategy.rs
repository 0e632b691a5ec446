//! Rules that differ between the built-in kinds (`pkg/registry/*/strategy.go`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::kubeapi::field_error::{FieldError, FieldPath};
use crate::kubeapi::names::{NameRule, check_config_map_key};
use crate::kubeapi::object_meta::{ObjectMetaView, change_metadata};
use crate::resources::Resource;

/// Largest sum of the values of a ConfigMap or Secret in bytes (`MaxSecretSize`).
const MAX_DATA_BYTES: usize = 1 << 20;

/// Field selectors besides `metadata.name` and `metadata.namespace`.
pub(super) fn selectable_fields(resource: &Resource) -> &'static [&'static str] {
    match (resource.group, resource.plural) {
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "replicationcontrollers") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", "certificatesigningrequests") => &["spec.signerName"],
        ("resource.k8s.io", "resourceslices") => &["spec.driver", "spec.nodeName"],
        ("", "pods") => &[
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
        ],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &[],
    }
}

/// The warning about a kind that is deprecated (`APILifecycleDeprecated` in `k8s.io/api`).
pub(super) fn deprecation_warning(resource: &Resource) -> Option<&'static str> {
    let is_deprecated = (resource.group, resource.plural) == ("", "endpoints");
    is_deprecated.then_some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
}

/// The rule that names of the resource's objects must follow.
pub(super) fn name_rule(resource: &Resource) -> NameRule {
    match (resource.group, resource.plural) {
        ("", "namespaces") => NameRule::DnsLabel,
        ("", "services") => NameRule::Dns1035Label,
        _ => NameRule::DnsSubdomain,
    }
}

/// Whether objects have `metadata.generation`.
pub(super) fn has_generation(resource: &Resource) -> bool {
    (resource.group, resource.plural) == ("discovery.k8s.io", "endpointslices")
}

/// Whether PUT creates an object that does not exist (`AllowCreateOnUpdate`).
pub(super) fn creates_on_update(resource: &Resource) -> bool {
    matches!(resource.plural, "leases" | "endpoints" | "events")
}

/// Whether PUT without a resourceVersion replaces whatever there is (`AllowUnconditionalUpdate`).
pub(super) fn allows_unconditional_update(resource: &Resource) -> bool {
    !matches!(resource.plural, "leases")
}

/// Moves the text in `stringData` of a Secret to `data` (`pkg/apis/core/v1/conversion.go`).
pub(super) fn convert_string_data(resource: &Resource, object: &mut Map<String, Value>) {
    if resource.plural != "secrets" {
        return;
    }
    let Some(Value::Object(texts)) = object.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    let data = object.entry("data").or_insert_with(|| json!({}));
    if !data.is_object() {
        *data = json!({});
    }
    for (key, text) in texts {
        data[key] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
    }
}

/// Sets the fields of a new object that clients cannot choose, and defaults.
pub(super) fn prepare_new(resource: &Resource, object: &mut Map<String, Value>) {
    match (resource.group, resource.plural) {
        ("", "namespaces") => {
            let name = ObjectMetaView::of_map(object).name().to_owned();
            change_metadata(object, |metadata| {
                let labels = metadata.entry("labels").or_insert_with(|| json!({}));
                if let Some(labels) = labels.as_object_mut() {
                    labels.insert("kubernetes.io/metadata.name".to_owned(), json!(name));
                }
            });
            let given = object.get("spec").and_then(|spec| spec["finalizers"].as_array());
            let mut finalizers = given.cloned().unwrap_or_default();
            if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
                finalizers.push(json!("kubernetes"));
            }
            object.insert("spec".to_owned(), json!({ "finalizers": finalizers }));
            object.insert("status".to_owned(), json!({"phase": "Active"}));
        }
        ("", "secrets") => {
            set_default(object, "type", json!("Opaque"));
        }
        ("", "services") => {
            object.insert("status".to_owned(), json!({"loadBalancer": {}}));
        }
        _ => {}
    }
}

/// Restores the fields that a write to the object or to a subresource cannot change.
pub(super) fn prepare_replacement(
    resource: &Resource,
    subresource: &str,
    old: &Map<String, Value>,
    object: &mut Map<String, Value>,
) {
    let mut keep = |field: &str| match old.get(field) {
        Some(value) => drop(object.insert(field.to_owned(), value.clone())),
        None => drop(object.remove(field)),
    };
    match (resource.plural, subresource) {
        ("namespaces", "") => {
            keep("spec");
            keep("status");
        }
        ("namespaces", "finalize") => keep("status"),
        ("services", "") => keep("status"),
        (_, "status") => keep("spec"),
        _ => {}
    }
    if resource.plural == "secrets" {
        set_default(object, "type", json!("Opaque"));
    }
}

fn set_default(object: &mut Map<String, Value>, field: &str, value: Value) {
    if object.get(field).is_none_or(|found| found.is_null() || found == "") {
        object.insert(field.to_owned(), value);
    }
}

/// Validates an object by the rules of its kind.
pub(super) fn validate(resource: &Resource, object: &Map<String, Value>) -> Vec<FieldError> {
    match (resource.group, resource.plural) {
        ("", "configmaps") => validate_data(object, &["data", "binaryData"]),
        ("", "secrets") => validate_data(object, &["data"]),
        _ => Vec::new(),
    }
}

/// Validates a replacement by the rules of the kind (`ValidateConfigMapUpdate`, `ValidateSecretUpdate`).
pub(super) fn validate_update(
    resource: &Resource,
    old: &Map<String, Value>,
    object: &Map<String, Value>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let data_fields: &[&str] = match (resource.group, resource.plural) {
        ("", "configmaps") => &["data", "binaryData"],
        ("", "secrets") => &["data"],
        _ => return errors,
    };
    if resource.plural == "secrets" && old.get("type") != object.get("type") {
        let value = object.get("type").and_then(Value::as_str).unwrap_or_default();
        errors.push(FieldError::invalid("type", value, "field is immutable"));
    }
    if old.get("immutable") == Some(&Value::Bool(true)) {
        let why = "field is immutable when `immutable` is set";
        if object.get("immutable") != Some(&Value::Bool(true)) {
            errors.push(FieldError::forbidden("immutable", why));
        }
        for field in data_fields {
            if old.get(*field) != object.get(*field) {
                errors.push(FieldError::forbidden(field, why));
            }
        }
    }
    errors
}

/// Validates the keys and the size of the data of a ConfigMap or Secret.
fn validate_data(object: &Map<String, Value>, fields: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut bytes = 0;
    for field in fields {
        let root = FieldPath::root(field);
        for (key, value) in object.get(*field).and_then(Value::as_object).into_iter().flatten() {
            let wrong = check_config_map_key(key);
            errors.extend(wrong.into_iter().map(|why| FieldError::invalid(root.key(key), key.as_str(), why)));
            if *field == "data" && object.get("binaryData").is_some_and(|binary| binary.get(key).is_some()) {
                let why = "duplicate of key present in binaryData";
                errors.push(FieldError::invalid(root.key(key), key.as_str(), why));
            }
            let length = value.as_str().map_or(0, str::len);
            // Base64 has four letters for three bytes.
            bytes += if *field == "binaryData" || fields.len() == 1 { length / 4 * 3 } else { length };
        }
    }
    if bytes > MAX_DATA_BYTES {
        errors.push(FieldError::too_long(if fields.len() == 1 { "data" } else { "[]" }, MAX_DATA_BYTES));
    }
    errors
}
