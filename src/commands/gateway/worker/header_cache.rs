//! A cache of the headers added to the requests of each connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;
use kubeapi::User;

use crate::forward::ConnectionHeaders;
use crate::message::Refusal;

/// Cache slots per worker. Cached per connection, thousands of idle watches would hold thousands of entries of 2 kB.
const SLOTS: usize = 256;

/// The headers used last by a worker. Each slot serves every 256th connection; a busy connection soon owns its slot.
pub(super) struct HeaderCache {
    slots: RefCell<Vec<Option<CachedHeaders>>>,
    next_id: Cell<u64>,
}

/// Cached headers and their key.
struct CachedHeaders {
    connection: u64,
    user: Arc<User>,
    host: Option<HeaderValue>,
    headers: Rc<ConnectionHeaders>,
}

impl Default for HeaderCache {
    fn default() -> HeaderCache {
        HeaderCache { slots: RefCell::new((0..SLOTS).map(|_| None).collect()), next_id: Cell::new(0) }
    }
}

impl HeaderCache {
    /// Returns a number for a new connection.
    pub(super) fn next_connection_id(&self) -> u64 {
        self.next_id.replace(self.next_id.get() + 1)
    }

    /// The headers for requests of `user` to `host` on one connection; `make` builds them if they are not cached.
    pub(super) fn get_or_build(
        &self,
        connection: u64,
        user: &Arc<User>,
        host: Option<HeaderValue>,
        make: impl FnOnce(Option<&HeaderValue>) -> Result<ConnectionHeaders, Refusal>,
    ) -> Result<Rc<ConnectionHeaders>, Refusal> {
        let slot = (connection % SLOTS as u64) as usize;
        let is_it = |cached: &&CachedHeaders| {
            cached.connection == connection && Arc::ptr_eq(&cached.user, user) && cached.host == host
        };
        if let Some(cached) = self.slots.borrow()[slot].as_ref().filter(is_it) {
            return Ok(cached.headers.clone());
        }
        let signature = Rc::new(make(host.as_ref())?);
        let signed = CachedHeaders { connection, user: user.clone(), host, headers: signature.clone() };
        self.slots.borrow_mut()[slot] = Some(signed);
        Ok(signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::UserHeaders;

    #[test]
    fn header_cache_keyed_by_connection_user_and_host() {
        let (signatures, made) = (HeaderCache::default(), Cell::new(0));
        let user = |name: &str| Arc::new(User { name: name.to_owned(), ..User::default() });
        let (jane, joe) = (user("jane"), user("joe"));
        let get = |connection: u64, user: &Arc<User>, host: &'static str| {
            let made_one = |host: Option<&HeaderValue>| {
                made.set(made.get() + 1);
                Ok(ConnectionHeaders::new(
                    &UserHeaders::new(user, true).unwrap(),
                    &HeaderValue::from_static("192.0.2.1"),
                    host,
                ))
            };
            signatures.get_or_build(connection, user, Some(HeaderValue::from_static(host)), made_one).unwrap()
        };
        let first = get(1, &jane, "a");
        assert!(Rc::ptr_eq(&first, &get(1, &jane, "a")));
        assert_eq!(made.get(), 1);
        for (connection, user, host) in [(1, &joe, "a"), (1, &joe, "b"), (257, &joe, "b"), (2, &jane, "a")] {
            let before = made.get();
            get(connection, user, host);
            assert_eq!(made.get(), before + 1, "{connection} {} {host}", user.name);
        }
        assert!(!Rc::ptr_eq(&first, &get(1, &jane, "a")));
    }
}
