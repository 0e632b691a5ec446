//! Keeps a stream to each server.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use konnectivity_client::Packet;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::alert_stream::AlertStream;
use super::connect_error::ServerConnectError;
use super::connection::{AgentMetadata, SERVER_END_TIMEOUT, ServerStream};
use super::files::{client_config, read_token};
use super::settings::{AgentSettings, ServerCountSource};
use super::state::{AgentState, StreamNumber};
use crate::egress::{Destination, DestinationPattern, Dialer, EgressRoute, Host, Resolver};
use crate::konnectivity::leases::LeaseCounter;
use crate::konnectivity::recent_failures::Failure;
use crate::observe::metrics::KonnectivityAgentMetrics;
use crate::process::{Drain, ShutdownPhase, configure_socket};
use crate::tls::ClientTlsStream;
use crate::tls::client::server_name;

/// Time to resolve the name of a server.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for TCP and TLS handshakes with a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the back-off after a server that is connected already: another attempt only finds out whether a load
/// balancer has others.
const MAX_DUPLICATE_DELAY: Duration = Duration::from_secs(30);
/// How often a draining agent looks whether its last connection has ended.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The streams of an agent, each with why it broke.
type StreamTasks = JoinSet<(StreamNumber, Result<(), String>)>;

/// A Konnectivity agent.
pub struct KonnectivityAgent {
    settings: Rc<AgentSettings>,
    /// The way to servers.
    route: EgressRoute,
    dialer: Dialer,
    state: Arc<AgentState>,
    allow: Arc<[DestinationPattern]>,
    /// The server last found at an address.
    found: HashMap<ServerTarget, String>,
    /// Addresses with an attempt to connect.
    connecting: HashSet<ServerTarget>,
    server_count: usize,
    leases: Option<Rc<LeaseCounter>>,
    attempts: usize,
    delay: Duration,
    reported_failure: Option<ServerConnectError>,
}

impl KonnectivityAgent {
    /// Creates an agent without connections.
    pub fn new(settings: AgentSettings, state: Arc<AgentState>) -> KonnectivityAgent {
        KonnectivityAgent {
            allow: settings.allow.clone().into(),
            delay: settings.sync_interval,
            settings: Rc::new(settings),
            route: EgressRoute::Direct,
            dialer: Resolver::System.into(),
            state,
            found: HashMap::new(),
            connecting: HashSet::new(),
            server_count: 1,
            leases: None,
            attempts: 0,
            reported_failure: None,
        }
    }

    /// Connects to servers over `route`.
    #[must_use]
    pub fn with_route(mut self, route: EgressRoute) -> KonnectivityAgent {
        self.route = route;
        self
    }

    /// Counts servers by their Leases.
    #[must_use]
    pub fn with_leases(mut self, leases: Rc<LeaseCounter>) -> KonnectivityAgent {
        self.leases = Some(leases);
        self
    }

    /// How many servers there are, as far as is known.
    fn known_servers(&self) -> usize {
        match (&self.leases, self.settings.server_count_source) {
            (None, _) => self.server_count,
            (Some(leases), ServerCountSource::Default) => leases.count(),
            (Some(leases), ServerCountSource::Max) => leases.count().max(self.server_count),
        }
    }

    /// Runs until the process drains and no connection to a target is left, or the drain times out.
    pub async fn run(mut self, mut drain: Drain) {
        let mut streams = StreamTasks::new();
        let mut lookups = JoinSet::<Result<Candidates, ServerConnectError>>::new();
        // Concurrent: a server that does not answer holds up no other.
        let mut attempts = JoinSet::<(ServerTarget, Result<ServerStream, ServerConnectError>)>::new();
        let mut next = Instant::now();
        let state = self.state.clone();
        loop {
            tokio::select! {
                biased;
                () = drain.wait_for(ShutdownPhase::Draining) => break,
                Some(ended) = streams.join_next() => {
                    if let Ok((number, result)) = ended {
                        self.forget(number, result);
                    }
                    self.delay = self.settings.sync_interval;
                    next = Instant::now() + self.jittered_delay();
                }
                Some(attempt) = attempts.join_next() => {
                    if let Ok((address, connected)) = attempt {
                        self.connecting.remove(&address);
                        match connected {
                            Ok(stream) => self.add(&address, stream, &mut streams),
                            Err(failure) => self.report(failure),
                        }
                    }
                    next = Instant::now() + self.jittered_delay();
                }
                () = state.server_drain.notified() => {
                    self.delay = self.settings.sync_interval;
                    next = Instant::now() + self.jittered_delay();
                }
                Some(found) = lookups.join_next() => {
                    match found {
                        Ok(Ok(candidates)) => if let Some((address, host)) = self.choose_server(&candidates) {
                            self.connecting.insert(address.clone());
                            attempts.spawn_local(self.connect(address, host));
                        },
                        Ok(Err(failure)) => self.report(failure),
                        Err(_) => {}
                    }
                    next = Instant::now() + self.jittered_delay();
                }
                () = sleep_until(next), if lookups.is_empty() => {
                    lookups.spawn_local(look_up_servers(self.settings.clone(), self.route.clone()));
                }
            }
        }
        drop(attempts);
        self.drain(&mut streams).await;
    }

    async fn drain(&self, streams: &mut StreamTasks) {
        self.state.set_draining();
        for multiplexer in self.state.multiplexers() {
            multiplexer.send(&Packet::Drain);
        }
        let KonnectivityAgentMetrics { endpoint_connections, pending_dials, .. } = &*self.state.metrics;
        let last_ended = async {
            // Also without a stream: targets get what was sent to them.
            while endpoint_connections.load(Relaxed) + pending_dials.load(Relaxed) > 0 {
                tokio::select! {
                    () = sleep(DRAIN_POLL_INTERVAL) => {}
                    Some(_) = streams.join_next() => {}
                }
            }
            // The servers get what HTTP/2 and TLS still hold: each ends its stream after it.
            for multiplexer in self.state.multiplexers() {
                multiplexer.finish();
            }
            let _ = timeout(SERVER_END_TIMEOUT, async { while streams.join_next().await.is_some() {} }).await;
        };
        if timeout(self.settings.drain_timeout, last_ended).await.is_err() {
            let connections = self.state.metrics.endpoint_connections.load(Relaxed);
            tracing::warn!(connections, "drain timeout: open connections are aborted");
        }
    }

    fn forget(&mut self, number: StreamNumber, result: Result<(), String>) {
        let Some(server_id) = self.state.remove_server(number) else { return };
        match result {
            Ok(()) => tracing::info!(server = server_id, "connection to a server ended"),
            Err(error) => {
                tracing::warn!(server = server_id, error, "connection to a server broke");
                let error = format!("connection to server {server_id} broke: {error}");
                self.state.failed_connections.record(Failure { reason: "broken", error: &error, ..Failure::default() });
            }
        }
    }

    fn jittered_delay(&self) -> Duration {
        self.delay.mul_f64(0.9 + 0.2 * fastrand::f64())
    }

    /// Connects to a server; the result has the target.
    fn connect(
        &self,
        target: ServerTarget,
        host: String,
    ) -> impl Future<Output = (ServerTarget, Result<ServerStream, ServerConnectError>)> + use<> {
        let (settings, state) = (self.settings.clone(), self.state.clone());
        let (route, dialer) = (self.route.clone(), self.dialer.clone());
        async move {
            let result = connect(&settings, &state, &target, &host, (&route, &dialer)).await;
            (target, result)
        }
    }

    /// Address and host of the next server to connect to; `None` if none is missing, or each missing one has an attempt.
    fn choose_server(&mut self, candidates: &Candidates) -> Option<(ServerTarget, String)> {
        let missing: Vec<_> = candidates
            .iter()
            .filter(|(address, _)| !self.found.get(address).is_some_and(|server| self.state.is_connected_to(server)))
            .collect();
        // Behind a load balancer, one address has several servers.
        let known_servers = self.known_servers();
        self.state.metrics.known_servers.store(known_servers as u64, Relaxed);
        let wants_more = self.state.count_servers() < known_servers || self.settings.sync_forever;
        let mut eligible: Vec<_> = match missing.is_empty() {
            false => missing,
            true if wants_more => candidates.iter().collect(),
            true => {
                self.delay = self.settings.sync_interval;
                return None;
            }
        };
        eligible.retain(|(address, _)| !self.connecting.contains(address));
        let chosen = (*eligible.get(self.attempts % eligible.len().max(1))?).clone();
        self.attempts += 1;
        Some(chosen)
    }

    /// Serves a new stream, unless there is one to the same server.
    fn add(&mut self, address: &ServerTarget, stream: ServerStream, streams: &mut StreamTasks) {
        self.found.insert(address.clone(), stream.server_id.clone());
        self.server_count = self.server_count.max(stream.server_count as usize);
        let servers = self.known_servers();
        self.state.metrics.known_servers.store(servers as u64, Relaxed);
        self.reported_failure = None;
        self.state.set_failing(false);
        if self.state.is_connected_to(&stream.server_id) {
            let before = self.delay;
            self.delay = before.mul_f64(1.5).min(MAX_DUPLICATE_DELAY);
            let connected = self.state.count_servers();
            if before < MAX_DUPLICATE_DELAY && self.delay == MAX_DUPLICATE_DELAY && connected < servers {
                tracing::warn!(
                    connected,
                    servers,
                    "the other servers are not found; check --server-count of the servers, and that the load balancer also chooses the others"
                );
            }
            tokio::task::spawn_local(stream.close());
            return;
        }
        self.delay = self.settings.sync_interval;
        let number = self.state.add_server(&stream.server_id, address.to_string(), stream.multiplexer());
        tracing::info!(server = stream.server_id, %address, servers, "connected to a server");
        let (allow, state) = (self.allow.clone(), self.state.clone());
        streams.spawn_local(async move { (number, stream.serve(allow, state).await) });
    }

    /// Logs a failure once, and backs off.
    fn report(&mut self, failure: ServerConnectError) {
        self.delay = self.delay.mul_f64(1.5).min(self.settings.sync_interval_cap.max(self.settings.sync_interval));
        self.state.set_failing(true);
        self.state.failed_connections.record(Failure {
            reason: "refused",
            error: failure.text(),
            ..Failure::default()
        });
        if self.reported_failure.as_ref() != Some(&failure) {
            tracing::warn!("cannot connect to a Konnectivity server: {failure}");
            self.reported_failure = Some(failure);
        }
    }
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ServerTarget {
    /// An address of its name.
    Direct(SocketAddr),
    /// Its name, which the proxy looks up, as in grpc-go.
    Proxied(Destination),
}

impl fmt::Display for ServerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerTarget::Direct(address) => address.fmt(f),
            ServerTarget::Proxied(destination) => write!(f, "{destination} through the proxy"),
        }
    }
}

/// The addresses of all servers, each with the host that it was found by.
type Candidates = Vec<(ServerTarget, String)>;

async fn look_up_servers(settings: Rc<AgentSettings>, route: EgressRoute) -> Result<Candidates, ServerConnectError> {
    let (mut candidates, mut failure) = (Vec::new(), None);
    for server in &settings.servers {
        let destination = Destination {
            host: server.host.parse().map_or_else(|_| Host::Name(server.host.clone()), Host::Ip),
            port: server.port,
        };
        if route.is_proxied(&destination) {
            candidates.push((ServerTarget::Proxied(destination), server.host.clone()));
            continue;
        }
        let lookup = timeout(RESOLVE_TIMEOUT, lookup_host((server.host.as_str(), server.port)));
        match lookup.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(addresses) => {
                candidates.extend(addresses.map(|address| (ServerTarget::Direct(address), server.host.clone())))
            }
            Err(error) => failure = Some(ServerConnectError::unresolved(&server.host, &error)),
        }
    }
    match failure {
        Some(failure) if candidates.is_empty() => Err(failure),
        _ => Ok(candidates),
    }
}

async fn connect(
    settings: &AgentSettings,
    state: &AgentState,
    target: &ServerTarget,
    host: &str,
    (route, dialer): (&EgressRoute, &Dialer),
) -> Result<ServerStream, ServerConnectError> {
    // Read for each connection, so that all of them may be replaced at any time.
    let config = client_config(settings).map_err(|problem| ServerConnectError::new(problem.to_string()))?;
    let token = match &settings.token_file {
        Some(path) => Some(read_token(path)?),
        None => None,
    };
    let stream = open_tls(config, host, target, route, dialer).await?;
    let metadata =
        AgentMetadata { agent_id: settings.agent_id.clone(), identifiers: settings.identifiers.clone(), token };
    let port = match target {
        ServerTarget::Direct(address) => address.port(),
        ServerTarget::Proxied(destination) => destination.port,
    };
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let opened =
        ServerStream::open(AlertStream::new(stream), &authority, &metadata, settings.keepalive, &state.metrics.streams)
            .await;
    opened.map_err(|failure| {
        ServerConnectError::new(format!(
            "{target}: {}",
            failure.with_files(settings.pair.as_ref(), settings.token_file.as_deref())
        ))
    })
}

/// A connection to a server, direct or through a proxy.
trait ServerSocket: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> ServerSocket for S {}

/// Opens a TLS connection to a server.
async fn open_tls(
    config: Arc<rustls::ClientConfig>,
    host: &str,
    target: &ServerTarget,
    route: &EgressRoute,
    dialer: &Dialer,
) -> Result<ClientTlsStream<Box<dyn ServerSocket>>, ServerConnectError> {
    let name = server_name(host).map_err(|problem| ServerConnectError::new(problem.to_string()))?;
    let connected = timeout(CONNECT_TIMEOUT, async {
        let stream: Box<dyn ServerSocket> = match target {
            ServerTarget::Direct(address) => {
                let socket =
                    TcpStream::connect(address).await.map_err(|error| ServerConnectError::unreachable(&error))?;
                configure_socket(&socket).map_err(|error| ServerConnectError::unreachable(&error))?;
                Box::new(socket)
            }
            ServerTarget::Proxied(destination) => {
                let opened = dialer.open(route, destination, CONNECT_TIMEOUT).await;
                let opened = opened.map_err(|error| {
                    ServerConnectError::new(format!("{}; check HTTPS_PROXY and NO_PROXY", error.cause))
                })?;
                Box::new(opened.stream)
            }
        };
        ClientTlsStream::connect(config, name, stream).await.map_err(|error| ServerConnectError::tls(&error))
    });
    match connected.await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(why)) => Err(ServerConnectError::new(format!("{target}: {why}"))),
        Err(_) => Err(ServerConnectError::new(format!(
            "{target}: no TLS connection within {CONNECT_TIMEOUT:?}; check --proxy-server-host, --proxy-server-port and the firewalls on the way"
        ))),
    }
}
