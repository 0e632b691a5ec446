//! Pool of one worker's endpoints, found by equality of everything that determines trust.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use super::dial::Protocol;
use super::{Address, Allowance, Dialler, Endpoint, Upstream};

/// Upper bound of the connection limit per endpoint.
const MOST: usize = 4096;

/// Endpoints of one worker, with their connections.
pub struct Pool {
    dialler: Dialler,
    most: usize,
    most_together: usize,
    endpoints: RefCell<HashMap<Upstream, Rc<Endpoint>>>,
}

/// State of an endpoint's connections.
#[derive(Clone, Debug)]
pub struct PoolReport {
    /// Address of the endpoint.
    pub address: Address,
    /// HTTP version of the last connection.
    pub protocol: Option<Protocol>,
    /// Connections without a request.
    pub idle: usize,
    /// Connections with one or more requests.
    pub busy: usize,
    /// Requests in flight.
    pub pending: usize,
    /// Reason why the endpoint is ejected, if it is.
    pub failure: Option<&'static str>,
}

impl Pool {
    /// An empty pool that opens connections with `dialler`.
    pub fn new(dialler: impl Into<Dialler>) -> Pool {
        Pool { dialler: dialler.into(), most: MOST, most_together: usize::MAX, endpoints: RefCell::default() }
    }

    /// Limits connections per endpoint to `most`, so that no backend uses up the file descriptors.
    pub fn with_most(self, most: usize) -> Pool {
        Pool { most: most.min(MOST), ..self }
    }

    /// Limits connections counted by the same [`Allowance`] to `most`, across all pools.
    pub fn with_most_together(self, most: usize) -> Pool {
        Pool { most_together: most, ..self }
    }

    /// The endpoint for `upstream`; keep it to avoid repeated lookups.
    pub fn endpoint(&self, upstream: &Upstream) -> Rc<Endpoint> {
        self.endpoint_of(upstream, &Allowance::default())
    }

    /// As [`Pool::endpoint`], counting connections with `allowance`; the first caller's counts.
    pub fn endpoint_of(&self, upstream: &Upstream, allowance: &Allowance) -> Rc<Endpoint> {
        let mut endpoints = self.endpoints.borrow_mut();
        if let Some(endpoint) = endpoints.get(upstream) {
            return endpoint.clone();
        }
        let endpoint =
            Endpoint::new(upstream.clone(), self.dialler.clone(), self.most, (allowance.clone(), self.most_together));
        endpoints.insert(upstream.clone(), endpoint.clone());
        endpoint
    }

    /// Closes idle connections, removes endpoints without other owners, and counts stuck tunnels. Call every second.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.endpoints.borrow_mut().retain(|_, endpoint| {
            endpoint.sweep(now);
            Rc::strong_count(endpoint) > 1
        });
        self.dialler.tell_stuck();
    }

    /// State of each endpoint's connections.
    pub fn report(&self) -> Vec<PoolReport> {
        self.endpoints.borrow().values().map(|endpoint| endpoint.report()).collect()
    }
}
