//! All endpoints one worker knows. Endpoints are found by equality of everything that bears on trust.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use super::dial::Protocol;
use super::{Address, Allowance, Dialler, Endpoint, Upstream};

/// Connections to one endpoint that one pool opens, however many there could be.
const MOST: usize = 4096;

/// One worker's endpoints and the connections to them.
pub struct Pool {
    dialler: Dialler,
    most: usize,
    most_together: usize,
    endpoints: RefCell<HashMap<Upstream, Rc<Endpoint>>>,
}

/// What an endpoint's connections do.
#[derive(Clone, Debug)]
pub struct PoolReport {
    /// Where.
    pub address: Address,
    /// What was spoken last.
    pub protocol: Option<Protocol>,
    /// Connections that carry no request.
    pub idle: usize,
    /// Connections that carry one or more.
    pub busy: usize,
    /// Requests on their way or being answered.
    pub pending: usize,
    /// Why the endpoint is out, if it is.
    pub failure: Option<&'static str>,
}

impl Pool {
    /// An empty pool whose connections `dialler` opens.
    pub fn new(dialler: impl Into<Dialler>) -> Pool {
        Pool { dialler: dialler.into(), most: MOST, most_together: usize::MAX, endpoints: RefCell::default() }
    }

    /// With no more than `most` connections to one endpoint, so that no backend takes the descriptors of all.
    pub fn with_most(self, most: usize) -> Pool {
        Pool { most: most.min(MOST), ..self }
    }

    /// With no more than `most` connections that share an [`Allowance`], whichever pool opens them.
    pub fn with_most_together(self, most: usize) -> Pool {
        Pool { most_together: most, ..self }
    }

    /// The endpoint for `upstream`; keep it, so that later requests need not look again.
    pub fn endpoint(&self, upstream: &Upstream) -> Rc<Endpoint> {
        self.endpoint_of(upstream, &Allowance::default())
    }

    /// The same, with what all endpoints of its APIService may have; that of the first who asks counts.
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

    /// Closes what is idle for long, forgets endpoints that nobody else holds, and counts what is stuck. Call it every second.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.endpoints.borrow_mut().retain(|_, endpoint| {
            endpoint.sweep(now);
            Rc::strong_count(endpoint) > 1
        });
        self.dialler.tell_stuck();
    }

    /// What each endpoint's connections do.
    pub fn report(&self) -> Vec<PoolReport> {
        self.endpoints.borrow().values().map(|endpoint| endpoint.report()).collect()
    }
}
