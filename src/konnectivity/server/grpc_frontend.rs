//! Frontend in gRPC mode (`--mode=grpc`): each `/ProxyService/Proxy` call is one tunnel.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_util::FutureExt as _;
use h2::server::{Connection, SendResponse};
use h2::{RecvStream, SendStream};
use http::Request;
use http::header::USER_AGENT;
use konnectivity_client::{InvalidMessage, Packet, TUNNEL_FLOW_CONTROL, encode_data_head};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::agent_listener::{HANDSHAKE_TIMEOUT, end_calls, is_violation};
use super::authority_review::{ValidAuthorityStream, with_valid_authorities};
use super::grpc_response::{self, GrpcStatus, control_frame};
use super::service::{FrontendKind, KonnectivityServer};
use crate::konnectivity::keepalive::keepalive;
use crate::konnectivity::multiplexer::{MultiplexedTunnel, PacketFrame, TunnelEvent, send_frame};
use crate::konnectivity::packet_reader::{PacketReadError, PacketReader};
use crate::konnectivity::stream_counter::StreamCounter;
use crate::konnectivity::{MAX_FRAME_BYTES, MAX_METADATA_BYTES};
use crate::observe::metrics::{KonnectivityDialFailure, StreamSegment};

/// Path of the call.
const PROXY_PATH: &str = "/ProxyService/Proxy";
/// Window of each call, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
/// Calls of a connection at the same time. kube-apiserver has one, narthex's gateway all of its own.
const MAX_STREAMS: u32 = 20_000;
/// Window of a connection, in bytes: calls whose target does not read must not stop the others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// The reference's client loses data that comes before it has registered the connection, less than a millisecond after
/// the response to its dial.
const REGISTRATION_DELAY: Duration = Duration::from_millis(10);
/// How long a target may accept nothing after the client has requested a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long data of a call that its client has canceled may wait for the agent.
const ABANDONED_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves a client connection until it ends. `:authority` may have any value: grpc-go sends the path of a Unix socket.
pub async fn serve_grpc_frontend<S>(server: Arc<KonnectivityServer>, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_METADATA_BYTES)
        .max_concurrent_streams(MAX_STREAMS);
    let stream = with_valid_authorities(stream);
    let handshake = Box::pin(builder.handshake::<_, PacketFrame>(stream));
    let connection = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) if is_violation(&error) => {
            return tracing::warn!(%error, "connection of a frontend closed: it is no HTTP/2");
        }
        Ok(Err(error)) => return tracing::debug!(%error, "connection of a frontend failed"),
        Err(_) => {
            if server.silence_log.is_due() {
                tracing::warn!(
                    "connection of a frontend closed: no HTTP/2 preface within {HANDSHAKE_TIMEOUT:?}; logged once a second"
                );
            }
            return;
        }
    };
    // Boxed: a connection without an HTTP/2 preface holds no memory of calls.
    Box::pin(serve_calls(&server, connection)).await;
}

async fn serve_calls<S>(
    server: &Arc<KonnectivityServer>,
    mut connection: Connection<ValidAuthorityStream<S>, PacketFrame>,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let mut keepalive = std::pin::pin!(keepalive(connection.ping_pong(), server.settings.frontend_keepalive));
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    calls.spawn_local(serve_call(server.clone(), request, respond));
                }
                Some(Err(error)) => {
                    match is_violation(&error) {
                        true => tracing::warn!(%error, "connection of a frontend closed: it violates HTTP/2"),
                        false => tracing::debug!(%error, "connection of a frontend failed"),
                    }
                    break;
                }
                None => break,
            },
            () = &mut keepalive => {
                tracing::warn!("frontend does not answer a ping; its connection is closed");
                break;
            }
            Some(_) = calls.join_next() => {}
        }
    }
    drop(connection);
    end_calls(calls).await;
}

async fn serve_call(
    server: Arc<KonnectivityServer>,
    request: Request<RecvStream>,
    mut respond: SendResponse<PacketFrame>,
) {
    if request.uri().path() != PROXY_PATH {
        let message = format!("unknown method {}", request.uri().path());
        return grpc_response::refuse(&mut respond, GrpcStatus::Unimplemented, &message);
    }
    let is_reference = request
        .headers()
        .get(USER_AGENT)
        .is_some_and(|agent| String::from_utf8_lossy(agent.as_bytes()).contains("grpc-go/"));
    let Ok(send) = grpc_response::send_head(&mut respond, &[(TUNNEL_FLOW_CONTROL, "1".to_owned())]) else { return };
    let _open = server.count_frontend(FrontendKind::Grpc);
    let streams = &server.metrics.streams;
    let from_client = StreamCounter::of_server(streams, StreamSegment::FromClient);
    let reader = PacketReader::counted(request.into_body(), from_client);
    let counter = StreamCounter::of_server(streams, StreamSegment::ToClient);
    let mut call = ProxyCall { server: &server, reader, send, counter, is_reference };
    match call.serve().await {
        Ok(()) => grpc_response::finish(&mut call.send),
        Err(CallBroken::Invalid(invalid)) => {
            tracing::warn!(%invalid, "call of a frontend ended: what it sends is no packet");
            let status = match invalid {
                InvalidMessage::TooLong(_) => GrpcStatus::ResourceExhausted,
                _ => GrpcStatus::Internal,
            };
            grpc_response::fail(&mut call.send, status, &invalid.to_string());
        }
        Err(CallBroken::Stream) => {}
    }
}

/// Why a call ended before its client ended it.
enum CallBroken {
    /// The stream was reset: there is nobody to tell.
    Stream,
    /// The client sends something else than packets.
    Invalid(InvalidMessage),
}

impl From<PacketReadError> for CallBroken {
    fn from(error: PacketReadError) -> CallBroken {
        match error {
            PacketReadError::Stream(error) => {
                tracing::debug!(error, "call of a frontend broke");
                CallBroken::Stream
            }
            PacketReadError::Invalid(invalid) => CallBroken::Invalid(invalid),
        }
    }
}

/// One `/ProxyService/Proxy` call.
struct ProxyCall<'s> {
    server: &'s KonnectivityServer,
    reader: PacketReader,
    send: SendStream<PacketFrame>,
    /// Metrics of what is sent to the client.
    counter: StreamCounter,
    is_reference: bool,
}

impl ProxyCall<'_> {
    /// Serves the call until the client ends it.
    async fn serve(&mut self) -> Result<(), CallBroken> {
        loop {
            let Some(packet) = self.next_packet().await? else { return Ok(()) };
            match packet {
                Packet::DialRequest { protocol, address, random } => {
                    // Boxed: a call without a tunnel holds no memory of one, and one with a tunnel none of its dial.
                    let dial = Box::pin(self.dial(&protocol, &address, random));
                    let Some(tunnel) = dial.await? else { continue };
                    return Box::pin(self.relay(tunnel)).await;
                }
                Packet::Data { connection, .. } => {
                    tracing::warn!(connection, "call of a frontend refused: data before a dial");
                    let error = "backend not initialized".to_owned();
                    self.refuse(error, connection).unwrap_or(Ok(()))?;
                    return self.discard().await;
                }
                Packet::CloseRequest { connection } => {
                    let error = "backend uninitialized".to_owned();
                    match self.refuse(error, connection) {
                        Some(sent) => sent?,
                        None => return self.discard().await,
                    }
                }
                _ => {}
            }
        }
    }

    async fn next_packet(&mut self) -> Result<Option<Packet>, CallBroken> {
        Ok(self.reader.next().await?)
    }

    async fn respond(&mut self, packet: &Packet) -> Result<(), CallBroken> {
        self.counter.record(packet);
        let sent = send_frame(&mut self.send, control_frame(packet.encode_frame())).await;
        sent.map_err(|error| {
            self.counter.record_error(&error);
            CallBroken::Stream
        })
    }

    /// Answers a packet that comes before the dial; `None` if the client reads no answers. Waiting for it would let its
    /// packets wait, up to a window of them.
    fn refuse(&mut self, error: String, connection: i64) -> Option<Result<(), CallBroken>> {
        self.respond(&Packet::CloseResponse { error, connection }).now_or_never()
    }

    /// Reads until the client ends the call.
    async fn discard(&mut self) -> Result<(), CallBroken> {
        while self.next_packet().await?.is_some() {}
        Ok(())
    }

    /// Dials and responds; `None` if there is no tunnel.
    async fn dial(
        &mut self,
        protocol: &str,
        address: &str,
        random: i64,
    ) -> Result<Option<MultiplexedTunnel>, CallBroken> {
        let server = self.server;
        let _unanswered = server.count_unanswered_client();
        let mut dial = std::pin::pin!(server.dial(protocol, address));
        let dialed = loop {
            tokio::select! {
                biased;
                dialed = &mut dial => break dialed,
                packet = self.reader.next() => match packet {
                    Ok(Some(Packet::CloseDial { random: canceled })) if canceled == random => return Ok(None),
                    Ok(Some(_)) => {}
                    Ok(None) => return Ok(None),
                    Err(error) => return Err(error.into()),
                },
            }
        };
        let (connection, error, tunnel) = match dialed {
            Ok(tunnel) => (tunnel.connection(), String::new(), Some(tunnel)),
            Err(failure) => (0, failure.describe().to_owned(), None),
        };
        let sent = self.respond(&Packet::DialResponse { error, connection, random }).await;
        if sent.is_err() && tunnel.is_some() {
            server.metrics.record_dial_failure(KonnectivityDialFailure::SendResponse);
        }
        sent.map(|()| tunnel)
    }

    /// Relays packets between the client and its tunnel until the client ends the call.
    async fn relay(&mut self, tunnel: MultiplexedTunnel) -> Result<(), CallBroken> {
        let _timer = self.server.time_connection();
        // For each end but a close.
        tunnel.set_close_error("the client ended its call without a close request");
        let registered = Notify::new();
        if !self.is_reference {
            registered.notify_one();
        }
        let ended = {
            let to_agent = relay_to_agent(&mut self.reader, &tunnel, &registered);
            let to_client = relay_to_client(self.server, &self.counter, &mut self.send, &tunnel, &registered);
            tokio::select! {
                ended = to_agent => ended,
                ended = to_client => ended,
            }
        };
        if matches!(ended, Ok(ClientEnd::Left) | Err(CallBroken::Stream)) {
            let _ = timeout(ABANDONED_FLUSH_TIMEOUT, tunnel.flushed()).await;
        }
        let ended = ended?;
        let connection = tunnel.connection();
        match ended {
            ClientEnd::Close { is_complete } => {
                if is_complete {
                    tunnel.set_close_error("");
                    // The agent writes what it has before it confirms.
                    let _ = timeout(CLOSE_TIMEOUT, tunnel.flushed()).await;
                }
                drop(tunnel);
                self.respond(&Packet::CloseResponse { error: String::new(), connection }).await?;
            }
            ClientEnd::Mismatch(other) => {
                tracing::warn!(connection, other, "tunnel closed: its client names another connection");
                drop(tunnel);
                for connection in [connection, other] {
                    let error = "mismatched connection IDs".to_owned();
                    self.respond(&Packet::CloseResponse { error, connection }).await?;
                }
            }
            ClientEnd::Closed(error) => {
                tunnel.set_close_error("");
                drop(tunnel);
                self.respond(&Packet::CloseResponse { error, connection }).await?;
            }
            ClientEnd::Left => return Ok(()),
        }
        self.discard().await
    }
}

/// Why packets of a client are no longer relayed.
enum ClientEnd {
    /// The client requests a close; whether all its data before was relayed.
    Close { is_complete: bool },
    /// The client names a connection that is not its own.
    Mismatch(i64),
    /// The target closed the connection, or the agent did with this error text.
    Closed(String),
    /// The client ended the call.
    Left,
}

/// Relays the client's packets. All of them are read at once, so that a close behind data that waits is seen; HTTP/2's
/// flow control bounds what waits here.
async fn relay_to_agent(
    reader: &mut PacketReader,
    tunnel: &MultiplexedTunnel,
    registered: &Notify,
) -> Result<ClientEnd, CallBroken> {
    let mut waiting = VecDeque::<(Bytes, usize)>::new();
    let mut close_deadline = None;
    loop {
        let deadline = async {
            match close_deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        let packet = tokio::select! {
            biased;
            capacity = tunnel.wait_for_capacity(), if !waiting.is_empty() => {
                match (capacity, waiting.pop_front()) {
                    (Ok(()), Some((data, held))) => {
                        tunnel.send(data);
                        reader.release(held);
                        close_deadline = close_deadline.map(|_| Instant::now() + CLOSE_TIMEOUT);
                    }
                    // The other direction reports it.
                    _ => waiting.clear(),
                }
                if waiting.is_empty() && close_deadline.is_some() {
                    return Ok(ClientEnd::Close { is_complete: true });
                }
                continue;
            }
            packet = reader.next_held(waiting.is_empty()) => packet?,
            () = deadline => return Ok(ClientEnd::Close { is_complete: false }),
        };
        let held = reader.take_unreleased();
        match packet {
            _ if close_deadline.is_some() && packet.is_some() => reader.release(held),
            Some(Packet::Data { connection, data }) if connection == tunnel.connection() => {
                registered.notify_one();
                waiting.push_back((data, held));
            }
            Some(Packet::CloseRequest { connection }) if connection == tunnel.connection() => {
                reader.release(held);
                if waiting.is_empty() {
                    return Ok(ClientEnd::Close { is_complete: true });
                }
                close_deadline = Some(Instant::now() + CLOSE_TIMEOUT);
            }
            Some(Packet::Data { connection, .. } | Packet::CloseRequest { connection }) if connection != 0 => {
                return Ok(ClientEnd::Mismatch(connection));
            }
            Some(packet) => {
                if let Packet::DialRequest { address, .. } = packet {
                    tracing::debug!(address, "second dial on a call ignored: one call is one connection");
                }
                reader.release(held);
            }
            None => return Ok(ClientEnd::Left),
        }
    }
}

async fn relay_to_client(
    server: &KonnectivityServer,
    counter: &StreamCounter,
    send: &mut SendStream<PacketFrame>,
    tunnel: &MultiplexedTunnel,
    registered: &Notify,
) -> Result<ClientEnd, CallBroken> {
    // Either the client has sent data, or it had the time to register the connection.
    let _ = timeout(REGISTRATION_DELAY, registered.notified()).await;
    loop {
        match tunnel.event().await {
            TunnelEvent::Data(data) => {
                let head = Bytes::from(encode_data_head(tunnel.connection(), data.len(), 0));
                counter.record_data();
                let began = Instant::now();
                if let Err(error) = send_frame(send, head.chain(data)).await {
                    counter.record_error(&error);
                    return Err(CallBroken::Stream);
                }
                server.metrics.record_frontend_write(began.elapsed());
            }
            // Clients have no half-close: what they send is relayed until the connection is closed.
            TunnelEvent::WriteClosed => return Ok(ClientEnd::Closed(String::new())),
            TunnelEvent::Closed(error) => return Ok(ClientEnd::Closed(error)),
            TunnelEvent::Lost => return Ok(ClientEnd::Closed("the connection to the agent is lost".to_owned())),
        }
    }
}
