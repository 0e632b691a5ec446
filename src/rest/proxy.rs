//! The subresource `proxy` of Pods, Services and nodes: requests to what listens there (`ResourceLocation` in
//! `pkg/registry/core/{pod/strategy.go,service/storage/storage.go,node/strategy.go}`). This server does not connect to
//! Pods and kubelets: it answers as long as there is no address, and as if the address did not answer otherwise.

use std::net::{IpAddr, SocketAddr};

use kubeapi::{GoQuoted, Status};
use serde_json::{Map, Value};
use store::watch_cache::ResourceCollection;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::target::ObjectTarget;
use crate::conversion::stored_object;

/// The parts of a name as in `https:web:443`.
struct ProxyTarget<'n> {
    name: &'n str,
    /// Number or name of a port; empty if none is given.
    port: &'n str,
}

impl<'n> ProxyTarget<'n> {
    /// Splits the name in a path (`SplitSchemeNamePort`); none if it is not valid.
    fn parse(text: &'n str) -> Option<ProxyTarget<'n>> {
        let parts: Vec<&str> = text.splitn(4, ':').collect();
        let (scheme, name, port) = match *parts {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => return None,
        };
        (!name.is_empty() && matches!(scheme, "" | "http" | "https")).then_some(ProxyTarget { name, port })
    }
}

/// Why a request is not relayed: 503, as from an address that does not answer, or what [`find_address`] says.
pub(super) async fn refusal(api: &ApiServer, collection: &ResourceCollection, target: &ObjectTarget<'_>) -> Status {
    match find_address(api, collection, target).await {
        Ok(address) => {
            let why = format!("error trying to reach service: this server does not connect to {address}");
            Status::service_unavailable(why)
        }
        Err(status) => status,
    }
}

/// The address that a kube-apiserver would relay to.
///
/// # Errors
/// 400 for a name that is not valid or a Pod without an address, 404 for what does not exist, 503 for a Service without
/// endpoints, 500 for a node without an address.
async fn find_address(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
) -> Result<String, Status> {
    let resource = &target.kind.resource;
    let Some(proxied) = ProxyTarget::parse(&target.name) else {
        let text = format!("invalid {} request {}", resource.singular, GoQuoted(&target.name));
        return Err(Status::bad_request(text));
    };
    match &*resource.plural {
        "pods" => pod_address(&read(collection, target, ("pods", proxied.name)).await?, proxied.port),
        "services" => {
            let port_name = port_name(collection, target, &proxied).await?;
            let endpoints = api.builtin_collection("", "endpoints").ok_or_else(Status::not_found)?;
            let found = read(&endpoints, target, ("endpoints", proxied.name)).await?;
            service_address(&found, &port_name).ok_or_else(|| {
                let name = GoQuoted(&target.name);
                Status::service_unavailable(format!("no endpoints available for service {name}"))
            })
        }
        _ => node_address(&read(collection, target, ("nodes", proxied.name)).await?),
    }
}

/// Reads an object of the core group in the namespace of the request.
async fn read(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    (plural, name): (&str, &str),
) -> Result<Map<String, Value>, Status> {
    let key = target.key_of(collection, target.namespace, name)?;
    let stored = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    stored_object(&stored.ok_or_else(|| Status::object_not_found("", plural, name))?).await
}

/// The address of a Pod, with the port or the first that a container declares.
fn pod_address(pod: &Map<String, Value>, port: &str) -> Result<String, Status> {
    let status = pod.get("status").unwrap_or(&Value::Null);
    let ip = status["podIPs"][0]["ip"].as_str().or_else(|| status["podIP"].as_str()).unwrap_or_default();
    let ip = ip.parse::<IpAddr>().ok().filter(is_global_unicast);
    let ip = ip.ok_or_else(|| Status::bad_request("address not allowed"))?;
    let containers = pod.get("spec").and_then(|spec| spec["containers"].as_array()).into_iter().flatten();
    let declared = containers.filter_map(|container| container["ports"][0]["containerPort"].as_u64()).next();
    Ok(match (port, declared) {
        ("", Some(declared)) => with_port(ip, &declared.to_string()),
        ("", None) => ip.to_string(),
        (port, _) => with_port(ip, port),
    })
}

/// The name of the port of a Service whose number is given.
async fn port_name(
    services: &ResourceCollection,
    target: &ObjectTarget<'_>,
    proxied: &ProxyTarget<'_>,
) -> Result<String, Status> {
    let Ok(number) = proxied.port.parse::<i64>() else { return Ok(proxied.port.to_owned()) };
    let service = read(services, target, ("services", proxied.name)).await?;
    let ports = service.get("spec").and_then(|spec| spec["ports"].as_array()).into_iter().flatten();
    let port = ports.into_iter().find(|port| port["port"].as_i64() == Some(number)).ok_or_else(|| {
        let name = GoQuoted(proxied.name);
        Status::service_unavailable(format!("no service port {number} found for service {name}"))
    })?;
    Ok(port["name"].as_str().unwrap_or_default().to_owned())
}

/// An address of the Endpoints of a Service that is a Pod's, with the port of a name.
fn service_address(endpoints: &Map<String, Value>, port_name: &str) -> Option<String> {
    fn items(value: Option<&Value>) -> &[Value] {
        value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }
    items(endpoints.get("subsets")).iter().find_map(|subset| {
        let ports = items(subset.get("ports"));
        let port =
            ports.iter().find(|port| port["name"].as_str().unwrap_or_default() == port_name)?["port"].as_u64()?;
        let addresses = items(subset.get("addresses"));
        let address = addresses.iter().find(|address| address["targetRef"]["kind"] == "Pod")?;
        Some(with_port(address["ip"].as_str()?.parse().ok()?, &port.to_string()))
    })
}

/// The first address of a node, of the kinds that kube-apiserver prefers (`--kubelet-preferred-address-types`).
fn node_address(node: &Map<String, Value>) -> Result<String, Status> {
    let addresses = node.get("status").and_then(|status| status["addresses"].as_array());
    let addresses = addresses.map(Vec::as_slice).unwrap_or_default();
    let of_kind = |kind: &str| addresses.iter().find(|address| address["type"] == kind)?["address"].as_str();
    let preferred =
        ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"].into_iter().find_map(of_kind);
    preferred.map(str::to_owned).ok_or_else(|| {
        Status::internal_error(format_args!(
            "no preferred addresses found; known addresses: {}",
            Value::from(addresses)
        ))
    })
}

fn with_port(ip: IpAddr, port: &str) -> String {
    match port.parse() {
        Ok(port) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{ip}:{port}"),
    }
}

/// As Go's `IP.IsGlobalUnicast`.
fn is_global_unicast(ip: &IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_link_local && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn names_have_scheme_and_port() {
        let parse = |text| ProxyTarget::parse(text).map(|target| (target.name, target.port));
        assert_eq!(parse("web"), Some(("web", "")));
        assert_eq!(parse("web:http"), Some(("web", "http")));
        assert_eq!(parse("https:web:443"), Some(("web", "443")));
        for wrong in ["", ":80", "ftp:web:21", "http:web:1:2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn address_of_pod_needs_one_that_is_allowed() {
        let pod = |ip: &str| {
            object(&json!({"spec": {"containers": [{}, {"ports": [{"containerPort": 80}]}]}, "status": {"podIP": ip}}))
        };
        assert_eq!(pod_address(&pod("10.0.0.1"), "").unwrap(), "10.0.0.1:80");
        assert_eq!(pod_address(&pod("fd00::1"), "8080").unwrap(), "[fd00::1]:8080");
        for ip in ["", "127.0.0.1", "169.254.1.1", "224.0.0.1", "::1", "fe80::1", "name"] {
            assert_eq!(pod_address(&pod(ip), "").unwrap_err().message, "address not allowed", "{ip}");
        }
    }

    #[test]
    fn address_of_service_is_of_a_pod_and_has_the_named_port() {
        let endpoints = object(&json!({"subsets": [
            {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]},
            {"addresses": [{"ip": "10.0.0.2", "targetRef": {"kind": "Pod"}}], "ports": [{"name": "http", "port": 8080}]},
        ]}));
        assert_eq!(service_address(&endpoints, "http").unwrap(), "10.0.0.2:8080");
        assert_eq!(service_address(&endpoints, ""), None);
        assert_eq!(service_address(&Map::new(), ""), None);
    }
}
