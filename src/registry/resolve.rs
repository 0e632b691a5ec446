//! Resolves an APIService to the addresses of its backend. No I/O.
//!
//! Reasons and messages are those of kube-aggregator (`pkg/controllers/status/remote`), in its order. Other than there,
//! a Service of a manifest directory needs no endpoints, and a backend may be a URL.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::objects::api_service::{ApiService, ApiServiceBackend, ServiceReference};
use super::objects::endpoints::{EndpointSlice, SliceEndpoint};
use super::objects::service::{ObjectSource, Service, ServiceType};
use super::snapshot::Registry;
use crate::egress::{Address, Destination, EgressRoute, EgressRoutes, Host, HttpVersion};

/// Endpoints of a backend and how to connect to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedBackend {
    /// The endpoints, preferred ones first. Never empty, without duplicates.
    pub endpoints: Vec<Address>,
    /// Number of preferred endpoints at the start of `endpoints`, which are load-balanced. The rest, of other zones or
    /// of the other address family, are used when these fail.
    pub preferred_count: usize,
    /// DNS name or IP address that the backend's certificate must have.
    pub server_name: String,
    /// Path prefix of a URL backend; empty otherwise.
    pub prefix: String,
    /// The HTTP version without TLS; `None` with TLS.
    pub plaintext_protocol: Option<HttpVersion>,
    /// Egress route to the endpoints.
    pub egress_route: EgressRoute,
}

/// Why an APIService has no endpoint. The message names objects, never addresses: clients may read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolveError {
    /// The reason of the `Available` condition.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
}

/// Settings of the operator for resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolveRules {
    /// Whether endpoints are used instead of the cluster IP (`--enable-aggregator-routing`).
    pub routes_to_endpoints: bool,
    /// Whether ExternalName Services are allowed (`--allow-external-name`).
    pub allows_external_name: bool,
    /// The zone of this process (`--zone`).
    pub zone: Option<Zone>,
}

/// Name of a zone, a value of the label `topology.kubernetes.io/zone`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    text: [u8; Zone::MAX_LENGTH],
    length: usize,
}

impl Zone {
    /// Maximum length of a label value.
    const MAX_LENGTH: usize = 63;

    /// A zone of this name. `None` if it is empty or longer than a label value may be.
    pub fn new(name: &str) -> Option<Zone> {
        let mut text = [0; Zone::MAX_LENGTH];
        text.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        (!name.is_empty()).then_some(Zone { text, length: name.len() })
    }

    fn matches(&self, name: &str) -> bool {
        self.text[..self.length] == *name.as_bytes()
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.text[..self.length]), f)
    }
}

impl Default for ResolveRules {
    fn default() -> ResolveRules {
        ResolveRules { routes_to_endpoints: true, allows_external_name: true, zone: None }
    }
}

/// Resolves `api_service` to its endpoints.
///
/// # Errors
/// [`ResolveError`]. An APIService without Service or URL has the reason `Local`: only the delegate can serve it.
pub fn resolve(
    api_service: &ApiService,
    registry: &Registry,
    rules: ResolveRules,
    routes: &EgressRoutes,
) -> Result<ResolvedBackend, ResolveError> {
    let overridden = api_service.settings.server_name.clone();
    let route_for = |plain: bool| {
        let name = &api_service.settings.egress;
        // A missing egress selection is an error: a configured route must not be bypassed.
        let route = if plain { routes.get_plaintext(name) } else { routes.get(name) };
        route.cloned().ok_or_else(|| ResolveError {
            reason: "EgressSelectionNotFound",
            message: format!("egress selection {name:?} not found"),
        })
    };
    match &api_service.backend {
        ApiServiceBackend::Local => {
            Err(ResolveError { reason: "Local", message: "Local APIServices have no backend of their own".to_owned() })
        }
        ApiServiceBackend::Url(url) => Ok(ResolvedBackend {
            server_name: overridden.unwrap_or_else(|| url.certificate_host()),
            endpoints: vec![url.address.clone()],
            preferred_count: 1,
            prefix: url.prefix.clone(),
            plaintext_protocol: url.plaintext_protocol,
            egress_route: match (&url.egress_route, &url.address) {
                (Some(route), _) => route.clone(),
                // A Unix domain socket is on this machine.
                (None, Address::Unix(_)) => EgressRoute::Direct,
                (None, Address::Tcp(_)) => route_for(url.plaintext_protocol.is_some())?,
            },
        }),
        ApiServiceBackend::Service(reference) => {
            let (endpoints, preferred) = service_addresses(reference, registry, rules)?;
            let server_name = overridden.unwrap_or_else(|| format!("{}.{}.svc", reference.name, reference.namespace));
            let endpoints = endpoints.into_iter().map(Address::Tcp).collect();
            Ok(ResolvedBackend {
                endpoints,
                preferred_count: preferred,
                server_name,
                prefix: String::new(),
                plaintext_protocol: None,
                egress_route: route_for(false)?,
            })
        }
    }
}

fn service_addresses(
    reference: &ServiceReference,
    registry: &Registry,
    rules: ResolveRules,
) -> Result<(Vec<Destination>, usize), ResolveError> {
    let ServiceReference { namespace, name, .. } = reference;
    let lookup_error = registry.lookup_error(namespace, name);
    let service = registry.service(namespace, name).map(|service| &**service);
    service_endpoints(reference, service, &registry.endpoint_slices_of(namespace, name), lookup_error, rules)
}

/// The endpoints of a Service, the preferred ones first, and how many these are. `lookup_error` is why the Service or its
/// EndpointSlices could not be read.
///
/// # Errors
/// As [`resolve`].
pub(super) fn service_endpoints(
    reference: &ServiceReference,
    service: Option<&Service>,
    slices: &[Arc<EndpointSlice>],
    lookup_error: Option<&str>,
    rules: ResolveRules,
) -> Result<(Vec<Destination>, usize), ResolveError> {
    let ServiceReference { namespace, name, port } = reference;
    let unavailable = |reason, message| Err(ResolveError { reason, message });
    let unknown = |why: &str| {
        let message = format!("service/{name} in {namespace:?} cannot be checked due to: {why}");
        unavailable("ServiceAccessError", message)
    };
    let Some(service) = service else {
        if let Some(why) = lookup_error {
            return unknown(why);
        }
        return unavailable("ServiceNotFound", format!("service/{name} in {namespace:?} is not present"));
    };
    if service.kind == ServiceType::ExternalName {
        if !rules.allows_external_name {
            let message = format!("service/{name} in {namespace:?} is an ExternalName, which is not allowed");
            return unavailable("ServiceAccessError", message);
        }
        let host = parse_host(&service.external_name);
        return Ok((vec![Destination { host, port: *port }], 1));
    }
    let Some(service_port) = service.port(*port) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return unavailable("ServicePortError", message);
    };
    // A Service of the directory may have no slices. In a cluster, controllers write slices for each ClusterIP Service
    // with endpoints; NodePort and LoadBalancer Services are left to external balancing, as in Kubernetes.
    if slices.is_empty() && service.source == ObjectSource::Cluster && service.kind == ServiceType::ClusterIp {
        if let Some(why) = lookup_error {
            return unknown(why);
        }
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return unavailable("EndpointsNotFound", message);
    }
    let serving = |of: fn(&SliceEndpoint) -> bool| endpoints_matching(slices, &service_port.name, of);
    let mut ready = serving(|one| one.ready);
    if ready.is_empty() {
        // As kube-proxy (KEP-1669): without ready endpoints, terminating ones that still serve are used.
        ready = serving(|one| one.is_draining);
    }
    if !slices.is_empty() && ready.is_empty() {
        let port_name = &service_port.name;
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return unavailable("MissingEndpoints", message);
    }
    if rules.routes_to_endpoints && !ready.is_empty() {
        return Ok(sort_by_preference(service, ready, rules.zone));
    }
    if service.headless {
        let message = format!("cannot route to service/{name} in {namespace:?} with ClusterIP \"None\"");
        return unavailable("EndpointsNotFound", message);
    }
    if service.cluster_ips.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return unavailable("EndpointsNotFound", message);
    }
    let at = |ip: &IpAddr| (Destination { host: Host::Ip(*ip), port: *port }, [].as_slice());
    Ok(sort_by_preference(service, service.cluster_ips.iter().map(at).collect(), None))
}

/// An endpoint and its zone hints.
type ZonedEndpoint<'r> = (Destination, &'r [String]);

/// Endpoints that satisfy `of` and have a port of this name, without duplicates.
fn endpoints_matching<'r, S: AsRef<EndpointSlice>>(
    slices: &'r [S],
    port_name: &str,
    of: impl Fn(&SliceEndpoint) -> bool,
) -> Vec<ZonedEndpoint<'r>> {
    let mut found: Vec<ZonedEndpoint<'_>> = Vec::new();
    let mut found_endpoints = std::collections::HashSet::new();
    for subset in slices.iter().flat_map(|slice| &slice.as_ref().subsets) {
        let Some(port) = subset.ports.iter().find(|port| port.name == port_name) else { continue };
        for one in subset.endpoints.iter().filter(|one| of(one)) {
            // As in Kubernetes: only the first address of an endpoint is used.
            let Some(address) = one.addresses.first() else { continue };
            let endpoint = Destination { host: Host::Ip(*address), port: port.port };
            if found_endpoints.insert(endpoint.clone()) {
                found.push((endpoint, &one.zones));
            }
        }
    }
    found
}

/// Sorts by the Service's primary address family, then by zone hints. Also returns the number of preferred endpoints.
fn sort_by_preference(
    service: &Service,
    endpoints: Vec<ZonedEndpoint<'_>>,
    zone: Option<Zone>,
) -> (Vec<Destination>, usize) {
    let ipv6 = service.prefers_ipv6.unwrap_or(false);
    let (mut first, mut other): (Vec<_>, Vec<_>) =
        endpoints.into_iter().partition(|(one, _)| matches!(one.host, Host::Ip(ip) if ip.is_ipv6() == ipv6));
    if first.is_empty() {
        std::mem::swap(&mut first, &mut other);
    }
    let mut preferred = first.len();
    // As kube-proxy: hints are used only if all endpoints have some, and some are for our zone.
    if let Some(zone) = zone
        && first.iter().all(|(_, zones)| !zones.is_empty())
    {
        let is_in_zone = |(_, zones): &ZonedEndpoint<'_>| zones.iter().any(|name| zone.matches(name));
        let near = first.iter().filter(|endpoint| is_in_zone(endpoint)).count();
        if near > 0 {
            first.sort_by_key(|endpoint| !is_in_zone(endpoint));
            preferred = near;
        }
    }
    first.append(&mut other);
    (first.into_iter().map(|(endpoint, _)| endpoint).collect(), preferred)
}

fn parse_host(text: &str) -> Host {
    text.parse().map_or_else(|_| Host::Name(text.to_ascii_lowercase()), Host::Ip)
}

impl fmt::Display for ResolveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::snapshot::tests::registry;

    const API: &str = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.g.io}\nspec: {group: g.io, version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {name: api, namespace: ns, port: 443}}\n---\n";

    fn resolve_text(rest: &str, rules: ResolveRules) -> Result<ResolvedBackend, ResolveError> {
        let registry = registry(&format!("{API}{rest}"));
        resolve(&registry.sorted_api_services()[0], &registry, rules, &EgressRoutes::default())
    }

    fn service(spec: &str) -> String {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: api, namespace: ns}}\nspec: {{{spec}}}\n---\n")
    }

    fn slice(name: &str, family: &str, rest: &str) -> String {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, namespace: ns, labels: {{kubernetes.io/service-name: api}}}}\naddressType: {family}\n{rest}---\n"
        )
    }

    fn reason(result: Result<ResolvedBackend, ResolveError>) -> (&'static str, String) {
        let unavailable = result.unwrap_err();
        (unavailable.reason, unavailable.message)
    }

    fn addresses(result: Result<ResolvedBackend, ResolveError>) -> Vec<String> {
        result.unwrap().endpoints.iter().map(ToString::to_string).collect()
    }

    const PORT: &str = "clusterIP: 10.0.0.1, ports: [{name: https, port: 443}]";

    #[test]
    fn resolve_errors_match_upstream_reasons() {
        let rules = ResolveRules::default();
        assert_eq!(reason(resolve_text("", rules)), ("ServiceNotFound", "service/api in \"ns\" is not present".into()));
        assert_eq!(
            reason(resolve_text(&service("clusterIP: 10.0.0.1, ports: [{port: 80}]"), rules)),
            ("ServicePortError", "service/api in \"ns\" is not listening on port 443".into())
        );
        assert_eq!(
            reason(resolve_text(&service("ports: [{port: 443}]"), rules)),
            ("EndpointsNotFound", "cannot find endpointslices for service/api in \"ns\"".into())
        );
        let none = slice("a", "IPv4", "ports: [{name: other, port: 1}]\nendpoints: [{addresses: [10.1.0.1]}]\n");
        assert_eq!(
            reason(resolve_text(&(service(PORT) + &none), rules)),
            (
                "MissingEndpoints",
                "endpointslices for service/api in \"ns\" have no addresses with port name \"https\"".into()
            )
        );
        assert_eq!(
            reason(resolve_text(&service("clusterIP: None, ports: [{port: 443}]"), rules)).0,
            "EndpointsNotFound"
        );
        let external = service("type: ExternalName, externalName: Api.Example.com");
        assert_eq!(
            reason(resolve_text(&external, ResolveRules { allows_external_name: false, ..rules })).0,
            "ServiceAccessError"
        );
    }

    #[test]
    fn resolve_unknown_egress_selection_fails() {
        let annotated = API.replace("{name: v1.g.io}", "{name: v1.g.io, annotations: {narthex.dev/egress: DMZ}}");
        let registry = registry(&format!("{annotated}{}", service(PORT)));
        let go =
            |ways: &EgressRoutes| resolve(&registry.sorted_api_services()[0], &registry, ResolveRules::default(), ways);
        let nowhere = ("EgressSelectionNotFound", "egress selection \"dmz\" not found".to_owned());
        assert_eq!(reason(go(&EgressRoutes::default())), nowhere);
        assert_eq!(
            go(&EgressRoutes::new([("dmz".to_owned(), EgressRoute::Direct)], EgressRoute::Direct))
                .unwrap()
                .egress_route,
            EgressRoute::Direct
        );
    }

    #[test]
    fn resolve_without_slices_uses_cluster_ip_or_external_name() {
        let resolved = resolve_text(&service(PORT), ResolveRules::default()).unwrap();
        assert_eq!(resolved.server_name, "api.ns.svc");
        assert_eq!(resolved.endpoints[0].to_string(), "10.0.0.1:443");
        let external = service("type: ExternalName, externalName: Api.Example.com");
        assert_eq!(addresses(resolve_text(&external, ResolveRules::default())), ["api.example.com:443"]);
    }

    #[test]
    fn resolve_ready_endpoints_by_port_name_primary_family_first() {
        let both = "clusterIP: 10.0.0.1, ipFamilies: [IPv6, IPv4], ports: [{name: https, port: 443}]";
        let ports = "ports: [{name: metrics, port: 9}, {name: https, port: 8443}]\n";
        let four = slice(
            "a",
            "IPv4",
            &format!(
                "{ports}endpoints: [{{addresses: [10.1.0.1]}}, {{addresses: [10.1.0.2], conditions: {{ready: false}}}}]\n"
            ),
        );
        let six = slice(
            "b",
            "IPv6",
            &format!("{ports}endpoints: [{{addresses: ['fd00::1']}}, {{addresses: ['fd00::1']}}]\n"),
        );
        let resolved = resolve_text(&(service(both) + &four + &six), ResolveRules::default());
        assert_eq!(resolved.as_ref().unwrap().preferred_count, 1);
        assert_eq!(addresses(resolved), ["[fd00::1]:8443", "10.1.0.1:8443"]);
        // Only the other family is ready: all of its endpoints are preferred.
        let resolved = resolve_text(&(service(both) + &four), ResolveRules::default()).unwrap();
        assert_eq!((resolved.preferred_count, resolved.endpoints.len()), (1, 1));
        // Cluster IPs if configured, as long as an endpoint is ready.
        let cluster = ResolveRules { routes_to_endpoints: false, ..ResolveRules::default() };
        assert_eq!(addresses(resolve_text(&(service(both) + &four), cluster)), ["10.0.0.1:443"]);
    }

    #[test]
    fn resolve_zone_hints_order_endpoints() {
        let hinted = |hints: [&str; 3]| {
            let endpoints: String = hints
                .iter()
                .enumerate()
                .map(|(number, zones)| format!("- {{addresses: [10.1.0.{number}], hints: {{forZones: [{zones}]}}}}\n"))
                .collect();
            let text = format!("ports: [{{name: https, port: 1}}]\nendpoints:\n{endpoints}");
            let rules = ResolveRules { zone: Zone::new("here"), ..ResolveRules::default() };
            let resolved = resolve_text(&(service(PORT) + &slice("a", "IPv4", &text)), rules).unwrap();
            assert_eq!(resolved.endpoints.len(), 3, "the others are there for when these fail");
            (resolved.preferred_count, resolved.endpoints[0].to_string())
        };
        assert_eq!(
            hinted(["{name: there}", "{name: elsewhere}, {name: here}", "{name: there}"]),
            (1, "10.1.0.1:1".into())
        );
        assert_eq!(hinted(["{name: there}", "{name: here}", ""]), (3, "10.1.0.0:1".into()), "one has none");
        assert_eq!(
            hinted(["{name: there}", "{name: there}", "{name: there}"]),
            (3, "10.1.0.0:1".into()),
            "none for us"
        );
        assert!(Zone::new("").is_none() && Zone::new(&"z".repeat(64)).is_none());
        assert_eq!(format!("{:?}", Zone::new("eu-1a").unwrap()), "\"eu-1a\"");
    }

    #[test]
    fn resolve_terminating_endpoints_used_when_none_is_ready() {
        let leaving = "{addresses: [10.1.0.1], conditions: {ready: false, serving: true, terminating: true}}";
        let starting = "{addresses: [10.1.0.2], conditions: {ready: false, serving: false}}";
        let text = |endpoints: &str| {
            service(PORT)
                + &slice("a", "IPv4", &format!("ports: [{{name: https, port: 1}}]\nendpoints: [{endpoints}]\n"))
        };
        let both = text(&format!("{leaving}, {starting}"));
        assert_eq!(addresses(resolve_text(&both, ResolveRules::default())), ["10.1.0.1:1"]);
        let ready = text(&format!("{leaving}, {{addresses: [10.1.0.3]}}"));
        assert_eq!(addresses(resolve_text(&ready, ResolveRules::default())), ["10.1.0.3:1"]);
        assert_eq!(reason(resolve_text(&text(starting), ResolveRules::default())).0, "MissingEndpoints");
    }

    #[test]
    fn resolve_legacy_endpoints_used_only_without_slices() {
        let legacy = "apiVersion: v1\nkind: Endpoints\nmetadata: {name: api, namespace: ns}\nsubsets: [{addresses: [{ip: 10.9.0.1}], ports: [{name: https, port: 1}]}]\n---\n";
        assert_eq!(addresses(resolve_text(&(service(PORT) + legacy), ResolveRules::default())), ["10.9.0.1:1"]);
        let four = slice("a", "IPv4", "ports: [{name: https, port: 2}]\nendpoints: [{addresses: [10.1.0.1]}]\n");
        assert_eq!(addresses(resolve_text(&(service(PORT) + legacy + &four), ResolveRules::default())), ["10.1.0.1:2"]);
    }
}
