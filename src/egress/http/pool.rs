//! Pool of one worker's endpoints, found by equality of everything that determines trust.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use crate::egress::{ConnectionCounter, Dialer, Endpoint, EndpointKey, PoolReport};

/// Upper bound of the connection limit per endpoint.
const MAX_CONNECTIONS_PER_ENDPOINT: usize = 4096;

/// Endpoints of one worker, with their connections.
pub struct Pool {
    dialer: Dialer,
    max_per_endpoint: usize,
    max_per_api_service: usize,
    endpoints: RefCell<HashMap<EndpointKey, Rc<Endpoint>>>,
}

impl Pool {
    /// An empty pool that opens connections with `dialer`.
    pub fn new(dialer: impl Into<Dialer>) -> Pool {
        Pool {
            dialer: dialer.into(),
            max_per_endpoint: MAX_CONNECTIONS_PER_ENDPOINT,
            max_per_api_service: usize::MAX,
            endpoints: RefCell::default(),
        }
    }

    /// Limits connections per endpoint to `limit`, so that no backend uses up the file descriptors.
    pub fn with_max_per_endpoint(self, limit: usize) -> Pool {
        Pool { max_per_endpoint: limit.min(MAX_CONNECTIONS_PER_ENDPOINT), ..self }
    }

    /// Limits connections counted by the same [`ConnectionCounter`] to `limit`, across all pools.
    pub fn with_max_per_api_service(self, limit: usize) -> Pool {
        Pool { max_per_api_service: limit, ..self }
    }

    /// The endpoint for `key`; keep it to avoid repeated lookups.
    pub fn endpoint(&self, key: &EndpointKey) -> Rc<Endpoint> {
        self.endpoint_with_counter(key, &ConnectionCounter::default())
    }

    /// As [`Pool::endpoint`], counting connections with `counter`; the first caller's counts.
    pub fn endpoint_with_counter(&self, key: &EndpointKey, counter: &ConnectionCounter) -> Rc<Endpoint> {
        let mut endpoints = self.endpoints.borrow_mut();
        if let Some(endpoint) = endpoints.get(key) {
            return endpoint.clone();
        }
        let endpoint = Endpoint::new(
            key.clone(),
            self.dialer.clone(),
            self.max_per_endpoint,
            (counter.clone(), self.max_per_api_service),
        );
        endpoints.insert(key.clone(), endpoint.clone());
        endpoint
    }

    /// Closes idle connections, removes endpoints without other owners, and counts stuck tunnels. Call every second.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.endpoints.borrow_mut().retain(|_, endpoint| {
            endpoint.sweep(now);
            Rc::strong_count(endpoint) > 1
        });
        self.dialer.report_stuck_tunnels();
    }

    /// State of each endpoint's connections.
    pub fn report(&self) -> Vec<PoolReport> {
        self.endpoints.borrow().values().map(|endpoint| endpoint.report()).collect()
    }
}
