//! Parses objects of a kube-apiserver by the rules of the registry directory. Unknown fields are dropped, not errors.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::known::{Kind, created, place};
use super::statuses::Written;
use crate::process::{Document, Problem, Problems};
use crate::registry::api_service::ApiService;
use crate::registry::endpoints::{EndpointSlice, SERVICE_NAME};
use crate::registry::service::{Origin, Service};
use crate::registry::snapshot::Settings;

/// Known fields of an APIService's `spec`. Others may be of a later version.
const SPEC: [&str; 7] =
    ["service", "group", "version", "insecureSkipTLSVerify", "caBundle", "groupPriorityMinimum", "versionPriority"];
/// Metadata fields that are kept. The others waste memory, or change without effect.
const METADATA: [&str; 6] = ["name", "namespace", "labels", "annotations", "creationTimestamp", "uid"];

/// The object is invalid.
pub(super) struct Wrong;

/// Parses the object into a document with its name.
pub(super) fn head(kind: &Kind, text: &RawValue, problems: &mut Problems) -> Option<Document> {
    let value: Result<Value, _> = serde_json::from_str(text.get());
    let value = value.map_err(|error| Problem::new(place(kind, ""), format_args!("not JSON: {error}")));
    let value = problems.keep(value)?;
    let Some(name) = value.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned) else {
        problems.0.push(Problem::field(place(kind, ""), "metadata.name", "required"));
        return None;
    };
    Some(Document { place: place(kind, &name), api_version: String::new(), kind: String::new(), name, value })
}

/// Parses an APIService, `None` if it is invalid, and its stored status.
pub(super) fn api_service(
    mut document: Document,
    settings: &Settings,
    problems: &mut Problems,
) -> (Option<ApiService>, Written) {
    let text = |pointer: &str| document.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let version = text("/metadata/resourceVersion");
    let (made, uid) = (created(&text("/metadata/creationTimestamp")), text("/metadata/uid"));
    let conditions = document.value.pointer_mut("/status/conditions").map(Value::take);
    let conditions = match conditions {
        Some(Value::Array(conditions)) => conditions,
        _ => Vec::new(),
    };
    if let Some(object) = document.value.as_object_mut() {
        object.remove("status");
    }
    only(&mut document.value, "/metadata", &METADATA);
    only(&mut document.value, "/spec", &SPEC);
    only(&mut document.value, "/spec/service", &["namespace", "name", "port"]);
    // Items of a list have no type of their own.
    document.value["apiVersion"] = "apiregistration.k8s.io/v1".into();
    document.value["kind"] = "APIService".into();
    let mut one = ApiService::read(document, made, settings, problems);
    if let Some(one) = &mut one {
        one.origin = Origin::Cluster;
        if !uid.is_empty() {
            one.uid = uid;
        }
    }
    (one, Written { version, conditions })
}

/// Parses a Service.
pub(super) fn service(document: Document, problems: &mut Problems) -> Option<Service> {
    Service::read(document, problems).map(|one| Service { origin: Origin::Cluster, ..one })
}

/// Parses an EndpointSlice. `None` if it belongs to no Service or has no IP addresses.
pub(super) fn endpoint_slice(document: Document, problems: &mut Problems) -> Result<Option<EndpointSlice>, Wrong> {
    let labels = document.value.pointer("/metadata/labels");
    let service = labels.and_then(|labels| labels.get(SERVICE_NAME)).and_then(Value::as_str).unwrap_or_default();
    let addresses = document.value.get("addressType").and_then(Value::as_str);
    if service.is_empty() || !matches!(addresses, Some("IPv4" | "IPv6")) {
        return Ok(None);
    }
    EndpointSlice::read(document, problems).map(Some).ok_or(Wrong)
}

/// Parses only the name of an object.
pub(super) fn name_of(text: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Name,
    }
    #[derive(Deserialize)]
    struct Name {
        name: String,
    }
    serde_json::from_str::<Named>(text.get()).ok().map(|named| named.metadata.name)
}

/// Parses only the name of an EndpointSlice and of its Service, which may be empty.
pub(super) fn slice_of(text: &RawValue) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Slice {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        labels: Option<Labels>,
    }
    #[derive(Deserialize)]
    struct Labels {
        // `SERVICE_NAME`
        #[serde(rename = "kubernetes.io/service-name")]
        service: Option<String>,
    }
    let slice: Slice = serde_json::from_str(text.get()).ok()?;
    Some((slice.metadata.name, slice.metadata.labels.and_then(|labels| labels.service).unwrap_or_default()))
}

fn only(object: &mut Value, pointer: &str, known: &[&str]) {
    if let Some(Value::Object(fields)) = object.pointer_mut(pointer) {
        fields.retain(|name, _| known.contains(&name.as_str()));
    }
}
