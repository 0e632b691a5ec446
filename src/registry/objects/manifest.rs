//! Serde types of the manifests: the fields that are used, by their Kubernetes names.
//!
//! The spec of an APIService is read strictly: an unknown field is an error. Services and endpoints have many fields
//! for kube-proxy only, which are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::process::Problem;

/// Error text for an invalid group or object name.
pub(in crate::registry) const NOT_A_SUBDOMAIN: &str = "must be a lower-case RFC 1123 subdomain: letters, digits, '-' and '.', beginning and ending with a letter or digit";
/// Error text for an invalid namespace or name of a Service.
pub(in crate::registry) const NOT_A_LABEL: &str =
    "must be a lower-case RFC 1123 label: letters, digits and '-', beginning and ending with a letter or digit";
/// Error text for an invalid version.
pub(in crate::registry) const NOT_A_LETTER_LABEL: &str =
    "must be a lower-case DNS-1035 label: letters, digits and '-', beginning with a letter";

/// Reads `value` as `T`. The error names the path of the invalid field.
pub(in crate::registry) fn parse<T: DeserializeOwned>(location: &str, value: &Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { String::new() } else { path };
        Problem::at_field(
            location,
            field,
            error.into_inner().to_string().replace("expected i64", "expected a whole number"),
        )
    })
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(in crate::registry) struct Metadata {
    #[serde(default)]
    pub(in crate::registry) name: String,
    #[serde(default)]
    pub(in crate::registry) namespace: Option<String>,
    #[serde(default)]
    pub(in crate::registry) labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(in crate::registry) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct ApiServiceManifest {
    pub(in crate::registry) metadata: Metadata,
    pub(in crate::registry) spec: ApiServiceSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a mapping")]
pub(in crate::registry) struct ApiServiceSpec {
    #[serde(default)]
    pub(in crate::registry) service: Option<ServiceReferenceManifest>,
    #[serde(default)]
    pub(in crate::registry) group: String,
    #[serde(default)]
    pub(in crate::registry) version: String,
    #[serde(default)]
    pub(in crate::registry) group_priority_minimum: i64,
    #[serde(default)]
    pub(in crate::registry) version_priority: i64,
    #[serde(default)]
    pub(in crate::registry) ca_bundle: Option<String>,
    #[serde(default, rename = "insecureSkipTLSVerify")]
    pub(in crate::registry) insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "a mapping")]
pub(in crate::registry) struct ServiceReferenceManifest {
    #[serde(default)]
    pub(in crate::registry) namespace: String,
    #[serde(default)]
    pub(in crate::registry) name: String,
    #[serde(default)]
    pub(in crate::registry) port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct ServiceManifest {
    pub(in crate::registry) metadata: Metadata,
    #[serde(default)]
    pub(in crate::registry) spec: ServiceSpec,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(in crate::registry) struct ServiceSpec {
    #[serde(default, rename = "type")]
    pub(in crate::registry) kind: Option<String>,
    #[serde(default, rename = "clusterIP")]
    pub(in crate::registry) cluster_ip: Option<String>,
    #[serde(default, rename = "clusterIPs")]
    pub(in crate::registry) cluster_ips: Option<Vec<String>>,
    #[serde(default)]
    pub(in crate::registry) ip_families: Option<Vec<String>>,
    #[serde(default)]
    pub(in crate::registry) external_name: Option<String>,
    #[serde(default)]
    pub(in crate::registry) ports: Option<Vec<ServicePortManifest>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct ServicePortManifest {
    #[serde(default)]
    pub(in crate::registry) name: Option<String>,
    #[serde(default)]
    pub(in crate::registry) protocol: Option<String>,
    pub(in crate::registry) port: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(in crate::registry) struct EndpointSliceManifest {
    pub(in crate::registry) metadata: Metadata,
    pub(in crate::registry) address_type: String,
    #[serde(default)]
    pub(in crate::registry) endpoints: Option<Vec<EndpointManifest>>,
    #[serde(default)]
    pub(in crate::registry) ports: Option<Vec<EndpointPortManifest>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct EndpointManifest {
    pub(in crate::registry) addresses: Vec<String>,
    #[serde(default)]
    pub(in crate::registry) conditions: Option<EndpointConditions>,
    #[serde(default)]
    pub(in crate::registry) hints: Option<EndpointHints>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(in crate::registry) struct EndpointHints {
    #[serde(default)]
    pub(in crate::registry) for_zones: Option<Vec<ForZone>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct ForZone {
    pub(in crate::registry) name: String,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct EndpointConditions {
    #[serde(default)]
    pub(in crate::registry) ready: Option<bool>,
    #[serde(default)]
    pub(in crate::registry) serving: Option<bool>,
    #[serde(default)]
    pub(in crate::registry) terminating: Option<bool>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct EndpointPortManifest {
    #[serde(default)]
    pub(in crate::registry) name: Option<String>,
    #[serde(default)]
    pub(in crate::registry) protocol: Option<String>,
    #[serde(default)]
    pub(in crate::registry) port: Option<i64>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct EndpointsManifest {
    pub(in crate::registry) metadata: Metadata,
    #[serde(default)]
    pub(in crate::registry) subsets: Option<Vec<SubsetManifest>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a mapping")]
pub(in crate::registry) struct SubsetManifest {
    #[serde(default)]
    pub(in crate::registry) addresses: Option<Vec<AddressManifest>>,
    #[serde(default)]
    pub(in crate::registry) not_ready_addresses: Option<Vec<AddressManifest>>,
    #[serde(default)]
    pub(in crate::registry) ports: Option<Vec<EndpointPortManifest>>,
}

#[derive(Deserialize)]
#[serde(expecting = "a mapping")]
pub(in crate::registry) struct AddressManifest {
    pub(in crate::registry) ip: String,
}
