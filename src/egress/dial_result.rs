//! Results of a dial: HTTP version, timing, or the error.

use std::io;
use std::time::Duration;

use super::proxy_fault::ProxyFault;
use crate::observe::access::ConnectTimings;
use crate::tls::ConnectionFailure;

/// HTTP version of a backend connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl HttpVersion {
    /// Value of the metric label `protocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            HttpVersion::Http1 => "http/1.1",
            HttpVersion::Http2 => "h2",
        }
    }
}

/// The phase in which a dial failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialPhase {
    /// Name lookup: no address, or no answer of the resolver.
    Resolve,
    /// TCP or Unix connection.
    Connect,
    /// Connecting through a proxy.
    Proxy(ProxyFault),
    /// TLS handshake.
    Handshake,
    /// HTTP/2 connection preface and SETTINGS.
    Http,
}

/// Why no connection could be opened. No request was sent.
#[derive(Clone, Debug)]
pub struct DialError {
    /// Phase that failed.
    pub phase: DialPhase,
    /// Reason for clients and metrics, for example `ConnectionRefused` or `UnknownIssuer`.
    pub reason: &'static str,
    /// Detailed cause, for the log only.
    pub cause: String,
}

/// Duration of each phase of a dial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DialTiming {
    /// Name lookup and TCP, to the backend or to the proxy; with a proxy also TLS to it.
    pub connect: Duration,
    /// From the connection to the proxy until the proxy has connected.
    pub proxy: Duration,
    /// TLS handshake with the backend.
    pub handshake: Duration,
}

impl DialTiming {
    /// Sum of all phases.
    pub fn total(&self) -> Duration {
        self.connect + self.proxy + self.handshake
    }
}

impl From<DialTiming> for ConnectTimings {
    fn from(timing: DialTiming) -> ConnectTimings {
        ConnectTimings { dial: timing.connect, proxy: timing.proxy, tls: timing.handshake }
    }
}

impl DialError {
    /// An I/O error in `phase`, talking to `destination` or to a proxy there.
    pub(in crate::egress) fn from_io(
        phase: DialPhase,
        destination: &dyn std::fmt::Display,
        error: &io::Error,
    ) -> DialError {
        DialError {
            phase,
            reason: crate::tls::failure_reason(error),
            cause: format!("{destination}: {}", crate::tls::describe_error(error)),
        }
    }

    /// A dial to `destination` that took longer than `patience`.
    pub(in crate::egress) fn timed_out(
        phase: DialPhase,
        destination: &dyn std::fmt::Display,
        patience: Duration,
    ) -> DialError {
        let cause = format!("{destination}: not connected within {patience:?}");
        DialError { phase, reason: "ConnectTimeout", cause }
    }
}

impl ProxyFault {
    /// Classifies an I/O error during the exchange with a proxy: under TLS 1.3 it refuses the client certificate only
    /// then.
    pub(in crate::egress) fn from_io_error(error: &io::Error) -> DialError {
        match ConnectionFailure::from_io(error) {
            ConnectionFailure::ClientCertificateRefused => {
                ProxyFault::Credentials.with_cause(format!("it does not accept our client certificate: {error}"))
            }
            _ => ProxyFault::InvalidResponse.with_cause(format!("the connection broke: {error}")),
        }
    }

    /// The error of a dial that failed for this reason.
    pub(in crate::egress) fn with_cause(self, cause: impl Into<String>) -> DialError {
        DialError { phase: DialPhase::Proxy(self), reason: self.reason(), cause: cause.into() }
    }
}
