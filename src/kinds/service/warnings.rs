//! Warnings about a Service (`pkg/api/service/warnings.go`).

use kubeapi::field_error::FieldPath;
use kubeapi::ip_address::ip_warning;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use crate::kinds::validation::address_warnings;

const TOPOLOGY_HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

/// Warnings about a valid Service.
pub(super) fn service_warnings(meta: ObjectMetaView<'_>, spec: &Value) -> Vec<String> {
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
