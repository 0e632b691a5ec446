//! CONNECT over HTTP/1.1, in the dialects of ordinary HTTP proxies and of Konnectivity servers.

mod response_head;

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

pub use response_head::{ConnectResponseError, ConnectResponseHead, ConnectResponseParser};

use crate::egress::dial_result::DialError;
use crate::egress::proxy_fault::ProxyFault;
use crate::egress::route::egress_route::ConnectDialect;
use crate::egress::{Destination, ProxyCredentials};

/// Bytes per read.
const READ_SIZE: usize = 4096;
/// Time limit for reading the body of a Konnectivity server's error response.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of an error response kept for the log.
const ERROR_BODY_LIMIT: usize = 1024;

/// Has the proxy at `carrier` connect to `destination`; returns the tunnel and the bytes already received from it.
pub(in crate::egress) async fn connect<C: AsyncRead + AsyncWrite + Unpin>(
    mut carrier: C,
    dialect: ConnectDialect,
    credentials: Option<&ProxyCredentials>,
    destination: &Destination,
) -> Result<(C, Vec<u8>), DialError> {
    let broken = |error: std::io::Error| ProxyFault::from_io_error(&error);
    carrier.write_all(request(dialect, credentials, destination).as_bytes()).await.map_err(broken)?;
    carrier.flush().await.map_err(broken)?;
    let mut answer = ConnectResponseParser::default();
    let mut piece = [0; READ_SIZE];
    let head = loop {
        let length = carrier.read(&mut piece).await.map_err(broken)?;
        if length == 0 {
            let why = if answer.remaining().is_empty() {
                "it closed the connection without an answer"
            } else {
                TRUNCATED_ANSWER
            };
            return Err(ProxyFault::InvalidResponse.with_cause(why));
        }
        match answer.push(&piece[..length]) {
            Ok(Some(head)) => break head,
            Ok(None) => {}
            Err(error) => return Err(invalid_answer(error, dialect, answer.remaining())),
        }
    };
    match (dialect, head.status) {
        (ConnectDialect::Konnectivity, 200) if !answer.remaining().is_empty() => {
            let why = format!("unexpected {} bytes of buffered data from CONNECT proxy", answer.remaining().len());
            Err(ProxyFault::ServerSpokeFirst.with_cause(why))
        }
        (ConnectDialect::Konnectivity, 200) | (ConnectDialect::Ordinary, 200..300) => {
            Ok((carrier, answer.remaining().to_vec()))
        }
        (ConnectDialect::Konnectivity, _) => {
            let mut text = answer.remaining().to_vec();
            let mut carrier = carrier.take(ERROR_BODY_LIMIT as u64);
            let reading = carrier.read_to_end(&mut text);
            // A part of it is enough: it is for the log.
            let _ = tokio::time::timeout(ERROR_BODY_TIMEOUT, reading).await;
            Err(konnectivity_failure(&head, &text))
        }
        (ConnectDialect::Ordinary, _) => Err(http_proxy_failure(&head, answer.remaining())),
    }
}

const TRUNCATED_ANSWER: &str = "it closed the connection in the middle of its answer";

fn request(dialect: ConnectDialect, credentials: Option<&ProxyCredentials>, destination: &Destination) -> String {
    match dialect {
        // The same bytes as kube-apiserver's.
        ConnectDialect::Konnectivity => format!("CONNECT {destination} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        ConnectDialect::Ordinary => {
            // Credentials are sent with the first request, as in Go: a proxy that needs them would answer 407.
            let basic = credentials.map(ProxyCredentials::basic_auth_header);
            let basic = basic.as_ref().and_then(|basic| basic.to_str().ok());
            let line = basic.map_or_else(String::new, |basic| format!("Proxy-Authorization: {basic}\r\n"));
            let version = env!("CARGO_PKG_VERSION");
            format!(
                "CONNECT {destination} HTTP/1.1\r\nHost: {destination}\r\nUser-Agent: narthex/{version}\r\n{line}\r\n"
            )
        }
    }
}

fn invalid_answer(error: ConnectResponseError, dialect: ConnectDialect, begun: &[u8]) -> DialError {
    let begun = escape_for_log(&begun[..begun.len().min(32)]);
    match error {
        // The server's first bytes can arrive before the CONNECT response (apiserver-network-proxy sends both in order
        // of arrival).
        ConnectResponseError::NotHttp if dialect == ConnectDialect::Konnectivity => {
            ProxyFault::ServerSpokeFirst.with_cause(format!("server sent data before the CONNECT answer: {begun}"))
        }
        ConnectResponseError::NotHttp => {
            ProxyFault::InvalidResponse.with_cause(format!("its answer is not HTTP/1.1: {begun}"))
        }
        ConnectResponseError::Malformed => {
            ProxyFault::InvalidResponse.with_cause(format!("its answer has no status: {begun}"))
        }
        ConnectResponseError::TooLong => ProxyFault::InvalidResponse
            .with_cause(format!("the head of its answer is longer than {} bytes", response_head::MAX_HEAD_BYTES)),
    }
}

/// Classifies the error response of an ordinary proxy.
fn http_proxy_failure(head: &ConnectResponseHead, body: &[u8]) -> DialError {
    let fault = match head.status {
        407 => ProxyFault::Credentials,
        403 | 451 => ProxyFault::Forbidden,
        300..400 => ProxyFault::Redirected,
        400 | 405 | 501 => ProxyFault::Unsupported,
        408 | 504 => ProxyFault::TimedOut,
        100..200 | 600.. => ProxyFault::InvalidResponse,
        _ => ProxyFault::Failed,
    };
    describe_failure(fault, head, body)
}

/// Classifies the error response of a Konnectivity server: mostly by its body, which is the agent's error text.
fn konnectivity_failure(head: &ConnectResponseHead, body: &[u8]) -> DialError {
    let text = String::from_utf8_lossy(body);
    let says = |words: &str| text.contains(words);
    let fault = match head.status {
        500 if says("No agent available") => ProxyFault::NoAgent,
        504 => ProxyFault::TimedOut,
        400 | 403 | 405 => ProxyFault::Unsupported,
        502 if says("no such host") => ProxyFault::NameNotResolved,
        // Any other lookup failure is the agent's name server's, and says nothing about the destination.
        502 if says("lookup ") => ProxyFault::NoNameServer,
        502 if says("connection refused") => ProxyFault::ConnectionRefused,
        502 if says("network is unreachable") => ProxyFault::NetworkUnreachable,
        502 if says("no route to host") => ProxyFault::HostUnreachable,
        500..600 => ProxyFault::Failed,
        _ => ProxyFault::InvalidResponse,
    };
    describe_failure(fault, head, body)
}

fn describe_failure(fault: ProxyFault, head: &ConnectResponseHead, body: &[u8]) -> DialError {
    let line = head.text.lines().next().unwrap_or_default();
    let named = |name: &str| {
        let line =
            head.text.lines().find(|line| line.get(..name.len()).is_some_and(|it| it.eq_ignore_ascii_case(name)));
        line.map_or_else(String::new, |line| format!(", {}", escape_for_log(line.as_bytes())))
    };
    let (wants, to) = (named("proxy-authenticate:"), named("location:"));
    let body = if body.is_empty() { String::new() } else { format!(": {}", escape_for_log(body)) };
    fault.with_cause(format!("it answers {}{wants}{to}{body}", escape_for_log(line.as_bytes())))
}

/// Foreign text escaped to one line of bounded length.
fn escape_for_log(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(ERROR_BODY_LIMIT)]).trim_end().escape_debug().to_string()
}

#[cfg(test)]
mod tests;
