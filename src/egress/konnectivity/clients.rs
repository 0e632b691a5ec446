//! The connections of one thread to Konnectivity servers: opened when they are needed, replaced when they are over.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::failure::{TunnelError, TunnelFailure};
use super::tunnel::Tunnel;
use crate::egress::dial::DialError;

/// The pause after the first failure to open a connection, and the longest; each is up to half as long again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long a dial waits for its answer before another is sent beside it. A server of the reference picks an agent
/// for each dial and does not know which of them hang; the next may get one that does not.
const SECOND_TRY: Duration = Duration::from_secs(1);
/// Dials that are under way at most for one that is wanted.
const MOST_TRIES: usize = 4;
/// The connections to a server that nobody asked for as long as this, and that have no tunnel, are closed.
const IDLE: Duration = Duration::from_secs(300);

/// Connections by what they have in common: the server and everything that bears on trusting it.
pub struct Clients<K> {
    slots: RefCell<Vec<(K, Rc<Slot>)>>,
}

/// The connections to one server.
struct Slot {
    clients: RefCell<Vec<Client>>,
    /// One is opened at a time.
    opening: Mutex<Option<Failed>>,
    used: Cell<Instant>,
}

/// The last attempt to open a connection.
struct Failed {
    times: u32,
    not_before: Instant,
    error: DialError,
}

impl<K> Default for Clients<K> {
    fn default() -> Clients<K> {
        Clients { slots: RefCell::default() }
    }
}

impl<K: Clone + PartialEq> Clients<K> {
    /// Opens a tunnel to `address` by the server that `key` stands for, in the time until `patience` is over. `open`
    /// opens a connection to it; when that failed of late, nothing is tried for a moment and the last failure stands.
    ///
    /// # Errors
    /// What `open` says, or [`Client::dial`].
    pub async fn dial(
        &self,
        key: &K,
        address: &str,
        patience: Duration,
        open: impl AsyncFn() -> Result<Client, DialError>,
    ) -> Result<Tunnel, DialError> {
        let until = Instant::now() + patience;
        let slot = self.slot(key);
        let mut first = true;
        loop {
            let client = match timeout_at(until, slot.client(&open)).await {
                Ok(client) => client?,
                Err(_) => return Err(TunnelError::new(TunnelFailure::NoAnswer, "no connection in time").into()),
            };
            let heard = client.heard();
            match dial(&client, address, until).await {
                Ok(tunnel) => return Ok(tunnel),
                // It ended between two dials: the server was restarted, perhaps. A dial does nothing twice.
                Err(error) if error.failure.is_end() && first => {
                    first = false;
                    if !client.takes_dials() {
                        slot.forget(&client);
                    }
                }
                Err(error) => {
                    if error.failure == TunnelFailure::NoAnswer && client.heard() == heard {
                        slot.forget(&client);
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Connections there are, and the streams on them.
    pub fn count(&self) -> (usize, usize) {
        let slots = self.slots.borrow();
        slots.iter().fold((0, 0), |(connections, streams), (_, slot)| {
            let clients = slot.clients.borrow();
            (connections + clients.len(), streams + clients.iter().map(Client::streams).sum::<usize>())
        })
    }

    fn slot(&self, key: &K) -> Rc<Slot> {
        let now = Instant::now();
        let mut slots = self.slots.borrow_mut();
        slots.retain(|(theirs, slot)| theirs == key || !slot.is_idle(now));
        if let Some((_, slot)) = slots.iter().find(|(theirs, _)| theirs == key) {
            slot.used.set(now);
            return slot.clone();
        }
        let slot = Rc::new(Slot { clients: RefCell::default(), opening: Mutex::default(), used: Cell::new(now) });
        slots.push((key.clone(), slot.clone()));
        slot
    }
}

impl Slot {
    fn is_idle(&self, now: Instant) -> bool {
        now.duration_since(self.used.get()) > IDLE && self.clients.borrow().iter().all(|client| client.streams() == 0)
    }

    /// The connection with the fewest streams of those that take another.
    fn open(&self) -> Option<Client> {
        let mut clients = self.clients.borrow_mut();
        clients.retain(|client| !client.is_closed());
        clients.iter().filter(|client| client.takes_dials()).min_by_key(|client| client.streams()).cloned()
    }

    /// No dial goes over it any more; its tunnels live on.
    fn forget(&self, client: &Client) {
        self.clients.borrow_mut().retain(|other| !other.is(client));
    }

    /// A connection that takes dials, opened if there is none.
    async fn client(&self, open: &impl AsyncFn() -> Result<Client, DialError>) -> Result<Client, DialError> {
        if let Some(client) = self.open() {
            return Ok(client);
        }
        let mut last = self.opening.lock().await;
        if let Some(client) = self.open() {
            return Ok(client);
        }
        if let Some(failed) = &*last
            && Instant::now() < failed.not_before
        {
            return Err(failed.error.clone());
        }
        match open().await {
            Ok(client) => {
                *last = None;
                self.clients.borrow_mut().push(client.clone());
                Ok(client)
            }
            Err(error) => {
                let times = last.as_ref().map_or(0, |failed| failed.times);
                let pause = PAUSES.0.saturating_mul(1 << times.min(16)).min(PAUSES.1);
                let not_before = Instant::now() + pause.mul_f64(1.0 + 0.5 * fastrand::f64());
                *last = Some(Failed { times: times + 1, not_before, error: error.clone() });
                Err(error)
            }
        }
    }
}

/// The first answer to a dial, or to one of those sent beside it when it comes late.
async fn dial(client: &Client, address: &str, until: Instant) -> Result<Tunnel, TunnelError> {
    let mut tries = FuturesUnordered::new();
    loop {
        tries.push(client.dial(address, until.duration_since(Instant::now())));
        let next = if tries.len() < MOST_TRIES { Instant::now() + SECOND_TRY } else { until };
        // One that failed was answered, so that the others will be, or none of them will.
        if let Ok(Some(answer)) = timeout_at(next, tries.next()).await {
            return answer;
        }
        if tries.len() >= MOST_TRIES || Instant::now() >= until {
            let why = format_args!("dialling {address}: no answer of the tunnel in time").to_string();
            return tries.next().await.unwrap_or(Err(TunnelError::new(TunnelFailure::NoAnswer, why)));
        }
    }
}
