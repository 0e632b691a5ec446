//! A backend: the stream of one agent, and the dials that it has not answered.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use konnectivity_client::Packet;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::agent_identifiers::AgentIdentifiers;
use crate::konnectivity::multiplexer::{
    MultiplexedTunnel, ReceiveOutcome, StreamSide, TunnelMultiplexer, TunnelWindows,
};
use crate::konnectivity::packet_reader::PacketReader;
use crate::konnectivity::recent_failures::shorten;
use crate::konnectivity::report::{ConnectedAgentReport, MAX_LISTED, PendingDialReport, timestamp_ago};
use crate::observe::metrics::{KonnectivityDialFailure, KonnectivityServerMetrics};
use crate::observe::times::timestamp;

/// What an agent tells of itself.
pub(super) struct AgentDescription {
    pub(super) agent_id: String,
    pub(super) identifiers: AgentIdentifiers,
    /// The identifiers as announced.
    pub(super) identifiers_text: String,
    /// Its user agent.
    pub(super) program: String,
    pub(super) windows: Option<TunnelWindows>,
}

/// The stream of one agent.
pub(super) struct Backend {
    pub(super) agent_id: String,
    pub(super) identifiers: AgentIdentifiers,
    /// As announced.
    identifiers_text: String,
    program: String,
    remote: SocketAddr,
    connected: SystemTime,
    pub(super) multiplexer: Arc<TunnelMultiplexer>,
    metrics: Arc<KonnectivityServerMetrics>,
    pending: Mutex<PendingDials>,
    is_draining: AtomicBool,
}

/// Dials without a response, by their dial id.
#[derive(Default)]
struct PendingDials {
    last_id: i64,
    waiting: HashMap<i64, UnansweredDial>,
    is_lost: bool,
}

struct UnansweredDial {
    address: Box<str>,
    began: Instant,
    response: oneshot::Sender<Result<MultiplexedTunnel, String>>,
}

/// Why a dial failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TunnelDialFailure {
    /// The server shuts down.
    Draining,
    /// No agent serves the destination.
    NoAgent,
    /// Not permitted by `--allow-destinations`; the text for the client.
    Refused(String),
    /// The agent could not connect; its text.
    Agent(String),
    /// The stream of the agent ended.
    AgentLost,
    /// No response within `--backend-dial-timeout`.
    Timeout,
}

impl TunnelDialFailure {
    /// The failure as text, for the status.
    pub(super) fn describe(&self) -> &str {
        match self {
            TunnelDialFailure::Draining => "the server is shutting down",
            TunnelDialFailure::NoAgent => "No agent available",
            TunnelDialFailure::Refused(text) | TunnelDialFailure::Agent(text) => text,
            TunnelDialFailure::AgentLost => "the connection to the agent is lost",
            TunnelDialFailure::Timeout => "timed out waiting for backend dial",
        }
    }
}

impl Backend {
    pub(super) fn new(agent: AgentDescription, remote: SocketAddr, metrics: Arc<KonnectivityServerMetrics>) -> Backend {
        let AgentDescription { agent_id, identifiers, identifiers_text, program, windows } = agent;
        // Ids are this server's own: clients cannot guess or collide with those of others.
        let last_id = i64::from(fastrand::u32(..)) << 16;
        Backend {
            agent_id,
            identifiers,
            identifiers_text,
            program,
            remote,
            connected: SystemTime::now(),
            multiplexer: TunnelMultiplexer::new(StreamSide::Server, windows, &metrics.streams),
            metrics,
            pending: Mutex::new(PendingDials { last_id, ..PendingDials::default() }),
            is_draining: AtomicBool::new(false),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Tells the agent that this server drains. The reference's agent would only log the packet.
    pub(super) fn send_drain(&self) {
        if self.multiplexer.has_windows() {
            self.multiplexer.send(&Packet::Drain);
        }
    }

    pub(super) fn pending_dials(&self) -> usize {
        self.pending.lock().waiting.len()
    }

    /// The oldest dials without a response.
    pub(super) fn report_pending(&self) -> Vec<PendingDialReport> {
        let mut dials: Vec<_> = {
            let pending = self.pending.lock();
            pending.waiting.values().map(|dial| (dial.began, dial.address.to_string())).collect()
        };
        dials.sort();
        dials.truncate(MAX_LISTED);
        let describe = |(began, address): (Instant, String)| PendingDialReport {
            agent_id: self.agent_id.clone(),
            address,
            since: timestamp_ago(began.elapsed()),
        };
        dials.into_iter().map(describe).collect()
    }

    /// The agent for the status, but for its stalled tunnels.
    pub(super) fn report(&self) -> ConnectedAgentReport {
        let (bytes_to_agent, bytes_from_agent) = self.multiplexer.transferred_bytes();
        ConnectedAgentReport {
            agent_id: self.agent_id.clone(),
            identifiers: self.identifiers_text.clone(),
            program: self.program.clone(),
            remote: SocketAddr::new(self.remote.ip().to_canonical(), self.remote.port()).to_string(),
            since: timestamp(self.connected),
            draining: self.is_draining(),
            flow_control: self.multiplexer.has_windows(),
            tunnels: self.multiplexer.open_tunnels(),
            stalled_tunnels: self.multiplexer.count_stalled(),
            pending_dials: self.pending_dials(),
            bytes_to_agent,
            bytes_from_agent,
        }
    }

    /// Requests a connection. Dropped before the response, the dial is canceled, and a connection that the agent still
    /// makes is closed.
    pub(super) async fn dial(&self, protocol: &str, address: &str) -> Result<MultiplexedTunnel, TunnelDialFailure> {
        let (sender, response) = oneshot::channel();
        let pending = UnansweredDial { address: shorten(address).into(), began: Instant::now(), response: sender };
        let random = {
            let mut dials = self.pending.lock();
            if dials.is_lost {
                return Err(TunnelDialFailure::AgentLost);
            }
            dials.last_id = (dials.last_id + 1) & i64::MAX;
            let random = dials.last_id;
            dials.waiting.insert(random, pending);
            random
        };
        let canceled = CanceledOnDrop { backend: self, random };
        let (protocol, address) = (protocol.to_owned(), address.to_owned());
        self.multiplexer.send(&Packet::DialRequest { protocol, address, random });
        let result = response.await;
        drop(canceled);
        match result {
            Ok(Ok(tunnel)) => Ok(tunnel),
            Ok(Err(text)) => Err(TunnelDialFailure::Agent(text)),
            Err(_) => Err(TunnelDialFailure::AgentLost),
        }
    }

    /// Processes the agent's packets until its stream ends.
    ///
    /// # Errors
    /// Why the stream ended before its regular end.
    pub(super) async fn receive(&self, reader: &mut PacketReader) -> Result<(), String> {
        while let Some(packet) = reader.next().await.map_err(|error| error.to_string())? {
            match packet {
                Packet::Data { connection: 0, .. } => {}
                Packet::Data { connection, data } => match self.multiplexer.receive(connection, data) {
                    ReceiveOutcome::Taken => {}
                    ReceiveOutcome::Full => self.multiplexer.wait_for_room(connection).await,
                    ReceiveOutcome::UnknownConnection => self.multiplexer.send(&Packet::CloseRequest { connection }),
                },
                Packet::DialResponse { error, connection, random } => self.dial_response(error, connection, random),
                Packet::CloseResponse { error, connection } => {
                    self.multiplexer.receive_close(connection, error);
                }
                Packet::CloseDial { random } => {
                    let waiting = self.pending.lock().waiting.remove(&random);
                    if let Some(waiting) = waiting {
                        let _ = waiting.response.send(Err("the agent canceled the dial".to_owned()));
                    }
                }
                Packet::Drain => {
                    tracing::info!(agent = self.agent_id, "agent drains; new connections prefer other agents");
                    self.is_draining.store(true, Relaxed);
                }
                Packet::WindowUpdate { connection, increment } => self.multiplexer.add_window(connection, increment),
                Packet::WriteClosed { connection } => self.multiplexer.receive_write_closed(connection),
                Packet::DialRequest { .. } | Packet::CloseRequest { .. } | Packet::Unknown(_) => {}
            }
        }
        Ok(())
    }

    fn dial_response(&self, error: String, connection: i64, random: i64) {
        let waiting = self.pending.lock().waiting.remove(&random);
        let Some(waiting) = waiting else {
            // Canceled meanwhile.
            self.metrics.record_dial_failure(KonnectivityDialFailure::UnrecognizedResponse);
            if connection != 0 {
                self.multiplexer.send(&Packet::CloseRequest { connection });
            }
            return;
        };
        // The tunnel exists before the next packet is read, which may be its data.
        let result = match self.multiplexer.open(connection, &waiting.address) {
            _ if !error.is_empty() => Err(error),
            Some(tunnel) => Ok(tunnel),
            None => Err(format!("the agent names an invalid connection {connection}")),
        };
        // If nobody waits any more, the tunnel is dropped and so closed.
        let _ = waiting.response.send(result);
    }

    /// Ends all tunnels and dials: the stream is over.
    pub(super) fn lost(&self) {
        self.multiplexer.close();
        let waiting = {
            let mut pending = self.pending.lock();
            pending.is_lost = true;
            std::mem::take(&mut pending.waiting)
        };
        drop(waiting);
    }
}

/// Forgets a dial, and tells the agent when it is not answered.
struct CanceledOnDrop<'b> {
    backend: &'b Backend,
    random: i64,
}

impl Drop for CanceledOnDrop<'_> {
    fn drop(&mut self) {
        let was_waiting = self.backend.pending.lock().waiting.remove(&self.random).is_some();
        if was_waiting {
            self.backend.multiplexer.send(&Packet::CloseDial { random: self.random });
        }
    }
}
