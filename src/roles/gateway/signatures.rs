//! A cache of the headers added to the requests of each connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;

use crate::forward::Signature;
use crate::kubeapi::User;
use crate::message::Refusal;

/// Cache slots per worker. Cached per connection, thousands of idle watches would hold thousands of entries of 2 kB.
const PLACES: usize = 256;

/// The headers used last by a worker. Each slot serves every 256th connection; a busy connection soon owns its slot.
pub(super) struct Signatures {
    places: RefCell<Vec<Option<Signed>>>,
    next: Cell<u64>,
}

/// Cached headers and their key.
struct Signed {
    connection: u64,
    user: Arc<User>,
    host: Option<HeaderValue>,
    signature: Rc<Signature>,
}

impl Default for Signatures {
    fn default() -> Signatures {
        Signatures { places: RefCell::new((0..PLACES).map(|_| None).collect()), next: Cell::new(0) }
    }
}

impl Signatures {
    /// Returns a number for a new connection.
    pub(super) fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// The headers for requests of `user` to `host` on one connection; `make` builds them if they are not cached.
    pub(super) fn of(
        &self,
        connection: u64,
        user: &Arc<User>,
        host: Option<HeaderValue>,
        make: impl FnOnce(Option<&HeaderValue>) -> Result<Signature, Refusal>,
    ) -> Result<Rc<Signature>, Refusal> {
        let place = (connection % PLACES as u64) as usize;
        let is_it =
            |kept: &&Signed| kept.connection == connection && Arc::ptr_eq(&kept.user, user) && kept.host == host;
        if let Some(kept) = self.places.borrow()[place].as_ref().filter(is_it) {
            return Ok(kept.signature.clone());
        }
        let signature = Rc::new(make(host.as_ref())?);
        let signed = Signed { connection, user: user.clone(), host, signature: signature.clone() };
        self.places.borrow_mut()[place] = Some(signed);
        Ok(signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::Stamp;

    #[test]
    fn each_connection_user_and_host_has_its_own() {
        let (signatures, made) = (Signatures::default(), Cell::new(0));
        let user = |name: &str| Arc::new(User { name: name.to_owned(), ..User::default() });
        let (jane, joe) = (user("jane"), user("joe"));
        let get = |connection: u64, user: &Arc<User>, host: &'static str| {
            let made_one = |host: Option<&HeaderValue>| {
                made.set(made.get() + 1);
                Ok(Signature::new(&Stamp::new(user, true).unwrap(), &HeaderValue::from_static("192.0.2.1"), host))
            };
            signatures.of(connection, user, Some(HeaderValue::from_static(host)), made_one).unwrap()
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
