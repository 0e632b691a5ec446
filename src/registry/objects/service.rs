//! Services: ports, cluster IPs and external names.

use std::collections::HashSet;
use std::net::IpAddr;

use kubeapi::names;

use crate::process::ManifestDocument;
use crate::process::{Problem, Problems};
use crate::registry::objects::manifest::{self, ServiceManifest};

/// One `v1 Service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// `default` when the manifest has none.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Type of the Service (`spec.type`).
    pub kind: ServiceType,
    /// Cluster IPs, primary family first; empty for a headless Service.
    pub cluster_ips: Vec<IpAddr>,
    /// Whether `clusterIP` is `None`.
    pub headless: bool,
    /// Whether IPv6 is the primary family; `None` without `ipFamilies` and cluster IPs.
    pub prefers_ipv6: Option<bool>,
    /// The DNS name of an `ExternalName` Service; empty for other types.
    pub external_name: String,
    /// Ports of the Service.
    pub ports: Vec<ServicePort>,
    /// The source it was read from.
    pub source: ObjectSource,
}

/// The source an object was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectSource {
    /// The registry directory. Its Services need no EndpointSlices.
    Directory,
    /// A kube-apiserver. Its controllers write EndpointSlices.
    Cluster,
}

/// Type of a Service (`spec.type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// The default.
    ClusterIp,
    /// Treated as `ClusterIP`.
    NodePort,
    /// Treated as `ClusterIP`.
    LoadBalancer,
    /// An alias of a DNS name.
    ExternalName,
}

/// One of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name of the port, which endpoint ports refer to; may be empty when there is only one port.
    pub name: String,
    /// Number of the port, which clients and APIServices refer to.
    pub port: u16,
}

impl Service {
    pub(in crate::registry) fn parse(document: ManifestDocument, problems: &mut Problems) -> Option<Service> {
        let location = document.location;
        let ServiceManifest { metadata, spec } = problems.collect(manifest::parse(&location, &document.value))?;
        let before = problems.0.len();
        let (namespace, name) = name_and_namespace(&location, &metadata, problems);
        let mut wrong = |field: String, message: String| problems.0.push(Problem::at_field(&location, field, message));
        let kind = match spec.kind.as_deref() {
            None | Some("" | "ClusterIP") => ServiceType::ClusterIp,
            Some("NodePort") => ServiceType::NodePort,
            Some("LoadBalancer") => ServiceType::LoadBalancer,
            Some("ExternalName") => ServiceType::ExternalName,
            Some(other) => {
                let supported = "ClusterIP, NodePort, LoadBalancer or ExternalName";
                wrong("spec.type".to_owned(), format!("{other:?} is not one of {supported}"));
                ServiceType::ClusterIp
            }
        };
        let mut given_ips: Vec<(String, String)> = Vec::new();
        given_ips.extend(spec.cluster_ip.into_iter().map(|ip| ("spec.clusterIP".to_owned(), ip)));
        let more = spec.cluster_ips.unwrap_or_default().into_iter().enumerate();
        given_ips.extend(more.map(|(n, ip)| (format!("spec.clusterIPs[{n}]"), ip)));
        let headless = given_ips.iter().any(|(_, ip)| ip == "None");
        let (mut cluster_ips, mut seen_ips): (Vec<IpAddr>, HashSet<IpAddr>) = Default::default();
        for (field, ip) in given_ips.into_iter().filter(|(_, ip)| !ip.is_empty() && ip != "None") {
            match ip.parse() {
                Ok(ip) if seen_ips.insert(ip) => cluster_ips.push(ip),
                Ok(_) => {}
                Err(_) => wrong(field, format!("{ip:?} is not an IP address")),
            }
        }
        let mut families = Vec::new();
        for (n, family) in spec.ip_families.unwrap_or_default().iter().enumerate() {
            match family.as_str() {
                "IPv4" => families.push(false),
                "IPv6" => families.push(true),
                other => wrong(format!("spec.ipFamilies[{n}]"), format!("{other:?} is neither IPv4 nor IPv6")),
            }
        }
        let external_name = spec.external_name.unwrap_or_default();
        let external_name = external_name.trim_end_matches('.');
        if kind == ServiceType::ExternalName && !names::is_host_name(external_name) {
            wrong("spec.externalName".to_owned(), format!("{external_name:?} is not a DNS name"));
        }
        let (mut ports, mut numbers): (Vec<ServicePort>, HashSet<u16>) = Default::default();
        let given_ports = spec.ports.unwrap_or_default();
        let several = given_ports.len() > 1;
        for (n, one) in given_ports.into_iter().enumerate() {
            let name = one.name.unwrap_or_default();
            if several && name.is_empty() {
                wrong(format!("spec.ports[{n}].name"), "required when there are several ports".to_owned());
            }
            let port = u16::try_from(one.port).ok().filter(|port| *port != 0);
            if port.is_none() {
                wrong(format!("spec.ports[{n}].port"), format!("{} is not a port: from 1 to 65535", one.port));
            }
            // Requests use TCP. A UDP port of the same number is no duplicate.
            let tcp = one.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
            if let (Some(port), true) = (port, tcp) {
                if !numbers.insert(port) {
                    wrong(format!("spec.ports[{n}].port"), format!("{port} is duplicated"));
                }
                ports.push(ServicePort { name, port });
            }
        }
        if problems.0.len() > before {
            return None;
        }
        let prefers_ipv6 = families.first().copied().or_else(|| cluster_ips.first().map(IpAddr::is_ipv6));
        Some(Service {
            namespace,
            name,
            kind,
            cluster_ips,
            headless,
            prefers_ipv6,
            external_name: external_name.to_owned(),
            ports,
            source: ObjectSource::Directory,
        })
    }

    /// The port with this number.
    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.port == number)
    }
}

/// The checked `metadata.namespace` (default `default`) and `metadata.name`.
pub(in crate::registry) fn name_and_namespace(
    location: &str,
    metadata: &manifest::Metadata,
    problems: &mut Problems,
) -> (String, String) {
    let namespace = metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or("default");
    if !names::is_dns_label(namespace) {
        problems.0.push(Problem::at_field(
            location,
            "metadata.namespace",
            format_args!("{namespace:?} {}", manifest::NOT_A_LABEL),
        ));
    }
    if metadata.name.is_empty() {
        problems.0.push(Problem::at_field(location, "metadata.name", "required"));
    } else if !names::is_dns_subdomain(&metadata.name) {
        problems.0.push(Problem::at_field(
            location,
            "metadata.name",
            format_args!("{:?} {}", metadata.name, manifest::NOT_A_SUBDOMAIN),
        ));
    }
    (namespace.to_owned(), metadata.name.clone())
}

/// Key of a Service: `namespace/name`. No namespace contains a slash.
pub(in crate::registry) fn service_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Namespace and name of a [`service_key`].
pub(in crate::registry) fn split_service_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::parse_documents;

    fn read(text: &str) -> Result<Service, Vec<String>> {
        let (mut found, _) = parse_documents("f", text, false);
        let mut problems = Problems::default();
        let read = Service::parse(found.remove(0), &mut problems);
        let problems: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
        read.ok_or(problems)
    }

    #[test]
    fn service_parsed() {
        let one = read("kind: Service\nmetadata: {name: api}\nspec: {clusterIP: 'fd00::1', clusterIPs: ['fd00::1', 10.0.0.1], ports: [{port: 443, name: https, targetPort: 8443}, {port: 53, name: dns, protocol: UDP}]}\n").unwrap();
        assert_eq!((one.namespace.as_str(), one.kind), ("default", ServiceType::ClusterIp));
        assert_eq!(one.cluster_ips.len(), 2);
        assert_eq!(one.prefers_ipv6, Some(true));
        assert_eq!(one.port(443).map(|port| port.name.as_str()), Some("https"));
        assert_eq!(one.port(53), None);
        let headless = read("kind: Service\nmetadata: {name: api}\nspec: {clusterIP: None}\n").unwrap();
        assert!(headless.headless && headless.cluster_ips.is_empty());
    }

    #[test]
    fn service_errors_name_fields() {
        let problems = read("kind: Service\nmetadata: {name: A_b, namespace: x.y}\nspec: {type: Cluster, clusterIP: 1.2.3, ipFamilies: [IP4], ports: [{port: 0}, {port: 1, name: a}, {port: 1, name: b}]}\n").unwrap_err();
        let all = problems.join("\n");
        for field in [
            "metadata.name: ",
            "metadata.namespace: ",
            "spec.type: ",
            "spec.clusterIP: ",
            "spec.ipFamilies[0]: ",
            "spec.ports[0].name: required",
            "spec.ports[0].port: 0 ",
            "spec.ports[2].port: 1 is duplicated",
        ] {
            assert!(all.contains(field), "{field} in\n{all}");
        }
        let problems =
            read("kind: Service\nmetadata: {name: a}\nspec: {type: ExternalName, externalName: 'http://x'}\n")
                .unwrap_err();
        assert!(problems[0].contains("spec.externalName"), "{problems:?}");
    }
}
