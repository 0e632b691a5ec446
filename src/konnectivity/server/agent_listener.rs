//! Connections of agents: `/AgentService/Connect`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use h2::RecvStream;
use h2::server::SendResponse;
use http::header::USER_AGENT;
use http::{HeaderMap, Request};
use konnectivity_client::TUNNEL_WINDOW;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::agent_identifiers::AgentIdentifiers;
use super::authority_review::with_valid_authorities;
use super::backend::{AgentDescription, Backend};
use super::grpc_response::{self, GrpcStatus};
use super::service::KonnectivityServer;
use crate::konnectivity::keepalive::keepalive;
use crate::konnectivity::multiplexer::{PacketFrame, TunnelWindows, WINDOW_BYTES};
use crate::konnectivity::packet_reader::PacketReader;
use crate::konnectivity::recent_failures::shorten;
use crate::konnectivity::stream_counter::StreamCounter;
use crate::konnectivity::{MAX_FRAME_BYTES, MAX_METADATA_BYTES};
use crate::observe::metrics::StreamSegment;

/// Path of the call.
const CONNECT_PATH: &str = "/AgentService/Connect";
/// Time for the HTTP/2 preface.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Window of the stream of an agent, in bytes. All its tunnels share it, and it is always read.
const STREAM_WINDOW: u32 = 8 << 20;
/// Calls of one agent connection at the same time. An agent has one.
const MAX_STREAMS: u32 = 16;
/// Time for the calls of a lost connection to end.
const CALLS_END_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_AGENT_ID_BYTES: usize = 4 << 10;

/// Serves the connection of an agent until it ends. `:authority` may have any value: grpc-go with a client certificate sends
/// the host of the server alone, and the address of an IPv6 server without brackets is no authority.
pub async fn serve_agent_connection<S>(server: Arc<KonnectivityServer>, stream: S, remote: SocketAddr)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let _open = server.count_agent_connection();
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(STREAM_WINDOW * 2)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_METADATA_BYTES)
        .max_concurrent_streams(MAX_STREAMS);
    let stream = with_valid_authorities(stream);
    let mut connection = match timeout(HANDSHAKE_TIMEOUT, builder.handshake::<_, PacketFrame>(stream)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) if is_violation(&error) => {
            server.record_refused_connection("agent", remote, &format!("no HTTP/2: {error}"));
            return tracing::warn!(%remote, %error, "connection of an agent closed: it is no HTTP/2");
        }
        Ok(Err(error)) => return tracing::debug!(%remote, %error, "connection of an agent failed"),
        Err(_) => {
            let problem = format!("no HTTP/2 preface within {HANDSHAKE_TIMEOUT:?}");
            server.record_refused_connection("agent", remote, &problem);
            if server.silence_log.is_due() {
                tracing::warn!(%remote, "connection of an agent closed: {problem}; logged once a second");
            }
            return;
        }
    };
    let mut keepalive = std::pin::pin!(keepalive(connection.ping_pong(), server.settings.keepalive));
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted {
                Some(Ok((request, respond))) => {
                    calls.spawn_local(serve_call(server.clone(), request, respond, remote));
                }
                Some(Err(error)) => {
                    match is_violation(&error) {
                        true => tracing::warn!(%remote, %error, "connection of an agent closed: it violates HTTP/2"),
                        false => tracing::debug!(%remote, %error, "connection of an agent failed"),
                    }
                    break;
                }
                None => break,
            },
            () = &mut keepalive => {
                tracing::warn!(%remote, "agent does not answer a ping; its connection is closed");
                break;
            }
            Some(_) = calls.join_next() => {}
        }
    }
    drop(connection);
    end_calls(calls).await;
}

/// Waits for the calls of a connection that was dropped: each finds out, and says why it ended. What still waits for
/// something else is aborted.
pub(super) async fn end_calls(mut calls: JoinSet<()>) {
    let ended = async { while calls.join_next().await.is_some() {} };
    let _ = timeout(CALLS_END_TIMEOUT, ended).await;
}

/// Whether the peer is to blame, and not the network.
pub(super) fn is_violation(error: &h2::Error) -> bool {
    !error.is_remote() && error.get_io().is_none_or(|error| error.kind() == std::io::ErrorKind::InvalidData)
}

async fn serve_call(
    server: Arc<KonnectivityServer>,
    request: Request<RecvStream>,
    mut respond: SendResponse<PacketFrame>,
    remote: SocketAddr,
) {
    if request.uri().path() != CONNECT_PATH {
        let message = format!("unknown method {}", request.uri().path());
        return grpc_response::refuse(&mut respond, GrpcStatus::Unimplemented, &message);
    }
    let metadata = async {
        if let Some(tokens) = &server.agent_tokens {
            tokens.authenticate(request.headers()).await?;
        }
        read_metadata(request.headers())
    };
    let agent = match metadata.await {
        Ok(agent) => agent,
        Err(message) => {
            tracing::warn!(%remote, "agent refused: {message}");
            server.record_refused_connection("agent", remote, &message);
            return grpc_response::refuse(&mut respond, GrpcStatus::Unknown, &message);
        }
    };
    let mut metadata = vec![
        ("serverid", server.settings.server_id.clone()),
        ("servercount", server.settings.server_count.to_string()),
    ];
    if agent.windows.is_some() {
        metadata.push((TUNNEL_WINDOW, WINDOW_BYTES.to_string()));
    }
    let Ok(mut send) = grpc_response::send_head(&mut respond, &metadata) else { return };
    let backend = Arc::new(Backend::new(agent, remote, server.metrics.clone()));
    let _open = server.count_agent_stream();
    server.backends.add(backend.clone());
    if server.is_draining() {
        backend.send_drain();
    }
    let registered = RegisteredBackend { server: &server, backend: &backend };
    tracing::info!(agent = backend.agent_id, %remote, "agent connected");
    let counter = StreamCounter::of_server(&server.metrics.streams, StreamSegment::FromAgent);
    let mut reader = PacketReader::counted(request.into_body(), counter);
    let result = tokio::select! {
        received = backend.receive(&mut reader) => Err(received),
        result = backend.multiplexer.write(&mut send) => Ok(result),
    };
    let ended = match result {
        Err(received) => received,
        Ok(Ok(())) if backend.multiplexer.is_finishing() => {
            grpc_response::finish(&mut send);
            // Until the agent has got everything: without a reader, HTTP/2 would reset the stream.
            backend.receive(&mut reader).await
        }
        Ok(Ok(())) => Err("the agent does not read".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
    };
    drop(registered);
    match ended {
        Ok(()) => tracing::info!(agent = backend.agent_id, %remote, "agent disconnected"),
        Err(error) => tracing::warn!(agent = backend.agent_id, %remote, error, "connection to an agent broke"),
    }
    grpc_response::finish(&mut send);
}

fn read_metadata(headers: &HeaderMap) -> Result<AgentDescription, String> {
    let values = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let agent_id = match <[String; 1]>::try_from(values("agentid")) {
        Ok([id]) if id.len() <= MAX_AGENT_ID_BYTES => id,
        Ok([id]) => return Err(format!("the agent ID has {} bytes, the most are {MAX_AGENT_ID_BYTES}", id.len())),
        Err(ids) => return Err(format!("expected one agent ID in the context, got [{}]", ids.join(" "))),
    };
    let announced = values("agentidentifiers");
    let identifiers = match announced.as_slice() {
        [] => AgentIdentifiers::default(),
        [text] => {
            let (identifiers, ignored) = AgentIdentifiers::parse(text).map_err(|invalid| invalid.to_string())?;
            if let Some(ignored) = ignored {
                tracing::warn!(agent = agent_id, "identifier of an agent is ignored: {ignored}");
            }
            identifiers
        }
        several => {
            return Err(format!(
                "expected at most one set of agent Identifiers in the context, got [{}]",
                several.join(" ")
            ));
        }
    };
    let send = headers.get(TUNNEL_WINDOW).and_then(|window| window.to_str().ok()?.parse::<i64>().ok());
    let windows = send.filter(|send| *send > 0).map(|send| TunnelWindows { send, receive: WINDOW_BYTES });
    Ok(AgentDescription {
        agent_id,
        identifiers,
        identifiers_text: shorten(&announced.concat()).to_owned(),
        program: shorten(&values(USER_AGENT.as_str()).concat()).to_owned(),
        windows,
    })
}

/// Removes a backend and ends its tunnels, however its task ends.
struct RegisteredBackend<'s> {
    server: &'s KonnectivityServer,
    backend: &'s Arc<Backend>,
}

impl Drop for RegisteredBackend<'_> {
    fn drop(&mut self) {
        self.server.backends.remove(self.backend);
        self.backend.lost();
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn agent_metadata_of_any_bytes_is_read() {
        const NAMES: [&str; 4] = ["agentid", "agentidentifiers", TUNNEL_WINDOW, "user-agent"];
        bolero::check!().with_iterations(2000).with_max_len(64).for_each(|bytes: &[u8]| {
            let mut headers = HeaderMap::new();
            for field in bytes.split(|byte| *byte == 0) {
                let Some((name, value)) = field.split_first() else { continue };
                if let Ok(value) = HeaderValue::from_bytes(value) {
                    headers.append(NAMES[usize::from(*name) % NAMES.len()], value);
                }
            }
            match read_metadata(&headers) {
                Ok(agent) => {
                    assert_eq!(headers.get_all("agentid").iter().count(), 1);
                    assert!(agent.windows.is_none_or(|windows| windows.send > 0));
                }
                // It is sent as a header.
                Err(message) => assert!(!message.is_empty() && !message.contains(['\r', '\n', '\0'])),
            }
        });
    }
}
