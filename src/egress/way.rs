//! Egress routes: direct, or through the proxies of an egress selection.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;

use super::health::{Health, ProxyState};
use super::no_proxy::is_this_machine;
use super::{Address, CLUSTER, CONTROL_PLANE, Credentials, Destination, NoProxy};
use crate::process::Problem;
use crate::tls::KeyPair;
use crate::tls::client::{ClientSettings, config, server_name};

/// Standard selections, which need not be configured: without one the default route applies.
const STANDARD: [&str; 3] = [CLUSTER, CONTROL_PLANE, "etcd"];

/// How destinations are dialed.
#[derive(Clone, Debug, Default)]
pub enum Way {
    /// Directly.
    #[default]
    Direct,
    /// Through a proxy of a selection.
    Through(Arc<Selection>),
}

/// An egress selection: equivalent proxies, their protocol, and the destinations that bypass them.
pub struct Selection {
    /// Configured name.
    pub name: String,
    /// Protocol of the proxies.
    pub kind: Kind,
    /// Proxies in the order to try them; at least one.
    pub proxies: Vec<Proxy>,
    /// Destinations that bypass the proxies.
    pub no_proxy: NoProxy,
    /// Whether loopback bypasses the proxies, too: the environment's rule.
    pub spares_this_machine: bool,
    /// Time limit for connecting to the proxy and through it.
    pub dial_timeout: Duration,
    pub(super) health: Health,
}

/// Protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SOCKS version 5 (RFC 1928).
    Socks5,
    /// HTTP/1.1 CONNECT.
    Connect(Dialect),
    /// Konnectivity over gRPC.
    Konnectivity,
}

/// Where names are resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// By the proxy: it gets names.
    #[default]
    ByProxy,
    /// By the gateway: the proxy gets addresses.
    ByUs,
}

/// Dialect of CONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Ordinary proxies: any 2xx is success, and all bytes after the head belong to the tunnel.
    Ordinary,
    /// Konnectivity servers in mode `http-connect`, as with kube-apiserver: 200 is success, no bytes may follow the
    /// head, and errors are explained in the body.
    Konnectivity,
}

/// A proxy for outbound connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Its address.
    pub address: Address,
    /// TLS settings; `None` without TLS.
    pub tls: Option<Arc<ProxyTls>>,
    /// Credentials for the proxy.
    pub credentials: Option<Credentials>,
    /// Where names are resolved. Relevant for SOCKS5; the others always get names.
    pub names: Names,
}

/// TLS settings of a proxy. Equal if server name and settings are.
pub struct ProxyTls {
    pub(super) name: ServerName<'static>,
    settings: ClientSettings,
    pub(super) config: Arc<ClientConfig>,
}

/// All egress routes, by selection name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    by_name: BTreeMap<String, Way>,
    /// Default for standard selections that are not configured.
    otherwise: Way,
    /// Default for destinations without TLS.
    otherwise_plain: Way,
}

impl Way {
    /// The selection that `destination` is dialed through, if any.
    pub(super) fn selection_for(&self, destination: &Destination) -> Option<&Arc<Selection>> {
        match self {
            Way::Through(selection) if !selection.spares(destination) => Some(selection),
            _ => None,
        }
    }
}

impl Ways {
    /// Routes of `by_name`, with `otherwise` as the default for standard selections.
    pub fn new(by_name: impl IntoIterator<Item = (String, Way)>, otherwise: Way) -> Ways {
        Ways { by_name: by_name.into_iter().collect(), otherwise, otherwise_plain: Way::Direct }
    }

    /// Sets the default for destinations without TLS.
    #[must_use]
    pub fn with_plain(self, otherwise: Way) -> Ways {
        Ways { otherwise_plain: otherwise, ..self }
    }

    /// The route of a selection. `None` for one that is neither configured nor standard: its users must not be dialed
    /// another way.
    pub fn of(&self, name: &str) -> Option<&Way> {
        self.configured(name).or_else(|| STANDARD.contains(&name).then_some(&self.otherwise))
    }

    /// As [`Ways::of`], for destinations without TLS.
    pub fn of_plain(&self, name: &str) -> Option<&Way> {
        self.configured(name).or_else(|| STANDARD.contains(&name).then_some(&self.otherwise_plain))
    }

    /// The route of a configured selection.
    pub fn configured(&self, name: &str) -> Option<&Way> {
        self.by_name.get(name)
    }

    /// The default route.
    pub fn otherwise(&self) -> &Way {
        &self.otherwise
    }

    /// All routes by name, and the default ones, with TLS and without, unless direct.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Way)> {
        let rest = [("otherwise", &self.otherwise), ("otherwise without TLS", &self.otherwise_plain)];
        let rest = rest.into_iter().filter(|(_, way)| **way != Way::Direct);
        self.by_name.iter().map(|(name, way)| (name.as_str(), way)).chain(rest)
    }

    /// Warnings about those of `expected` that are not configured while others use proxies. A misspelled selection
    /// would silently bypass its proxy.
    pub fn lacking(&self, expected: &[&str]) -> Vec<String> {
        if !self.by_name.values().any(|way| *way != Way::Direct) {
            return Vec::new();
        }
        let there: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
        let there = there.join(", ");
        let absent = expected.iter().filter(|name| !self.by_name.contains_key(**name));
        let line = |name: &&str| {
            let goes = if self.otherwise == Way::Direct { "directly" } else { "as the environment says" };
            format!(
                "egress selection {name} is not configured, so its traffic goes {goes}; check that none of {there} is \
                 misspelled; if this is intended, add a selection {name} with proxyProtocol: Direct"
            )
        };
        absent.map(line).collect()
    }

    /// Client certificates for the proxies, one per proxy that has one.
    pub fn identities(&self) -> impl Iterator<Item = &Arc<KeyPair>> {
        let selections = self.all().filter_map(|(_, way)| match way {
            Way::Through(selection) => Some(selection),
            Way::Direct => None,
        });
        let tls = selections.flat_map(|selection| &selection.proxies).filter_map(|proxy| proxy.tls.as_ref());
        tls.filter_map(|tls| tls.settings.identity.as_ref())
    }

    /// Names of selections in `before` that are no longer configured.
    pub(super) fn gone_since<'w>(&self, before: &'w Ways) -> impl Iterator<Item = &'w str> {
        before.by_name.keys().filter(|name| !self.by_name.contains_key(*name)).map(String::as_str)
    }

    /// Replaces routes that equal those in `before` by the latter, so that their health and connections are kept.
    pub fn kept_from(mut self, before: &Ways) -> Ways {
        let keep = |now: &mut Way, before: Option<&Way>| {
            if let Some(before) = before.filter(|before| *before == now) {
                *now = before.clone();
            }
        };
        for (name, way) in &mut self.by_name {
            keep(way, before.by_name.get(name));
        }
        keep(&mut self.otherwise, Some(&before.otherwise));
        keep(&mut self.otherwise_plain, Some(&before.otherwise_plain));
        self
    }
}

impl Selection {
    /// A selection with untried proxies and no bypass rules.
    pub fn new(name: impl Into<String>, kind: Kind, proxies: Vec<Proxy>, dial_timeout: Duration) -> Selection {
        Selection {
            name: name.into(),
            kind,
            health: Health::of(proxies.len()),
            proxies,
            no_proxy: NoProxy::default(),
            spares_this_machine: false,
            dial_timeout,
        }
    }

    /// Whether `destination` bypasses the proxies.
    fn spares(&self, destination: &Destination) -> bool {
        self.no_proxy.matches(destination) || self.spares_this_machine && is_this_machine(destination)
    }

    /// The proxies with their health.
    pub fn states(&self) -> impl Iterator<Item = (&Proxy, ProxyState)> {
        self.proxies.iter().enumerate().map(|(number, proxy)| (proxy, self.health.state(number)))
    }
}

impl Kind {
    /// Value of the metric label; two of them are those of `k8s.io/apiserver/pkg/server/egressselector/metrics`.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Socks5 => "socks5",
            Kind::Connect(_) => "http_connect",
            Kind::Konnectivity => "grpc",
        }
    }

    /// ALPN protocols offered to the proxy.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Kind::Socks5 => Vec::new(),
            Kind::Connect(_) => vec![b"http/1.1".to_vec()],
            Kind::Konnectivity => vec![b"h2".to_vec()],
        }
    }
}

impl ProxyTls {
    /// Settings that expect the server name `name`.
    ///
    /// # Errors
    /// Not a valid server name, or settings that rustls rejects.
    pub fn new(name: &str, settings: ClientSettings) -> Result<ProxyTls, Problem> {
        Ok(ProxyTls { name: server_name(name)?, config: config(&settings)?, settings })
    }
}

impl PartialEq for Way {
    fn eq(&self, other: &Way) -> bool {
        match (self, other) {
            (Way::Direct, Way::Direct) => true,
            (Way::Through(one), Way::Through(other)) => Arc::ptr_eq(one, other) || one == other,
            _ => false,
        }
    }
}

impl Eq for Way {}

impl Hash for Way {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Enough to find the few candidates; equality decides.
        if let Way::Through(selection) = self {
            selection.name.hash(state);
        }
    }
}

impl PartialEq for Selection {
    fn eq(&self, other: &Selection) -> bool {
        // Health is not part of its identity.
        let Selection { name, kind, proxies, no_proxy, spares_this_machine, dial_timeout, health: _ } = other;
        (&self.name, self.kind, &self.proxies) == (name, *kind, proxies)
            && (&self.no_proxy, self.spares_this_machine) == (no_proxy, *spares_this_machine)
            && self.dial_timeout == *dial_timeout
    }
}

impl Eq for Selection {}

impl PartialEq for ProxyTls {
    fn eq(&self, other: &ProxyTls) -> bool {
        self.name == other.name && self.settings == other.settings
    }
}

impl Eq for ProxyTls {}

impl fmt::Display for Way {
    /// `direct`, or the selection's name and protocol.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Direct => f.write_str("direct"),
            Way::Through(selection) => write!(f, "{} ({})", selection.name, selection.kind.as_str()),
        }
    }
}

impl fmt::Display for Ways {
    /// All routes by name, and the default ones unless direct.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, way)) in self.all().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            match way {
                Way::Direct => write!(f, "{comma}{name}: direct")?,
                Way::Through(selection) => write!(f, "{comma}{name}: {}", selection.kind.as_str())?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Selection { name, kind, proxies, .. } = self;
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

    fn through(name: &str, port: u16) -> Way {
        let address = Address::Tcp(Destination { host: Host::Name("proxy".to_owned()), port });
        let credentials = Some(Credentials::new("jane", "secret"));
        let proxies = vec![Proxy { address, tls: None, credentials, names: Names::ByProxy }];
        Way::Through(Arc::new(Selection::new(name, Kind::Socks5, proxies, Duration::from_secs(1))))
    }

    #[test]
    fn a_standard_name_that_is_not_there_is_as_without_any_and_another_is_nowhere() {
        let ways = Ways::new([("cluster".to_owned(), through("cluster", 1))], through("environment", 9));
        assert_eq!(ways.of("cluster"), Some(&through("cluster", 1)));
        assert_eq!(ways.of("controlplane"), Some(&through("environment", 9)));
        assert_eq!(ways.of("dmz"), None);
        assert_eq!(ways.configured("controlplane"), None);
        assert_eq!(Ways::default().of("cluster"), Some(&Way::Direct));
    }

    #[test]
    fn what_goes_past_the_proxies_by_a_slip_is_told() {
        let named = |names: &[&str], otherwise| {
            Ways::new(names.iter().map(|name| (name.to_string(), through(name, 1))), otherwise)
        };
        let expected = [CLUSTER, CONTROL_PLANE];
        let slip = named(&["clutser", "controlplane"], Way::Direct);
        let [warning] = &slip.lacking(&expected)[..] else { panic!("one is lacking") };
        assert!(warning.starts_with("egress selection cluster is not configured, so its traffic goes directly; check"));
        assert!(warning.contains("none of clutser, controlplane is misspelled"), "{warning}");
        assert_eq!(slip.lacking(&[]), [""; 0]);
        assert_eq!(named(&["cluster", "controlplane"], Way::Direct).lacking(&expected), [""; 0]);
        assert!(
            named(&["cluster"], through("environment", 9)).lacking(&expected)[0].contains("as the environment says")
        );
        // Without proxies all calls are direct as intended; and a selection with `Direct` is configured.
        assert_eq!(Ways::default().lacking(&expected), [""; 0]);
        let said = Ways::new(
            [("cluster".to_owned(), through("cluster", 1)), ("controlplane".to_owned(), Way::Direct)],
            Way::Direct,
        );
        assert_eq!(said.lacking(&expected), [""; 0]);
        assert_eq!(slip.gone_since(&said).collect::<Vec<_>>(), ["cluster"]);
    }

    #[test]
    fn what_is_written_as_before_is_the_same_with_what_is_known_of_it() {
        let before = Ways::new(["a", "b"].map(|name| (name.to_owned(), through(name, 1))), Way::Direct);
        let now = [("a".to_owned(), through("a", 1)), ("b".to_owned(), through("b", 2))];
        let now = Ways::new(now, Way::Direct).kept_from(&before);
        let same = |name| match (before.of(name), now.of(name)) {
            (Some(Way::Through(one)), Some(Way::Through(other))) => Arc::ptr_eq(one, other),
            _ => false,
        };
        assert!(same("a") && !same("b"));
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?} {}", through("a", 1), through("a", 1));
        assert!(!shown.contains("secret") && !shown.contains("jane"), "{shown}");
        assert!(shown.ends_with("a (socks5)"), "{shown}");
    }
}
