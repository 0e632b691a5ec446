//! One stream to a server: `/AgentService/Connect`.

use std::cell::OnceCell;
use std::fmt::Display;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use konnectivity_client::{Packet, TUNNEL_WINDOW};
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinHandle, JoinSet, consume_budget};
use tokio::time::{sleep, timeout};

use super::connect_error::ServerConnectError;
use super::endpoint::{DialRequest, EndpointContext, serve_endpoint};
use super::state::AgentState;
use crate::egress::DestinationPattern;
use crate::konnectivity::keepalive::keepalive;
use crate::konnectivity::multiplexer::{
    PacketFrame, ReceiveOutcome, StreamSide, TunnelMultiplexer, TunnelWindows, WINDOW_BYTES,
};
use crate::konnectivity::packet_reader::PacketReader;
use crate::konnectivity::recent_failures::Failure;
use crate::konnectivity::stream_counter::StreamCounter;
use crate::konnectivity::{MAX_FRAME_BYTES, MAX_METADATA_BYTES};
use crate::observe::metrics::{StreamMetrics, StreamSegment};

/// Time for the server to answer the call with its id.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often an agent looks whether a server of the reference has announced its end.
const GOAWAY_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time for a server to end a stream that its agent has ended.
pub(super) const SERVER_END_TIMEOUT: Duration = Duration::from_secs(10);
/// Time to close a connection whose stream has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Dials of one server that may wait for their targets, each with a socket. Tests have few descriptors.
const MAX_PENDING_DIALS: usize = if cfg!(test) { 100 } else { 10_000 };
/// Windows of the stream and its connection, in bytes. The stream is always read.
const STREAM_WINDOW: u32 = 8 << 20;

/// What the agent tells a server of itself.
#[derive(Clone, Debug)]
pub(super) struct AgentMetadata {
    pub(super) agent_id: String,
    /// As given by `--agent-identifiers`.
    pub(super) identifiers: String,
    /// Service account token, if tokens authenticate the agent.
    pub(super) token: Option<String>,
}

/// An established stream to a server.
pub(super) struct ServerStream {
    /// Id of the server.
    pub(super) server_id: String,
    /// Number of servers, as this one knows it.
    pub(super) server_count: u32,
    multiplexer: Arc<TunnelMultiplexer>,
    reader: PacketReader,
    send: SendStream<PacketFrame>,
    send_request: SendRequest<PacketFrame>,
    connection: ConnectionTask,
}

/// Drives a connection. It is aborted on drop.
struct ConnectionTask(JoinHandle<()>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ServerStream {
    /// Calls the server over `stream`. `authority` is the server's host and port.
    ///
    /// # Errors
    /// The server refuses the agent, or is no Konnectivity server.
    pub(super) async fn open<S>(
        stream: S,
        authority: &str,
        metadata: &AgentMetadata,
        ping_interval: Duration,
        metrics: &Arc<StreamMetrics>,
    ) -> Result<ServerStream, ServerConnectError>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * 2)
            .max_frame_size(MAX_FRAME_BYTES)
            .max_header_list_size(MAX_METADATA_BYTES)
            // Pushed responses would be kept until the connection ends.
            .enable_push(false);
        let handshake = timeout(CALL_TIMEOUT, builder.handshake::<_, PacketFrame>(stream)).await;
        let (send_request, mut connection) = handshake
            .map_err(|_| ServerConnectError::not_konnectivity("the server does not answer the HTTP/2 handshake"))?
            .map_err(|error| ServerConnectError::http2("HTTP/2 handshake failed", &error))?;
        let ping_pong = connection.ping_pong();
        // Why the connection ended: its calls do not tell.
        let connection_error = Rc::<OnceCell<h2::Error>>::default();
        let reason = connection_error.clone();
        let driving = tokio::task::spawn_local(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "connection to a Konnectivity server ended");
                    let _ = reason.set(error);
                },
                () = keepalive(ping_pong, ping_interval) => {
                    tracing::warn!("Konnectivity server does not answer a ping; the connection is closed");
                }
            }
        });
        let connection = ConnectionTask(driving);
        let opened =
            timeout(CALL_TIMEOUT, call_server(send_request.clone(), authority, metadata, &connection_error)).await;
        let (headers, body, send) =
            opened.map_err(|_| ServerConnectError::not_konnectivity("the server does not answer the call"))??;
        let (server_id, server_count) = read_server(&headers)?;
        let window = headers.get(TUNNEL_WINDOW).and_then(|window| window.to_str().ok()?.parse::<i64>().ok());
        let windows = window.filter(|send| *send > 0).map(|send| TunnelWindows { send, receive: WINDOW_BYTES });
        Ok(ServerStream {
            server_id,
            server_count,
            multiplexer: TunnelMultiplexer::new(StreamSide::Agent, windows, metrics),
            reader: PacketReader::counted(body, StreamCounter::of_agent(metrics, StreamSegment::ToAgent)),
            send,
            send_request,
            connection,
        })
    }

    /// The tunnels of this stream.
    pub(super) fn multiplexer(&self) -> Arc<TunnelMultiplexer> {
        self.multiplexer.clone()
    }

    /// Serves the requests of the server until the stream ends.
    ///
    /// # Errors
    /// Why the stream broke.
    pub(super) async fn serve(
        mut self,
        allow: Arc<[DestinationPattern]>,
        state: Arc<AgentState>,
    ) -> Result<(), String> {
        let pending_dials = Rc::default();
        let context = EndpointContext { multiplexer: self.multiplexer.clone(), allow, state, pending_dials };
        let closed = ClosingMultiplexer(self.multiplexer.clone());
        let ended = tokio::select! {
            received = receive(&mut self.reader, &self.server_id, &context) => received,
            error = write(&self.multiplexer, &mut self.send) => Err(error),
            () = finish_after_goaway(&mut self.send_request, &context) => Ok(()),
        };
        drop(closed);
        ended?;
        self.close().await;
        Ok(())
    }

    /// Ends the stream, HTTP/2 and TLS in order, so that the server does not take it for a broken connection.
    pub(super) async fn close(self) {
        let ServerStream { mut reader, mut send, send_request, mut connection, .. } = self;
        let _ = end_stream(&mut send);
        let ended = async {
            // A stream that the server has not ended would be reset.
            while let Ok(Some(_)) = reader.next().await {}
            drop((reader, send, send_request));
            let _ = (&mut connection.0).await;
        };
        let _ = timeout(CLOSE_TIMEOUT, ended).await;
    }
}

/// Writes packets until the stream breaks, and why. A stream that is finished is ended after its last packet; its server
/// then ends it, too.
async fn write(multiplexer: &TunnelMultiplexer, send: &mut SendStream<PacketFrame>) -> String {
    match multiplexer.write(send).await {
        Ok(()) if multiplexer.is_finishing() => match end_stream(send) {
            Ok(()) => pending().await,
            Err(error) => error.to_string(),
        },
        Ok(()) => "the server does not read".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Ends the agent's side of the stream after what was sent.
fn end_stream(send: &mut SendStream<PacketFrame>) -> Result<(), h2::Error> {
    send.send_data(Bytes::new().chain(Bytes::new()), true)
}

/// Finishes the stream when the server has announced its end (GOAWAY) and no tunnel is left: a server of the reference that
/// was terminated waits for the end of all streams, up to its grace period. Returns if the server does not end it in time.
async fn finish_after_goaway(send_request: &mut SendRequest<PacketFrame>, context: &EndpointContext) {
    loop {
        sleep(GOAWAY_POLL_INTERVAL).await;
        let has_goaway = poll_fn(|cx| Poll::Ready(matches!(send_request.poll_ready(cx), Poll::Ready(Err(_))))).await;
        if has_goaway {
            context.state.set_server_draining(&context.multiplexer);
            if context.pending_dials.get() == 0 && context.multiplexer.is_empty() {
                break;
            }
        }
    }
    context.multiplexer.finish();
    sleep(SERVER_END_TIMEOUT).await;
}

/// Ends the tunnels of a stream, however its task ends.
struct ClosingMultiplexer(Arc<TunnelMultiplexer>);

impl Drop for ClosingMultiplexer {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Processes the packets of the server until its stream ends.
async fn receive(reader: &mut PacketReader, server: &str, context: &EndpointContext) -> Result<(), String> {
    let multiplexer = &context.multiplexer;
    let (mut last_connection, mut has_refused) = (0, false);
    // Not aborted with the stream: a target gets what was sent to it.
    let mut endpoints = DetachOnDrop(JoinSet::new());
    loop {
        let packet = tokio::select! {
            biased;
            packet = reader.next() => packet.map_err(|error| error.to_string())?,
            Some(_) = endpoints.0.join_next() => continue,
        };
        let Some(packet) = packet else { return Ok(()) };
        match packet {
            Packet::DialRequest { address, random, .. } if context.pending_dials.get() >= MAX_PENDING_DIALS => {
                if !std::mem::replace(&mut has_refused, true) {
                    tracing::warn!(
                        server,
                        limit = MAX_PENDING_DIALS,
                        "dials refused: too many wait for their targets; check whether these accept connections"
                    );
                }
                refuse_dial(context, &address, random);
            }
            Packet::DialRequest { protocol, address, random } => {
                has_refused &= context.pending_dials.get() > MAX_PENDING_DIALS / 2;
                last_connection += 1;
                context.pending_dials.set(context.pending_dials.get() + 1);
                let request = DialRequest { protocol, address, random, connection: last_connection };
                endpoints.0.spawn_local(serve_endpoint(context.clone(), request));
            }
            Packet::Data { connection: 0, .. } => {}
            Packet::Data { connection, data } => match multiplexer.receive(connection, data) {
                ReceiveOutcome::Taken => {}
                ReceiveOutcome::Full => multiplexer.wait_for_room(connection).await,
                ReceiveOutcome::UnknownConnection => {
                    let error = "unrecognized connectID".to_owned();
                    multiplexer.send(&Packet::CloseResponse { error, connection });
                }
            },
            Packet::CloseRequest { connection } => {
                if !multiplexer.receive_close(connection, String::new()) {
                    let error = "Unknown connectID".to_owned();
                    multiplexer.send(&Packet::CloseResponse { error, connection });
                }
            }
            // The connection of the client failed: the target may lack data.
            Packet::CloseResponse { error, connection } if multiplexer.has_windows() && !error.is_empty() => {
                multiplexer.receive_close(connection, error);
            }
            Packet::WindowUpdate { connection, increment } => multiplexer.add_window(connection, increment),
            Packet::WriteClosed { connection } => multiplexer.receive_write_closed(connection),
            Packet::Drain => context.state.set_server_draining(multiplexer),
            Packet::DialResponse { .. }
            | Packet::CloseResponse { .. }
            | Packet::CloseDial { .. }
            | Packet::Unknown(_) => {}
        }
        // A server that always has another packet would starve the endpoints and the writer, and endpoints that have
        // ended would stay in the set.
        consume_budget().await;
        while endpoints.0.try_join_next().is_some() {}
    }
}

/// Answers a dial that exceeds [`MAX_PENDING_DIALS`].
fn refuse_dial(context: &EndpointContext, address: &str, random: i64) {
    let error = "dial: too many dials of the server wait for their targets";
    context.state.metrics.dial_failures.fetch_add(1, Relaxed);
    context.state.failed_dials.record(Failure { reason: "refused", address, agent_id: "", error });
    context.multiplexer.send(&Packet::DialResponse { error: error.to_owned(), connection: 0, random });
}

struct DetachOnDrop(JoinSet<()>);

impl Drop for DetachOnDrop {
    fn drop(&mut self) {
        self.0.detach_all();
    }
}

type OpenedCall = (HeaderMap, RecvStream, SendStream<PacketFrame>);

async fn call_server(
    call: SendRequest<PacketFrame>,
    authority: &str,
    metadata: &AgentMetadata,
    connection_error: &OnceCell<h2::Error>,
) -> Result<OpenedCall, ServerConnectError> {
    let failure = |error: &dyn Display| ServerConnectError::new(format!("the call failed: {error}"));
    let mut request =
        Request::post(format!("https://{authority}/AgentService/Connect")).body(()).map_err(|error| failure(&error))?;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("narthex/", env!("CARGO_PKG_VERSION"))));
    headers.insert(TUNNEL_WINDOW, HeaderValue::from(WINDOW_BYTES));
    for (name, value) in [("agentid", &metadata.agent_id), ("agentidentifiers", &metadata.identifiers)] {
        let value = HeaderValue::from_str(value).map_err(|_| failure(&format_args!("{name} is no header value")))?;
        headers.insert(name, value);
    }
    if let Some(token) = &metadata.token {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| failure(&"the service account token is no header value"))?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let broken = |error| ServerConnectError::http2("the call failed", connection_error.get().unwrap_or(&error));
    let mut call = call.ready().await.map_err(broken)?;
    let (response, send) = call.send_request(request, false).map_err(broken)?;
    let (head, body) = response.await.map_err(broken)?.into_parts();
    if head.status != StatusCode::OK {
        let status = head.status.as_u16();
        return Err(ServerConnectError::not_konnectivity(&format!("the server answers HTTP status {status}")));
    }
    if head.headers.contains_key("serverid") {
        return Ok((head.headers, body, send));
    }
    // Refused: the status is in the head, or in the trailers.
    if let Some(refusal) = describe_status(&head.headers) {
        return Err(refusal);
    }
    let mut reader = PacketReader::new(body);
    while let Ok(Some(_)) = reader.next().await {}
    let trailers = reader.trailers().await.unwrap_or_default();
    let refusal = describe_status(&trailers);
    Err(refusal.unwrap_or_else(|| ServerConnectError::not_konnectivity("the server sends no server ID")))
}

/// The gRPC status of a refusal.
fn describe_status(headers: &HeaderMap) -> Option<ServerConnectError> {
    let text = |name: &str| Some(String::from_utf8_lossy(headers.get(name)?.as_bytes()).into_owned());
    let code = text("grpc-status").filter(|code| code != "0")?;
    let message = text("grpc-message").unwrap_or_default();
    let message = percent_decode_str(&message).decode_utf8_lossy();
    Some(ServerConnectError::refused(&code, &message))
}

/// Id and count of the servers, from the response head.
fn read_server(headers: &HeaderMap) -> Result<(String, u32), ServerConnectError> {
    let values = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let [server_id] = <[String; 1]>::try_from(values("serverid")).map_err(|ids| {
        ServerConnectError::new(format!("expected one server ID in the context, got [{}]", ids.join(" ")))
    })?;
    let count = values("servercount");
    let server_count = count.first().and_then(|count| count.parse().ok()).filter(|count| *count > 0).unwrap_or(1);
    Ok((server_id, server_count))
}
