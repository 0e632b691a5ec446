//! A client connection: handshake, dial, tunnel, record.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::protocol::{self, AuthMethod, ProtocolError, ReplyCode};
use super::worker::Socks5Worker;
use crate::egress::{Destination, DialError, DialPhase, ProxyFault};
use crate::forward::{CopyError, TunnelBytes, copy_bidirectional};
use crate::listen::IncomingConnection;
use crate::observe::access::TunnelRecord;
use crate::observe::metrics::Socks5HandshakeFailure;
use crate::process::{Drain, ShutdownPhase};

/// Idle timeout of a half-closed tunnel.
const HALF_CLOSED_IDLE_TIMEOUT: Duration = Duration::from_secs(900);
/// Time for a client to read the last reply before its connection is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes read from the client that are not parsed yet.
struct HandshakeBuffer {
    bytes: [u8; protocol::MAX_MESSAGE_BYTES],
    length: usize,
}

/// What the record of a connection contains.
#[derive(Default)]
struct ConnectionSummary {
    user: Option<String>,
    destination: Option<String>,
    dial_time: Option<Duration>,
    transferred: Cell<TunnelBytes>,
    reply: Option<ReplyCode>,
}

/// Why a connection was closed before its tunnel ended.
enum CloseReason {
    /// Closed without a reply to a request.
    NoReply(Socks5HandshakeFailure, String),
    /// Refused with a reply code.
    Refused(ReplyCode, String),
    /// The tunnel failed.
    TunnelBroken(io::Error),
    /// The process shuts down.
    Shutdown,
}

/// Serves one client connection until it is closed.
pub(super) async fn serve(worker: Rc<Socks5Worker>, incoming: IncomingConnection, drain: Drain) {
    let IncomingConnection { socket, remote, permit: place } = incoming;
    let _place = place;
    let _open = worker.metrics.socks5().connection_opened();
    let began = Instant::now();
    let mut summary = ConnectionSummary::default();
    let result = match TcpStream::from_std(socket) {
        Ok(mut socket) => run(&worker, &mut socket, &mut summary, drain).await,
        Err(error) => Err(CloseReason::NoReply(Socks5HandshakeFailure::Closed, error.to_string())),
    };
    record(&worker, remote, &summary, result.as_ref().err(), began.elapsed());
}

async fn run(
    worker: &Socks5Worker,
    socket: &mut TcpStream,
    summary: &mut ConnectionSummary,
    mut drain: Drain,
) -> Result<(), CloseReason> {
    let mut timed_out = drain.clone();
    let work = async {
        let handshake = timeout(worker.handshake_timeout, negotiate(worker, socket, summary)).await;
        let on_timeout = |_| {
            CloseReason::NoReply(
                Socks5HandshakeFailure::Timeout,
                format!("not complete in {:?}", worker.handshake_timeout),
            )
        };
        let (destination, buffer) = handshake.map_err(on_timeout).flatten()?;
        let began = Instant::now();
        let dialed = worker.dial(&destination).await;
        summary.dial_time = Some(began.elapsed());
        let mut backend = match dialed {
            Some(Ok(opened)) => opened.stream,
            None => {
                // Not expected: the selection existed at the start, and a reloaded file without it is rejected.
                let why = "the egress selection does not exist".to_owned();
                return Err(refuse(worker, socket, ReplyCode::GeneralFailure, why).await);
            }
            Some(Err(error)) => return Err(refuse(worker, socket, reply_to_dial_error(&error), error.cause).await),
        };
        summary.reply = Some(ReplyCode::Succeeded);
        worker.metrics.socks5().record_reply(ReplyCode::Succeeded as u8);
        let early = buffer.remaining();
        let both = async {
            socket.write_all(&protocol::connect_reply(ReplyCode::Succeeded)).await?;
            backend.write_all(early).await?;
            backend.flush().await
        };
        both.await.map_err(CloseReason::TunnelBroken)?;
        summary.transferred.set(TunnelBytes { from_client: early.len() as u64, from_backend: 0 });
        drop(buffer);
        let close_reason = tokio::select! {
            copied = copy_bidirectional(&mut *socket, &mut backend, HALF_CLOSED_IDLE_TIMEOUT, &summary.transferred) => match copied {
                Ok(()) => return Ok(()),
                // The other direction is complete.
                Err(CopyError::Write(error)) => {
                    close(socket).await;
                    return Err(CloseReason::TunnelBroken(error));
                }
                Err(CopyError::Read(error)) => CloseReason::TunnelBroken(error),
            },
            () = timed_out.wait_for(ShutdownPhase::TimedOut) => CloseReason::Shutdown,
        };
        // Reset both connections, so that neither side mistakes truncated data for a complete stream.
        backend.reset_on_drop();
        let _ = SockRef::from(&*socket).set_linger(Some(Duration::ZERO));
        Err(close_reason)
    };
    tokio::select! {
        biased;
        over = work => over,
        () = drain.wait_for(ShutdownPhase::TimedOut) => Err(CloseReason::Shutdown),
    }
}

/// Authenticates the client and reads its destination.
async fn negotiate(
    worker: &Socks5Worker,
    socket: &mut TcpStream,
    summary: &mut ConnectionSummary,
) -> Result<(Destination, Box<HandshakeBuffer>), CloseReason> {
    let mut buffer = Box::new(HandshakeBuffer { bytes: [0; protocol::MAX_MESSAGE_BYTES], length: 0 });
    let offered = buffer.read_message(socket, protocol::parse_greeting).await?;
    let users = worker.users.as_ref().map(|users| users.load());
    let method = match users {
        None if offered.none => AuthMethod::None,
        Some(_) if offered.password => AuthMethod::Password,
        _ => AuthMethod::Unacceptable,
    };
    send(socket, &protocol::method_reply(method)).await?;
    match (method, users) {
        (AuthMethod::Unacceptable, users) => {
            let required = if users.is_some() { "user and password" } else { "no authentication" };
            close(socket).await;
            return Err(CloseReason::NoReply(Socks5HandshakeFailure::Method, format!("it does not offer {required}")));
        }
        (_, None) => {}
        (_, Some(users)) => {
            let user = buffer
                .read_message(socket, |bytes| {
                    let read = protocol::parse_login(bytes)?;
                    let verify = |login: protocol::UserPassword<'_>| {
                        users.verify(&login).then(|| String::from_utf8_lossy(login.user).into_owned())
                    };
                    Ok(read.map(|(login, used)| (verify(login), used)))
                })
                .await?;
            send(socket, &protocol::login_reply(user.is_some())).await?;
            summary.user = user;
            if summary.user.is_none() {
                close(socket).await;
                return Err(CloseReason::NoReply(
                    Socks5HandshakeFailure::Credentials,
                    "unknown user or wrong password".to_owned(),
                ));
            }
        }
    }
    let destination = match buffer.read_message(socket, protocol::parse_request).await {
        Ok(destination) => destination,
        Err(CloseReason::Refused(reply, why)) => return Err(refuse(worker, socket, reply, why).await),
        Err(away) => return Err(away),
    };
    summary.destination = Some(destination.to_string());
    if !worker.allowed_destinations.iter().any(|pattern| pattern.matches(&destination)) {
        let why = "not among --allow-destinations".to_owned();
        return Err(refuse(worker, socket, ReplyCode::NotAllowed, why).await);
    }
    Ok((destination, buffer))
}

impl HandshakeBuffer {
    /// Reads until `read` has parsed a complete message.
    async fn read_message<T>(
        &mut self,
        socket: &mut TcpStream,
        mut read: impl FnMut(&[u8]) -> Result<Option<(T, usize)>, ProtocolError>,
    ) -> Result<T, CloseReason> {
        loop {
            match read(&self.bytes[..self.length]).map_err(CloseReason::from)? {
                Some((message, used)) => {
                    self.bytes.copy_within(used..self.length, 0);
                    self.length -= used;
                    return Ok(message);
                }
                // An incomplete message is shorter than the buffer.
                None => match socket.read(&mut self.bytes[self.length..]).await {
                    Ok(0) => {
                        return Err(CloseReason::NoReply(
                            Socks5HandshakeFailure::Closed,
                            "the client disconnected".to_owned(),
                        ));
                    }
                    Ok(count) => self.length += count,
                    Err(error) => return Err(CloseReason::NoReply(Socks5HandshakeFailure::Closed, error.to_string())),
                },
            }
        }
    }

    /// Bytes after the last message, to be sent to the destination.
    fn remaining(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl From<ProtocolError> for CloseReason {
    fn from(wrong: ProtocolError) -> CloseReason {
        match wrong {
            ProtocolError::Version(4) => {
                CloseReason::NoReply(Socks5HandshakeFailure::Version, "client sent SOCKS4".to_owned())
            }
            ProtocolError::Version(0x16) => {
                CloseReason::NoReply(Socks5HandshakeFailure::Version, "client sent TLS".to_owned())
            }
            ProtocolError::Version(first) if first.is_ascii_uppercase() => {
                CloseReason::NoReply(Socks5HandshakeFailure::Version, "client sent HTTP, by its first byte".to_owned())
            }
            ProtocolError::Version(first) => {
                CloseReason::NoReply(Socks5HandshakeFailure::Version, format!("SOCKS version is {first:#04x}"))
            }
            ProtocolError::LoginVersion(first) => CloseReason::NoReply(
                Socks5HandshakeFailure::Version,
                format!("version of user and password is {first:#04x}"),
            ),
            ProtocolError::Request(reply, why) => CloseReason::Refused(reply, why.to_owned()),
        }
    }
}

/// The reply code for a failed dial.
fn reply_to_dial_error(error: &DialError) -> ReplyCode {
    match (error.phase, error.reason) {
        (DialPhase::Proxy(fault), _) => match fault {
            ProxyFault::Forbidden => ReplyCode::NotAllowed,
            ProxyFault::NetworkUnreachable => ReplyCode::NetworkUnreachable,
            ProxyFault::HostUnreachable | ProxyFault::NameNotResolved | ProxyFault::TimedOut => {
                ReplyCode::HostUnreachable
            }
            ProxyFault::ConnectionRefused => ReplyCode::ConnectionRefused,
            ProxyFault::TtlExpired => ReplyCode::TtlExpired,
            _ => ReplyCode::GeneralFailure,
        },
        (DialPhase::Resolve, _) => ReplyCode::HostUnreachable,
        (_, "ConnectionRefused") => ReplyCode::ConnectionRefused,
        (_, "NetworkUnreachable") => ReplyCode::NetworkUnreachable,
        (_, "Unreachable" | "Timeout" | "ConnectTimeout") => ReplyCode::HostUnreachable,
        _ => ReplyCode::GeneralFailure,
    }
}

async fn refuse(worker: &Socks5Worker, socket: &mut TcpStream, reply: ReplyCode, why: String) -> CloseReason {
    worker.metrics.socks5().record_reply(reply as u8);
    // A failed write means that the client has disconnected.
    if send(socket, &protocol::connect_reply(reply)).await.is_ok() {
        close(socket).await;
    }
    CloseReason::Refused(reply, why)
}

async fn send(socket: &mut TcpStream, bytes: &[u8]) -> Result<(), CloseReason> {
    let result = socket.write_all(bytes).await;
    result.map_err(|error| CloseReason::NoReply(Socks5HandshakeFailure::Closed, error.to_string()))
}

/// Closes the write half and drains what the client still sends: unread data would cause a reset, which may overtake
/// the last reply.
async fn close(socket: &mut TcpStream) {
    let _ = timeout(CLOSE_TIMEOUT, async {
        let _ = socket.shutdown().await;
        let mut rest = [0; 1024];
        while socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    })
    .await;
}

fn record(
    worker: &Socks5Worker,
    client: SocketAddr,
    summary: &ConnectionSummary,
    close_reason: Option<&CloseReason>,
    duration: Duration,
) {
    let transferred = summary.transferred.get();
    let counts = worker.metrics.socks5();
    counts.record_bytes(transferred.from_client, transferred.from_backend);
    let reply = match close_reason {
        Some(CloseReason::Refused(reply, _)) => Some(*reply),
        _ => summary.reply,
    };
    if let Some(CloseReason::NoReply(reason, _)) = close_reason {
        counts.record_unanswered(*reason);
    }
    let broken;
    let (word, cause) = match close_reason {
        Some(CloseReason::NoReply(reason, why)) => (reason.as_str(), why.as_str()),
        Some(CloseReason::TunnelBroken(error)) => {
            broken = error.to_string();
            (reply.map_or("closed", ReplyCode::as_str), broken.as_str())
        }
        Some(CloseReason::Refused(_, why)) => (reply.map_or("closed", ReplyCode::as_str), why.as_str()),
        Some(CloseReason::Shutdown) => (reply.map_or("closed", ReplyCode::as_str), "the process shuts down"),
        None => (reply.map_or("closed", ReplyCode::as_str), ""),
    };
    worker.tunnels.record(&TunnelRecord {
        client,
        user: summary.user.as_deref(),
        destination: summary.destination.clone(),
        reply: word,
        // A tunnel reset by one side is no failure of the proxy.
        failed: matches!(close_reason, Some(CloseReason::NoReply(..) | CloseReason::Refused(..))),
        cause,
        dial: summary.dial_time,
        duration,
        received: transferred.from_client,
        sent: transferred.from_backend,
    });
}
