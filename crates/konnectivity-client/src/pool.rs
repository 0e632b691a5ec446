//! Pool of one thread's connections to Konnectivity servers: opened on demand, replaced when closed.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::client::KonnectivityClient;
use super::failure::{TunnelError, TunnelFailure};
use super::tunnel::KonnectivityTunnel;

/// Backoff after a failed connect, initial and maximum; each is jittered by up to half.
const CONNECT_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Delay after which an unanswered dial is hedged by another one. A server of the reference picks an agent for each
/// dial without knowing which ones hang; the next dial may get another agent. If the server was silent meanwhile, the
/// hedge uses a new connection: the old one is dead.
const HEDGE_DELAY: Duration = Duration::from_secs(1);
/// Limit of dials in flight for one tunnel.
const MAX_ATTEMPTS: usize = 4;
/// Connections to a server that are unused for this time and have no tunnel are closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Connections by key `K`: the server and everything that determines trust in it. `E` is the error of a connect.
pub struct KonnectivityPool<K, E> {
    servers: RefCell<Vec<(K, Rc<ServerConnections<E>>)>>,
}

/// Error of [`KonnectivityPool::dial`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolDialError<E> {
    /// Connecting to the server failed, now or a moment ago.
    Connect(E),
    /// There was no connection to the server in time.
    NoConnection,
    /// The dial failed.
    Tunnel(TunnelError),
}

impl<E: fmt::Display> fmt::Display for PoolDialError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolDialError::Connect(error) => error.fmt(f),
            PoolDialError::NoConnection => f.write_str("no connection in time"),
            PoolDialError::Tunnel(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for PoolDialError<E> {}

/// The connections to one server.
struct ServerConnections<E> {
    clients: RefCell<Vec<KonnectivityClient>>,
    /// The last connect failure. Its lock serializes connects.
    last_failure: Mutex<Option<ConnectFailure<E>>>,
    last_used: Cell<Instant>,
}

/// The last failed connect, and the backoff after it.
struct ConnectFailure<E> {
    times: u32,
    not_before: Instant,
    error: E,
}

impl<K, E> Default for KonnectivityPool<K, E> {
    fn default() -> KonnectivityPool<K, E> {
        KonnectivityPool { servers: RefCell::default() }
    }
}

impl<K: Clone + PartialEq, E: Clone> KonnectivityPool<K, E> {
    /// Opens a tunnel to `address` through the server of `key`, within `patience`. `open` connects to the server; after
    /// a recent failure it is not called during the backoff, and the last error is returned.
    ///
    /// # Errors
    /// The error of `open` or [`KonnectivityClient::dial`]; [`PoolDialError::NoConnection`] if `open` takes too long.
    pub async fn dial(
        &self,
        key: &K,
        address: &str,
        patience: Duration,
        open: impl AsyncFn() -> Result<KonnectivityClient, E>,
    ) -> Result<KonnectivityTunnel, PoolDialError<E>> {
        let until = Instant::now() + patience;
        let slot = self.server_connections(key);
        let mut first = true;
        loop {
            let attempts = DialAttempts::default();
            match slot.dial(&open, address, until, &attempts).await? {
                Ok(tunnel) => return Ok(tunnel),
                // The connection ended before the dial, perhaps by a server restart. Retrying a dial is safe.
                Err(error) if error.failure.is_connection_end() && first => {
                    first = false;
                    slot.remove_clients(|client| attempts.get(client).is_some_and(|_| !client.is_accepting_dials()));
                }
                Err(error) => {
                    if error.failure == TunnelFailure::NoAnswer {
                        slot.remove_clients(|client| {
                            attempts.get(client).is_some_and(|ask| client.message_count() == ask.message_count)
                        });
                    }
                    return Err(PoolDialError::Tunnel(error));
                }
            }
        }
    }

    /// Tunnels through the server of `key` that are stuck at their agents.
    pub fn stuck_tunnels(&self, key: &K) -> usize {
        let slots = self.servers.borrow();
        let slots = slots.iter().filter(|(slot_key, _)| slot_key == key);
        slots.map(|(_, slot)| slot.clients.borrow().iter().map(KonnectivityClient::stuck_tunnels).sum::<usize>()).sum()
    }

    /// Number of connections, and of streams on them.
    pub fn count(&self) -> (usize, usize) {
        let slots = self.servers.borrow();
        slots.iter().fold((0, 0), |(connections, streams), (_, slot)| {
            let clients = slot.clients.borrow();
            (connections + clients.len(), streams + clients.iter().map(KonnectivityClient::streams).sum::<usize>())
        })
    }

    fn server_connections(&self, key: &K) -> Rc<ServerConnections<E>> {
        let now = Instant::now();
        let mut slots = self.servers.borrow_mut();
        slots.retain(|(slot_key, slot)| slot_key == key || !slot.is_idle(now));
        if let Some((_, slot)) = slots.iter().find(|(slot_key, _)| slot_key == key) {
            slot.last_used.set(now);
            return slot.clone();
        }
        let slot = Rc::new(ServerConnections {
            clients: RefCell::default(),
            last_failure: Mutex::default(),
            last_used: Cell::new(now),
        });
        slots.push((key.clone(), slot.clone()));
        slot
    }
}

impl<E: Clone> ServerConnections<E> {
    fn is_idle(&self, now: Instant) -> bool {
        now.duration_since(self.last_used.get()) > IDLE_TIMEOUT
            && self.clients.borrow().iter().all(|client| client.streams() == 0)
    }

    /// The connection with the fewest streams among those that accept dials.
    fn select_client(&self) -> Option<KonnectivityClient> {
        let mut clients = self.clients.borrow_mut();
        clients.retain(|client| !client.is_closed());
        clients.iter().filter(|client| client.is_accepting_dials()).min_by_key(|client| client.streams()).cloned()
    }

    /// Removes connections from use for dials; their tunnels continue.
    fn remove_clients(&self, should_remove: impl Fn(&KonnectivityClient) -> bool) {
        self.clients.borrow_mut().retain(|client| !should_remove(client));
    }

    /// A connection that accepts dials, opened if there is none.
    async fn client_or_connect(
        &self,
        open: &impl AsyncFn() -> Result<KonnectivityClient, E>,
    ) -> Result<KonnectivityClient, E> {
        if let Some(client) = self.select_client() {
            return Ok(client);
        }
        let mut last = self.last_failure.lock().await;
        if let Some(client) = self.select_client() {
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
                let pause = CONNECT_BACKOFF.0.saturating_mul(1 << times.min(16)).min(CONNECT_BACKOFF.1);
                let not_before = Instant::now() + pause.mul_f64(1.0 + 0.5 * fastrand::f64());
                *last = Some(ConnectFailure { times: times + 1, not_before, error: error.clone() });
                Err(error)
            }
        }
    }
    /// The first response to a dial or to one of its hedges; or why no connection could be opened.
    async fn dial(
        &self,
        open: &impl AsyncFn() -> Result<KonnectivityClient, E>,
        address: &str,
        until: Instant,
        attempts: &DialAttempts,
    ) -> Result<Result<KonnectivityTunnel, TunnelError>, PoolDialError<E>> {
        let connect = async || match timeout_at(until, self.client_or_connect(open)).await {
            Ok(connected) => connected.map_err(PoolDialError::Connect),
            Err(_) => Err(PoolDialError::NoConnection),
        };
        let mut client = Some(connect().await?);
        let connecting = Cell::new(false);
        let ask = async |client: Option<KonnectivityClient>| {
            let client = match client {
                Some(client) => client,
                None => {
                    connecting.set(true);
                    let client = connect().await?;
                    connecting.set(false);
                    client
                }
            };
            attempts.add(&client);
            Ok(client.dial(address, until.duration_since(Instant::now())).await)
        };
        let mut tries = FuturesUnordered::new();
        loop {
            if !connecting.get() {
                tries.push(ask(client.take()));
            }
            let is_last = tries.len() >= MAX_ATTEMPTS;
            let next = if is_last { until } else { until.min(Instant::now() + HEDGE_DELAY) };
            // A dial that failed was answered: the others will be, too, or none. And if reconnecting to a silent server
            // hangs, the result is known.
            let mut answer = timeout_at(next, tries.next()).await.ok().flatten();
            if answer.is_none() && (is_last || Instant::now() >= until) {
                answer = tries.next().await;
            }
            match answer {
                Some(Ok(Err(error))) if error.failure == TunnelFailure::NoAnswer && connecting.get() => {
                    return if attempts.last_unresponsive().is_some() {
                        Err(PoolDialError::NoConnection)
                    } else {
                        Ok(Err(error))
                    };
                }
                Some(answer) => return answer,
                None => {}
            }
            match attempts.last_unresponsive() {
                Some(silent) => self.remove_clients(|client| client.is_same_connection(&silent)),
                None => client = attempts.last(),
            }
        }
    }
}

/// The connections that a dial was sent over, in order.
#[derive(Default)]
struct DialAttempts(RefCell<Vec<DialAttempt>>);

#[derive(Clone)]
struct DialAttempt {
    client: KonnectivityClient,
    /// Message count before the first dial over it.
    message_count: u64,
    /// Read count before the last dial over it, and the time of that dial.
    read_count: u64,
    sent_at: Instant,
}

impl DialAttempt {
    fn new(client: &KonnectivityClient) -> DialAttempt {
        DialAttempt {
            client: client.clone(),
            message_count: client.message_count(),
            read_count: client.read_count(),
            sent_at: Instant::now(),
        }
    }
}

impl DialAttempts {
    fn add(&self, client: &KonnectivityClient) {
        let mut all = self.0.borrow_mut();
        let again = DialAttempt::new(client);
        match all.last_mut() {
            Some(last) if last.client.is_same_connection(client) => {
                *last = DialAttempt { message_count: last.message_count, ..again }
            }
            _ => all.push(again),
        }
    }

    fn get(&self, client: &KonnectivityClient) -> Option<DialAttempt> {
        self.0.borrow().iter().find(|ask| ask.client.is_same_connection(client)).cloned()
    }

    fn last(&self) -> Option<KonnectivityClient> {
        self.0.borrow().last().map(|last| last.client.clone())
    }

    /// The last connection, if nothing was read from it since the dial.
    fn last_unresponsive(&self) -> Option<KonnectivityClient> {
        let all = self.0.borrow();
        let last = all.last()?;
        // Too early to tell for a connection opened a moment ago.
        let is_silent = last.sent_at.elapsed() >= HEDGE_DELAY / 2 && last.client.read_count() == last.read_count;
        is_silent.then(|| last.client.clone())
    }
}
