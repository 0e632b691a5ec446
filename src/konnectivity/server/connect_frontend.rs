//! Frontend in HTTP-CONNECT mode (`--mode=http-connect`): one connection of a client is one tunnel.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::backend::TunnelDialFailure;
use super::service::{FrontendKind, KonnectivityServer};
use crate::konnectivity::multiplexer::{MIN_SHARED_BYTES, MultiplexedTunnel};
use crate::konnectivity::relay::{AfterEnd, PeerState, RelayEnd, SharedSocket, relay};
use crate::message::hop_by_hop::has_token;
use crate::observe::metrics::KonnectivityDialFailure;

/// Time for a client to send its request head, as ReadHeaderTimeout of the reference.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a request head. It is parsed again for each piece that arrives.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// Maximum length of what a client sends before its tunnel is open.
const MAX_EARLY_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
/// How long a response of an agent of the reference may take after its client has closed one direction.
const LINGER: Duration = Duration::from_secs(1);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectEnd {
    /// In order.
    Closed,
    /// The tunnel broke: reset the connection, so that the client does not take truncated data for complete.
    Broken,
}

/// Serves a client connection until it is closed.
pub async fn serve_connect_frontend<S>(server: Arc<KonnectivityServer>, mut socket: S) -> ConnectEnd
where
    S: AsyncRead + AsyncWrite + PeerState + Unpin,
{
    let _open = server.count_frontend(FrontendKind::HttpConnect);
    let mut buffer = BytesMut::new();
    let mut is_first = true;
    loop {
        match timeout(HEAD_TIMEOUT, read_request(&mut socket, &mut buffer)).await {
            // Boxed: a connection without a request holds no memory of a tunnel, and a tunnel none of its dial.
            Ok(ConnectRequest::Connect(address)) => {
                let Some(tunnel) = Box::pin(open_tunnel(&server, &mut socket, buffer, &address)).await else {
                    return ConnectEnd::Closed;
                };
                return Box::pin(relay_tunnel(&server, socket, tunnel, &address)).await;
            }
            Ok(ConnectRequest::OtherMethod { is_last }) => {
                const BODY: &str = "this proxy only supports CONNECT passthrough\n";
                let head = format!(
                    "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nContent-Length: {}\r\n{}\r\n{BODY}",
                    BODY.len(),
                    if is_last { "Connection: close\r\n" } else { "" },
                );
                is_first = false;
                if socket.write_all(head.as_bytes()).await.is_err() || socket.flush().await.is_err() || is_last {
                    return ConnectEnd::Closed;
                }
            }
            Ok(ConnectRequest::Invalid) => {
                tracing::warn!(
                    "connection of a frontend closed: no HTTP request of at most {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers"
                );
                let response = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request";
                respond(&mut socket, response).await;
                return ConnectEnd::Closed;
            }
            Ok(ConnectRequest::End) => return ConnectEnd::Closed,
            Err(_) => {
                if is_first && server.silence_log.is_due() {
                    tracing::warn!(
                        "connection of a frontend closed: no request within {HEAD_TIMEOUT:?}; logged once a second"
                    );
                }
                // With TLS, the client should not take it for a broken connection.
                let _ = timeout(LINGER, socket.shutdown()).await;
                return ConnectEnd::Closed;
            }
        }
    }
}

/// Opens a tunnel, and responds to its client. `None` if either failed. `early` is what the client sent after its request.
async fn open_tunnel<S>(
    server: &KonnectivityServer,
    socket: &mut S,
    mut early: BytesMut,
    address: &str,
) -> Option<MultiplexedTunnel>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let _unanswered = server.count_unanswered_client();
    let dialed = {
        let dial = server.dial("tcp", address);
        let mut dial = std::pin::pin!(dial);
        loop {
            tokio::select! {
                biased;
                dialed = &mut dial => break dialed,
                // A client that leaves cancels its dial. One that sends ahead is read on up to a limit.
                read = socket.read_buf(&mut early), if early.len() < MAX_EARLY_BYTES => match read {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                },
            }
        }
    };
    let tunnel = match dialed {
        Ok(tunnel) => tunnel,
        Err(failure) => {
            respond(socket, &failure_response(&failure)).await;
            return None;
        }
    };
    if socket.write_all(b"HTTP/1.1 200 Connection Established\r\n\r\n").await.is_err() || socket.flush().await.is_err()
    {
        server.metrics.record_dial_failure(KonnectivityDialFailure::SendResponse);
        return None;
    }
    let early = early.freeze();
    tunnel.send(if early.len() < MIN_SHARED_BYTES { Bytes::copy_from_slice(&early) } else { early });
    Some(tunnel)
}

/// Relays a tunnel until it is closed.
async fn relay_tunnel<S>(server: &KonnectivityServer, socket: S, tunnel: MultiplexedTunnel, address: &str) -> ConnectEnd
where
    S: AsyncRead + AsyncWrite + PeerState + Unpin,
{
    let _timer = server.time_connection();
    let mut socket = SharedSocket::new(socket);
    match relay(&socket, &tunnel, AfterEnd::Linger(LINGER), |duration| server.metrics.record_frontend_write(duration))
        .await
    {
        RelayEnd::Finished => {
            let _ = timeout(LINGER, socket.shutdown()).await;
            ConnectEnd::Closed
        }
        RelayEnd::SocketFailed(error) => {
            tracing::debug!(%error, address, "connection of a frontend failed");
            let _ = timeout(LINGER, tunnel.flushed()).await;
            // A TLS connection that ends without a close is no reset.
            if error.kind() != io::ErrorKind::UnexpectedEof {
                tunnel.set_close_error(&format!("the connection of the client failed: {error}"));
            }
            ConnectEnd::Broken
        }
        RelayEnd::Broken => ConnectEnd::Broken,
    }
}

async fn respond<S: AsyncWrite + Unpin>(socket: &mut S, response: &str) {
    // A client that has gone needs no response.
    if socket.write_all(response.as_bytes()).await.is_ok() {
        let _ = socket.flush().await;
        let _ = timeout(LINGER, socket.shutdown()).await;
    }
}

/// The responses of the reference.
fn failure_response(failure: &TunnelDialFailure) -> String {
    match failure {
        TunnelDialFailure::NoAgent => "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\ncurrently no tunnels available: No agent available".to_owned(),
        TunnelDialFailure::Refused(text) => error_response("403 Forbidden", text),
        TunnelDialFailure::Agent(text) => {
            let lower = text.to_ascii_lowercase();
            let status = if lower.contains("timeout") || lower.contains("deadline") {
                "504 Gateway Timeout"
            } else if lower.contains("too many open files") {
                "503 Service Unavailable"
            } else {
                "502 Bad Gateway"
            };
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text}")
        }
        TunnelDialFailure::Draining => error_response("503 Service Unavailable", "the server is shutting down\r\n"),
        TunnelDialFailure::AgentLost => error_response("502 Bad Gateway", "Backend context error: context canceled\r\n"),
        TunnelDialFailure::Timeout => error_response("504 Gateway Timeout", "Backend dial timeout: timed out waiting for backend dial\r\n"),
    }
}

fn error_response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{body}")
}

/// What a client requests.
#[derive(Debug, PartialEq, Eq)]
enum ConnectRequest {
    /// A tunnel to this host and port.
    Connect(String),
    /// Another method; whether the connection ends after its response.
    OtherMethod {
        is_last: bool,
    },
    Invalid,
    /// The client closed the connection.
    End,
}

async fn read_request<S: AsyncRead + Unpin>(socket: &mut S, buffer: &mut BytesMut) -> ConnectRequest {
    loop {
        if let Some((request, length)) = parse_request(buffer) {
            let _ = buffer.split_to(length);
            return request;
        }
        if buffer.len() >= MAX_HEAD_BYTES {
            return ConnectRequest::Invalid;
        }
        match socket.read_buf(buffer).await {
            Ok(0) | Err(_) => return ConnectRequest::End,
            Ok(_) => {}
        }
    }
}

/// Parses a request head; `None` if it is incomplete. Otherwise also its length.
fn parse_request(bytes: &[u8]) -> Option<(ConnectRequest, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some((ConnectRequest::Invalid, 0)),
    };
    let header = |name: &str| {
        let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| String::from_utf8_lossy(header.value).trim().to_owned())
    };
    if !has_one_length(request.headers) {
        return Some((ConnectRequest::Invalid, length));
    }
    if request.method != Some("CONNECT") {
        let has_body = header("transfer-encoding").is_some() || header("content-length").is_some_and(|it| it != "0");
        let connection: HeaderMap = (request.headers.iter())
            .filter(|header| header.name.eq_ignore_ascii_case("connection"))
            .filter_map(|header| Some((CONNECTION, HeaderValue::from_bytes(header.value).ok()?)))
            .collect();
        let has_option = |option| has_token(&connection, &CONNECTION, option);
        // The body is not read.
        let is_last = has_body || has_option("close") || request.version == Some(0) && !has_option("keep-alive");
        return Some((ConnectRequest::OtherMethod { is_last }, length));
    }
    // As net/http: the authority form, or the Host header when the target is a path.
    let target = request.path.unwrap_or_default();
    let address = if target.starts_with('/') { header("host").unwrap_or_default() } else { target.to_owned() };
    Some((ConnectRequest::Connect(address), length))
}

/// Whether the head has at most one length of a body and one host: a `Content-Length` may be repeated with the same number,
/// and excludes `Transfer-Encoding` (RFC 9112, 6.3).
fn has_one_length(headers: &[httparse::Header<'_>]) -> bool {
    let values = |name: &'static str| {
        headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|it| it.value.trim_ascii())
    };
    let mut lengths = values("content-length");
    let first = lengths.next();
    let is_number = |value: &[u8]| !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    first.is_none_or(|first| {
        is_number(first) && lengths.all(|it| it == first) && values("transfer-encoding").next().is_none()
    }) && values("host").count() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_request_with_two_lengths_is_invalid() {
        let parse = |lines: &str| parse_request(format!("GET / HTTP/1.1\r\n{lines}\r\n").as_bytes()).unwrap().0;
        for lines in [
            "Content-Length: 0\r\nContent-Length: 30\r\n",
            "Content-Length: 30\r\ncontent-length: 0\r\n",
            "Content-Length: 3\r\nContent-Length: 03\r\n",
            "Content-Length: 0, 30\r\n",
            "Content-Length: 0, 0\r\n",
            "Content-Length: +3\r\n",
            "Content-Length: \r\n",
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
            "Host: a\r\nHost: b\r\n",
        ] {
            assert_eq!(parse(lines), ConnectRequest::Invalid, "{lines}");
        }
        assert_eq!(parse("Content-Length: 3\r\nContent-Length: 3\r\n"), ConnectRequest::OtherMethod { is_last: true });
        assert_eq!(parse("Content-Length: 0\r\n"), ConnectRequest::OtherMethod { is_last: false });
    }

    #[test]
    fn connect_request_heads() {
        let parse = |text: &str| parse_request(text.as_bytes()).map(|(request, _)| request);
        let connect = |address: &str| Some(ConnectRequest::Connect(address.to_owned()));
        assert_eq!(parse("CONNECT a:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), connect("a:1"));
        assert_eq!(parse("CONNECT [::1]:1 HTTP/1.0\r\n\r\nearly"), connect("[::1]:1"));
        assert_eq!(parse("CONNECT / HTTP/1.1\r\nHost: b:2\r\n\r\n"), connect("b:2"));
        assert_eq!(parse("CONNECT a:1 HTTP/1.1\r\nHost"), None);
        let other = |is_last| Some(ConnectRequest::OtherMethod { is_last });
        assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), other(false));
        assert_eq!(parse("PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), other(true));
        assert_eq!(parse("GET / HTTP/1.1\r\nConnection: a, Close\r\n\r\n"), other(true));
        assert_eq!(parse("GET / HTTP/1.1\r\nConnection: close\r\nConnection: a\r\n\r\n"), other(true));
        assert_eq!(parse("GET / HTTP/1.0\r\n\r\n"), other(true));
        assert_eq!(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"), other(false));
        assert_eq!(parse("\x16\x03\x01"), Some(ConnectRequest::Invalid));
    }

    #[test]
    fn connect_request_of_any_bytes_is_parsed() {
        const PARTS: [&[u8]; 10] =
            [b"CONNECT ", b"a:1", b" HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: b", b"\0", b"\xff", b"GET /", b":"];
        bolero::check!().with_iterations(2000).with_max_len(16).for_each(|bytes: &[u8]| {
            let head: Vec<u8> = bytes.iter().flat_map(|at| PARTS[usize::from(*at) % PARTS.len()]).copied().collect();
            // What is complete stays the same with more bytes.
            let (parsed, mut more) = (parse_request(&head), head.clone());
            more.extend_from_slice(b"more");
            if parsed.is_some() {
                assert_eq!(parse_request(&more), parsed);
            }
        });
    }
}
