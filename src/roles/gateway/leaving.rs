//! Endpoints that are not listed any more: what they have under way they finish, and their watches move on.
//!
//! An endpoint that is shutting down ends its watches itself, one that is gone never will, and of one that is only not
//! ready nobody knows. So each gets a while; then its watches end a few at a time, cleanly and between two events, and
//! their clients resume where it goes on.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::egress::Endpoint;
use crate::forward::Backend;
use crate::route::Table;

/// How long an endpoint has to end its watches itself.
const GRACE: Duration = Duration::from_secs(10);
/// One in so many of its watches ends each second, so that those who resume do not come all at once.
const SHARE: usize = 10;

/// One worker's endpoints that still have something under way and get nothing new.
#[derive(Default)]
pub(super) struct Leaving(Vec<Left>);

struct Left {
    service: String,
    endpoint: Rc<Endpoint>,
    since: Instant,
}

impl Leaving {
    /// This backend has made way for another.
    pub(super) fn add(&mut self, backend: &Backend) {
        let (service, since) = (&backend.api_service().name, Instant::now());
        for (endpoint, ..) in backend.endpoints() {
            let known = self.0.iter().any(|left| Rc::ptr_eq(&left.endpoint, endpoint) && left.service == *service);
            if !known && endpoint.pending() > 0 {
                self.0.push(Left { service: service.clone(), endpoint: endpoint.clone(), since });
            }
        }
    }

    /// True if the watches of any of them may end now. Call it every second.
    pub(super) fn look(&mut self, table: &Table) -> bool {
        let mut some = false;
        self.0.retain(|left| {
            left.endpoint.let_leave(0);
            let route = table.by_name(&left.service);
            let resolved = route.and_then(|route| route.resolved.as_ref().ok());
            let destination = &left.endpoint.upstream().destination;
            let listed = resolved.is_some_and(|resolved| resolved.endpoints.contains(destination));
            if listed || left.endpoint.pending() == 0 {
                return false;
            }
            // A watch that nobody else would serve is better than none.
            let elsewhere = resolved.is_some() && route.is_some_and(|route| route.availability.is_available());
            if elsewhere && left.since.elapsed() >= GRACE {
                left.endpoint.let_leave(left.endpoint.pending().div_ceil(SHARE));
                some = true;
            }
            true
        });
        some
    }
}
