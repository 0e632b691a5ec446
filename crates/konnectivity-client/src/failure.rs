//! Errors of tunnels.

use std::fmt;
use std::io;

/// Kind of a tunnel failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelFailure {
    /// The server has no agent.
    NoAgent,
    /// The target refused the agent's connection.
    Refused,
    /// The agent's dial timed out.
    DialTimeout,
    /// The agent's name lookup found no such host.
    NoSuchHost,
    /// The agent's name server failed.
    NoNameServer,
    /// The target is unreachable from the agent.
    Unreachable,
    /// The agent or its machine is out of resources.
    Exhausted,
    /// The agent's dial failed for another reason.
    DialFailed,
    /// No response to the dial within our limit: the agent or the server hangs.
    NoAnswer,
    /// The server did not process the dial: it, or the connection to it, was closing.
    NotStarted,
    /// The server ended the connection or the tunnel abruptly.
    Lost,
    /// The server rejected the call with a gRPC or HTTP status.
    Rejected,
    /// The peer violates the Konnectivity protocol.
    Protocol,
    /// Closed by us: its slow reader held up all other tunnels.
    SlowReader,
    /// The remote end did not confirm the close in time.
    CloseTimeout,
}

/// Error of a dial or of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelError {
    /// Kind of failure.
    pub failure: TunnelFailure,
    /// Detailed cause, the agent's text included; for the log only.
    pub cause: String,
}

impl TunnelFailure {
    /// Reason for clients and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            TunnelFailure::NoAgent => "NoTunnelAgent",
            TunnelFailure::Refused => "ConnectionRefused",
            TunnelFailure::DialTimeout | TunnelFailure::NoAnswer => "ConnectTimeout",
            TunnelFailure::NoSuchHost | TunnelFailure::NoNameServer => "NameNotResolved",
            TunnelFailure::Unreachable => "Unreachable",
            TunnelFailure::Exhausted => "TunnelAgentExhausted",
            TunnelFailure::DialFailed => "ConnectionFailed",
            TunnelFailure::NotStarted | TunnelFailure::Lost => "TunnelClosed",
            TunnelFailure::Rejected => "TunnelRejected",
            TunnelFailure::Protocol => "TunnelProtocolError",
            TunnelFailure::SlowReader => "TunnelReaderTooSlow",
            TunnelFailure::CloseTimeout => "TunnelCloseTimeout",
        }
    }

    /// Whether the connection to the server, or the server's to its agent, ended during the dial.
    pub(super) fn is_connection_end(self) -> bool {
        matches!(self, TunnelFailure::NotStarted | TunnelFailure::Lost)
    }

    fn io_kind(self) -> io::ErrorKind {
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
            TunnelFailure::NotStarted | TunnelFailure::Lost => io::ErrorKind::ConnectionReset,
            _ => io::ErrorKind::Other,
        }
    }
}

impl TunnelError {
    pub(super) fn new(failure: TunnelFailure, cause: impl fmt::Display) -> TunnelError {
        TunnelError { failure, cause: cause.to_string() }
    }

    /// Classifies the error text of a `DialResponse`. It is from the agent, a Go program, or from the server itself
    /// (`pkg/server/backend_manager.go`, `pkg/server/server.go`).
    pub(super) fn from_dial_response(address: &str, text: &str) -> TunnelError {
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
            // "lookup x on 10.96.0.10:53: read udp …: connection refused" is about that name server, not about x.
            Is::Refused | Is::Unreachable | Is::DialFailed if text.contains("lookup ") => Is::NoNameServer,
            failure => failure,
        };
        TunnelError::new(failure, format_args!("dialing {address} through the tunnel: {text}"))
    }

    /// Classifies an HTTP/2 error that ended a stream.
    pub(super) fn from_h2(error: &h2::Error) -> TunnelError {
        let unseen = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        let failure = if error.is_remote() && unseen { TunnelFailure::NotStarted } else { TunnelFailure::Lost };
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
        io::Error::new(error.failure.io_kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnel_failure_is_classified_from_dial_response() {
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
            assert_eq!(TunnelError::from_dial_response("a:1", text).failure, expected, "{text}");
        }
    }

    #[test]
    fn tunnel_error_converts_to_io_error() {
        let error = io::Error::from(TunnelError::new(TunnelFailure::Lost, "gone"));
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(error.to_string(), "TunnelClosed: gone");
    }
}
