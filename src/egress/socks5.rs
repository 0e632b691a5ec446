//! Being connected by a SOCKS5 proxy (RFC 1928, RFC 1929): tokio-socks speaks, we listen along.
//!
//! What its errors leave out is in the last bytes it read: which version was answered, which reply code.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_socks::tcp::Socks5Stream;
use tokio_socks::{Error, TargetAddr};

use super::dial::DialError;
use super::proxy_fault::ProxyFault;
use super::{Credentials, Destination, Host};

/// The longest user or password that its one byte of length can tell.
const LONGEST: usize = 255;
/// What is remembered of what the proxy said last: the head of a reply.
const HEAD: usize = 4;

/// Has the proxy behind `carrier` connect to `destination`, whose name has 1 to 255 bytes; what it gives back is the
/// way there.
///
/// # Errors
/// What it says instead, or why that cannot be understood.
pub async fn connect<C: AsyncRead + AsyncWrite + Unpin>(
    carrier: C,
    credentials: Option<&Credentials>,
    destination: &Destination,
) -> Result<C, DialError> {
    let target = target(destination);
    let mut line = Line { carrier, flushed: true, said: [0; HEAD], length: 0 };
    let spoken = match credentials {
        None => Socks5Stream::connect_with_socket(&mut line, target).await.map(drop),
        Some(credentials) => {
            let (user, password) = (credentials.user(), credentials.password());
            for (what, text) in [("user", user), ("password", password)] {
                if !(1..=LONGEST).contains(&text.len()) {
                    let why = format!("SOCKS5 takes a {what} of 1 to {LONGEST} bytes, this one has {}", text.len());
                    return Err(ProxyFault::Unsuited.because(why));
                }
            }
            Socks5Stream::connect_with_password_and_socket(&mut line, target, user, password).await.map(drop)
        }
    };
    match spoken {
        // It said yes, and calls itself by a name that is no UTF-8: what is that to us.
        Ok(()) | Err(Error::InvalidTargetAddress(_)) => Ok(line.carrier),
        Err(error) => Err(line.judge(&error)),
    }
}

fn target(destination: &Destination) -> TargetAddr<'_> {
    match &destination.host {
        Host::Ip(ip) => TargetAddr::Ip((*ip, destination.port).into()),
        Host::Name(name) => TargetAddr::Domain(name.as_str().into(), destination.port),
    }
}

/// A connection that remembers what it read last, and sends all before it waits for an answer.
struct Line<C> {
    carrier: C,
    flushed: bool,
    /// The beginning of the latest message.
    said: [u8; HEAD],
    length: usize,
}

impl<C> Line<C> {
    fn judge(&self, error: &Error) -> DialError {
        let said = &self.said[..self.length.min(HEAD)];
        let (fault, why) = match error {
            Error::GeneralSocksServerFailure => (ProxyFault::Failed, "reply 01, general failure".to_owned()),
            Error::ConnectionNotAllowedByRuleset => {
                (ProxyFault::Forbidden, "reply 02, not allowed by its rules".to_owned())
            }
            Error::NetworkUnreachable => (ProxyFault::NetworkUnreachable, "reply 03, network unreachable".to_owned()),
            Error::HostUnreachable => (ProxyFault::HostUnreachable, "reply 04, host unreachable".to_owned()),
            Error::ConnectionRefused => (ProxyFault::ConnectionRefused, "reply 05, connection refused".to_owned()),
            Error::TtlExpired => (ProxyFault::HopsExceeded, "reply 06, time to live expired".to_owned()),
            Error::CommandNotSupported => (ProxyFault::Unsuited, "reply 07, it does not support CONNECT".to_owned()),
            Error::AddressTypeNotSupported => {
                (ProxyFault::Unsuited, "reply 08, it does not support this kind of address".to_owned())
            }
            // tokio-socks has one word for this and for a way to authenticate that we did not offer.
            Error::UnknownAuthMethod if said.len() == HEAD => {
                (ProxyFault::Failed, format!("reply {:02x}, which no standard assigns", said[1]))
            }
            Error::UnknownAuthMethod => (
                ProxyFault::Nonsense,
                format!("it wants to authenticate by method {:02x}, which was not offered", said.get(1).unwrap_or(&0)),
            ),
            Error::NoAcceptableAuthMethods => {
                (ProxyFault::Credentials, "it accepts none of the offered ways to authenticate".to_owned())
            }
            Error::AuthorizationRequired => {
                (ProxyFault::Credentials, "it wants a user and a password, and there are none".to_owned())
            }
            Error::PasswordAuthFailure(code) => {
                (ProxyFault::Credentials, format!("it refused user and password (status {code:02x})"))
            }
            Error::InvalidResponseVersion if said.starts_with(b"HT") => {
                (ProxyFault::Nonsense, "it answers HTTP, not SOCKS5".to_owned())
            }
            Error::InvalidResponseVersion => {
                (ProxyFault::Nonsense, format!("it answers with version {:02x}", said.first().unwrap_or(&0)))
            }
            // As OpenSSH does where it cannot connect.
            Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof && said.is_empty() => {
                (ProxyFault::Nonsense, "it closed the connection without an answer".to_owned())
            }
            Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                (ProxyFault::Nonsense, "it closed the connection in the middle of its answer".to_owned())
            }
            Error::Io(error) => (ProxyFault::Nonsense, error.to_string()),
            other => (ProxyFault::Nonsense, other.to_string()),
        };
        fault.because(why)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncRead for Line<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.flushed {
            ready!(Pin::new(&mut this.carrier).poll_flush(cx))?;
            this.flushed = true;
        }
        let before = out.filled().len();
        ready!(Pin::new(&mut this.carrier).poll_read(cx, out))?;
        for byte in &out.filled()[before..] {
            if let Some(place) = this.said.get_mut(this.length) {
                *place = *byte;
            }
            this.length += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Line<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.flushed = false;
        // What is said next answers this.
        self.length = 0;
        Pin::new(&mut self.carrier).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.carrier).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::egress::DialPhase;

    fn named(name: &str) -> Destination {
        Destination { host: Host::Name(name.to_owned()), port: 443 }
    }

    /// What came of it, what we said, and what came after it, for a proxy that says `answers` whatever it hears.
    async fn ask(
        answers: &[u8],
        credentials: Option<&Credentials>,
        destination: &Destination,
    ) -> (Result<Vec<u8>, DialError>, Vec<u8>) {
        let (near, mut far) = tokio::io::duplex(4096);
        far.write_all(answers).await.unwrap();
        // Its answer ends; what it hears goes on.
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

    async fn fault(answers: &[u8], credentials: Option<&Credentials>) -> (ProxyFault, String) {
        let error = ask(answers, credentials, &named("a")).await.0.unwrap_err();
        let DialPhase::Proxy(fault) = error.phase else { panic!("{error:?}") };
        assert_eq!(error.reason, fault.reason());
        (fault, error.cause)
    }

    const YES: [u8; 12] = [5, 0, 5, 0, 0, 1, 127, 0, 0, 1, 0, 80];

    #[tokio::test]
    async fn what_is_said_is_what_go_says_and_what_follows_is_the_tunnels() {
        let answers = [&YES[..], b"hello"].concat();
        let (rest, heard) = ask(&answers, None, &named("api.example")).await;
        assert_eq!(rest.unwrap(), b"hello");
        assert_eq!(heard, b"\x05\x01\x00\x05\x01\x00\x03\x0bapi.example\x01\xbb");
        let credentials = Credentials::new("al ice", "p@ss");
        let with = [&[5, 2, 1, 0], &YES[2..]].concat();
        let six = Destination { host: Host::Ip("2001:db8::1".parse::<IpAddr>().unwrap()), port: 1 };
        let (rest, heard) = ask(&with, Some(&credentials), &six).await;
        assert_eq!(rest.unwrap(), b"");
        let address = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01";
        assert_eq!(
            heard,
            [b"\x05\x02\x00\x02\x01\x06al ice\x04p@ss\x05\x01\x00\x04", &address[..], b"\0\x01"].concat()
        );
        // Who has credentials need not be asked for them.
        assert!(ask(&YES, Some(&credentials), &six).await.0.is_ok());
    }

    #[tokio::test]
    async fn every_form_of_bound_address_is_taken() {
        let six = [[5, 0, 5, 0, 0, 4].as_slice(), &[0; 18], b"x"].concat();
        let name = b"\x05\x00\x05\x00\x00\x03\x04\xff\xfe\x00a\x00\x50x".as_slice();
        let empty = b"\x05\x00\x05\x00\x00\x03\x00\x00\x50x".as_slice();
        let long = [[5, 0, 5, 0, 0, 3, 255].as_slice(), &[b'n'; 257], b"x"].concat();
        for answers in [&six, name, empty, &long] {
            assert_eq!(ask(answers, None, &named("a")).await.0.unwrap(), b"x", "{answers:?}");
        }
    }

    #[tokio::test]
    async fn every_reply_code_has_its_fault() {
        use ProxyFault::*;
        let expected = [
            Failed,
            Forbidden,
            NetworkUnreachable,
            HostUnreachable,
            ConnectionRefused,
            HopsExceeded,
            Unsuited,
            Unsuited,
        ];
        for code in 1..=255 {
            let (fault, cause) = fault(&[5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0], None).await;
            assert_eq!(fault, *expected.get(usize::from(code) - 1).unwrap_or(&Failed), "{code}: {cause}");
            assert!(cause.contains(&format!("reply {code:02x}")), "{cause}");
        }
    }

    #[tokio::test]
    async fn every_way_not_to_authenticate_is_told_apart() {
        let pair = Credentials::new("u", "p");
        for (answers, credentials, expected, words) in [
            (&[5, 255][..], None, ProxyFault::Credentials, "none of the offered"),
            (&[5, 2], None, ProxyFault::Credentials, "there are none"),
            (&[5, 1], Some(&pair), ProxyFault::Nonsense, "method 01"),
            (&[5, 2, 1, 9], Some(&pair), ProxyFault::Credentials, "status 09"),
            (&[5, 2, 5, 0], Some(&pair), ProxyFault::Nonsense, "version 05"),
            (&[4, 0], None, ProxyFault::Nonsense, "version 04"),
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", None, ProxyFault::Nonsense, "answers HTTP"),
            (&[5, 0, 4, 0, 0, 1], None, ProxyFault::Nonsense, "version 04"),
            (&[5, 0, 5, 0, 1, 1], None, ProxyFault::Nonsense, "reserved"),
            (&[5, 0, 5, 0, 0, 9, 1, 2, 3], None, ProxyFault::Nonsense, "address type"),
        ] {
            let (fault, cause) = fault(answers, credentials).await;
            assert_eq!(fault, expected, "{answers:?}: {cause}");
            assert!(cause.contains(words), "{cause}");
        }
    }

    #[tokio::test]
    async fn an_answer_cut_anywhere_is_an_answer_cut() {
        let pair = Credentials::new("u", "p");
        let name = b"\x05\x02\x01\x00\x05\x00\x00\x03\x05proxy\x00\x50".as_slice();
        for (answers, credentials) in [(YES.as_slice(), None), (name, Some(&pair))] {
            for length in 0..answers.len() {
                let (fault, cause) = fault(&answers[..length], credentials).await;
                assert_eq!((fault, cause.contains("closed")), (ProxyFault::Nonsense, true), "{length}: {cause}");
            }
            assert!(ask(answers, credentials, &named("a")).await.0.is_ok());
        }
    }

    #[tokio::test]
    async fn what_cannot_be_said_is_not_said() {
        let long = "n".repeat(256);
        for (user, password) in [("", "p"), ("u", ""), (long.as_str(), "p"), ("u", long.as_str())] {
            let credentials = Credentials::new(user, password);
            let (result, heard) = ask(&YES, Some(&credentials), &named("a")).await;
            let error = result.unwrap_err();
            assert_eq!(error.phase, DialPhase::Proxy(ProxyFault::Unsuited));
            assert!(error.cause.contains("of 1 to 255 bytes") && !error.cause.contains("nnn"), "{}", error.cause);
            assert_eq!(heard, b"");
        }
        assert!(ask(&YES, None, &named(&"n".repeat(255))).await.0.is_ok());
    }
}
