//! The connected agents, and which of them serves a destination (`--proxy-strategies`).

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::backend::Backend;
use crate::konnectivity::multiplexer::TunnelMultiplexer;

/// How an agent is chosen for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyStrategy {
    /// Any agent.
    Default,
    /// An agent that announces the destination.
    DestinationHost,
    /// An agent that announces the narrowest network with the destination; not in the reference.
    Cidr,
    /// An agent that announces `default-route=true`.
    DefaultRoute,
}

/// The streams of all agents.
#[derive(Default)]
pub(super) struct BackendSet {
    /// In the order of their registration.
    connected: Mutex<Vec<Arc<Backend>>>,
    /// Of streams that have ended, while clients get what came before.
    ended: Mutex<Vec<Weak<TunnelMultiplexer>>>,
}

impl ProxyStrategy {
    /// Parses a name of `--proxy-strategies`.
    ///
    /// # Errors
    /// The text of the reference for an unknown name.
    pub fn parse(name: &str) -> Result<ProxyStrategy, String> {
        match name {
            "default" => Ok(ProxyStrategy::Default),
            "destHost" => Ok(ProxyStrategy::DestinationHost),
            "cidr" => Ok(ProxyStrategy::Cidr),
            "defaultRoute" => Ok(ProxyStrategy::DefaultRoute),
            _ => Err(format!("unknown proxy strategy: {name}")),
        }
    }

    /// Its name, also the value of the label `proxy_strategy`.
    pub fn as_str(self) -> &'static str {
        match self {
            ProxyStrategy::Default => "default",
            ProxyStrategy::DestinationHost => "destHost",
            ProxyStrategy::Cidr => "cidr",
            ProxyStrategy::DefaultRoute => "defaultRoute",
        }
    }

    /// Whether the agent may serve some destination by this strategy.
    fn includes(self, backend: &Backend) -> bool {
        let identifiers = &backend.identifiers;
        match self {
            ProxyStrategy::Default => true,
            ProxyStrategy::DestinationHost => !identifiers.addresses.is_empty() || !identifiers.hosts.is_empty(),
            ProxyStrategy::Cidr => !identifiers.networks.is_empty(),
            ProxyStrategy::DefaultRoute => identifiers.is_default_route,
        }
    }
}

impl BackendSet {
    pub(super) fn add(&self, backend: Arc<Backend>) {
        self.connected.lock().push(backend);
    }

    pub(super) fn remove(&self, backend: &Arc<Backend>) {
        let mut ended = self.ended.lock();
        ended.retain(|multiplexer| multiplexer.strong_count() > 0);
        ended.push(Arc::downgrade(&backend.multiplexer));
        self.connected.lock().retain(|other| !Arc::ptr_eq(other, backend));
    }

    /// Number of tunnels whose client has not got everything.
    pub(super) fn unfinished_tunnels(&self) -> usize {
        // Locked until the others are counted: a stream that ends meanwhile is one of them.
        let ended = self.ended.lock();
        let connected = self.all();
        let connected = connected.iter().map(|backend| backend.multiplexer.unfinished_tunnels());
        let ended = ended.iter().filter_map(Weak::upgrade).map(|multiplexer| multiplexer.unfinished_tunnels());
        connected.chain(ended).sum()
    }

    /// An agent for `address` (host and port), none of `lost`, by the first strategy that finds one. Agents that drain
    /// come last.
    pub(super) fn select(
        &self,
        strategies: &[ProxyStrategy],
        address: &str,
        lost: &[Arc<Backend>],
    ) -> Option<Arc<Backend>> {
        let host = host_of(address);
        let backends = self.connected.lock();
        let is_lost = |backend: &Arc<Backend>| lost.iter().any(|lost| Arc::ptr_eq(lost, backend));
        let candidates: Vec<_> = backends.iter().filter(|backend| !is_lost(backend)).collect();
        strategies.iter().find_map(|strategy| select_by(*strategy, &candidates, host))
    }

    /// Whether [`BackendSet::select`] may find an agent by the first strategy.
    pub(super) fn is_ready(&self, strategies: &[ProxyStrategy]) -> bool {
        strategies.first().is_some_and(|strategy| self.count(*strategy) > 0)
    }

    pub(super) fn count(&self, strategy: ProxyStrategy) -> usize {
        self.connected.lock().iter().filter(|backend| strategy.includes(backend)).count()
    }

    pub(super) fn all(&self) -> Vec<Arc<Backend>> {
        self.connected.lock().clone()
    }
}

fn select_by(strategy: ProxyStrategy, backends: &[&Arc<Backend>], host: &str) -> Option<Arc<Backend>> {
    let backends = backends.iter().copied();
    let matching: Vec<&Arc<Backend>> = match strategy {
        ProxyStrategy::Default => backends.collect(),
        ProxyStrategy::DefaultRoute => backends.filter(|it| it.identifiers.is_default_route).collect(),
        ProxyStrategy::DestinationHost => backends.filter(|it| it.identifiers.has_host(host)).collect(),
        ProxyStrategy::Cidr => {
            let narrowest = backends.clone().filter_map(|it| it.identifiers.network_prefix(host)).max()?;
            backends.filter(|it| it.identifiers.network_prefix(host) == Some(narrowest)).collect()
        }
    };
    let serving: Vec<_> = matching.iter().filter(|backend| !backend.is_draining()).collect();
    match (serving.as_slice(), matching.as_slice()) {
        ([], []) => None,
        ([], all) => Some(all[fastrand::usize(..all.len())].clone()),
        (serving, _) => Some((*serving[fastrand::usize(..serving.len())]).clone()),
    }
}

/// The host of `host:port`, without brackets. Without a port, everything.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;

    use super::super::agent_identifiers::AgentIdentifiers;
    use super::super::backend::AgentDescription;
    use super::*;

    fn backend(agent_id: &str, identifiers: &str) -> Arc<Backend> {
        let agent = AgentDescription {
            agent_id: agent_id.to_owned(),
            identifiers: AgentIdentifiers::parse(identifiers).unwrap().0,
            identifiers_text: identifiers.to_owned(),
            program: String::new(),
            windows: None,
        };
        Arc::new(Backend::new(agent, SocketAddr::from(([127, 0, 0, 1], 1)), Arc::default()))
    }

    fn set(agents: &[(&str, &str)]) -> BackendSet {
        let set = BackendSet::default();
        agents.iter().for_each(|(id, identifiers)| set.add(backend(id, identifiers)));
        set
    }

    /// The agents that are chosen in many dials.
    fn chosen(set: &BackendSet, strategies: &[ProxyStrategy], address: &str) -> BTreeSet<String> {
        let dials = (0..200).filter_map(|_| set.select(strategies, address, &[]));
        dials.map(|backend| backend.agent_id.clone()).collect()
    }

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn backend_set_balances_among_equal_agents() {
        let agents = set(&[("a", "host=x"), ("b", "host=x"), ("c", "host=y")]);
        assert_eq!(chosen(&agents, &[ProxyStrategy::Default], "x:1"), names(&["a", "b", "c"]));
        assert_eq!(chosen(&agents, &[ProxyStrategy::DestinationHost], "x:1"), names(&["a", "b"]));
        assert_eq!(chosen(&agents, &[ProxyStrategy::DestinationHost], "z:1"), names(&[]));
    }

    #[test]
    fn backend_set_tries_strategies_in_their_order() {
        use ProxyStrategy::{Cidr, Default, DefaultRoute, DestinationHost};
        let agents = set(&[("host", "ipv4=10.0.0.1"), ("network", "cidr=10.0.0.0/8"), ("route", "default-route=true")]);
        let order = [DestinationHost, Cidr, DefaultRoute, Default];
        assert_eq!(chosen(&agents, &order, "10.0.0.1:443"), names(&["host"]));
        assert_eq!(chosen(&agents, &order, "10.0.0.2:443"), names(&["network"]));
        assert_eq!(chosen(&agents, &order, "192.0.2.1:443"), names(&["route"]));
        assert_eq!(chosen(&agents, &[Cidr, DestinationHost], "10.0.0.1:443"), names(&["network"]));
        assert_eq!(chosen(&agents, &[Cidr, Default], "192.0.2.1:443"), names(&["host", "network", "route"]));
    }

    #[test]
    fn backend_set_chooses_the_narrowest_network() {
        let agents =
            set(&[("wide", "cidr=10.0.0.0/8"), ("narrow", "cidr=10.1.0.0/16"), ("ipv6", "cidr=2001:db8::/32")]);
        for (address, expected) in [
            ("10.1.2.3:443", "narrow"),
            ("10.2.2.3:443", "wide"),
            ("[2001:db8::5]:443", "ipv6"),
            ("[2001:DB8:0:0::5]:443", "ipv6"),
        ] {
            assert_eq!(chosen(&agents, &[ProxyStrategy::Cidr], address), names(&[expected]), "{address}");
        }
    }

    #[test]
    fn backend_set_compares_addresses_not_their_spelling() {
        let agents = set(&[("a", "ipv6=2001:db8::1"), ("b", "ipv6=2001:db8::2")]);
        for address in ["[2001:db8::1]:443", "[2001:DB8::1]:443", "[2001:db8:0:0::1]:443"] {
            assert_eq!(chosen(&agents, &[ProxyStrategy::DestinationHost], address), names(&["a"]), "{address}");
        }
    }

    #[test]
    fn backend_set_is_ready_by_its_first_strategy() {
        use ProxyStrategy::{Default, DefaultRoute};
        let agents = set(&[("a", "host=x")]);
        assert!(agents.is_ready(&[Default, DefaultRoute]));
        assert!(!agents.is_ready(&[DefaultRoute, Default]));
        assert!(!set(&[]).is_ready(&[Default]));
    }
}
