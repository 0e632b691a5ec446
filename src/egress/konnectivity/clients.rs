//! Pool of one thread's connections to Konnectivity servers: opened on demand, replaced when closed.

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
use crate::egress::proxy_fault::ProxyFault;

/// Backoff after a failed connect, initial and maximum; each is jittered by up to half.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Delay after which an unanswered dial is hedged by another one. A server of the reference picks an agent for each
/// dial without knowing which ones hang; the next dial may get another agent. If the server was silent meanwhile, the
/// hedge uses a new connection: the old one is dead.
const SECOND_TRY: Duration = Duration::from_secs(1);
/// Limit of dials in flight for one tunnel.
const MOST_TRIES: usize = 4;
/// Connections to a server that are unused for this time and have no tunnel are closed.
const IDLE: Duration = Duration::from_secs(300);

/// Connections by key: the server and everything that determines trust in it.
pub struct Clients<K> {
    slots: RefCell<Vec<(K, Rc<Slot>)>>,
}

/// The connections to one server.
struct Slot {
    clients: RefCell<Vec<Client>>,
    /// The last connect failure. Its lock serializes connects.
    opening: Mutex<Option<Failed>>,
    used: Cell<Instant>,
}

/// The last failed connect, and the backoff after it.
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
    /// Opens a tunnel to `address` through the server of `key`, within `patience`. `open` connects to the server; after
    /// a recent failure it is not called during the backoff, and the last error is returned.
    ///
    /// # Errors
    /// The error of `open` or [`Client::dial`]; unreachable if `open` takes too long.
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
            let asked = Asked::default();
            match slot.dial(&open, address, until, &asked).await? {
                Ok(tunnel) => return Ok(tunnel),
                // The connection ended before the dial, perhaps by a server restart. Retrying a dial is safe.
                Err(error) if error.failure.is_end() && first => {
                    first = false;
                    slot.forget(|client| asked.of(client).is_some_and(|_| !client.takes_dials()));
                }
                Err(error) => {
                    if error.failure == TunnelFailure::NoAnswer {
                        slot.forget(|client| asked.of(client).is_some_and(|ask| client.heard() == ask.heard));
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Tunnels through the server of `key` that are stuck at their agents.
    pub fn stuck(&self, key: &K) -> usize {
        let slots = self.slots.borrow();
        let slots = slots.iter().filter(|(theirs, _)| theirs == key);
        slots.map(|(_, slot)| slot.clients.borrow().iter().map(Client::stuck).sum::<usize>()).sum()
    }

    /// Number of connections, and of streams on them.
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

    /// The connection with the fewest streams among those that accept dials.
    fn open(&self) -> Option<Client> {
        let mut clients = self.clients.borrow_mut();
        clients.retain(|client| !client.is_closed());
        clients.iter().filter(|client| client.takes_dials()).min_by_key(|client| client.streams()).cloned()
    }

    /// Removes connections from use for dials; their tunnels continue.
    fn forget(&self, over: impl Fn(&Client) -> bool) {
        self.clients.borrow_mut().retain(|client| !over(client));
    }

    /// A connection that accepts dials, opened if there is none.
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
    /// The first response to a dial or to one of its hedges; or why no connection could be opened.
    async fn dial(
        &self,
        open: &impl AsyncFn() -> Result<Client, DialError>,
        address: &str,
        until: Instant,
        asked: &Asked,
    ) -> Result<Result<Tunnel, TunnelError>, DialError> {
        let unreachable = || ProxyFault::Unreachable.because("no connection in time");
        let connect = async || timeout_at(until, self.client(open)).await.map_err(|_| unreachable())?;
        let mut client = Some(connect().await?);
        let connecting = Cell::new(false);
        let ask = async |client: Option<Client>| {
            let client = match client {
                Some(client) => client,
                None => {
                    connecting.set(true);
                    let client = connect().await?;
                    connecting.set(false);
                    client
                }
            };
            asked.add(&client);
            Ok(client.dial(address, until.duration_since(Instant::now())).await)
        };
        let mut tries = FuturesUnordered::new();
        loop {
            if !connecting.get() {
                tries.push(ask(client.take()));
            }
            let is_last = tries.len() >= MOST_TRIES;
            let next = if is_last { until } else { until.min(Instant::now() + SECOND_TRY) };
            // A dial that failed was answered: the others will be, too, or none. And if reconnecting to a silent server
            // hangs, the result is known.
            let mut answer = timeout_at(next, tries.next()).await.ok().flatten();
            if answer.is_none() && (is_last || Instant::now() >= until) {
                answer = tries.next().await;
            }
            match answer {
                Some(Ok(Err(error))) if error.failure == TunnelFailure::NoAnswer && connecting.get() => {
                    return if asked.silent().is_some() { Err(unreachable()) } else { Ok(Err(error)) };
                }
                Some(answer) => return answer,
                None => {}
            }
            match asked.silent() {
                Some(silent) => self.forget(|client| client.is(&silent)),
                None => client = asked.last(),
            }
        }
    }
}

/// The connections that a dial was sent over, in order.
#[derive(Default)]
struct Asked(RefCell<Vec<Ask>>);

#[derive(Clone)]
struct Ask {
    client: Client,
    /// Message count before the first dial over it.
    heard: u64,
    /// Read count before the last dial over it, and the time of that dial.
    sounds: u64,
    at: Instant,
}

impl Ask {
    fn of(client: &Client) -> Ask {
        Ask { client: client.clone(), heard: client.heard(), sounds: client.sounds(), at: Instant::now() }
    }
}

impl Asked {
    fn add(&self, client: &Client) {
        let mut all = self.0.borrow_mut();
        let again = Ask::of(client);
        match all.last_mut() {
            Some(last) if last.client.is(client) => *last = Ask { heard: last.heard, ..again },
            _ => all.push(again),
        }
    }

    fn of(&self, client: &Client) -> Option<Ask> {
        self.0.borrow().iter().find(|ask| ask.client.is(client)).cloned()
    }

    fn last(&self) -> Option<Client> {
        self.0.borrow().last().map(|last| last.client.clone())
    }

    /// The last connection, if nothing was read from it since the dial.
    fn silent(&self) -> Option<Client> {
        let all = self.0.borrow();
        let last = all.last()?;
        // Too early to tell for a connection opened a moment ago.
        let is_silent = last.at.elapsed() >= SECOND_TRY / 2 && last.client.sounds() == last.sounds;
        is_silent.then(|| last.client.clone())
    }
}
