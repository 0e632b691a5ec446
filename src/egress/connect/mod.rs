//! CONNECT over HTTP/1.1, in the dialects of ordinary HTTP proxies and of Konnectivity servers.

mod head;

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

pub use head::{Answer, Head, HeadError};

use super::dial::DialError;
use super::proxy_fault::ProxyFault;
use super::way::Dialect;
use super::{Credentials, Destination};

/// Bytes per read.
const PIECE: usize = 4096;
/// Time limit for reading the body of a Konnectivity server's error response.
const EXPLANATION: Duration = Duration::from_secs(1);
/// Bytes of an error response kept for the log.
const KEPT: usize = 1024;

/// Has the proxy at `carrier` connect to `destination`; returns the tunnel and the bytes already received from it.
pub(super) async fn connect<C: AsyncRead + AsyncWrite + Unpin>(
    mut carrier: C,
    dialect: Dialect,
    credentials: Option<&Credentials>,
    destination: &Destination,
) -> Result<(C, Vec<u8>), DialError> {
    let broken = |error: std::io::Error| ProxyFault::of_broken(&error);
    carrier.write_all(request(dialect, credentials, destination).as_bytes()).await.map_err(broken)?;
    carrier.flush().await.map_err(broken)?;
    let mut answer = Answer::default();
    let mut piece = [0; PIECE];
    let head = loop {
        let length = carrier.read(&mut piece).await.map_err(broken)?;
        if length == 0 {
            let why = if answer.rest().is_empty() { "it closed the connection without an answer" } else { CUT };
            return Err(ProxyFault::Nonsense.because(why));
        }
        match answer.take(&piece[..length]) {
            Ok(Some(head)) => break head,
            Ok(None) => {}
            Err(error) => return Err(not_understood(error, dialect, answer.rest())),
        }
    };
    match (dialect, head.status) {
        (Dialect::Konnectivity, 200) if !answer.rest().is_empty() => {
            let why = format!("unexpected {} bytes of buffered data from CONNECT proxy", answer.rest().len());
            Err(ProxyFault::SpokeFirst.because(why))
        }
        (Dialect::Konnectivity, 200) | (Dialect::Ordinary, 200..300) => Ok((carrier, answer.rest().to_vec())),
        (Dialect::Konnectivity, _) => {
            let mut text = answer.rest().to_vec();
            let mut carrier = carrier.take(KEPT as u64);
            let reading = carrier.read_to_end(&mut text);
            // A part of it is enough: it is for the log.
            let _ = tokio::time::timeout(EXPLANATION, reading).await;
            Err(refused_by_konnectivity(&head, &text))
        }
        (Dialect::Ordinary, _) => Err(refused(&head, answer.rest())),
    }
}

const CUT: &str = "it closed the connection in the middle of its answer";

fn request(dialect: Dialect, credentials: Option<&Credentials>, destination: &Destination) -> String {
    match dialect {
        // The same bytes as kube-apiserver's.
        Dialect::Konnectivity => format!("CONNECT {destination} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        Dialect::Ordinary => {
            // Credentials are sent with the first request, as in Go: a proxy that needs them would answer 407.
            let basic = credentials.map(Credentials::basic);
            let basic = basic.as_ref().and_then(|basic| basic.to_str().ok());
            let line = basic.map_or_else(String::new, |basic| format!("Proxy-Authorization: {basic}\r\n"));
            let version = env!("CARGO_PKG_VERSION");
            format!(
                "CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\nUser-Agent: narthex/{version}\r\n{line}\r\n"
            )
        }
    }
}

fn not_understood(error: HeadError, dialect: Dialect, begun: &[u8]) -> DialError {
    let begun = shown(&begun[..begun.len().min(32)]);
    match error {
        // The server's first bytes can arrive before the CONNECT response (apiserver-network-proxy sends both in order
        // of arrival).
        HeadError::NotHttp if dialect == Dialect::Konnectivity => {
            ProxyFault::SpokeFirst.because(format!("server sent data before the CONNECT answer: {begun}"))
        }
        HeadError::NotHttp => ProxyFault::Nonsense.because(format!("its answer is not HTTP/1.1: {begun}")),
        HeadError::Malformed => ProxyFault::Nonsense.because(format!("its answer has no status: {begun}")),
        HeadError::TooLong => {
            ProxyFault::Nonsense.because(format!("the head of its answer is longer than {} bytes", head::LONGEST))
        }
    }
}

/// Classifies the error response of an ordinary proxy.
fn refused(head: &Head, body: &[u8]) -> DialError {
    let fault = match head.status {
        407 => ProxyFault::Credentials,
        403 | 451 => ProxyFault::Forbidden,
        300..400 => ProxyFault::Redirected,
        400 | 405 | 501 => ProxyFault::Unsuited,
        408 | 504 => ProxyFault::TimedOut,
        100..200 | 600.. => ProxyFault::Nonsense,
        _ => ProxyFault::Failed,
    };
    because(fault, head, body)
}

/// Classifies the error response of a Konnectivity server: mostly by its body, which is the agent's error text.
fn refused_by_konnectivity(head: &Head, body: &[u8]) -> DialError {
    let text = String::from_utf8_lossy(body);
    let says = |words: &str| text.contains(words);
    let fault = match head.status {
        500 if says("No agent available") => ProxyFault::NoAgent,
        504 => ProxyFault::TimedOut,
        400 | 403 | 405 => ProxyFault::Unsuited,
        502 if says("no such host") => ProxyFault::NameNotResolved,
        // Any other lookup failure is the agent's name server's, and says nothing about the destination.
        502 if says("lookup ") => ProxyFault::NoNameServer,
        502 if says("connection refused") => ProxyFault::ConnectionRefused,
        502 if says("network is unreachable") => ProxyFault::NetworkUnreachable,
        502 if says("no route to host") => ProxyFault::HostUnreachable,
        500..600 => ProxyFault::Failed,
        _ => ProxyFault::Nonsense,
    };
    because(fault, head, body)
}

fn because(fault: ProxyFault, head: &Head, body: &[u8]) -> DialError {
    let line = head.text.lines().next().unwrap_or_default();
    let named = |name: &str| {
        let line =
            head.text.lines().find(|line| line.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name)));
        line.map_or_else(String::new, |line| format!(", {}", shown(line.as_bytes())))
    };
    let (wants, to) = (named("proxy-authenticate:"), named("location:"));
    let body = if body.is_empty() { String::new() } else { format!(": {}", shown(body)) };
    fault.because(format!("it answers {}{wants}{to}{body}", shown(line.as_bytes())))
}

/// Foreign text escaped to one line of bounded length.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(KEPT)]).trim_end().escape_debug().to_string()
}

#[cfg(test)]
mod tests;
