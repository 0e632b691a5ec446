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

use super::door::Door;
use super::wire::{self, Method, Reply, Wrong};
use crate::egress::{Destination, DialError, DialPhase, ProxyFault};
use crate::forward::{Broken, Carried, carry};
use crate::listen::Incoming;
use crate::observe::access::TunnelRecord;
use crate::observe::metrics::Unanswered;
use crate::process::{Drain, Phase};

/// Idle timeout of a half-closed tunnel.
const LINGER: Duration = Duration::from_secs(900);
/// Time for a client to read the last reply before its connection is closed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Bytes read from the client that are not parsed yet.
struct Said {
    bytes: [u8; wire::LONGEST],
    length: usize,
}

/// What the record of a connection contains.
#[derive(Default)]
struct Known {
    user: Option<String>,
    destination: Option<String>,
    dial: Option<Duration>,
    carried: Cell<Carried>,
    reply: Option<Reply>,
}

/// Why a connection was closed before its tunnel ended.
enum Away {
    /// Closed without a reply to a request.
    Unanswered(Unanswered, String),
    /// Refused with a reply code.
    Refused(Reply, String),
    /// The tunnel failed.
    Broken(io::Error),
    /// The process shuts down.
    Cut,
}

/// Serves one client connection until it is closed.
pub(super) async fn serve(door: Rc<Door>, incoming: Incoming, drain: Drain) {
    let Incoming { socket, remote, place } = incoming;
    let _place = place;
    let _open = door.metrics.door().opened();
    let began = Instant::now();
    let mut known = Known::default();
    let over = match TcpStream::from_std(socket) {
        Ok(mut socket) => run(&door, &mut socket, &mut known, drain).await,
        Err(error) => Err(Away::Unanswered(Unanswered::Closed, error.to_string())),
    };
    record(&door, remote, &known, over.as_ref().err(), began.elapsed());
}

async fn run(door: &Door, socket: &mut TcpStream, known: &mut Known, mut drain: Drain) -> Result<(), Away> {
    let mut over = drain.clone();
    let work = async {
        let asked = timeout(door.handshake_timeout, ask(door, socket, known)).await;
        let late = |_| Away::Unanswered(Unanswered::Timeout, format!("not complete in {:?}", door.handshake_timeout));
        let (destination, said) = asked.map_err(late).flatten()?;
        let began = Instant::now();
        let dialled = door.dial(&destination).await;
        known.dial = Some(began.elapsed());
        let mut backend = match dialled {
            Some(Ok(opened)) => opened.stream,
            None => {
                // Not expected: the selection existed at the start, and a reloaded file without it is rejected.
                let why = "the egress selection does not exist".to_owned();
                return Err(refuse(door, socket, Reply::GeneralFailure, why).await);
            }
            Some(Err(error)) => return Err(refuse(door, socket, reply_to(&error), error.cause).await),
        };
        known.reply = Some(Reply::Succeeded);
        door.metrics.door().replied(Reply::Succeeded as u8);
        let early = said.rest();
        let both = async {
            socket.write_all(&wire::reply(Reply::Succeeded)).await?;
            backend.write_all(early).await?;
            backend.flush().await
        };
        both.await.map_err(Away::Broken)?;
        known.carried.set(Carried { from_client: early.len() as u64, from_backend: 0 });
        drop(said);
        let away = tokio::select! {
            carried = carry(&mut *socket, &mut backend, LINGER, &known.carried) => match carried {
                Ok(()) => return Ok(()),
                // The other direction is complete.
                Err(Broken::Full(error)) => {
                    close(socket).await;
                    return Err(Away::Broken(error));
                }
                Err(Broken::Off(error)) => Away::Broken(error),
            },
            () = over.reached(Phase::Over) => Away::Cut,
        };
        // Reset both connections, so that neither side mistakes truncated data for a complete stream.
        backend.break_off();
        let _ = SockRef::from(&*socket).set_linger(Some(Duration::ZERO));
        Err(away)
    };
    tokio::select! {
        biased;
        over = work => over,
        () = drain.reached(Phase::Over) => Err(Away::Cut),
    }
}

/// Authenticates the client and reads its destination.
async fn ask(door: &Door, socket: &mut TcpStream, known: &mut Known) -> Result<(Destination, Box<Said>), Away> {
    let mut said = Box::new(Said { bytes: [0; wire::LONGEST], length: 0 });
    let offered = said.next(socket, wire::greeting).await?;
    let users = door.users.as_ref().map(|users| users.load());
    let method = match users {
        None if offered.none => Method::None,
        Some(_) if offered.password => Method::Password,
        _ => Method::Unacceptable,
    };
    send(socket, &wire::choice(method)).await?;
    match (method, users) {
        (Method::Unacceptable, users) => {
            let wanted = if users.is_some() { "user and password" } else { "no authentication" };
            close(socket).await;
            return Err(Away::Unanswered(Unanswered::Method, format!("it does not offer {wanted}")));
        }
        (_, None) => {}
        (_, Some(users)) => {
            let user = said
                .next(socket, |bytes| {
                    let read = wire::login(bytes)?;
                    let judge = |login: wire::Login<'_>| {
                        users.know(&login).then(|| String::from_utf8_lossy(login.user).into_owned())
                    };
                    Ok(read.map(|(login, used)| (judge(login), used)))
                })
                .await?;
            send(socket, &wire::verdict(user.is_some())).await?;
            known.user = user;
            if known.user.is_none() {
                close(socket).await;
                return Err(Away::Unanswered(Unanswered::Credentials, "unknown user or wrong password".to_owned()));
            }
        }
    }
    let destination = match said.next(socket, wire::request).await {
        Ok(destination) => destination,
        Err(Away::Refused(reply, why)) => return Err(refuse(door, socket, reply, why).await),
        Err(away) => return Err(away),
    };
    known.destination = Some(destination.to_string());
    if !door.allow.iter().any(|pattern| pattern.matches(&destination)) {
        let why = "not among --allow-destinations".to_owned();
        return Err(refuse(door, socket, Reply::NotAllowed, why).await);
    }
    Ok((destination, said))
}

impl Said {
    /// Reads until `read` has parsed a complete message.
    async fn next<T>(
        &mut self,
        socket: &mut TcpStream,
        mut read: impl FnMut(&[u8]) -> Result<Option<(T, usize)>, Wrong>,
    ) -> Result<T, Away> {
        loop {
            match read(&self.bytes[..self.length]).map_err(Away::from)? {
                Some((message, used)) => {
                    self.bytes.copy_within(used..self.length, 0);
                    self.length -= used;
                    return Ok(message);
                }
                // An incomplete message is shorter than the buffer.
                None => match socket.read(&mut self.bytes[self.length..]).await {
                    Ok(0) => return Err(Away::Unanswered(Unanswered::Closed, "the client disconnected".to_owned())),
                    Ok(count) => self.length += count,
                    Err(error) => return Err(Away::Unanswered(Unanswered::Closed, error.to_string())),
                },
            }
        }
    }

    /// Bytes after the last message, to be sent to the destination.
    fn rest(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl From<Wrong> for Away {
    fn from(wrong: Wrong) -> Away {
        match wrong {
            Wrong::Version(4) => Away::Unanswered(Unanswered::Version, "client sent SOCKS4".to_owned()),
            Wrong::Version(0x16) => Away::Unanswered(Unanswered::Version, "client sent TLS".to_owned()),
            Wrong::Version(first) if first.is_ascii_uppercase() => {
                Away::Unanswered(Unanswered::Version, "client sent HTTP, by its first byte".to_owned())
            }
            Wrong::Version(first) => Away::Unanswered(Unanswered::Version, format!("SOCKS version is {first:#04x}")),
            Wrong::LoginVersion(first) => {
                Away::Unanswered(Unanswered::Version, format!("version of user and password is {first:#04x}"))
            }
            Wrong::Request(reply, why) => Away::Refused(reply, why.to_owned()),
        }
    }
}

/// The reply code for a failed dial.
fn reply_to(error: &DialError) -> Reply {
    match (error.phase, error.reason) {
        (DialPhase::Proxy(fault), _) => match fault {
            ProxyFault::Forbidden => Reply::NotAllowed,
            ProxyFault::NetworkUnreachable => Reply::NetworkUnreachable,
            ProxyFault::HostUnreachable | ProxyFault::NameNotResolved | ProxyFault::TimedOut => Reply::HostUnreachable,
            ProxyFault::ConnectionRefused => Reply::ConnectionRefused,
            ProxyFault::HopsExceeded => Reply::TtlExpired,
            _ => Reply::GeneralFailure,
        },
        (DialPhase::Resolve, _) => Reply::HostUnreachable,
        (_, "ConnectionRefused") => Reply::ConnectionRefused,
        (_, "NetworkUnreachable") => Reply::NetworkUnreachable,
        (_, "Unreachable" | "Timeout" | "ConnectTimeout") => Reply::HostUnreachable,
        _ => Reply::GeneralFailure,
    }
}

async fn refuse(door: &Door, socket: &mut TcpStream, reply: Reply, why: String) -> Away {
    door.metrics.door().replied(reply as u8);
    // A failed write means that the client has disconnected.
    if send(socket, &wire::reply(reply)).await.is_ok() {
        close(socket).await;
    }
    Away::Refused(reply, why)
}

async fn send(socket: &mut TcpStream, bytes: &[u8]) -> Result<(), Away> {
    let written = socket.write_all(bytes).await;
    written.map_err(|error| Away::Unanswered(Unanswered::Closed, error.to_string()))
}

/// Closes the write half and drains what the client still sends: unread data would cause a reset, which may overtake
/// the last reply.
async fn close(socket: &mut TcpStream) {
    let _ = timeout(LAST_WORDS, async {
        let _ = socket.shutdown().await;
        let mut rest = [0; 1024];
        while socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    })
    .await;
}

fn record(door: &Door, client: SocketAddr, known: &Known, away: Option<&Away>, took: Duration) {
    let carried = known.carried.get();
    let counts = door.metrics.door();
    counts.carried(carried.from_client, carried.from_backend);
    let reply = match away {
        Some(Away::Refused(reply, _)) => Some(*reply),
        _ => known.reply,
    };
    if let Some(Away::Unanswered(reason, _)) = away {
        counts.unanswered(*reason);
    }
    let broken;
    let (word, cause) = match away {
        Some(Away::Unanswered(reason, why)) => (reason.as_str(), why.as_str()),
        Some(Away::Broken(error)) => {
            broken = error.to_string();
            (reply.map_or("closed", Reply::as_str), broken.as_str())
        }
        Some(Away::Refused(_, why)) => (reply.map_or("closed", Reply::as_str), why.as_str()),
        Some(Away::Cut) => (reply.map_or("closed", Reply::as_str), "the process shuts down"),
        None => (reply.map_or("closed", Reply::as_str), ""),
    };
    door.tunnels.record(&TunnelRecord {
        client,
        user: known.user.as_deref(),
        destination: known.destination.clone(),
        reply: word,
        // A tunnel reset by one side is no failure of the proxy.
        failed: matches!(away, Some(Away::Unanswered(..) | Away::Refused(..))),
        cause,
        dial: known.dial,
        took,
        received: carried.from_client,
        sent: carried.from_backend,
    });
}
