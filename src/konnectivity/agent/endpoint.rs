//! Connections to targets.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use konnectivity_client::Packet;
use socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

use super::state::AgentState;
use crate::egress::{Destination, DestinationPattern, Host, happy_eyeballs};
use crate::konnectivity::destinations::check_destination;
use crate::konnectivity::multiplexer::{MultiplexedTunnel, TunnelMultiplexer};
use crate::konnectivity::recent_failures::Failure;
use crate::konnectivity::relay::{AfterEnd, RelayEnd, SharedSocket, relay};
use crate::observe::metrics::KonnectivityAgentMetrics;
use crate::process::configure_socket;

/// Time for a target to accept the connection, as in the reference.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long data of a target may wait for the stream after its end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// A request of a server for a connection.
pub(super) struct DialRequest {
    /// Go network name.
    pub(super) protocol: String,
    /// Host and port.
    pub(super) address: String,
    /// The dial id of the server.
    pub(super) random: i64,
    /// The id of this connection.
    pub(super) connection: i64,
}

/// Why a target has no connection, in the words of the reference.
#[derive(Debug)]
enum TargetDialError {
    /// The agent may not connect to it.
    Refused(String),
    TimedOut(String),
    Failed(String),
}

impl TargetDialError {
    /// Name of the failure in the status report.
    fn reason(&self) -> &'static str {
        match self {
            TargetDialError::Refused(_) => "refused",
            TargetDialError::TimedOut(_) => "timeout",
            TargetDialError::Failed(_) => "failed",
        }
    }

    fn into_text(self) -> String {
        match self {
            TargetDialError::Refused(text) | TargetDialError::TimedOut(text) | TargetDialError::Failed(text) => text,
        }
    }
}

/// What connections to targets share.
#[derive(Clone)]
pub(super) struct EndpointContext {
    pub(super) multiplexer: Arc<TunnelMultiplexer>,
    /// `--allow-destinations`; empty allows all.
    pub(super) allow: Arc<[DestinationPattern]>,
    pub(super) state: Arc<AgentState>,
    /// Dials of the stream that are not answered.
    pub(super) pending_dials: Rc<Cell<usize>>,
}

/// Connects to a target and relays its data until both sides have closed.
pub(super) async fn serve_endpoint(context: EndpointContext, request: DialRequest) {
    let DialRequest { protocol, address, random, connection } = request;
    let metrics = &context.state.metrics;
    let pending = CountedEndpoint::new(&context.state, |metrics| &metrics.pending_dials);
    let began = Instant::now();
    let dialed = match check_destination(&protocol, &address, &context.allow, "agent") {
        // Boxed: a tunnel holds no memory of its dial.
        Ok(destination) => Box::pin(dial(&protocol, &destination)).await,
        Err(why) => {
            // The error names the address.
            tracing::warn!("dial refused: {why}");
            Err(TargetDialError::Refused(why))
        }
    };
    // The tunnel exists before the server can send data for it.
    let opened = dialed.and_then(|socket| {
        let tunnel = context
            .multiplexer
            .open(connection, &address)
            .ok_or_else(|| TargetDialError::Failed("the connection id is in use".to_owned()))?;
        Ok((socket, tunnel))
    });
    let (error, opened) = match opened {
        Ok(opened) => {
            metrics.record_dial(began.elapsed());
            (String::new(), Some(opened))
        }
        Err(error) => {
            let is_timeout = matches!(error, TargetDialError::TimedOut(_));
            if is_timeout { &metrics.dial_timeouts } else { &metrics.dial_failures }.fetch_add(1, Relaxed);
            let (reason, error) = (error.reason(), error.into_text());
            context.state.failed_dials.record(Failure { reason, address: &address, agent_id: "", error: &error });
            (error, None)
        }
    };
    let connection = if opened.is_some() { connection } else { 0 };
    context.multiplexer.send(&Packet::DialResponse { error, connection, random });
    context.pending_dials.set(context.pending_dials.get() - 1);
    let Some((socket, tunnel)) = opened else { return };
    let _open = CountedEndpoint::new(&context.state, |metrics| &metrics.endpoint_connections);
    drop(pending);
    relay_target(socket, tunnel).await;
}

async fn relay_target(socket: TcpStream, tunnel: MultiplexedTunnel) {
    let socket = SharedSocket::new(socket);
    match relay(&socket, &tunnel, AfterEnd::Close, |_| {}).await {
        RelayEnd::Finished => {
            let _ = timeout(FLUSH_TIMEOUT, tunnel.flushed()).await;
        }
        RelayEnd::SocketFailed(error) => {
            let _ = timeout(FLUSH_TIMEOUT, tunnel.flushed()).await;
            tunnel.set_close_error(&error.to_string());
        }
        // The target must not take truncated data for complete.
        RelayEnd::Broken => socket.with(|socket| {
            let _ = SockRef::from(&*socket).set_linger(Some(Duration::ZERO));
        }),
    }
}

async fn dial(protocol: &str, destination: &Destination) -> Result<TcpStream, TargetDialError> {
    let socket = timeout(DIAL_TIMEOUT, connect(protocol, destination)).await;
    let timed_out = |_| TargetDialError::TimedOut(format!("dial {protocol} {destination}: i/o timeout"));
    let socket = socket.map_err(timed_out)?.map_err(TargetDialError::Failed)?;
    let failed = |error| TargetDialError::Failed(format!("dial {protocol} {destination}: {error}"));
    configure_socket(&socket).map_err(failed)?;
    Ok(socket)
}

async fn connect(protocol: &str, destination: &Destination) -> Result<TcpStream, String> {
    let addresses = match &destination.host {
        Host::Ip(ip) => vec![SocketAddr::new(*ip, destination.port)],
        Host::Name(name) => {
            lookup_host((name.as_str(), destination.port)).await.map(Iterator::collect).unwrap_or_default()
        }
    };
    let failure = match &destination.host {
        Host::Ip(_) => format!("dial {protocol}: address {destination}: no suitable address found"),
        Host::Name(name) => format!("dial {protocol}: lookup {name}: no such host"),
    };
    connect_to_any(protocol, addresses, failure).await
}

/// Connects to the first of `addresses` that answers. The reference tries them one after another, and divides its time
/// (`net.DialTimeout`). The error is `failure` if none is of the protocol's family.
async fn connect_to_any(protocol: &str, mut addresses: Vec<SocketAddr>, failure: String) -> Result<TcpStream, String> {
    addresses.retain(|address| match protocol {
        "tcp4" => address.is_ipv4(),
        "tcp6" => address.is_ipv6(),
        _ => true,
    });
    let attempts = addresses.into_iter().map(async |address| {
        let connected = TcpStream::connect(address).await;
        connected.map_err(|error| format!("dial {protocol} {address}: connect: {}", go_error(&error)))
    });
    happy_eyeballs(attempts, failure).await
}

/// The text of Go's syscall package.
fn go_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => "too many open files".to_owned(),
        _ => error.to_string(),
    }
}

/// Counts a dial or a connection while it exists.
struct CountedEndpoint {
    state: Arc<AgentState>,
    counter: fn(&KonnectivityAgentMetrics) -> &AtomicU64,
}

impl CountedEndpoint {
    fn new(state: &Arc<AgentState>, counter: fn(&KonnectivityAgentMetrics) -> &AtomicU64) -> CountedEndpoint {
        counter(&state.metrics).fetch_add(1, Relaxed);
        CountedEndpoint { state: state.clone(), counter }
    }
}

impl Drop for CountedEndpoint {
    fn drop(&mut self) {
        (self.counter)(&self.state.metrics).fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::konnectivity::blackhole::Blackhole;

    #[tokio::test]
    async fn endpoint_dial_does_not_wait_for_an_address_that_drops_packets() {
        let hole = Blackhole::new();
        let other = SocketAddr::from(([127, 0, 0, 2], hole.address.port()));
        let _listener = std::net::TcpListener::bind(other).unwrap();
        let addresses = vec![hole.address, other];
        let socket = timeout(DIAL_TIMEOUT, connect_to_any("tcp", addresses.clone(), String::new()));
        assert_eq!(socket.await.unwrap().unwrap().peer_addr().unwrap(), other);
        let none = connect_to_any("tcp6", addresses, "none".to_owned()).await;
        assert_eq!(none.unwrap_err(), "none");
    }

    #[tokio::test]
    async fn endpoint_dial_errors_have_go_texts() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for (address, expected) in [
            (closed.to_string(), format!("dial tcp {closed}: connect: connection refused")),
            ("nowhere.invalid:1".to_owned(), "dial tcp: lookup nowhere.invalid: no such host".to_owned()),
            ("a".to_owned(), "dial tcp: address a: missing port in address".to_owned()),
            ("a:b".to_owned(), "dial tcp: address a:b: invalid port".to_owned()),
            (String::new(), "dial tcp: address : missing port in address".to_owned()),
        ] {
            let dialed = match check_destination("tcp", &address, &[], "agent") {
                Ok(destination) => dial("tcp", &destination).await,
                Err(error) => Err(TargetDialError::Refused(error)),
            };
            let dialed = dialed.map_err(TargetDialError::into_text);
            assert_eq!(dialed.unwrap_err(), expected);
        }
    }
}
