//! Rules that differ between the built-in kinds (`pkg/registry/*/strategy.go`).

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::service_fields::{complete_new_service, complete_replacing_service, drop_type_dependent_fields};
use super::{api_service, custom_object, definition};
use crate::kubeapi::Status;
use crate::kubeapi::object_meta::{ObjectMetaView, change_metadata};
use crate::resources::{Resource, ServedKind};

/// Field selectors of a version besides `metadata.name` and `metadata.namespace`.
pub(super) fn selectable_fields(kind: &ServedKind) -> Vec<&str> {
    match kind.version.custom() {
        Some(version) => version.selectable_fields.iter().map(String::as_str).collect(),
        None => builtin_selectable_fields(&kind.resource).to_vec(),
    }
}

/// Fields of stored objects that field selectors of some version may name.
pub(super) fn stored_fields(resource: &Resource) -> BTreeSet<&str> {
    match &resource.custom {
        Some(custom) => {
            custom.versions.iter().flat_map(|version| &version.selectable_fields).map(String::as_str).collect()
        }
        None => builtin_selectable_fields(resource).iter().copied().collect(),
    }
}

fn builtin_selectable_fields(resource: &Resource) -> &'static [&'static str] {
    match resource.group_resource() {
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
        ("events.k8s.io", "events") => &[
            "reason",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "regarding.apiVersion",
            "regarding.resourceVersion",
            "regarding.fieldPath",
            "reportingController",
            "type",
        ],
        _ => &[],
    }
}

/// The warning about a kind that is deprecated (`APILifecycleDeprecated` in `k8s.io/api`).
pub(super) fn deprecation_warning(kind: &ServedKind) -> Option<&str> {
    if let Some(version) = kind.version.custom() {
        return version.deprecation_warning.as_deref();
    }
    let is_deprecated = kind.resource.group_resource() == ("", "endpoints");
    is_deprecated.then_some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
}

/// Whether new objects have `metadata.generation`.
pub(super) fn has_generation(resource: &Resource) -> bool {
    resource.custom.is_some()
        || resource.group_resource() == ("scheduling.k8s.io", "priorityclasses")
        || resource.plural != "csidrivers" && !counted_fields(resource).is_empty()
}

/// The fields of a built-in kind whose changes `metadata.generation` counts; none if it counts nothing.
pub(super) fn counted_fields(resource: &Resource) -> &'static [&'static str] {
    match resource.group_resource() {
        ("discovery.k8s.io", "endpointslices") => &["addressType", "endpoints", "ports"],
        ("", "podtemplates") => &["template"],
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => {
            &["webhooks"]
        }
        ("admissionregistration.k8s.io" | "flowcontrol.apiserver.k8s.io", _)
        | ("", "pods" | "replicationcontrollers")
        | ("apiextensions.k8s.io", "customresourcedefinitions")
        | ("apps", "daemonsets" | "deployments" | "replicasets" | "statefulsets")
        | ("batch", "cronjobs" | "jobs")
        | ("networking.k8s.io", "ingressclasses" | "ingresses" | "networkpolicies")
        | ("policy", "poddisruptionbudgets")
        | ("resource.k8s.io", "deviceclasses" | "resourceslices")
        | ("storage.k8s.io", "csidrivers") => &["spec"],
        _ => &[],
    }
}

/// The field of metadata whose changes count, too.
pub(super) fn counted_metadata(resource: &Resource) -> Option<&'static str> {
    match resource.group_resource() {
        ("discovery.k8s.io", "endpointslices") => Some("labels"),
        ("apps", "deployments") => Some("annotations"),
        _ => None,
    }
}

/// Whether PUT creates an object that does not exist (`AllowCreateOnUpdate`).
pub(super) fn creates_on_update(resource: &Resource) -> bool {
    resource.custom.is_none() && matches!(&*resource.plural, "leases" | "endpoints" | "events" | "services")
}

/// Whether DELETE is answered with the object instead of a Status (`ReturnDeletedObject`).
pub(super) fn returns_deleted_object(resource: &Resource) -> bool {
    match &*resource.group {
        "" => matches!(
            &*resource.plural,
            "namespaces"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "pods"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ),
        "storage.k8s.io" => resource.plural != "csistoragecapacities",
        "resource.k8s.io" => true,
        _ => false,
    }
}

/// Completes the fields of a new object that depend on each other, before everything else (`BeginCreate`).
///
/// # Errors
/// 422 for fields that contradict each other.
pub(super) fn begin_create(resource: &Resource, object: &mut Map<String, Value>) -> Result<(), Status> {
    match resource.group_resource() {
        ("", "services") => complete_new_service(object),
        _ => Ok(()),
    }
}

/// Completes the fields of a replacing object that depend on each other, before everything else (`BeginUpdate`).
///
/// # Errors
/// 422 for fields that contradict each other.
pub(super) fn begin_update(
    resource: &Resource,
    subresource: &str,
    old: &Map<String, Value>,
    object: &mut Map<String, Value>,
) -> Result<(), Status> {
    match (&*resource.group, &*resource.plural, subresource) {
        ("", "services", "") => complete_replacing_service(old, object),
        _ => Ok(()),
    }
}

/// Whether PUT without a resourceVersion replaces whatever there is (`AllowUnconditionalUpdate`).
pub(super) fn allows_unconditional_update(resource: &Resource) -> bool {
    resource.custom.is_none() && !matches!(&*resource.plural, "leases" | "apiservices" | "customresourcedefinitions")
}

/// Moves the text in `stringData` of a Secret to `data` (`pkg/apis/core/v1/conversion.go`).
pub(super) fn convert_string_data(resource: &Resource, object: &mut Map<String, Value>) {
    if resource.group_resource() != ("", "secrets") {
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
pub(super) fn prepare_new(kind: &ServedKind, object: &mut Map<String, Value>) {
    if let Some(version) = kind.version.custom() {
        return custom_object::prepare_new(version, object);
    }
    match kind.resource.group_resource() {
        ("apiextensions.k8s.io", "customresourcedefinitions") => definition::prepare_new(object),
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
        ("", "serviceaccounts") => keep_secret_names(object),
        ("coordination.k8s.io", "leases") => drop_coordinated_election(object),
        ("discovery.k8s.io", "endpointslices") => drop_topology(object),
        ("apiregistration.k8s.io", "apiservices") => api_service::prepare_new(object),
        _ => {}
    }
}

/// Keeps only the names of the Secrets of a ServiceAccount (`cleanSecretReferences`).
fn keep_secret_names(object: &mut Map<String, Value>) {
    for secret in object.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(secret) = secret.as_object_mut() {
            secret.retain(|field, _| field == "name");
        }
    }
}

/// Drops the topology of endpoints, which cannot be written in v1 (`dropTopologyOnV1`).
fn drop_topology(object: &mut Map<String, Value>) {
    for endpoint in object.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(endpoint) = endpoint.as_object_mut() {
            endpoint.remove("deprecatedTopology");
        }
    }
}

/// Drops the fields of coordinated leader election, a feature that is disabled by default.
fn drop_coordinated_election(object: &mut Map<String, Value>) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("strategy");
        spec.remove("preferredHolder");
    }
}

/// Restores the fields that a write to the object or to a subresource cannot change.
pub(super) fn prepare_replacement(
    kind: &ServedKind,
    subresource: &str,
    old: &Map<String, Value>,
    object: &mut Map<String, Value>,
) {
    if let Some(version) = kind.version.custom() {
        return custom_object::prepare_replacement(version, subresource, old, object);
    }
    let resource = &kind.resource;
    let mut keep = |field: &str| match old.get(field) {
        Some(value) => drop(object.insert(field.to_owned(), value.clone())),
        None => drop(object.remove(field)),
    };
    match (&*resource.plural, subresource) {
        ("namespaces", "") => {
            keep("spec");
            keep("status");
        }
        ("namespaces", "finalize") => keep("status"),
        ("services", "") => {
            keep("status");
            drop_type_dependent_fields(old, object);
        }
        ("serviceaccounts", _) => keep_secret_names(object),
        ("leases", _) => drop_coordinated_election(object),
        ("endpointslices", _) => drop_topology(object),
        ("apiservices" | "customresourcedefinitions", "") => keep("status"),
        ("apiservices", "status") => {
            keep("spec");
            keep_metadata(old, object);
        }
        (_, "status") => keep("spec"),
        (_, "") if kind.version.subresource("status").is_some() => keep("status"),
        _ => {}
    }
    match &*resource.plural {
        "secrets" => set_default(object, "type", json!("Opaque")),
        "apiservices" => api_service::set_defaults(object),
        "customresourcedefinitions" if subresource.is_empty() => definition::prepare_replacement(object),
        _ => {}
    }
}

/// Restores the metadata that a write of the status cannot change.
fn keep_metadata(old: &Map<String, Value>, object: &mut Map<String, Value>) {
    change_metadata(object, |metadata| {
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            match old.get("metadata").and_then(|old| old.get(field)) {
                Some(value) => drop(metadata.insert(field.to_owned(), value.clone())),
                None => drop(metadata.remove(field)),
            }
        }
    });
}

fn set_default(object: &mut Map<String, Value>, field: &str, value: Value) {
    if object.get(field).is_none_or(|found| found.is_null() || found == "") {
        object.insert(field.to_owned(), value);
    }
}
