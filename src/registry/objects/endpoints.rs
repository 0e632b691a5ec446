//! EndpointSlices, and legacy Endpoints in the form of slices.

use std::net::IpAddr;

use crate::process::ManifestDocument;
use crate::process::{Problem, Problems};
use crate::registry::objects::manifest::{
    self, AddressManifest, EndpointPortManifest, EndpointSliceManifest, EndpointsManifest,
};
use crate::registry::objects::service::name_and_namespace;

/// One `discovery.k8s.io/v1 EndpointSlice` or `v1 Endpoints`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// `default` when the manifest has none.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The Service it belongs to (label `kubernetes.io/service-name`; the name itself for Endpoints).
    pub service: String,
    /// Whether this is a `v1 Endpoints`, used only for a Service without an EndpointSlice.
    pub legacy: bool,
    /// Subsets of endpoints; an EndpointSlice has exactly one, Endpoints any number.
    pub subsets: Vec<EndpointSubset>,
}

/// Endpoints with the same ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSubset {
    /// The TCP ports.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<SliceEndpoint>,
}

/// A port of the endpoints of a subset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// Name of the Service's port it belongs to; may be empty.
    pub name: String,
    /// Port number.
    pub port: u16,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// Addresses of the endpoint.
    pub addresses: Vec<IpAddr>,
    /// Whether the endpoint is ready. Unknown counts as ready.
    pub ready: bool,
    /// Whether the endpoint is terminating and still serving.
    pub is_draining: bool,
    /// Zone hints (`hints.forZones`).
    pub zones: Vec<String>,
}

/// Label of an EndpointSlice that names its Service.
pub(in crate::registry) const SERVICE_NAME: &str = "kubernetes.io/service-name";

impl EndpointSlice {
    pub(in crate::registry) fn parse(document: ManifestDocument, problems: &mut Problems) -> Option<EndpointSlice> {
        let location = document.location;
        let manifest: EndpointSliceManifest = problems.collect(manifest::parse(&location, &document.value))?;
        let before = problems.0.len();
        let (namespace, name) = name_and_namespace(&location, &manifest.metadata, problems);
        let labels = manifest.metadata.labels.unwrap_or_default();
        let service = labels.get(SERVICE_NAME).cloned().unwrap_or_default();
        if service.is_empty() {
            let message = "required: name of the Service that the endpoints belong to";
            problems.0.push(Problem::at_field(&location, format_args!("metadata.labels[{SERVICE_NAME}]"), message));
        }
        let family = match manifest.address_type.as_str() {
            "IPv4" => Some(false),
            "IPv6" => Some(true),
            other => {
                let message = format!("{other:?} is not supported: IPv4 or IPv6");
                problems.0.push(Problem::at_field(&location, "addressType", message));
                None
            }
        };
        let ports = parse_ports(&location, "ports", manifest.ports, problems);
        let mut endpoints = Vec::new();
        for (n, one) in manifest.endpoints.unwrap_or_default().into_iter().enumerate() {
            let mut addresses = Vec::new();
            for (m, text) in one.addresses.iter().enumerate() {
                let field = format!("endpoints[{n}].addresses[{m}]");
                let Some(ip) = problems.collect(parse_address(&location, &field, text)) else { continue };
                if family.is_some_and(|ipv6| ipv6 != ip.is_ipv6()) {
                    problems.0.push(Problem::at_field(
                        &location,
                        field,
                        format_args!("{ip} is not {}", manifest.address_type),
                    ));
                }
                addresses.push(ip);
            }
            let conditions = one.conditions.as_ref();
            let ready = conditions.and_then(|conditions| conditions.ready).unwrap_or(true);
            let leaving = conditions.is_some_and(|conditions| {
                // Unknown `serving` equals `ready`, which is false for a terminating endpoint.
                conditions.terminating == Some(true) && conditions.serving == Some(true)
            });
            let zones = one.hints.and_then(|hints| hints.for_zones).unwrap_or_default();
            let zones = zones.into_iter().map(|zone| zone.name).collect();
            endpoints.push(SliceEndpoint { addresses, ready, is_draining: leaving, zones });
        }
        let subsets = vec![EndpointSubset { ports, endpoints }];
        (problems.0.len() == before).then_some(EndpointSlice { namespace, name, service, legacy: false, subsets })
    }

    pub(in crate::registry) fn parse_endpoints(
        document: ManifestDocument,
        problems: &mut Problems,
    ) -> Option<EndpointSlice> {
        let location = document.location;
        let manifest: EndpointsManifest = problems.collect(manifest::parse(&location, &document.value))?;
        let before = problems.0.len();
        let (namespace, name) = name_and_namespace(&location, &manifest.metadata, problems);
        let mut subsets = Vec::new();
        for (n, subset) in manifest.subsets.unwrap_or_default().into_iter().enumerate() {
            let ports = parse_ports(&location, &format!("subsets[{n}].ports"), subset.ports, problems);
            let mut endpoints = Vec::new();
            let mut add = |list: Option<Vec<AddressManifest>>, field: &str, ready| {
                for (m, one) in list.unwrap_or_default().iter().enumerate() {
                    let field = format!("subsets[{n}].{field}[{m}].ip");
                    if let Some(ip) = problems.collect(parse_address(&location, &field, &one.ip)) {
                        let (leaving, zones) = (false, Vec::new());
                        endpoints.push(SliceEndpoint { addresses: vec![ip], ready, is_draining: leaving, zones });
                    }
                }
            };
            add(subset.addresses, "addresses", true);
            add(subset.not_ready_addresses, "notReadyAddresses", false);
            subsets.push(EndpointSubset { ports, endpoints });
        }
        let service = name.clone();
        (problems.0.len() == before).then_some(EndpointSlice { namespace, name, service, legacy: true, subsets })
    }
}

fn parse_ports(
    location: &str,
    field: &str,
    list: Option<Vec<EndpointPortManifest>>,
    problems: &mut Problems,
) -> Vec<EndpointPort> {
    let mut ports = Vec::new();
    for (n, one) in list.unwrap_or_default().into_iter().enumerate() {
        // A port without a number means all ports: it cannot be connected to.
        let Some(number) = one.port else { continue };
        match u16::try_from(number).ok().filter(|port| *port != 0) {
            Some(port) if one.protocol.as_deref().is_none_or(|protocol| protocol == "TCP") => {
                ports.push(EndpointPort { name: one.name.unwrap_or_default(), port });
            }
            Some(_) => {}
            None => {
                let message = format!("{number} is not a port: from 1 to 65535");
                problems.0.push(Problem::at_field(location, format_args!("{field}[{n}].port"), message));
            }
        }
    }
    ports
}

/// Parses the address of an endpoint.
///
/// Unlike Kubernetes, it allows loopback and link-local addresses, for a directory on a developer's machine. It rejects
/// unspecified and multicast addresses.
fn parse_address(location: &str, field: &str, text: &str) -> Result<IpAddr, Problem> {
    let ip: IpAddr =
        text.parse().map_err(|_| Problem::at_field(location, field, format_args!("{text:?} is not an IP address")))?;
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(Problem::at_field(location, field, format_args!("{ip} cannot be the address of a server")));
    }
    Ok(ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::parse_documents;

    type ParseSlice = fn(ManifestDocument, &mut Problems) -> Option<EndpointSlice>;

    fn read(text: &str, how: ParseSlice) -> Result<EndpointSlice, Vec<String>> {
        let (mut found, _) = parse_documents("f", text, false);
        let mut problems = Problems::default();
        let read = how(found.remove(0), &mut problems);
        let problems: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
        read.ok_or(problems)
    }

    #[test]
    fn endpoint_slice_parsed() {
        let text = "kind: EndpointSlice\nmetadata: {name: api-1, labels: {kubernetes.io/service-name: api}}\naddressType: IPv4\nports: [{name: https, port: 8443}, {name: dns, port: 53, protocol: UDP}, {name: any}]\nendpoints:\n- {addresses: [127.0.0.1]}\n- {addresses: [127.0.0.2], conditions: {ready: false}}\n- {addresses: [127.0.0.3], conditions: {}}\n";
        let slice = read(text, EndpointSlice::parse).unwrap();
        assert_eq!((slice.service.as_str(), slice.legacy), ("api", false));
        assert_eq!(slice.subsets[0].ports, [EndpointPort { name: "https".into(), port: 8443 }]);
        let ready: Vec<bool> = slice.subsets[0].endpoints.iter().map(|one| one.ready).collect();
        assert_eq!(ready, [true, false, true]);
    }

    #[test]
    fn endpoints_parsed_as_slice_of_same_name() {
        let text = "kind: Endpoints\nmetadata: {name: api, namespace: ns}\nsubsets:\n- addresses: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]\n  notReadyAddresses: [{ip: 10.0.0.2}]\n  ports: [{port: 443}]\n- addresses: [{ip: 10.0.0.3}]\n  ports: [{port: 444}]\n";
        let slice = read(text, EndpointSlice::parse_endpoints).unwrap();
        assert_eq!((slice.service.as_str(), slice.legacy, slice.subsets.len()), ("api", true, 2));
        assert_eq!(slice.subsets[0].endpoints.len(), 3);
        assert!(!slice.subsets[0].endpoints[2].ready);
    }

    #[test]
    fn endpoint_slice_errors_name_fields() {
        let text = "kind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv4\nports: [{port: 70000}]\nendpoints:\n- {addresses: ['::1', 0.0.0.0, x]}\n";
        let all = read(text, EndpointSlice::parse).unwrap_err().join("\n");
        for field in [
            "metadata.labels[kubernetes.io/service-name]: required",
            "ports[0].port: 70000",
            "endpoints[0].addresses[0]: ::1 is not IPv4",
            "endpoints[0].addresses[1]: 0.0.0.0 cannot be the address",
            "endpoints[0].addresses[2]: \"x\" is not an IP",
        ] {
            assert!(all.contains(field), "{field} in\n{all}");
        }
        let all = read(
            "kind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: b}}\naddressType: FQDN\n",
            EndpointSlice::parse,
        )
        .unwrap_err();
        assert!(all[0].contains("addressType: \"FQDN\" is not supported"), "{all:?}");
        let all = read(
            "kind: Endpoints\nmetadata: {name: a}\nsubsets: [{addresses: [{ip: ''}]}]\n",
            EndpointSlice::parse_endpoints,
        )
        .unwrap_err();
        assert!(all[0].contains("subsets[0].addresses[0].ip: "), "{all:?}");
    }
}
