//! Warnings about valid objects (`WarningsOnCreate` and `WarningsOnUpdate` of the strategies).

use serde_json::{Map, Value};

use super::custom_object;
use crate::kubeapi::field_error::FieldPath;
use crate::kubeapi::ip_address::ip_warning;
use crate::kubeapi::object_meta::ObjectMetaView;
use crate::resources::Resource;
use crate::rest::validation::definition_warnings;

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

/// Warnings about an object, which is new without `old`.
pub(super) fn object_warnings(
    resource: &Resource,
    subresource: &str,
    old: Option<&Map<String, Value>>,
    object: &Map<String, Value>,
) -> Vec<String> {
    let null = Value::Null;
    let field = |name: &str| object.get(name).unwrap_or(&null);
    if resource.custom.is_some() {
        return if subresource.is_empty() { custom_object::finalizer_warnings(old, object) } else { Vec::new() };
    }
    match (&*resource.group, &*resource.plural, subresource) {
        ("apiextensions.k8s.io", "customresourcedefinitions", "") => definition_warnings(old, object),
        ("", "services", "") => service_warnings(ObjectMetaView::of_map(object), field("spec")),
        ("", "endpoints", _) => endpoints_warnings(field("subsets")),
        ("discovery.k8s.io", "endpointslices", _) => {
            let is_deprecated = old.is_none() && field("addressType") == "FQDN";
            let deprecated = is_deprecated.then(|| "spec.addressType: FQDN endpoints are deprecated".to_owned());
            deprecated.into_iter().chain(slice_warnings(field("endpoints"))).collect()
        }
        ("", "serviceaccounts", _) => {
            let has_annotation =
                |object: &Map<String, Value>| ObjectMetaView::of_map(object).annotation(MOUNTABLE_SECRETS).is_some();
            let is_new = has_annotation(object) && !old.is_some_and(has_annotation);
            let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
            is_new.then(|| format!("metadata.annotations[{MOUNTABLE_SECRETS}]: {why}")).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn items<'v>(object: &'v Value, field: &str) -> impl Iterator<Item = (usize, &'v Value)> {
    object[field].as_array().into_iter().flatten().enumerate()
}

/// Warnings about addresses in a list of texts.
fn address_warnings(object: &Value, field: &str, path: &FieldPath<'_>) -> Vec<String> {
    let addresses = items(object, field).filter_map(|(index, ip)| Some((index, ip.as_str()?)));
    addresses.filter_map(|(index, ip)| ip_warning(&path.index(index), ip)).collect()
}

fn endpoints_warnings(subsets: &Value) -> Vec<String> {
    let root = FieldPath::root("subsets");
    let mut warnings = Vec::new();
    for (index, subset) in subsets.as_array().into_iter().flatten().enumerate() {
        let subset_path = root.index(index);
        for field in ["addresses", "notReadyAddresses"] {
            let path = subset_path.child(field);
            warnings
                .extend(items(subset, field).filter_map(|(index, address)| {
                    ip_warning(&path.index(index).child("ip"), address["ip"].as_str()?)
                }));
        }
    }
    warnings
}

fn slice_warnings(endpoints: &Value) -> Vec<String> {
    let root = FieldPath::root("endpoints");
    let endpoints = endpoints.as_array().into_iter().flatten().enumerate();
    let of_endpoint = |(index, endpoint): (usize, &Value)| {
        address_warnings(endpoint, "addresses", &root.index(index).child("addresses"))
    };
    endpoints.flat_map(of_endpoint).collect()
}

/// Warnings about a Service (`pkg/api/service/warnings.go`).
fn service_warnings(meta: ObjectMetaView<'_>, spec: &Value) -> Vec<String> {
    let path = FieldPath::root("spec");
    let is_external = spec["type"] == "ExternalName";
    let is_headless = spec["type"] == "ClusterIP" && spec["clusterIP"] == "None";
    let has_external_ips = spec["externalIPs"].as_array().is_some_and(|ips| !ips.is_empty());
    let balancer_ip = spec["loadBalancerIP"].as_str().unwrap_or_default();
    let has_name = spec["externalName"].as_str().is_some_and(|name| !name.is_empty());
    let warn_if = |is_so: bool, text: &str| is_so.then(|| text.to_owned());
    let hints = format!("annotation {TOPOLOGY_HINTS} is deprecated, please use {TOPOLOGY_MODE} instead");
    let mut warnings = Vec::new();
    warnings.extend(warn_if(meta.annotation(TOPOLOGY_HINTS).is_some(), &hints));
    if spec["clusterIP"] != "None" {
        warnings.extend(address_warnings(spec, "clusterIPs", &path.child("clusterIPs")));
    }
    if is_headless {
        warnings.extend(warn_if(!balancer_ip.is_empty(), "spec.loadBalancerIP is ignored for headless services"));
        warnings.extend(warn_if(has_external_ips, "spec.externalIPs is ignored for headless services"));
        let has_affinity = spec["sessionAffinity"] != "None";
        warnings.extend(warn_if(has_affinity, "spec.SessionAffinity is ignored for headless services"));
    }
    warnings.extend(address_warnings(spec, "externalIPs", &path.child("externalIPs")));
    let deprecated = "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
    warnings.extend(warn_if(has_external_ips && !is_headless && !is_external, deprecated));
    warnings.extend(ip_warning(&path.child("loadBalancerIP"), balancer_ip));
    let ignored = "spec.externalIPs is ignored when spec.type is \"ExternalName\"";
    warnings.extend(warn_if(is_external && has_external_ips, ignored));
    let ignored = "spec.externalName is ignored when spec.type is not \"ExternalName\"";
    warnings.extend(warn_if(!is_external && has_name, ignored));
    let deprecated = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
    warnings.extend(warn_if(spec["trafficDistribution"] == "PreferClose", deprecated));
    warnings
}
