//! Opening one connection: look up, connect, shake hands, all within one limit of time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::read_ahead::ReadAhead;
use super::{Destination, Resolver, Upstream};
use crate::process;

/// The HTTP version ALPN chose with a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl Protocol {
    /// The value of a `protocol` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Http1 => "http/1.1",
            Protocol::Http2 => "h2",
        }
    }
}

/// How far a dial came before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialPhase {
    /// The name has no address, or the resolver did not answer.
    Resolve,
    /// No TCP connection.
    Connect,
    /// No TLS session both sides accept.
    Handshake,
    /// HTTP/2's own greeting failed.
    Http,
}

/// Why no connection could be opened. Nothing was sent.
#[derive(Clone, Debug)]
pub struct DialError {
    /// How far it came.
    pub phase: DialPhase,
    /// One word for clients and metrics, for example `ConnectionRefused` or `UnknownIssuer`.
    pub reason: &'static str,
    /// The whole story, for the log only.
    pub cause: String,
}

/// How long the parts of a dial took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Name look-up and TCP.
    pub connect: Duration,
    /// TLS.
    pub handshake: Duration,
}

/// An open connection, before any HTTP.
pub(super) struct Dialled {
    pub(super) stream: TlsStream<ReadAhead>,
    pub(super) protocol: Protocol,
    pub(super) timing: Timing,
}

/// RFC 8305's delay before the next address is tried beside the first.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Opens a connection to `upstream` that speaks what ALPN chooses, or HTTP/1.1 if `only_http1`.
///
/// # Errors
/// A [`DialError`]; time-out included.
pub(super) async fn dial(resolver: &Resolver, upstream: &Upstream, only_http1: bool) -> Result<Dialled, DialError> {
    let phase = std::cell::Cell::new(DialPhase::Resolve);
    let attempt = async {
        let started = Instant::now();
        let fail = |phase, error: &io::Error| DialError {
            phase,
            reason: crate::tls::classify(error),
            cause: format!("{}: {error}", upstream.destination),
        };
        let addresses = resolver.addresses(&upstream.destination).await.map_err(|error| DialError {
            phase: DialPhase::Resolve,
            reason: "NameNotResolved",
            cause: format!("{}: {error}", upstream.destination),
        })?;
        phase.set(DialPhase::Connect);
        let socket =
            connect(&addresses, upstream.destination.port).await.map_err(|error| fail(DialPhase::Connect, &error))?;
        let connected = Instant::now();
        phase.set(DialPhase::Handshake);
        let config: Arc<rustls::ClientConfig> = upstream.tls.config(only_http1);
        let mut stream = TlsConnector::from(config)
            .connect(upstream.tls.server_name().clone(), ReadAhead::new(socket))
            .await
            .map_err(|error| fail(DialPhase::Handshake, &error))?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        if http2 {
            stream.get_mut().0.begin();
        }
        let timing = Timing { connect: connected - started, handshake: connected.elapsed() };
        Ok(Dialled { stream, protocol: if http2 { Protocol::Http2 } else { Protocol::Http1 }, timing })
    };
    match tokio::time::timeout(upstream.connect_timeout, attempt).await {
        Ok(result) => result,
        Err(_) => Err(DialError {
            phase: phase.get(),
            reason: "ConnectTimeout",
            cause: format!("{}: not connected within {:?}", upstream.destination, upstream.connect_timeout),
        }),
    }
}

/// Opens a bare connection: no TLS, for what may be overheard.
///
/// # Errors
/// A [`DialError`]; time-out included.
pub async fn dial_plain(
    resolver: &Resolver,
    destination: &Destination,
    patience: Duration,
) -> Result<TcpStream, DialError> {
    let fail = |phase, reason, why: &dyn std::fmt::Display| DialError {
        phase,
        reason,
        cause: format!("{destination}: {why}"),
    };
    let attempt = async {
        let addresses = resolver.addresses(destination).await;
        let addresses = addresses.map_err(|error| fail(DialPhase::Resolve, "NameNotResolved", &error))?;
        let connected = connect(&addresses, destination.port).await;
        connected.map_err(|error| fail(DialPhase::Connect, crate::tls::classify(&error), &error))
    };
    let attempt = tokio::time::timeout(patience, attempt).await;
    attempt.unwrap_or_else(|_| {
        Err(fail(DialPhase::Connect, "ConnectTimeout", &format_args!("not connected within {patience:?}")))
    })
}

/// The first address that answers, tried one after another with a head start each (happy eyeballs).
async fn connect(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut waiting = addresses.iter();
    let mut running = FuturesUnordered::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
    loop {
        if let Some(ip) = waiting.next() {
            running.push(TcpStream::connect(SocketAddr::new(*ip, port)));
        }
        let next = running.next();
        let result = if waiting.len() == 0 {
            next.await
        } else {
            match tokio::time::timeout(ATTEMPT_DELAY, next).await {
                Ok(result) => result,
                Err(_) => continue,
            }
        };
        match result {
            Some(Ok(socket)) => {
                process::set_up(&socket)?;
                return Ok(socket);
            }
            Some(Err(error)) => last = error,
            None => return Err(last),
        }
        if running.is_empty() && waiting.len() == 0 {
            return Err(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_address_gives_way_to_the_next() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = ["127.0.0.2".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        let socket = connect(&addresses, port).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap().ip().to_string(), "127.0.0.1");
    }

    #[tokio::test]
    async fn all_refused_is_refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = connect(&["127.0.0.1".parse().unwrap()], port).await.unwrap_err();
        assert_eq!(crate::tls::classify(&error), "ConnectionRefused");
    }
}
