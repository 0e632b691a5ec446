//! What a stored Service or IPAddress says of addresses and ports.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Map, Value};
use store::watch_cache::Stored;

/// Label of the IPAddresses that are allocated here.
pub(super) const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");

/// Addresses and node ports of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AllocatedFields {
    pub(super) addresses: Vec<IpAddr>,
    /// Also that of the health check.
    pub(super) node_ports: Vec<u16>,
}

impl AllocatedFields {
    /// Those of a stored Service; none of one that cannot be read.
    pub(super) fn of_stored(service: &Stored) -> AllocatedFields {
        let object: ServiceObject = serde_json::from_slice(service.bytes()).unwrap_or_default();
        let spec = object.spec.unwrap_or_default();
        let ports = spec.ports.unwrap_or_default().into_iter().filter_map(|port| port.node_port);
        let first = spec.cluster_ip.into_iter();
        AllocatedFields::new(
            first.chain(spec.cluster_ips.unwrap_or_default()),
            ports.chain(spec.health_check_node_port),
        )
    }

    /// Those of a Service that is written.
    pub(super) fn of_object(service: &Map<String, Value>) -> AllocatedFields {
        let Some(spec) = service.get("spec") else { return AllocatedFields::default() };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let ips = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(text);
        let ports = spec["ports"].as_array().into_iter().flatten().filter_map(|port| port["nodePort"].as_i64());
        AllocatedFields::new(
            text(&spec["clusterIP"]).into_iter().chain(ips),
            ports.chain(spec["healthCheckNodePort"].as_i64()),
        )
    }

    fn new(ips: impl Iterator<Item = String>, ports: impl Iterator<Item = i64>) -> AllocatedFields {
        let mut addresses: Vec<IpAddr> = ips.filter_map(|ip| ip.parse().ok()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let ports = ports.filter_map(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        let mut node_ports: Vec<u16> = ports.collect();
        node_ports.sort_unstable();
        node_ports.dedup();
        AllocatedFields { addresses, node_ports }
    }
}

/// The Service that an IPAddress belongs to, as namespace and name; none if it is not one of those that are allocated here.
pub(super) fn owner_of(ip_address: &Stored) -> Option<(String, String)> {
    let labels = &ip_address.metadata().labels;
    if !labels.iter().any(|(label, value)| (&**label, &**value) == MANAGED_BY) {
        return None;
    }
    let object: IpAddressObject = serde_json::from_slice(ip_address.bytes()).ok()?;
    let parent = object.spec?.parent_ref?;
    let is_service = parent.group.unwrap_or_default().is_empty() && parent.resource.as_deref() == Some("services");
    is_service.then(|| (parent.namespace.unwrap_or_default(), parent.name.unwrap_or_default()))
}

#[derive(Default, Deserialize)]
struct ServiceObject {
    #[serde(default)]
    spec: Option<AllocatedSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct AllocatedSpec {
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<String>>,
    ports: Option<Vec<NodePortField>>,
    health_check_node_port: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodePortField {
    node_port: Option<i64>,
}

#[derive(Deserialize)]
struct IpAddressObject {
    #[serde(default)]
    spec: Option<IpAddressSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IpAddressSpec {
    #[serde(default)]
    parent_ref: Option<ParentReference>,
}

#[derive(Deserialize)]
struct ParentReference {
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    resource: Option<String>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    name: Option<String>,
}
