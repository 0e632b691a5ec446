//! Serde types of the manifests: the fields that are used, by their Kubernetes names.
//!
//! The spec of an APIService is read strictly: an unknown field is an error. Services and endpoints have many fields
//! for kube-proxy only, which are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::process::Problem;

/// Reads `value` as `T`. The error names the path of the invalid field.
pub(super) fn parse<T: DeserializeOwned>(place: &str, value: &Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { String::new() } else { path };
        Problem::at_field(
            place,
            field,
            error.into_inner().to_string().replace("expected i64", "expected a whole number"),
        )
    })
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    pub(super) labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct ApiServiceManifest {
    pub(super) metadata: Metadata,
    pub(super) spec: ApiServiceSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a mapping")]
pub(super) struct ApiServiceSpec {
    #[serde(default)]
    pub(super) service: Option<ServiceReferenceManifest>,
    #[serde(default)]
    pub(super) group: String,
    #[serde(default)]
    pub(super) version: String,
    #[serde(default)]
    pub(super) group_priority_minimum: i64,
    #[serde(default)]
    pub(super) version_priority: i64,
    #[serde(default)]
    pub(super) ca_bundle: Option<String>,
    #[serde(default, rename = "insecureSkipTLSVerify")]
    pub(super) insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a mapping")]
pub(super) struct ServiceReferenceManifest {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct ServiceManifest {
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) spec: ServiceSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(super) struct ServiceSpec {
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default, rename = "clusterIP")]
    pub(super) cluster_ip: Option<String>,
    #[serde(default, rename = "clusterIPs")]
    pub(super) cluster_ips: Option<Vec<String>>,
    #[serde(default)]
    pub(super) ip_families: Option<Vec<String>>,
    #[serde(default)]
    pub(super) external_name: Option<String>,
    #[serde(default)]
    pub(super) ports: Option<Vec<ServicePortManifest>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct ServicePortManifest {
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) protocol: Option<String>,
    pub(super) port: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(super) struct EndpointSliceManifest {
    pub(super) metadata: Metadata,
    pub(super) address_type: String,
    #[serde(default)]
    pub(super) endpoints: Option<Vec<EndpointManifest>>,
    #[serde(default)]
    pub(super) ports: Option<Vec<EndpointPortManifest>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct EndpointManifest {
    pub(super) addresses: Vec<String>,
    #[serde(default)]
    pub(super) conditions: Option<EndpointConditions>,
    #[serde(default)]
    pub(super) hints: Option<EndpointHints>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(super) struct EndpointHints {
    #[serde(default)]
    pub(super) for_zones: Option<Vec<ForZone>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct ForZone {
    pub(super) name: String,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct EndpointConditions {
    #[serde(default)]
    pub(super) ready: Option<bool>,
    #[serde(default)]
    pub(super) serving: Option<bool>,
    #[serde(default)]
    pub(super) terminating: Option<bool>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct EndpointPortManifest {
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) protocol: Option<String>,
    #[serde(default)]
    pub(super) port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct EndpointsManifest {
    pub(super) metadata: Metadata,
    #[serde(default)]
    pub(super) subsets: Option<Vec<SubsetManifest>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(super) struct SubsetManifest {
    #[serde(default)]
    pub(super) addresses: Option<Vec<AddressManifest>>,
    #[serde(default)]
    pub(super) not_ready_addresses: Option<Vec<AddressManifest>>,
    #[serde(default)]
    pub(super) ports: Option<Vec<EndpointPortManifest>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(super) struct AddressManifest {
    pub(super) ip: String,
}
