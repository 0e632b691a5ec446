//! CONNECT requests, and every response of a proxy.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::egress::{DialPhase, Host};

fn destination() -> Destination {
    Destination { host: Host::Ip("2001:db8::1".parse().unwrap()), port: 443 }
}

/// The result with the tunnel's bytes, and what the proxy received; the proxy sends `answer` and closes.
async fn ask(
    answer: &[u8],
    dialect: ConnectDialect,
    credentials: Option<&ProxyCredentials>,
) -> (Result<Vec<u8>, DialError>, String) {
    let (near, mut far) = tokio::io::duplex(4 << 20);
    far.write_all(answer).await.unwrap();
    let (mut hears, mut says) = tokio::io::split(far);
    says.shutdown().await.unwrap();
    let result = match connect(near, dialect, credentials, &destination()).await {
        Ok((mut near, mut all)) => {
            near.read_to_end(&mut all).await.unwrap();
            Ok(all)
        }
        Err(error) => Err(error),
    };
    let mut heard = String::new();
    hears.read_to_string(&mut heard).await.unwrap();
    (result, heard)
}

async fn fault(answer: &str, dialect: ConnectDialect) -> (ProxyFault, String) {
    let error = ask(answer.as_bytes(), dialect, None).await.0.unwrap_err();
    let DialPhase::Proxy(fault) = error.phase else { panic!("{error:?}") };
    (fault, error.cause)
}

const YES: &str = "HTTP/1.1 200 Connection Established\r\n\r\n";

#[tokio::test]
async fn connect_request_text_by_dialect() {
    let pair = ProxyCredentials::new("Aladdin", "open sesame");
    let (result, heard) = ask(YES.as_bytes(), ConnectDialect::Konnectivity, Some(&pair)).await;
    assert_eq!(result.unwrap(), b"");
    assert_eq!(heard, "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    let (_, heard) = ask(YES.as_bytes(), ConnectDialect::Ordinary, Some(&pair)).await;
    let agent = concat!("User-Agent: narthex/", env!("CARGO_PKG_VERSION"), "\r\n");
    let ordinary = format!(
        "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n{agent}\
         Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n\r\n"
    );
    assert_eq!(heard, ordinary);
    let (_, heard) = ask(YES.as_bytes(), ConnectDialect::Ordinary, None).await;
    assert!(!heard.contains("Proxy-Authorization"), "{heard}");
}

#[tokio::test]
async fn connect_response_trailing_bytes_belong_to_tunnel_or_fail() {
    let early = format!("{YES}hello");
    assert_eq!(ask(early.as_bytes(), ConnectDialect::Ordinary, None).await.0.unwrap(), b"hello");
    let accepted = "HTTP/1.0 204 No\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\nhello";
    assert_eq!(ask(accepted.as_bytes(), ConnectDialect::Ordinary, None).await.0.unwrap(), b"hello");
    let (told, cause) = fault(&early, ConnectDialect::Konnectivity).await;
    assert_eq!(
        (told, cause.as_str()),
        (ProxyFault::ServerSpokeFirst, "unexpected 5 bytes of buffered data from CONNECT proxy")
    );
    let (told, cause) = fault(accepted, ConnectDialect::Konnectivity).await;
    assert_eq!(told, ProxyFault::InvalidResponse, "{cause}");
}

#[tokio::test]
async fn connect_failures_of_ordinary_proxy_are_classified() {
    for (answer, expected, words) in [
        ("HTTP/1.1 407 Auth\r\nproxy-authenticate: Basic realm=\"x\"\r\n\r\n", ProxyFault::Credentials, "Basic realm"),
        ("HTTP/1.1 403 Forbidden\r\n\r\nno\x1b[31m", ProxyFault::Forbidden, "no\\u{1b}[31m"),
        ("HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\n\r\n", ProxyFault::Redirected, "http://elsewhere/"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", ProxyFault::Unsupported, "400 Bad Request"),
        ("HTTP/1.1 405 Method Not Allowed\r\n\r\n", ProxyFault::Unsupported, "405"),
        ("HTTP/1.1 500 Oops\r\n\r\n", ProxyFault::Failed, "500"),
        ("HTTP/1.1 502 Bad Gateway\r\n\r\n", ProxyFault::Failed, "502"),
        ("HTTP/1.1 503 Busy\r\n\r\n", ProxyFault::Failed, "503"),
        ("HTTP/1.1 504 Late\r\n\r\n", ProxyFault::TimedOut, "504"),
        ("HTTP/1.1 404 Not Found\r\n\r\n", ProxyFault::Failed, "404"),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", ProxyFault::InvalidResponse, "101"),
        ("HTTP/1.1 999 ?\r\n\r\n", ProxyFault::InvalidResponse, "999"),
        ("SSH-2.0-OpenSSH\r\n", ProxyFault::InvalidResponse, "SSH-2.0"),
        ("HTTP/1.1 yes\r\n\r\n", ProxyFault::InvalidResponse, "no status"),
        ("", ProxyFault::InvalidResponse, "without an answer"),
    ] {
        let (told, cause) = fault(answer, ConnectDialect::Ordinary).await;
        assert_eq!(told, expected, "{answer}: {cause}");
        assert!(cause.contains(words), "{cause}");
    }
    let (told, cause) =
        fault(&format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(1 << 20)), ConnectDialect::Ordinary).await;
    assert_eq!((told, cause.contains("longer than")), (ProxyFault::InvalidResponse, true), "{cause}");
}

#[tokio::test(start_paused = true)]
async fn connect_failures_of_konnectivity_server_are_classified() {
    // The server's texts (`pkg/server/tunnel.go` of apiserver-network-proxy).
    let no = |status: &str, text: &str| {
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n{text}")
    };
    for (answer, expected) in [
        (
            "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\ncurrently no tunnels available: No agent available".to_owned(),
            ProxyFault::NoAgent,
        ),
        (no("502 Bad Gateway", "dial tcp 10.0.0.1:1: connect: connection refused"), ProxyFault::ConnectionRefused),
        (no("502 Bad Gateway", "dial tcp: lookup x: no such host"), ProxyFault::NameNotResolved),
        (
            no("502 Bad Gateway", "dial tcp: lookup x on 10.96.0.10:53: read udp 10.0.0.9:3->10.96.0.10:53: connection refused"),
            ProxyFault::NoNameServer,
        ),
        (no("502 Bad Gateway", "dial tcp 10.0.0.1:1: connect: network is unreachable"), ProxyFault::NetworkUnreachable),
        (no("502 Bad Gateway", "dial tcp 10.0.0.1:1: connect: no route to host"), ProxyFault::HostUnreachable),
        (no("502 Bad Gateway", "Backend context error: context canceled\r\n"), ProxyFault::Failed),
        (no("503 Service Unavailable", "socket: too many open files"), ProxyFault::Failed),
        (no("504 Gateway Timeout", "Backend dial timeout: timed out waiting for backend dial\r\n"), ProxyFault::TimedOut),
        (no("405 Method Not Allowed", "this proxy only supports CONNECT passthrough\n"), ProxyFault::Unsupported),
        (no("400 Bad Request", ""), ProxyFault::Unsupported),
        ("220 smtp.example ESMTP\r\n".to_owned(), ProxyFault::ServerSpokeFirst),
        (no("301 Moved", ""), ProxyFault::InvalidResponse),
    ] {
        let (told, cause) = fault(&answer, ConnectDialect::Konnectivity).await;
        assert_eq!(told, expected, "{answer}: {cause}");
        let last = answer.lines().last().unwrap_or_default();
        assert!(cause.contains(last.trim_end()), "{cause}");
    }
    // A proxy that refuses but does not close is not awaited.
    let (near, mut far) = tokio::io::duplex(4096);
    far.write_all(no("405 Method Not Allowed", "only CONNECT").as_bytes()).await.unwrap();
    let error = connect(near, ConnectDialect::Konnectivity, None, &destination()).await.unwrap_err();
    assert!(error.cause.contains("only CONNECT"), "{}", error.cause);
}

#[tokio::test]
async fn connect_response_truncated_anywhere_is_reported() {
    for dialect in [ConnectDialect::Ordinary, ConnectDialect::Konnectivity] {
        for length in 1..YES.len() {
            let (told, cause) = fault(&YES[..length], dialect).await;
            assert_eq!((told, cause.as_str()), (ProxyFault::InvalidResponse, TRUNCATED_ANSWER), "{length}");
        }
    }
}
