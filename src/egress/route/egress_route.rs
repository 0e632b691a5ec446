//! Egress routes: direct, or through the proxies of an egress selection.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use crate::egress::route::proxy_health::{ProxyHealth, ProxyState};
use crate::egress::{Address, Destination, NoProxy, ProxyCredentials};
use crate::process::Problem;
use crate::tls::KeyPair;
use crate::tls::client::{ClientSettings, build_config, server_name};

/// Default selection for backends, unless their APIService names another.
pub const CLUSTER: &str = "cluster";
/// Selection for calls to control planes.
pub const CONTROL_PLANE: &str = "controlplane";
/// Selection for etcd.
pub const ETCD: &str = "etcd";

/// Selections used by the gateway's calls by default.
pub const STANDARD_CALLS: [&str; 2] = [CLUSTER, CONTROL_PLANE];

/// Standard selections, which need not be configured: without one the default route applies.
const STANDARD_SELECTIONS: [&str; 3] = [CLUSTER, CONTROL_PLANE, ETCD];

/// How destinations are dialed.
#[derive(Clone, Debug, Default)]
pub enum EgressRoute {
    /// Directly.
    #[default]
    Direct,
    /// Through a proxy of a selection.
    Proxied(Arc<EgressSelection>),
}

/// An egress selection: equivalent proxies, their protocol, and the destinations that bypass them.
pub struct EgressSelection {
    /// Configured name.
    pub name: String,
    /// Protocol of the proxies.
    pub protocol: EgressProtocol,
    /// Proxies in the order to try them; at least one.
    pub proxies: Vec<EgressProxy>,
    /// Destinations that bypass the proxies.
    pub no_proxy: NoProxy,
    /// Whether loopback bypasses the proxies, too: the environment's rule.
    pub bypass_loopback: bool,
    /// Time limit for connecting to the proxy and through it.
    pub dial_timeout: Duration,
    pub(in crate::egress) health: ProxyHealth,
}

/// Protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressProtocol {
    /// SOCKS version 5 (RFC 1928).
    Socks5,
    /// HTTP/1.1 CONNECT.
    HttpConnect(ConnectDialect),
    /// Konnectivity over gRPC.
    Konnectivity,
}

/// Where names are resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NameResolution {
    /// By the proxy: it gets names.
    #[default]
    Remote,
    /// By the gateway: the proxy gets addresses.
    Local,
}

/// Dialect of CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectDialect {
    /// Ordinary proxies: any 2xx is success, and all bytes after the head belong to the tunnel.
    Ordinary,
    /// Konnectivity servers in mode `http-connect`, as with kube-apiserver: 200 is success, no bytes may follow the
    /// head, and errors are explained in the body.
    Konnectivity,
}

/// A proxy for outbound connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressProxy {
    /// Address of the proxy.
    pub address: Address,
    /// TLS settings; `None` without TLS.
    pub tls: Option<Arc<ProxyTls>>,
    /// Credentials for the proxy.
    pub credentials: Option<ProxyCredentials>,
    /// Where names are resolved. Relevant for SOCKS5; the others always get names.
    pub name_resolution: NameResolution,
}

/// TLS settings of a proxy. Equal if server name and settings are.
pub struct ProxyTls {
    pub(in crate::egress) name: ServerName<'static>,
    settings: ClientSettings,
    pub(in crate::egress) config: Arc<ClientConfig>,
}

/// All egress routes, by selection name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressRoutes {
    selections: BTreeMap<String, EgressRoute>,
    /// Default for standard selections that are not configured.
    default_route: EgressRoute,
    /// Default for destinations without TLS.
    default_plaintext_route: EgressRoute,
}

impl EgressRoute {
    /// Whether `destination` is dialed through a proxy, which looks its name up.
    pub fn is_proxied(&self, destination: &Destination) -> bool {
        self.selection_for(destination).is_some()
    }

    /// The selection that `destination` is dialed through, if any.
    pub(in crate::egress) fn selection_for(&self, destination: &Destination) -> Option<&Arc<EgressSelection>> {
        match self {
            EgressRoute::Proxied(selection) if !selection.bypasses_proxy(destination) => Some(selection),
            _ => None,
        }
    }
}

impl EgressRoutes {
    /// Routes of `by_name`, with `otherwise` as the default for standard selections.
    pub fn new(by_name: impl IntoIterator<Item = (String, EgressRoute)>, otherwise: EgressRoute) -> EgressRoutes {
        EgressRoutes {
            selections: by_name.into_iter().collect(),
            default_route: otherwise,
            default_plaintext_route: EgressRoute::Direct,
        }
    }

    /// Sets the default for destinations without TLS.
    #[must_use]
    pub fn with_plaintext_default(self, otherwise: EgressRoute) -> EgressRoutes {
        EgressRoutes { default_plaintext_route: otherwise, ..self }
    }

    /// The route of a selection. `None` for one that is neither configured nor standard: its users must not be dialed
    /// another way.
    pub fn get(&self, name: &str) -> Option<&EgressRoute> {
        self.get_configured(name).or_else(|| STANDARD_SELECTIONS.contains(&name).then_some(&self.default_route))
    }

    /// As [`EgressRoutes::get`], for destinations without TLS.
    pub fn get_plaintext(&self, name: &str) -> Option<&EgressRoute> {
        self.get_configured(name)
            .or_else(|| STANDARD_SELECTIONS.contains(&name).then_some(&self.default_plaintext_route))
    }

    /// The route of a configured selection.
    pub fn get_configured(&self, name: &str) -> Option<&EgressRoute> {
        self.selections.get(name)
    }

    /// The default route.
    pub fn default_route(&self) -> &EgressRoute {
        &self.default_route
    }

    /// All routes by name, and the default ones, with TLS and without, unless direct.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &EgressRoute)> {
        let rest = [("otherwise", &self.default_route), ("otherwise without TLS", &self.default_plaintext_route)];
        let rest = rest.into_iter().filter(|(_, way)| **way != EgressRoute::Direct);
        self.selections.iter().map(|(name, way)| (name.as_str(), way)).chain(rest)
    }

    /// Warnings about those of `expected` that are not configured while others use proxies. A misspelled selection
    /// would silently bypass its proxy.
    pub fn missing_selection_warnings(&self, expected: &[&str]) -> Vec<String> {
        if !self.selections.values().any(|route| *route != EgressRoute::Direct) {
            return Vec::new();
        }
        let there: Vec<&str> = self.selections.keys().map(String::as_str).collect();
        let there = there.join(", ");
        let absent = expected.iter().filter(|name| !self.selections.contains_key(**name));
        let warning = |name: &&str| {
            let goes = if self.default_route == EgressRoute::Direct { "directly" } else { "as the environment says" };
            format!(
                "egress selection {name} is not configured, so its traffic goes {goes}; check that none of {there} is \
                 misspelled; if this is intended, add a selection {name} with proxyProtocol: Direct"
            )
        };
        absent.map(warning).collect()
    }

    /// Client certificates for the proxies, one per proxy that has one.
    pub fn identities(&self) -> impl Iterator<Item = &Arc<KeyPair>> {
        let selections = self.entries().filter_map(|(_, way)| match way {
            EgressRoute::Proxied(selection) => Some(selection),
            EgressRoute::Direct => None,
        });
        let tls = selections.flat_map(|selection| &selection.proxies).filter_map(|proxy| proxy.tls.as_ref());
        tls.filter_map(|tls| tls.settings.identity.as_ref())
    }

    /// Names of selections in `before` that are no longer configured.
    pub(in crate::egress) fn removed_since<'w>(&self, before: &'w EgressRoutes) -> impl Iterator<Item = &'w str> {
        before.selections.keys().filter(|name| !self.selections.contains_key(*name)).map(String::as_str)
    }

    /// Replaces routes that equal those in `before` by the latter, so that their health and connections are kept.
    pub fn reuse_unchanged(mut self, before: &EgressRoutes) -> EgressRoutes {
        let keep = |now: &mut EgressRoute, before: Option<&EgressRoute>| {
            if let Some(before) = before.filter(|before| *before == now) {
                *now = before.clone();
            }
        };
        for (name, route) in &mut self.selections {
            keep(route, before.selections.get(name));
        }
        keep(&mut self.default_route, Some(&before.default_route));
        keep(&mut self.default_plaintext_route, Some(&before.default_plaintext_route));
        self
    }
}

impl EgressSelection {
    /// A selection with untried proxies and no bypass rules.
    pub fn new(
        name: impl Into<String>,
        kind: EgressProtocol,
        proxies: Vec<EgressProxy>,
        dial_timeout: Duration,
    ) -> EgressSelection {
        EgressSelection {
            name: name.into(),
            protocol: kind,
            health: ProxyHealth::new(proxies.len()),
            proxies,
            no_proxy: NoProxy::default(),
            bypass_loopback: false,
            dial_timeout,
        }
    }

    /// What an error calls it.
    pub(in crate::egress) fn description(&self) -> String {
        match self.bypass_loopback {
            true => "the proxy of HTTPS_PROXY or HTTP_PROXY".to_owned(),
            false => format!("egress selection {}", self.name),
        }
    }

    /// Whether `destination` bypasses the proxies.
    fn bypasses_proxy(&self, destination: &Destination) -> bool {
        self.no_proxy.matches(destination) || self.bypass_loopback && destination.is_loopback()
    }

    /// The proxies with their health.
    pub fn states(&self) -> impl Iterator<Item = (&EgressProxy, ProxyState)> {
        self.proxies.iter().enumerate().map(|(number, proxy)| (proxy, self.health.state(number)))
    }
}

impl EgressProtocol {
    /// Value of the metric label; two of them are those of `k8s.io/apiserver/pkg/server/egressselector/metrics`.
    pub fn as_str(self) -> &'static str {
        match self {
            EgressProtocol::Socks5 => "socks5",
            EgressProtocol::HttpConnect(_) => "http_connect",
            EgressProtocol::Konnectivity => "grpc",
        }
    }

    /// ALPN protocols offered to the proxy.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            EgressProtocol::Socks5 => Vec::new(),
            EgressProtocol::HttpConnect(_) => vec![b"http/1.1".to_vec()],
            EgressProtocol::Konnectivity => vec![b"h2".to_vec()],
        }
    }
}

impl ProxyTls {
    /// Settings that expect the server name `name`.
    ///
    /// # Errors
    /// Not a valid server name, or settings that rustls rejects.
    pub fn new(name: &str, settings: ClientSettings) -> Result<ProxyTls, Problem> {
        Ok(ProxyTls { name: server_name(name)?, config: build_config(&settings)?, settings })
    }
}

impl PartialEq for EgressRoute {
    fn eq(&self, other: &EgressRoute) -> bool {
        match (self, other) {
            (EgressRoute::Direct, EgressRoute::Direct) => true,
            (EgressRoute::Proxied(one), EgressRoute::Proxied(other)) => Arc::ptr_eq(one, other) || one == other,
            _ => false,
        }
    }
}

impl Eq for EgressRoute {}

impl Hash for EgressRoute {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Enough to find the few candidates; equality decides.
        if let EgressRoute::Proxied(selection) = self {
            selection.name.hash(state);
        }
    }
}

impl PartialEq for EgressSelection {
    fn eq(&self, other: &EgressSelection) -> bool {
        // Health is not part of its identity.
        let EgressSelection {
            name,
            protocol: kind,
            proxies,
            no_proxy,
            bypass_loopback: spares_this_machine,
            dial_timeout,
            health: _,
        } = other;
        (&self.name, self.protocol, &self.proxies) == (name, *kind, proxies)
            && (&self.no_proxy, self.bypass_loopback) == (no_proxy, *spares_this_machine)
            && self.dial_timeout == *dial_timeout
    }
}

impl Eq for EgressSelection {}

impl PartialEq for ProxyTls {
    fn eq(&self, other: &ProxyTls) -> bool {
        self.name == other.name && self.settings == other.settings
    }
}

impl Eq for ProxyTls {}

impl fmt::Display for EgressRoute {
    /// `direct`, or the selection's name and protocol.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EgressRoute::Direct => f.write_str("direct"),
            EgressRoute::Proxied(selection) => write!(f, "{} ({})", selection.name, selection.protocol.as_str()),
        }
    }
}

impl fmt::Display for EgressRoutes {
    /// All routes by name, and the default ones unless direct.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, way)) in self.entries().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            match way {
                EgressRoute::Direct => write!(f, "{comma}{name}: direct")?,
                EgressRoute::Proxied(selection) => write!(f, "{comma}{name}: {}", selection.protocol.as_str())?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for EgressSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EgressSelection { name, protocol: kind, proxies, .. } = self;
        f.debug_struct("Selection").field("name", name).field("kind", kind).field("proxies", proxies).finish()
    }
}

impl fmt::Debug for ProxyTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyTls").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Host;

    fn through(name: &str, port: u16) -> EgressRoute {
        let address = Address::Tcp(Destination { host: Host::Name("proxy".to_owned()), port });
        let credentials = Some(ProxyCredentials::new("jane", "secret"));
        let proxies = vec![EgressProxy { address, tls: None, credentials, name_resolution: NameResolution::Remote }];
        EgressRoute::Proxied(Arc::new(EgressSelection::new(
            name,
            EgressProtocol::Socks5,
            proxies,
            Duration::from_secs(1),
        )))
    }

    #[test]
    fn egress_route_of_absent_selection_falls_back_only_for_standard_names() {
        let ways = EgressRoutes::new([("cluster".to_owned(), through("cluster", 1))], through("environment", 9));
        assert_eq!(ways.get("cluster"), Some(&through("cluster", 1)));
        assert_eq!(ways.get("controlplane"), Some(&through("environment", 9)));
        assert_eq!(ways.get("dmz"), None);
        assert_eq!(ways.get_configured("controlplane"), None);
        assert_eq!(EgressRoutes::default().get("cluster"), Some(&EgressRoute::Direct));
    }

    #[test]
    fn egress_routes_warn_about_missing_selections() {
        let named = |names: &[&str], otherwise| {
            EgressRoutes::new(names.iter().map(|name| (name.to_string(), through(name, 1))), otherwise)
        };
        let expected = [CLUSTER, CONTROL_PLANE];
        let slip = named(&["clutser", "controlplane"], EgressRoute::Direct);
        let [warning] = &slip.missing_selection_warnings(&expected)[..] else { panic!("one is lacking") };
        assert!(warning.starts_with("egress selection cluster is not configured, so its traffic goes directly; check"));
        assert!(warning.contains("none of clutser, controlplane is misspelled"), "{warning}");
        assert_eq!(slip.missing_selection_warnings(&[]), [""; 0]);
        assert_eq!(
            named(&["cluster", "controlplane"], EgressRoute::Direct).missing_selection_warnings(&expected),
            [""; 0]
        );
        assert!(
            named(&["cluster"], through("environment", 9)).missing_selection_warnings(&expected)[0]
                .contains("as the environment says")
        );
        // Without proxies all calls are direct as intended; and a selection with `Direct` is configured.
        assert_eq!(EgressRoutes::default().missing_selection_warnings(&expected), [""; 0]);
        let said = EgressRoutes::new(
            [("cluster".to_owned(), through("cluster", 1)), ("controlplane".to_owned(), EgressRoute::Direct)],
            EgressRoute::Direct,
        );
        assert_eq!(said.missing_selection_warnings(&expected), [""; 0]);
        assert_eq!(slip.removed_since(&said).collect::<Vec<_>>(), ["cluster"]);
    }

    #[test]
    fn egress_routes_unchanged_selections_keep_state() {
        let before = EgressRoutes::new(["a", "b"].map(|name| (name.to_owned(), through(name, 1))), EgressRoute::Direct);
        let now = [("a".to_owned(), through("a", 1)), ("b".to_owned(), through("b", 2))];
        let now = EgressRoutes::new(now, EgressRoute::Direct).reuse_unchanged(&before);
        let same = |name| match (before.get(name), now.get(name)) {
            (Some(EgressRoute::Proxied(one)), Some(EgressRoute::Proxied(other))) => Arc::ptr_eq(one, other),
            _ => false,
        };
        assert!(same("a") && !same("b"));
    }

    #[test]
    fn egress_route_display_hides_credentials() {
        let shown = format!("{:?} {}", through("a", 1), through("a", 1));
        assert!(!shown.contains("secret") && !shown.contains("jane"), "{shown}");
        assert!(shown.ends_with("a (socks5)"), "{shown}");
    }
}
