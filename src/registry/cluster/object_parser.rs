//! Parses objects of a kube-apiserver by the rules of the registry directory. Unknown fields are dropped, not errors.

use std::time::SystemTime;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::statuses::StoredStatus;
use super::watched_resource::WatchedResource;
use crate::process::{ManifestDocument, Problem, Problems};
use crate::registry::objects::api_service::ApiService;
use crate::registry::objects::endpoints::{EndpointSlice, SERVICE_NAME};
use crate::registry::objects::service::{ObjectSource, Service};
use crate::registry::settings::Settings;

/// Known fields of an APIService's `spec`. Others may be of a later version.
const SPEC_FIELDS: [&str; 7] =
    ["service", "group", "version", "insecureSkipTLSVerify", "caBundle", "groupPriorityMinimum", "versionPriority"];
/// Metadata fields that are kept. The others waste memory, or change without effect.
const METADATA_FIELDS: [&str; 6] = ["name", "namespace", "labels", "annotations", "creationTimestamp", "uid"];

/// The object is invalid.
pub(super) struct InvalidObject;

/// Parses an object of the API server `source` into a document with its name.
pub(super) fn parse_document(
    source: &str,
    kind: &WatchedResource,
    text: &RawValue,
    problems: &mut Problems,
) -> Option<ManifestDocument> {
    let value: Result<Value, _> = serde_json::from_str(text.get());
    let value = value.map_err(|error| Problem::new(kind.location(source, ""), format_args!("not JSON: {error}")));
    let value = problems.collect(value)?;
    let Some(name) = value.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned) else {
        problems.0.push(Problem::at_field(kind.location(source, ""), "metadata.name", "required"));
        return None;
    };
    Some(ManifestDocument {
        location: kind.location(source, &name),
        api_version: String::new(),
        kind: String::new(),
        name,
        value,
    })
}

/// Parses an APIService, `None` if it is invalid, and its stored status.
pub(super) fn parse_api_service(
    mut document: ManifestDocument,
    settings: &Settings,
    problems: &mut Problems,
) -> (Option<ApiService>, StoredStatus) {
    let text = |pointer: &str| document.value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let version = text("/metadata/resourceVersion");
    let (made, uid) = (parse_creation_time(&text("/metadata/creationTimestamp")), text("/metadata/uid"));
    let conditions = document.value.pointer_mut("/status/conditions").map(Value::take);
    let conditions = match conditions {
        Some(Value::Array(conditions)) => conditions,
        _ => Vec::new(),
    };
    if let Some(object) = document.value.as_object_mut() {
        object.remove("status");
    }
    retain_fields(&mut document.value, "/metadata", &METADATA_FIELDS);
    retain_fields(&mut document.value, "/spec", &SPEC_FIELDS);
    retain_fields(&mut document.value, "/spec/service", &["namespace", "name", "port"]);
    // Items of a list have no type of their own.
    document.value["apiVersion"] = "apiregistration.k8s.io/v1".into();
    document.value["kind"] = "APIService".into();
    let mut one = ApiService::parse(document, made, settings, problems);
    if let Some(one) = &mut one {
        one.source = ObjectSource::Cluster;
        if !uid.is_empty() {
            one.uid = uid;
        }
    }
    (one, StoredStatus { version, conditions })
}

/// Parses a `creationTimestamp`; the epoch if it is missing or invalid.
fn parse_creation_time(timestamp: &str) -> SystemTime {
    timestamp.parse::<jiff::Timestamp>().map_or(SystemTime::UNIX_EPOCH, SystemTime::from)
}

/// Parses a Service.
pub(super) fn parse_service(document: ManifestDocument, problems: &mut Problems) -> Option<Service> {
    Service::parse(document, problems).map(|one| Service { source: ObjectSource::Cluster, ..one })
}

/// Parses an EndpointSlice. `None` if it belongs to no Service or has no IP addresses.
pub(super) fn parse_endpoint_slice(
    document: ManifestDocument,
    problems: &mut Problems,
) -> Result<Option<EndpointSlice>, InvalidObject> {
    let labels = document.value.pointer("/metadata/labels");
    let service = labels.and_then(|labels| labels.get(SERVICE_NAME)).and_then(Value::as_str).unwrap_or_default();
    let addresses = document.value.get("addressType").and_then(Value::as_str);
    if service.is_empty() || !matches!(addresses, Some("IPv4" | "IPv6")) {
        return Ok(None);
    }
    EndpointSlice::parse(document, problems).map(Some).ok_or(InvalidObject)
}

/// Parses only the name of an object.
pub(super) fn object_name(text: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct NamedObject {
        metadata: NameMetadata,
    }
    #[derive(Deserialize)]
    struct NameMetadata {
        name: String,
    }
    serde_json::from_str::<NamedObject>(text.get()).ok().map(|named| named.metadata.name)
}

/// Parses only the name of an EndpointSlice and of its Service, which may be empty.
pub(super) fn slice_name_and_service(text: &RawValue) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct SliceObject {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        labels: Option<SliceLabels>,
    }
    #[derive(Deserialize)]
    struct SliceLabels {
        // `SERVICE_NAME`
        #[serde(rename = "kubernetes.io/service-name")]
        service: Option<String>,
    }
    let slice: SliceObject = serde_json::from_str(text.get()).ok()?;
    Some((slice.metadata.name, slice.metadata.labels.and_then(|labels| labels.service).unwrap_or_default()))
}

fn retain_fields(object: &mut Value, pointer: &str, known_fields: &[&str]) {
    if let Some(Value::Object(fields)) = object.pointer_mut(pointer) {
        fields.retain(|name, _| known_fields.contains(&name.as_str()));
    }
}
