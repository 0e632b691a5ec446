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
pub(super) async fn serve(door: Rc<Socks5Worker>, incoming: IncomingConnection, drain: Drain) {
    let IncomingConnection { socket, remote, permit: place } = incoming;
    let _place = place;
    let _open = door.metrics.socks5().connection_opened();
    let began = Instant::now();
    let mut known = ConnectionSummary::default();
    let over = match TcpStream::from_std(socket) {
        Ok(mut socket) => run(&door, &mut socket, &mut known, drain).await,
        Err(error) => Err(CloseReason::NoReply(Socks5HandshakeFailure::Closed, error.to_string())),
    };
    record(&door, remote, &known, over.as_ref().err(), began.elapsed());
}

async fn run(
    door: &Socks5Worker,
    socket: &mut TcpStream,
    known: &mut ConnectionSummary,
    mut drain: Drain,
) -> Result<(), CloseReason> {
    let mut over = drain.clone();
    let work = async {
        let asked = timeout(door.handshake_timeout, negotiate(door, socket, known)).await;
        let late = |_| {
            CloseReason::NoReply(
                Socks5HandshakeFailure::Timeout,
                format!("not complete in {:?}", door.handshake_timeout),
            )
        };
        let (destination, said) = asked.map_err(late).flatten()?;
        let began = Instant::now();
        let dialed = door.dial(&destination).await;
        known.dial_time = Some(began.elapsed());
        let mut backend = match dialed {
            Some(Ok(opened)) => opened.stream,
            None => {
                // Not expected: the selection existed at the start, and a reloaded file without it is rejected.
                let why = "the egress selection does not exist".to_owned();
                return Err(refuse(door, socket, ReplyCode::GeneralFailure, why).await);
            }
            Some(Err(error)) => return Err(refuse(door, socket, reply_to_dial_error(&error), error.cause).await),
        };
        known.reply = Some(ReplyCode::Succeeded);
        door.metrics.socks5().record_reply(ReplyCode::Succeeded as u8);
        let early = said.remaining();
        let both = async {
            socket.write_all(&protocol::connect_reply(ReplyCode::Succeeded)).await?;
            backend.write_all(early).await?;
            backend.flush().await
        };
        both.await.map_err(CloseReason::TunnelBroken)?;
        known.transferred.set(TunnelBytes { from_client: early.len() as u64, from_backend: 0 });
        drop(said);
        let away = tokio::select! {
            carried = copy_bidirectional(&mut *socket, &mut backend, HALF_CLOSED_IDLE_TIMEOUT, &known.transferred) => match carried {
                Ok(()) => return Ok(()),
                // The other direction is complete.
                Err(CopyError::Write(error)) => {
                    close(socket).await;
                    return Err(CloseReason::TunnelBroken(error));
                }
                Err(CopyError::Read(error)) => CloseReason::TunnelBroken(error),
            },
            () = over.wait_for(ShutdownPhase::TimedOut) => CloseReason::Shutdown,
        };
        // Reset both connections, so that neither side mistakes truncated data for a complete stream.
        backend.reset_on_drop();
        let _ = SockRef::from(&*socket).set_linger(Some(Duration::ZERO));
        Err(away)
    };
    tokio::select! {
        biased;
        over = work => over,
        () = drain.wait_for(ShutdownPhase::TimedOut) => Err(CloseReason::Shutdown),
    }
}

/// Authenticates the client and reads its destination.
async fn negotiate(
    door: &Socks5Worker,
    socket: &mut TcpStream,
    known: &mut ConnectionSummary,
) -> Result<(Destination, Box<HandshakeBuffer>), CloseReason> {
    let mut said = Box::new(HandshakeBuffer { bytes: [0; protocol::MAX_MESSAGE_BYTES], length: 0 });
    let offered = said.read_message(socket, protocol::parse_greeting).await?;
    let users = door.users.as_ref().map(|users| users.load());
    let method = match users {
        None if offered.none => AuthMethod::None,
        Some(_) if offered.password => AuthMethod::Password,
        _ => AuthMethod::Unacceptable,
    };
    send(socket, &protocol::method_reply(method)).await?;
    match (method, users) {
        (AuthMethod::Unacceptable, users) => {
            let wanted = if users.is_some() { "user and password" } else { "no authentication" };
            close(socket).await;
            return Err(CloseReason::NoReply(Socks5HandshakeFailure::Method, format!("it does not offer {wanted}")));
        }
        (_, None) => {}
        (_, Some(users)) => {
            let user = said
                .read_message(socket, |bytes| {
                    let read = protocol::parse_login(bytes)?;
                    let judge = |login: protocol::UserPassword<'_>| {
                        users.verify(&login).then(|| String::from_utf8_lossy(login.user).into_owned())
                    };
                    Ok(read.map(|(login, used)| (judge(login), used)))
                })
                .await?;
            send(socket, &protocol::login_reply(user.is_some())).await?;
            known.user = user;
            if known.user.is_none() {
                close(socket).await;
                return Err(CloseReason::NoReply(
                    Socks5HandshakeFailure::Credentials,
                    "unknown user or wrong password".to_owned(),
                ));
            }
        }
    }
    let destination = match said.read_message(socket, protocol::parse_request).await {
        Ok(destination) => destination,
        Err(CloseReason::Refused(reply, why)) => return Err(refuse(door, socket, reply, why).await),
        Err(away) => return Err(away),
    };
    known.destination = Some(destination.to_string());
    if !door.allowed_destinations.iter().any(|pattern| pattern.matches(&destination)) {
        let why = "not among --allow-destinations".to_owned();
        return Err(refuse(door, socket, ReplyCode::NotAllowed, why).await);
    }
    Ok((destination, said))
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

async fn refuse(door: &Socks5Worker, socket: &mut TcpStream, reply: ReplyCode, why: String) -> CloseReason {
    door.metrics.socks5().record_reply(reply as u8);
    // A failed write means that the client has disconnected.
    if send(socket, &protocol::connect_reply(reply)).await.is_ok() {
        close(socket).await;
    }
    CloseReason::Refused(reply, why)
}

async fn send(socket: &mut TcpStream, bytes: &[u8]) -> Result<(), CloseReason> {
    let written = socket.write_all(bytes).await;
    written.map_err(|error| CloseReason::NoReply(Socks5HandshakeFailure::Closed, error.to_string()))
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
    door: &Socks5Worker,
    client: SocketAddr,
    known: &ConnectionSummary,
    away: Option<&CloseReason>,
    took: Duration,
) {
    let carried = known.transferred.get();
    let counts = door.metrics.socks5();
    counts.record_bytes(carried.from_client, carried.from_backend);
    let reply = match away {
        Some(CloseReason::Refused(reply, _)) => Some(*reply),
        _ => known.reply,
    };
    if let Some(CloseReason::NoReply(reason, _)) = away {
        counts.record_unanswered(*reason);
    }
    let broken;
    let (word, cause) = match away {
        Some(CloseReason::NoReply(reason, why)) => (reason.as_str(), why.as_str()),
        Some(CloseReason::TunnelBroken(error)) => {
            broken = error.to_string();
            (reply.map_or("closed", ReplyCode::as_str), broken.as_str())
        }
        Some(CloseReason::Refused(_, why)) => (reply.map_or("closed", ReplyCode::as_str), why.as_str()),
        Some(CloseReason::Shutdown) => (reply.map_or("closed", ReplyCode::as_str), "the process shuts down"),
        None => (reply.map_or("closed", ReplyCode::as_str), ""),
    };
    door.tunnels.record(&TunnelRecord {
        client,
        user: known.user.as_deref(),
        destination: known.destination.clone(),
        reply: word,
        // A tunnel reset by one side is no failure of the proxy.
        failed: matches!(away, Some(CloseReason::NoReply(..) | CloseReason::Refused(..))),
        cause,
        dial: known.dial_time,
        took,
        received: carried.from_client,
        sent: carried.from_backend,
    });
}
