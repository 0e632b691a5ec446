//! Opens connections: TCP dialing with happy eyeballs (RFC 8305), Unix sockets, proxies, TLS.

pub(in crate::egress) mod connection_limit;
pub(in crate::egress) mod dialer;
pub(in crate::egress) mod maybe_tls_stream;
mod open;
pub(in crate::egress) mod read_ahead;
pub(in crate::egress) mod resolve;
pub(in crate::egress) mod streams;
pub(in crate::egress) mod transport;
pub(in crate::egress) mod unix;
mod via_proxy;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;

use crate::egress::dial::connection_limit::ConnectionSlot;
use crate::egress::dial::maybe_tls_stream::MaybeTlsStream;
use crate::egress::dial_result::{DialTiming, HttpVersion};
use crate::process;

/// An open connection, before HTTP.
pub(in crate::egress) struct DialedConnection {
    pub(in crate::egress) stream: MaybeTlsStream,
    pub(in crate::egress) protocol: HttpVersion,
    pub(in crate::egress) timing: DialTiming,
}

impl DialedConnection {
    /// Holds `slot` until the connection is dropped.
    pub(in crate::egress) fn attach_slot(&mut self, slot: ConnectionSlot) {
        self.stream.attach_slot(slot);
    }
}

/// Delay before the next address is tried in parallel (RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects by TCP to the first address that answers.
pub(in crate::egress) async fn connect(addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let attempts = addresses.iter().map(|ip| TcpStream::connect(SocketAddr::new(*ip, port)));
    let socket = happy_eyeballs(attempts, io::Error::new(io::ErrorKind::NotFound, "no address")).await?;
    process::configure_socket(&socket)?;
    Ok(socket)
}

/// Result of the first attempt that succeeds (happy eyeballs). Attempts start one after another, after
/// [`ATTEMPT_DELAY`] or when one fails; the rest are dropped. Without attempts the error is `last`; otherwise that of
/// the last attempt.
pub(crate) async fn happy_eyeballs<T, E>(
    mut waiting: impl ExactSizeIterator<Item = impl Future<Output = Result<T, E>>>,
    mut last: E,
) -> Result<T, E> {
    let mut running = FuturesUnordered::new();
    loop {
        if let Some(attempt) = waiting.next() {
            running.push(attempt);
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
            Some(Ok(done)) => return Ok(done),
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
    use std::future::{pending, ready};

    use futures_util::future::Either;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn happy_eyeballs_tries_next_address_after_delay() {
        let began = tokio::time::Instant::now();
        let attempts = [Either::Left(pending()), Either::Left(pending()), Either::Right(ready(Ok::<_, &str>(3)))];
        assert_eq!(happy_eyeballs(attempts.into_iter(), "none").await, Ok(3));
        assert_eq!(began.elapsed(), 2 * ATTEMPT_DELAY);
        let none: [std::future::Ready<Result<(), &str>>; 0] = [];
        assert_eq!(happy_eyeballs(none.into_iter(), "none").await, Err("none"));
    }

    #[tokio::test]
    async fn happy_eyeballs_tries_next_address_after_refusal() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = ["127.0.0.2".parse().unwrap(), "127.0.0.1".parse().unwrap()];
        let socket = connect(&addresses, port).await.unwrap();
        assert_eq!(socket.peer_addr().unwrap().ip().to_string(), "127.0.0.1");
    }

    #[tokio::test]
    async fn dial_fails_with_refused_when_all_addresses_refuse() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = connect(&["127.0.0.1".parse().unwrap()], port).await.unwrap_err();
        assert_eq!(crate::tls::failure_reason(&error), "ConnectionRefused");
    }
}
