//! One [`EndpointHealth`] per endpoint, shared by every APIService that connects to it in the same way.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::outlier_detection::EndpointHealth;
use crate::egress::{Address, EgressRoute, HttpVersion};
use crate::registry::{ApiService, ClientCertificate, ResolvedBackend};
use crate::tls::Bundle;

/// Dropped endpoints are swept only from this many addresses on.
const MIN_SWEEP: usize = 64;

/// Settings of connections to an endpoint. Two APIServices with equal settings succeed or fail at the same address
/// together.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConnectionSettings {
    server_name: String,
    plain: Option<HttpVersion>,
    route: EgressRoute,
    ca_bundle: Option<Bundle>,
    insecure_skip_tls_verify: bool,
    client_certificate: ClientCertificate,
}

impl ConnectionSettings {
    /// The connection settings for the endpoints of `api_service`.
    pub fn new(api_service: &ApiService, resolved: &ResolvedBackend) -> ConnectionSettings {
        ConnectionSettings {
            server_name: resolved.server_name.clone(),
            plain: resolved.plaintext_protocol,
            route: resolved.egress_route.clone(),
            ca_bundle: api_service.ca_bundle.clone(),
            insecure_skip_tls_verify: api_service.insecure_skip_tls_verify,
            client_certificate: api_service.client_certificate.clone(),
        }
    }
}

/// All endpoints in use, by address and connection settings.
#[derive(Default)]
pub(super) struct EndpointMap(Mutex<EndpointEntries>);

type Entry = (Arc<ConnectionSettings>, Weak<EndpointHealth>);

#[derive(Default)]
struct EndpointEntries {
    by_address: HashMap<Address, Vec<Entry>>,
    /// Number of addresses at which dropped endpoints are removed.
    sweep_at: usize,
}

impl EndpointMap {
    /// The endpoint at `address`, if it is in use.
    pub(super) fn get(&self, address: &Address, settings: &ConnectionSettings) -> Option<Arc<EndpointHealth>> {
        find(self.0.lock().by_address.get(address)?, settings)
    }

    /// The endpoint at `address`; created by `fresh` if none is in use.
    pub(super) fn get_or_insert(
        &self,
        address: &Address,
        settings: &Arc<ConnectionSettings>,
        fresh: impl FnOnce() -> EndpointHealth,
    ) -> Arc<EndpointHealth> {
        let mut entries = self.0.lock();
        let there = entries.by_address.entry(address.clone()).or_default();
        if let Some(found) = find(there, settings) {
            return found;
        }
        let made = Arc::new(fresh());
        there.retain(|(_, standing)| standing.strong_count() > 0);
        there.push((settings.clone(), Arc::downgrade(&made)));
        if entries.by_address.len() > entries.sweep_at.max(MIN_SWEEP) {
            let is_held = |all: &[Entry]| all.iter().any(|(_, one)| one.strong_count() > 0);
            entries.by_address.retain(|_, all| is_held(all));
            entries.sweep_at = entries.by_address.len() * 2;
        }
        made
    }
}

fn find(all: &[Entry], settings: &ConnectionSettings) -> Option<Arc<EndpointHealth>> {
    all.iter().find(|(of, _)| **of == *settings).and_then(|(_, standing)| standing.upgrade())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::egress::Host;

    #[test]
    fn endpoint_map_shared_by_address_and_settings_until_dropped() {
        let map = EndpointMap::default();
        let at = |port| Address::tcp(Host::Name("a".to_owned()), port);
        let settings =
            |name: &str| Arc::new(ConnectionSettings { server_name: name.to_owned(), ..ConnectionSettings::default() });
        let get = |port, name: &str| {
            map.get_or_insert(&at(port), &settings(name), || EndpointHealth::new(false, Instant::now()))
        };
        let one = get(1, "a");
        assert!(Arc::ptr_eq(&one, &get(1, "a")));
        assert!(!Arc::ptr_eq(&one, &get(2, "a")) && !Arc::ptr_eq(&one, &get(1, "b")));
        assert!(map.get(&at(2), &settings("a")).is_none(), "it was dropped");
        (3..1000).for_each(|port| drop(get(port, "a")));
        assert!(map.0.lock().by_address.len() <= 2 * MIN_SWEEP);
        assert!(map.get(&at(1), &settings("a")).is_some());
    }
}
