//! Why there is no tunnel, or no longer one.

use std::fmt;
use std::io;

use crate::egress::dial::DialError;
use crate::egress::proxy_fault::ProxyFault;

/// The kinds of failure of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelFailure {
    /// The server has no agent that could dial.
    NoAgent,
    /// The agent says that nothing listens there.
    Refused,
    /// The agent's own dial took too long.
    DialTimeout,
    /// The agent knows no such name.
    NoSuchHost,
    /// The agent's own name server does not serve it.
    NoNameServer,
    /// No way leads there from the agent.
    Unreachable,
    /// The agent or its machine has too much to do.
    Exhausted,
    /// The agent could not dial for another reason.
    DialFailed,
    /// Nobody answered the dial in the time we gave it: agent or server hang.
    NoAnswer,
    /// The server did not begin with this dial: it, or the connection to it, was about to end.
    NotBegun,
    /// The server ended the connection to it, or this tunnel, without a farewell.
    Lost,
    /// The server refused with a status of gRPC or of HTTP.
    Rejected,
    /// What came is not Konnectivity.
    Protocol,
    /// The server does not accept our client certificate.
    CertificateRefused,
    /// We gave the tunnel up: its reader held up all others for too long.
    SlowReader,
    /// The far end did not say that it closed.
    CloseTimeout,
}

/// Why there is no tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelError {
    /// What happened, as far as it can be told.
    pub failure: TunnelFailure,
    /// The whole story, the agent's words included; for the log only.
    pub cause: String,
}

impl TunnelFailure {
    /// One word for clients and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            TunnelFailure::NoAgent => "NoTunnelAgent",
            TunnelFailure::Refused => "ConnectionRefused",
            TunnelFailure::DialTimeout | TunnelFailure::NoAnswer => "ConnectTimeout",
            TunnelFailure::NoSuchHost | TunnelFailure::NoNameServer => "NameNotResolved",
            TunnelFailure::Unreachable => "Unreachable",
            TunnelFailure::Exhausted => "TunnelAgentExhausted",
            TunnelFailure::DialFailed => "ConnectionFailed",
            TunnelFailure::NotBegun | TunnelFailure::Lost => "TunnelClosed",
            TunnelFailure::Rejected => "TunnelRejected",
            TunnelFailure::Protocol => "TunnelProtocolError",
            TunnelFailure::CertificateRefused => "TunnelCertificateRefused",
            TunnelFailure::SlowReader => "TunnelReaderTooSlow",
            TunnelFailure::CloseTimeout => "TunnelCloseTimeout",
        }
    }

    /// The same among all that can go wrong with who connects for us.
    pub fn fault(self) -> ProxyFault {
        match self {
            TunnelFailure::NoAgent => ProxyFault::NoAgent,
            TunnelFailure::Refused => ProxyFault::ConnectionRefused,
            TunnelFailure::DialTimeout | TunnelFailure::NoAnswer => ProxyFault::TimedOut,
            TunnelFailure::NoSuchHost => ProxyFault::NameNotResolved,
            TunnelFailure::NoNameServer => ProxyFault::NoNameServer,
            TunnelFailure::Unreachable => ProxyFault::HostUnreachable,
            TunnelFailure::NotBegun | TunnelFailure::Lost => ProxyFault::Unreachable,
            TunnelFailure::Protocol => ProxyFault::Nonsense,
            TunnelFailure::CertificateRefused => ProxyFault::Credentials,
            TunnelFailure::Exhausted
            | TunnelFailure::DialFailed
            | TunnelFailure::Rejected
            | TunnelFailure::SlowReader
            | TunnelFailure::CloseTimeout => ProxyFault::Failed,
        }
    }

    /// Whether the connection to the server, or the server's to its agent, ended under the dial.
    pub(super) fn is_end(self) -> bool {
        matches!(self, TunnelFailure::NotBegun | TunnelFailure::Lost)
    }

    fn kind(self) -> io::ErrorKind {
        match self {
            TunnelFailure::Refused => io::ErrorKind::ConnectionRefused,
            TunnelFailure::DialTimeout
            | TunnelFailure::NoAnswer
            | TunnelFailure::SlowReader
            | TunnelFailure::CloseTimeout => io::ErrorKind::TimedOut,
            TunnelFailure::NoSuchHost | TunnelFailure::NoNameServer | TunnelFailure::Unreachable => {
                io::ErrorKind::HostUnreachable
            }
            TunnelFailure::Protocol => io::ErrorKind::InvalidData,
            TunnelFailure::NotBegun | TunnelFailure::Lost => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::Other,
        }
    }
}

impl TunnelError {
    pub(super) fn new(failure: TunnelFailure, cause: impl fmt::Display) -> TunnelError {
        TunnelError { failure, cause: cause.to_string() }
    }

    /// What the error of a `DialResponse` comes down to. It is the text of the agent, a program in Go, or of the
    /// server itself (`pkg/server/backend_manager.go`, `pkg/server/server.go`).
    pub(super) fn of_dial(address: &str, text: &str) -> TunnelError {
        use TunnelFailure as Is;
        const SIGNS: &[(&str, TunnelFailure)] = &[
            ("No agent available", Is::NoAgent),
            ("timed out waiting for backend dial", Is::NoAnswer),
            ("connection refused", Is::Refused),
            ("no such host", Is::NoSuchHost),
            ("server misbehaving", Is::NoNameServer),
            ("no suitable address", Is::NoSuchHost),
            ("no route to host", Is::Unreachable),
            ("is unreachable", Is::Unreachable),
            ("host is down", Is::Unreachable),
            ("cannot assign requested address", Is::Unreachable),
            ("too many open files", Is::Exhausted),
            ("i/o timeout", Is::DialTimeout),
            ("timed out", Is::DialTimeout),
            ("deadline exceeded", Is::DialTimeout),
            // The server could not hand the dial to its agent.
            ("EOF", Is::Lost),
            ("transport is closing", Is::Lost),
            ("rpc error", Is::Lost),
            ("context canceled", Is::Lost),
        ];
        let found = SIGNS.iter().find(|(sign, _)| text.contains(sign));
        let failure = match found.map_or(Is::DialFailed, |(_, failure)| *failure) {
            // "lookup x on 10.96.0.10:53: read udp …: connection refused" is about that server, and no word about x.
            Is::Refused | Is::Unreachable | Is::DialFailed if text.contains("lookup ") => Is::NoNameServer,
            failure => failure,
        };
        TunnelError::new(failure, format_args!("dialling {address} through the tunnel: {text}"))
    }

    /// What the end of a stream by HTTP/2 comes down to.
    pub(super) fn of_h2(error: &h2::Error) -> TunnelError {
        let unseen = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        let failure = if error.is_remote() && unseen { TunnelFailure::NotBegun } else { TunnelFailure::Lost };
        TunnelError::new(failure, error)
    }
}

impl fmt::Display for TunnelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.failure.reason(), self.cause)
    }
}

impl std::error::Error for TunnelError {}

impl From<TunnelError> for io::Error {
    fn from(error: TunnelError) -> io::Error {
        io::Error::new(error.failure.kind(), error)
    }
}

impl From<TunnelError> for DialError {
    fn from(error: TunnelError) -> DialError {
        error.failure.fault().because(error.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_agents_and_servers_say_is_told_apart() {
        for (text, expected) in [
            ("No agent available", TunnelFailure::NoAgent),
            ("dial tcp 127.0.0.1:1: connect: connection refused", TunnelFailure::Refused),
            ("dial tcp 10.255.255.1:80: i/o timeout", TunnelFailure::DialTimeout),
            ("dial tcp 10.0.0.1:80: connect: connection timed out", TunnelFailure::DialTimeout),
            ("dial tcp: lookup nowhere.test on 127.0.0.53:53: no such host", TunnelFailure::NoSuchHost),
            ("dial tcp: lookup a.test: i/o timeout", TunnelFailure::DialTimeout),
            (
                "dial tcp: lookup a.test on 10.96.0.10:53: read udp 10.0.0.9:3->10.96.0.10:53: read: connection refused",
                TunnelFailure::NoNameServer,
            ),
            ("dial tcp: lookup a on 10.96.0.10:53: dial udp: network is unreachable", TunnelFailure::NoNameServer),
            ("dial tcp: lookup a.test on 10.96.0.10:53: server misbehaving", TunnelFailure::NoNameServer),
            ("dial tcp: lookup a.test: socket: too many open files", TunnelFailure::Exhausted),
            ("dial tcp 10.0.0.1:80: connect: no route to host", TunnelFailure::Unreachable),
            ("dial tcp [2001:db8::1]:80: connect: network is unreachable", TunnelFailure::Unreachable),
            ("dial tcp 10.0.0.1:80: socket: too many open files", TunnelFailure::Exhausted),
            ("timed out waiting for backend dial", TunnelFailure::NoAnswer),
            ("dial tcp: address nowhere: missing port in address", TunnelFailure::DialFailed),
            ("rpc error: code = Unavailable desc = transport is closing", TunnelFailure::Lost),
        ] {
            assert_eq!(TunnelError::of_dial("a:1", text).failure, expected, "{text}");
        }
    }

    #[test]
    fn another_proxy_is_asked_where_only_this_ones_name_server_is_to_blame() {
        assert!(TunnelFailure::NoNameServer.fault().is_its_own());
        assert!(!TunnelFailure::NoSuchHost.fault().is_its_own() && !TunnelFailure::Refused.fault().is_its_own());
        let words = |failure: TunnelFailure| (failure.fault().reason(), failure.fault().words());
        assert_eq!(words(TunnelFailure::NoNameServer), words(TunnelFailure::NoSuchHost));
    }

    #[test]
    fn an_error_becomes_one_of_a_dial_and_one_of_a_stream() {
        let error = TunnelError::of_dial("a:1", "dial tcp: lookup a: no such host");
        let dial = DialError::from(error);
        let fault = ProxyFault::NameNotResolved;
        assert_eq!((dial.phase, dial.reason), (crate::egress::DialPhase::Proxy(fault), fault.reason()));
        assert!(dial.cause.contains("a:1"), "{}", dial.cause);
        let error = io::Error::from(TunnelError::new(TunnelFailure::Lost, "gone"));
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(error.to_string(), "TunnelClosed: gone");
    }
}
