//! A backend: the stream of one agent, and the dials that it has not answered.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::agent_identifiers::AgentIdentifiers;
use crate::egress::proxy::konnectivity::Packet;
use crate::konnectivity::multiplexer::{MultiplexedTunnel, Received, StreamSide, TunnelMultiplexer, TunnelWindows};
use crate::konnectivity::packet_reader::PacketReader;

/// The stream of one agent.
pub(super) struct Backend {
    pub(super) agent_id: String,
    pub(super) identifiers: AgentIdentifiers,
    pub(super) remote: SocketAddr,
    pub(super) connected: SystemTime,
    pub(super) multiplexer: Arc<TunnelMultiplexer>,
    pending: Mutex<PendingDials>,
    is_draining: AtomicBool,
}

/// Dials without a response, by their dial id.
#[derive(Default)]
struct PendingDials {
    last_id: i64,
    waiting: HashMap<i64, oneshot::Sender<Result<MultiplexedTunnel, String>>>,
    is_lost: bool,
}

/// Why a dial failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TunnelDialFailure {
    /// The server shuts down.
    Draining,
    /// No agent serves the destination.
    NoAgent,
    /// The agent could not connect; its text.
    Agent(String),
    /// The stream of the agent ended.
    AgentLost,
    /// No response within `--backend-dial-timeout`.
    Timeout,
}

impl Backend {
    pub(super) fn new(
        agent_id: String,
        identifiers: AgentIdentifiers,
        remote: SocketAddr,
        windows: Option<TunnelWindows>,
    ) -> Backend {
        // Ids are this server's own: clients cannot guess or collide with those of others.
        let last_id = i64::from(fastrand::u32(..)) << 16;
        Backend {
            agent_id,
            identifiers,
            remote,
            connected: SystemTime::now(),
            multiplexer: TunnelMultiplexer::new(StreamSide::Server, windows),
            pending: Mutex::new(PendingDials { last_id, ..PendingDials::default() }),
            is_draining: AtomicBool::new(false),
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    pub(super) fn pending_dials(&self) -> usize {
        self.pending.lock().waiting.len()
    }

    /// Requests a connection. Dropped before the response, the dial is canceled, and a connection that the agent still
    /// makes is closed.
    pub(super) async fn dial(&self, protocol: &str, address: &str) -> Result<MultiplexedTunnel, TunnelDialFailure> {
        let (sender, response) = oneshot::channel();
        let random = {
            let mut pending = self.pending.lock();
            if pending.is_lost {
                return Err(TunnelDialFailure::AgentLost);
            }
            pending.last_id = (pending.last_id + 1) & i64::MAX;
            let random = pending.last_id;
            pending.waiting.insert(random, sender);
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
                    Received::Taken => {}
                    Received::Full => self.multiplexer.wait_for_room(connection).await,
                    Received::UnknownConnection => self.multiplexer.send(&Packet::CloseRequest { connection }),
                },
                Packet::DialResponse { error, connection, random } => self.dial_response(error, connection, random),
                Packet::CloseResponse { error, connection } => {
                    self.multiplexer.receive_close(connection, error);
                }
                Packet::CloseDial { random } => {
                    let waiting = self.pending.lock().waiting.remove(&random);
                    if let Some(waiting) = waiting {
                        let _ = waiting.send(Err("the agent canceled the dial".to_owned()));
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
            if connection != 0 {
                self.multiplexer.send(&Packet::CloseRequest { connection });
            }
            return;
        };
        // The tunnel exists before the next packet is read, which may be its data.
        let result = match self.multiplexer.open(connection) {
            _ if !error.is_empty() => Err(error),
            Some(tunnel) => Ok(tunnel),
            None => Err(format!("the agent names an invalid connection {connection}")),
        };
        // If nobody waits any more, the tunnel is dropped and so closed.
        let _ = waiting.send(result);
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
