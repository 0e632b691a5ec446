//! Classification of failed TLS handshakes, and clients that send plain HTTP.

use std::io;
use std::time::Duration;

use rustls::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::observe::metrics::HandshakeFailure;
use crate::tls::{self, PeerAlert};

/// Beginnings of a connection that Go's net/http recognizes as HTTP instead of TLS (server.go,
/// `tlsRecordHeaderLooksLikeHTTP`).
const HTTP_METHOD_PREFIXES: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];

/// Go's response to plain HTTP, word for word.
const PLAIN_HTTP_RESPONSE: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// Maximum bytes read of a refused request, so that its client gets the response and no reset.
const MAX_DRAINED: usize = 64 * 1024;
/// Timeout of reading a refused request.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether the client sends a plain HTTP request. If so, its first bytes are read from the socket; if not, none are.
///
/// # Errors
/// Socket errors, and data that begins like a request but is none.
pub(super) async fn is_plain_http(socket: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0; 5];
    let length = socket.peek(&mut first).await?;
    if length == 0 || !HTTP_METHOD_PREFIXES.iter().any(|request| request.starts_with(&first[..length])) {
        return Ok(false);
    }
    socket.read_exact(&mut first).await?;
    match HTTP_METHOD_PREFIXES.contains(&&first) {
        true => Ok(true),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, Error::InvalidMessage(INVALID_CONTENT_TYPE))),
    }
}

const INVALID_CONTENT_TYPE: rustls::InvalidMessage = rustls::InvalidMessage::InvalidContentType;

/// Answers a plain HTTP request with 400, and closes the connection.
pub(super) async fn reject_plain_http(mut socket: TcpStream) {
    let refuse = async {
        socket.write_all(PLAIN_HTTP_RESPONSE).await?;
        socket.shutdown().await?;
        let mut rest = (&mut socket).take(MAX_DRAINED as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(DRAIN_TIMEOUT, refuse).await;
}

/// Classifies a handshake error.
pub(super) fn classify_handshake_error(error: &io::Error) -> HandshakeFailure {
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
