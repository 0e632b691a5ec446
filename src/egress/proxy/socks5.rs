//! SOCKS5 client (RFC 1928, RFC 1929), compatible with Go's: a password may be empty.
//!
//! Not tokio-socks: it refuses empty passwords and bound names that are not UTF-8, and its errors contain neither reply
//! codes, methods nor versions, which tell an operator what the other end is.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::egress::dial_result::DialError;
use crate::egress::proxy_fault::ProxyFault;
use crate::egress::{Destination, Host, ProxyCredentials};

/// Limit of a user name, password or host name: its length is one byte.
const MAX_STRING_BYTES: usize = 255;
const VERSION: u8 = 5;
const AUTH_VERSION: u8 = 1;
/// Authentication methods: none, and user name and password.
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;
/// No acceptable method.
const UNACCEPTABLE: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Has the proxy at `carrier` connect to `destination` (a name has 1 to 255 bytes); returns the tunnel.
///
/// # Errors
/// The proxy's error, or why its response is invalid.
pub async fn connect<C: AsyncRead + AsyncWrite + Unpin>(
    mut carrier: C,
    credentials: Option<&ProxyCredentials>,
    destination: &Destination,
) -> Result<C, DialError> {
    let login = credentials.map(auth_request).transpose()?;
    let request = connect_request(destination)?;
    let greeting: &[u8] =
        if login.is_some() { &[VERSION, 2, NO_AUTHENTICATION, PASSWORD] } else { &[VERSION, 1, NO_AUTHENTICATION] };
    send(&mut carrier, greeting).await?;
    let mut choice = [0; 2];
    recv(&mut carrier, &mut choice, false).await?;
    expect_version(choice, VERSION)?;
    match (choice[1], login) {
        (NO_AUTHENTICATION, _) => {}
        (PASSWORD, Some(login)) => {
            send(&mut carrier, &login).await?;
            let mut judgment = [0; 2];
            recv(&mut carrier, &mut judgment, false).await?;
            expect_version(judgment, AUTH_VERSION)?;
            if judgment[1] != 0 {
                let why = format!("it refused user and password (status {:02x})", judgment[1]);
                return Err(ProxyFault::Credentials.with_cause(why));
            }
        }
        (PASSWORD, None) => {
            return Err(ProxyFault::Credentials.with_cause("it wants a user and a password, and there are none"));
        }
        (UNACCEPTABLE, _) => {
            return Err(ProxyFault::Credentials.with_cause("it accepts none of the offered ways to authenticate"));
        }
        (method, _) => {
            let why = format!("it wants to authenticate by method {method:02x}, which was not offered");
            return Err(ProxyFault::InvalidResponse.with_cause(why));
        }
    }
    send(&mut carrier, &request).await?;
    let mut reply = [0; 4];
    recv(&mut carrier, &mut reply, false).await?;
    let [version, code, reserved, address] = reply;
    expect_version([version, code], VERSION)?;
    check_reply(code)?;
    if reserved != 0 {
        return Err(ProxyFault::InvalidResponse.with_cause(format!("the reserved byte of its reply is {reserved:02x}")));
    }
    // The bound address is ignored, but precedes the destination's data.
    let length = match address {
        IPV4 => 4,
        IPV6 => 16,
        NAME => {
            let mut length = [0];
            recv(&mut carrier, &mut length, true).await?;
            usize::from(length[0])
        }
        other => {
            return Err(ProxyFault::InvalidResponse.with_cause(format!("its reply has an address type of {other:02x}")));
        }
    };
    recv(&mut carrier, &mut [0; MAX_STRING_BYTES + 2][..length + 2], true).await?;
    Ok(carrier)
}

/// Encodes the authentication request of RFC 1929.
fn auth_request(credentials: &ProxyCredentials) -> Result<Vec<u8>, DialError> {
    let (user, password) = (credentials.user(), credentials.password());
    let too_long = |what: &str, text: &str| {
        let why = format!("a {what} of SOCKS5 has at most {MAX_STRING_BYTES} bytes, this one {}", text.len());
        ProxyFault::Unsupported.with_cause(why)
    };
    if user.is_empty() {
        return Err(ProxyFault::Unsupported.with_cause("a user of SOCKS5 has at least one byte"));
    }
    let user_length = u8::try_from(user.len()).map_err(|_| too_long("user", user))?;
    let password_length = u8::try_from(password.len()).map_err(|_| too_long("password", password))?;
    let message = [&[AUTH_VERSION, user_length], user.as_bytes(), &[password_length], password.as_bytes()];
    Ok(message.concat())
}

fn connect_request(destination: &Destination) -> Result<Vec<u8>, DialError> {
    let mut message = vec![VERSION, CONNECT, 0];
    match &destination.host {
        Host::Ip(std::net::IpAddr::V4(ip)) => {
            message.push(IPV4);
            message.extend(ip.octets());
        }
        Host::Ip(std::net::IpAddr::V6(ip)) => {
            message.push(IPV6);
            message.extend(ip.octets());
        }
        Host::Name(name) => {
            let length = u8::try_from(name.len());
            let length = length.map_err(|_| ProxyFault::InvalidName.with_cause("the name is too long for SOCKS5"))?;
            message.extend([NAME, length]);
            message.extend(name.as_bytes());
        }
    }
    message.extend(destination.port.to_be_bytes());
    Ok(message)
}

async fn send(carrier: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> Result<(), DialError> {
    let sending = async {
        carrier.write_all(message).await?;
        carrier.flush().await
    };
    sending.await.map_err(|error: io::Error| ProxyFault::from_io_error(&error))
}

/// Reads `message`; `begun` if it continues one that was partly read.
async fn recv(carrier: &mut (impl AsyncRead + Unpin), message: &mut [u8], begun: bool) -> Result<(), DialError> {
    let mut filled = 0;
    while filled < message.len() {
        match carrier.read(&mut message[filled..]).await {
            // OpenSSH does that where it cannot connect.
            Ok(0) if filled == 0 && !begun => {
                return Err(ProxyFault::InvalidResponse.with_cause("it closed the connection without an answer"));
            }
            Ok(0) => {
                return Err(
                    ProxyFault::InvalidResponse.with_cause("it closed the connection in the middle of its answer")
                );
            }
            Ok(more) => filled += more,
            Err(error) => return Err(ProxyFault::from_io_error(&error)),
        }
    }
    Ok(())
}

fn expect_version(beginning: [u8; 2], expected: u8) -> Result<(), DialError> {
    match beginning {
        [version, _] if version == expected => Ok(()),
        [b'H', b'T'] => Err(ProxyFault::InvalidResponse.with_cause("it answers HTTP, not SOCKS5")),
        [version, _] => Err(ProxyFault::InvalidResponse.with_cause(format!("it answers with version {version:02x}"))),
    }
}

/// Classifies a reply code.
fn check_reply(code: u8) -> Result<(), DialError> {
    let (fault, words) = match code {
        0 => return Ok(()),
        1 => (ProxyFault::Failed, "general failure"),
        2 => (ProxyFault::Forbidden, "not allowed by its rules"),
        3 => (ProxyFault::NetworkUnreachable, "network unreachable"),
        4 => (ProxyFault::HostUnreachable, "host unreachable"),
        5 => (ProxyFault::ConnectionRefused, "connection refused"),
        6 => (ProxyFault::TtlExpired, "time to live expired"),
        7 => (ProxyFault::Unsupported, "it does not support CONNECT"),
        8 => (ProxyFault::Unsupported, "it does not support this kind of address"),
        _ => return Err(ProxyFault::Failed.with_cause(format!("reply {code:02x}, which no standard assigns"))),
    };
    Err(fault.with_cause(format!("reply {code:02x}, {words}")))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::egress::DialPhase;

    fn named(name: &str) -> Destination {
        Destination { host: Host::Name(name.to_owned()), port: 443 }
    }

    /// The result with the tunnel's bytes, and what the client sent, for a proxy that sends `answers` unconditionally.
    async fn ask(
        answers: &[u8],
        credentials: Option<&ProxyCredentials>,
        destination: &Destination,
    ) -> (Result<Vec<u8>, DialError>, Vec<u8>) {
        let (near, mut far) = tokio::io::duplex(4096);
        far.write_all(answers).await.unwrap();
        // The proxy stops writing, but goes on reading.
        let (mut hears, mut says) = tokio::io::split(far);
        says.shutdown().await.unwrap();
        let connected = connect(near, credentials, destination).await;
        let rest = match connected {
            Ok(mut near) => {
                let mut rest = Vec::new();
                near.read_to_end(&mut rest).await.unwrap();
                Ok(rest)
            }
            Err(error) => Err(error),
        };
        let mut heard = Vec::new();
        let _ = hears.read_to_end(&mut heard).await;
        (rest, heard)
    }

    async fn fault(answers: &[u8], credentials: Option<&ProxyCredentials>) -> (ProxyFault, String) {
        let error = ask(answers, credentials, &named("a")).await.0.unwrap_err();
        let DialPhase::Proxy(fault) = error.phase else { panic!("{error:?}") };
        assert_eq!(error.reason, fault.reason());
        (fault, error.cause)
    }

    const YES: [u8; 12] = [5, 0, 5, 0, 0, 1, 127, 0, 0, 1, 0, 80];

    #[tokio::test]
    async fn socks5_messages_match_go_and_following_bytes_belong_to_tunnel() {
        let answers = [&YES[..], b"hello"].concat();
        let (rest, heard) = ask(&answers, None, &named("api.example")).await;
        assert_eq!(rest.unwrap(), b"hello");
        assert_eq!(heard, b"\x05\x01\x00\x05\x01\x00\x03\x0bapi.example\x01\xbb");
        let credentials = ProxyCredentials::new("al ice", "p@ss");
        let with = [&[5, 2, 1, 0], &YES[2..]].concat();
        let six = Destination { host: Host::Ip("2001:db8::1".parse::<IpAddr>().unwrap()), port: 1 };
        let (rest, heard) = ask(&with, Some(&credentials), &six).await;
        assert_eq!(rest.unwrap(), b"");
        let address = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01";
        assert_eq!(
            heard,
            [b"\x05\x02\x00\x02\x01\x06al ice\x04p@ss\x05\x01\x00\x04", &address[..], b"\0\x01"].concat()
        );
        // The proxy need not ask for credentials.
        assert!(ask(&YES, Some(&credentials), &six).await.0.is_ok());
    }

    #[tokio::test]
    async fn socks5_password_may_be_empty() {
        let answers = [&[5, 2, 1, 0], &YES[2..]].concat();
        let (rest, heard) = ask(&answers, Some(&ProxyCredentials::new("jane", "")), &named("a")).await;
        assert_eq!(rest.unwrap(), b"");
        assert_eq!(heard, b"\x05\x02\x00\x02\x01\x04jane\x00\x05\x01\x00\x03\x01a\x01\xbb");
    }

    #[tokio::test]
    async fn socks5_bound_address_of_any_type_is_skipped() {
        let six = [[5, 0, 5, 0, 0, 4].as_slice(), &[0; 18], b"x"].concat();
        let name = b"\x05\x00\x05\x00\x00\x03\x04\xff\xfe\x00a\x00\x50x".as_slice();
        let empty = b"\x05\x00\x05\x00\x00\x03\x00\x00\x50x".as_slice();
        let long = [[5, 0, 5, 0, 0, 3, 255].as_slice(), &[b'n'; 257], b"x"].concat();
        for answers in [&six, name, empty, &long] {
            assert_eq!(ask(answers, None, &named("a")).await.0.unwrap(), b"x", "{answers:?}");
        }
    }

    #[tokio::test]
    async fn socks5_reply_codes_map_to_faults() {
        use ProxyFault::*;
        let expected = [
            Failed,
            Forbidden,
            NetworkUnreachable,
            HostUnreachable,
            ConnectionRefused,
            TtlExpired,
            Unsupported,
            Unsupported,
        ];
        for code in 1..=255 {
            let (fault, cause) = fault(&[5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0], None).await;
            assert_eq!(fault, *expected.get(usize::from(code) - 1).unwrap_or(&Failed), "{code}: {cause}");
            assert!(cause.contains(&format!("reply {code:02x}")), "{cause}");
        }
    }

    #[tokio::test]
    async fn socks5_authentication_failures_are_classified() {
        let pair = ProxyCredentials::new("u", "p");
        for (answers, credentials, expected, words) in [
            (&[5, 255][..], None, ProxyFault::Credentials, "none of the offered"),
            (&[5, 2], None, ProxyFault::Credentials, "there are none"),
            (&[5, 1], Some(&pair), ProxyFault::InvalidResponse, "method 01"),
            (&[5, 2, 1, 9], Some(&pair), ProxyFault::Credentials, "status 09"),
            (&[5, 2, 5, 0], Some(&pair), ProxyFault::InvalidResponse, "version 05"),
            (&[4, 0], None, ProxyFault::InvalidResponse, "version 04"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", None, ProxyFault::InvalidResponse, "answers HTTP"),
            (&[5, 0, 4, 0, 0, 1], None, ProxyFault::InvalidResponse, "version 04"),
            (&[5, 0, 5, 0, 1, 1], None, ProxyFault::InvalidResponse, "reserved"),
            (&[5, 0, 5, 0, 0, 9, 1, 2, 3], None, ProxyFault::InvalidResponse, "address type"),
        ] {
            let (fault, cause) = fault(answers, credentials).await;
            assert_eq!(fault, expected, "{answers:?}: {cause}");
            assert!(cause.contains(words), "{cause}");
        }
    }

    #[tokio::test]
    async fn socks5_truncated_answer_is_reported() {
        let pair = ProxyCredentials::new("u", "p");
        let name = b"\x05\x02\x01\x00\x05\x00\x00\x03\x05proxy\x00\x50".as_slice();
        for (answers, credentials) in [(YES.as_slice(), None), (name, Some(&pair))] {
            for length in 0..answers.len() {
                let (fault, cause) = fault(&answers[..length], credentials).await;
                assert_eq!((fault, cause.contains("closed")), (ProxyFault::InvalidResponse, true), "{length}: {cause}");
            }
            assert!(ask(answers, credentials, &named("a")).await.0.is_ok());
        }
    }

    #[tokio::test]
    async fn socks5_invalid_credentials_are_not_sent() {
        let long = "n".repeat(256);
        for (user, password) in [("", "p"), (long.as_str(), "p"), ("u", long.as_str())] {
            let credentials = ProxyCredentials::new(user, password);
            let (result, heard) = ask(&YES, Some(&credentials), &named("a")).await;
            let error = result.unwrap_err();
            assert_eq!(error.phase, DialPhase::Proxy(ProxyFault::Unsupported));
            assert!(error.cause.contains("of SOCKS5 has at") && !error.cause.contains("nnn"), "{}", error.cause);
            assert_eq!(heard, b"");
        }
        assert!(ask(&YES, None, &named(&"n".repeat(255))).await.0.is_ok());
    }
}
