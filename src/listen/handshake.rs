//! What fails the handshake of a client, and clients that speak HTTP without TLS.

use std::io;
use std::time::Duration;

use rustls::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::observe::metrics::HandshakeFailure;
use crate::tls::{self, PeerAlert};

/// How requests begin that Go's net/http takes for HTTP where it expects a TLS record (server.go,
/// `tlsRecordHeaderLooksLikeHTTP`).
const REQUESTS: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];

/// What it answers them, word for word.
const ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// What is read of a request that is refused, so that its client sees the answer and no reset.
const MOST: usize = 64 * 1024;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the client begins with an HTTP request. If so its first bytes are taken from the socket; if not, none are.
///
/// # Errors
/// Of the socket, and when what came begins like a request and goes on otherwise.
pub(super) async fn begins_with_http(socket: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0; 5];
    let length = socket.peek(&mut first).await?;
    if length == 0 || !REQUESTS.iter().any(|request| request.starts_with(&first[..length])) {
        return Ok(false);
    }
    socket.read_exact(&mut first).await?;
    match REQUESTS.contains(&&first) {
        true => Ok(true),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, Error::InvalidMessage(NOT_A_RECORD))),
    }
}

const NOT_A_RECORD: rustls::InvalidMessage = rustls::InvalidMessage::InvalidContentType;

/// Answers an HTTP request that came without TLS, and closes the connection.
pub(super) async fn refuse_http(mut socket: TcpStream) {
    let refuse = async {
        socket.write_all(ANSWER).await?;
        socket.shutdown().await?;
        let mut rest = (&mut socket).take(MOST as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(PATIENCE, refuse).await;
}

/// What an error of a handshake comes down to.
pub(super) fn failure_of(error: &io::Error) -> HandshakeFailure {
    match tls::rustls_error(error) {
        Some(Error::AlertReceived(alert)) => match PeerAlert::of(*alert) {
            PeerAlert::CertificateRefused => HandshakeFailure::CertificateRefused,
            PeerAlert::NoCommonProtocol => HandshakeFailure::NoCommonProtocol,
            PeerAlert::SessionEnded => HandshakeFailure::Closed,
            // No client may ask for a certificate by an alert.
            PeerAlert::CertificateRequired | PeerAlert::Other => HandshakeFailure::Other,
        },
        Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => HandshakeFailure::NoCommonProtocol,
        Some(Error::InvalidMessage(_)) => HandshakeFailure::NotTls,
        Some(_) => HandshakeFailure::Other,
        None => match error.kind() {
            io::ErrorKind::TimedOut => HandshakeFailure::Timeout,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => HandshakeFailure::Closed,
            _ => HandshakeFailure::Other,
        },
    }
}
