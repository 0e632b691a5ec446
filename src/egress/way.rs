//! Which way connections go: by ourselves, or by somebody who connects for us.

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

/// The selections that need not be there: what goes through one that is not goes as if there were none.
const STANDARD: [&str; 3] = [CLUSTER, CONTROL_PLANE, "etcd"];

/// A way to destinations.
#[derive(Clone, Debug, Default)]
pub enum Way {
    /// By ourselves.
    #[default]
    Direct,
    /// By one of the proxies of a selection.
    Through(Arc<Selection>),
}

/// Proxies that do the same, how they are spoken to, and what does not go through them.
pub struct Selection {
    /// As the configuration calls it.
    pub name: String,
    /// What is spoken to them.
    pub kind: Kind,
    /// At least one, in the order to try them.
    pub proxies: Vec<Proxy>,
    /// What does not go through them.
    pub no_proxy: NoProxy,
    /// Whether what is on this machine does not, either: the environment's rule.
    pub spares_this_machine: bool,
    /// For the proxy and for what lies behind it, together.
    pub dial_timeout: Duration,
    pub(super) health: Health,
}

/// What is spoken to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// SOCKS version 5 (RFC 1928).
    Socks5,
    /// `CONNECT` of HTTP/1.1.
    Connect(Dialect),
    /// Konnectivity's tunnels over gRPC.
    Konnectivity,
}

/// Who looks names up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// The proxy: it is given names.
    #[default]
    ByProxy,
    /// We: it is given addresses.
    ByUs,
}

/// Whose `CONNECT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// That of proxies on the web: any 2xx is a yes, and what follows it is the tunnel's.
    Ordinary,
    /// That of a Konnectivity server in its mode `http-connect`, as kube-apiserver speaks it: 200 is a yes, nothing
    /// may follow it, and a no explains itself in its body.
    Konnectivity,
}

/// Somebody who connects for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Where it is.
    pub address: Address,
    /// If it is spoken to over TLS.
    pub tls: Option<Arc<ProxyTls>>,
    /// Who we are to it.
    pub credentials: Option<Credentials>,
    /// Who looks up the names behind it. Counts for SOCKS5; the others are always given names.
    pub names: Names,
}

/// The TLS side of a proxy. Equal if the same is expected there and the same shown.
pub struct ProxyTls {
    pub(super) name: ServerName<'static>,
    settings: ClientSettings,
    pub(super) config: Arc<ClientConfig>,
}

/// All ways there are, by the names of their selections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    by_name: BTreeMap<String, Way>,
    /// Of what no selection is for.
    otherwise: Way,
    /// The same for what is spoken to without TLS.
    otherwise_plain: Way,
}

impl Way {
    /// The selection that `destination` goes through, if it does.
    pub(super) fn selection_for(&self, destination: &Destination) -> Option<&Arc<Selection>> {
        match self {
            Way::Through(selection) if !selection.spares(destination) => Some(selection),
            _ => None,
        }
    }
}

impl Ways {
    /// These, and `otherwise` for standard selections that are not among them.
    pub fn new(by_name: impl IntoIterator<Item = (String, Way)>, otherwise: Way) -> Ways {
        Ways { by_name: by_name.into_iter().collect(), otherwise, otherwise_plain: Way::Direct }
    }

    /// These, and `otherwise` for standard selections that are not among them where no TLS is spoken.
    #[must_use]
    pub fn with_plain(self, otherwise: Way) -> Ways {
        Ways { otherwise_plain: otherwise, ..self }
    }

    /// The way of a selection. None for one that is not there, unless its name is a standard one: whoever asked for
    /// it must not go another way.
    pub fn of(&self, name: &str) -> Option<&Way> {
        self.configured(name).or_else(|| STANDARD.contains(&name).then_some(&self.otherwise))
    }

    /// The same for what is spoken to without TLS.
    pub fn of_plain(&self, name: &str) -> Option<&Way> {
        self.configured(name).or_else(|| STANDARD.contains(&name).then_some(&self.otherwise_plain))
    }

    /// The way of a selection that is there.
    pub fn configured(&self, name: &str) -> Option<&Way> {
        self.by_name.get(name)
    }

    /// The way of what no selection is for.
    pub fn otherwise(&self) -> &Way {
        &self.otherwise
    }

    /// All of them by their names, and `otherwise`, with TLS and without, where what no selection is for does not go directly.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Way)> {
        let rest = [("otherwise", &self.otherwise), ("otherwise without TLS", &self.otherwise_plain)];
        let rest = rest.into_iter().filter(|(_, way)| **way != Way::Direct);
        self.by_name.iter().map(|(name, way)| (name.as_str(), way)).chain(rest)
    }

    /// What is odd about them, though nothing is wrong: where some go through proxies, those of `expected` that are not
    /// there. One whose name is misspelt would go past its proxy, and nobody would see it.
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
                "egress selection {name} is not there, so that what is for it goes {goes}; see that none of {there} is \
                 misspelt, and if it is meant, say so by a selection {name} with proxyProtocol: Direct"
            )
        };
        absent.map(line).collect()
    }

    /// Who we are to their proxies, each as often as a proxy is told.
    pub fn identities(&self) -> impl Iterator<Item = &Arc<KeyPair>> {
        let selections = self.all().filter_map(|(_, way)| match way {
            Way::Through(selection) => Some(selection),
            Way::Direct => None,
        });
        let tls = selections.flat_map(|selection| &selection.proxies).filter_map(|proxy| proxy.tls.as_ref());
        tls.filter_map(|tls| tls.settings.identity.as_ref())
    }

    /// The names of selections that were there `before` and are not now.
    pub(super) fn gone_since<'w>(&self, before: &'w Ways) -> impl Iterator<Item = &'w str> {
        before.by_name.keys().filter(|name| !self.by_name.contains_key(*name)).map(String::as_str)
    }

    /// These, where those that are as they were `before` are the same: whatever hangs on them stays.
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
    /// A selection of which no proxy was tried yet; everything goes through it.
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

    /// Whether `destination` goes past it.
    fn spares(&self, destination: &Destination) -> bool {
        self.no_proxy.matches(destination) || self.spares_this_machine && is_this_machine(destination)
    }

    /// The proxies, and how each serves, as far as is known.
    pub fn states(&self) -> impl Iterator<Item = (&Proxy, ProxyState)> {
        self.proxies.iter().enumerate().map(|(number, proxy)| (proxy, self.health.state(number)))
    }
}

impl Kind {
    /// What is spoken, as labels of metrics have it: `k8s.io/apiserver/pkg/server/egressselector/metrics` knows two
    /// of them.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Socks5 => "socks5",
            Kind::Connect(_) => "http_connect",
            Kind::Konnectivity => "grpc",
        }
    }

    /// What ALPN offers to a proxy.
    pub fn alpn(self) -> Vec<Vec<u8>> {
        match self {
            Kind::Socks5 => Vec::new(),
            Kind::Connect(_) => vec![b"http/1.1".to_vec()],
            Kind::Konnectivity => vec![b"h2".to_vec()],
        }
    }
}

impl ProxyTls {
    /// Expects `name` at the proxy.
    ///
    /// # Errors
    /// A name no certificate can have, or settings rustls cannot use.
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
        // How they serve is no part of what it is.
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
    /// `direct`, or the selection's name and what is spoken.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Direct => f.write_str("direct"),
            Way::Through(selection) => write!(f, "{} ({})", selection.name, selection.kind.as_str()),
        }
    }
}

impl fmt::Display for Ways {
    /// Each by its name, and `otherwise` where that is not direct.
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
        assert!(
            warning.starts_with("egress selection cluster is not there, so that what is for it goes directly; see")
        );
        assert!(warning.contains("none of clutser, controlplane is misspelt"), "{warning}");
        assert_eq!(slip.lacking(&[]), [""; 0]);
        assert_eq!(named(&["cluster", "controlplane"], Way::Direct).lacking(&expected), [""; 0]);
        assert!(
            named(&["cluster"], through("environment", 9)).lacking(&expected)[0].contains("as the environment says")
        );
        // Who uses no proxies knows that all goes directly; and one that is said to go directly is there.
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
