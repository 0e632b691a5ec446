//! What can go wrong between us and somebody who connects for us, and what a client is told of it.

use std::io;

use super::{DialError, DialPhase};
use crate::tls::Failure;

/// Why a proxy did not connect us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// It cannot be reached itself.
    Unreachable,
    /// No TLS session with it that both sides accept.
    Untrusted,
    /// It does not take us for who we say we are.
    Credentials,
    /// Its answer cannot be understood, or breaks off.
    Nonsense,
    /// It sends us elsewhere.
    Redirected,
    /// It does not allow connections there.
    Forbidden,
    /// It cannot do what we ask of it at all.
    Unsuited,
    /// It has nobody to send: no Konnectivity agent.
    NoAgent,
    /// It failed and does not say why.
    Failed,
    /// It finds no way to the network.
    NetworkUnreachable,
    /// It finds no way to the host.
    HostUnreachable,
    /// It was refused.
    ConnectionRefused,
    /// Its packets did not get there before their time ran out.
    HopsExceeded,
    /// The name has no address: for it, or for us where we look names up.
    NameNotResolved,
    /// Whoever it asks for the address of a name does not serve it.
    NoNameServer,
    /// The name cannot be told to it.
    Unspeakable,
    /// The destination's words came before the proxy's.
    SpokeFirst,
    /// It took too long.
    TimedOut,
}

impl ProxyFault {
    /// One word, stable: a cause's reason.
    pub fn reason(self) -> &'static str {
        self.texts().0
    }

    /// A sentence about an APIService's backend, for clients: without addresses.
    pub fn words(self) -> &'static str {
        self.texts().1
    }

    /// The status code that says the same.
    pub fn status(self) -> u16 {
        match self {
            ProxyFault::Forbidden => 403,
            ProxyFault::Unsuited | ProxyFault::Unspeakable => 500,
            ProxyFault::Unreachable | ProxyFault::NoAgent => 503,
            ProxyFault::TimedOut => 504,
            _ => 502,
        }
    }

    /// Whether another proxy that does the same might do better.
    pub(super) fn is_its_own(self) -> bool {
        !matches!(
            self,
            ProxyFault::Forbidden
                | ProxyFault::ConnectionRefused
                | ProxyFault::NameNotResolved
                | ProxyFault::Unspeakable
                | ProxyFault::SpokeFirst
        )
    }

    /// Whether it says something of the proxy, whatever it was asked for; what else it says may be true of one destination
    /// and of no other.
    pub(super) fn is_for_all(self) -> bool {
        matches!(self, ProxyFault::Unreachable | ProxyFault::Untrusted | ProxyFault::Credentials | ProxyFault::NoAgent)
    }

    /// Whether it was asked to connect, and did not; else it did not come to that.
    pub(super) fn was_asked(self) -> bool {
        !matches!(self, ProxyFault::Unreachable | ProxyFault::Untrusted)
    }

    /// Why what was asked of a proxy got no answer: under TLS 1.3 it refuses our certificate only then.
    pub(super) fn of_broken(error: &io::Error) -> DialError {
        match Failure::of(error) {
            Failure::ClientCertificateRefused => {
                ProxyFault::Credentials.because(format!("it does not accept our client certificate: {error}"))
            }
            _ => ProxyFault::Nonsense.because(format!("the connection broke: {error}")),
        }
    }

    pub(super) fn because(self, cause: impl Into<String>) -> DialError {
        DialError { phase: DialPhase::Proxy(self), reason: self.reason(), cause: cause.into() }
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            ProxyFault::Unreachable => ("ProxyUnreachable", "the egress proxy before it cannot be reached"),
            ProxyFault::Untrusted => ("ProxyHandshakeFailed", "the egress proxy before it cannot be trusted"),
            ProxyFault::Credentials => {
                ("ProxyCredentialsRefused", "the egress proxy before it does not accept the gateway's credentials")
            }
            ProxyFault::Nonsense => {
                ("ProxyAnswerInvalid", "what the egress proxy before it answers cannot be understood")
            }
            ProxyFault::Redirected => {
                ("ProxyRedirects", "the egress proxy before it sends elsewhere, where the gateway does not go")
            }
            ProxyFault::Forbidden => ("ProxyForbids", "the egress proxy before it does not allow connections to it"),
            ProxyFault::Unsuited => ("ProxyUnsuited", "the egress proxy before it cannot do what is asked of it"),
            ProxyFault::NoAgent => ("NoAgent", "no Konnectivity agent is there to connect to it"),
            ProxyFault::Failed => ("ProxyFailed", "the egress proxy before it could not connect to it"),
            ProxyFault::NetworkUnreachable => {
                ("NetworkUnreachable", "the egress proxy before it finds no way to its network")
            }
            ProxyFault::HostUnreachable => {
                ("HostUnreachable", "the egress proxy before it finds no way to its endpoint")
            }
            ProxyFault::ConnectionRefused => {
                ("ConnectionRefused", "nothing listens at its endpoint, says the egress proxy before it")
            }
            ProxyFault::HopsExceeded => {
                ("TTLExpired", "what the egress proxy before it sends does not get to its endpoint")
            }
            ProxyFault::NameNotResolved | ProxyFault::NoNameServer => {
                ("NameNotResolved", "its host name cannot be resolved")
            }
            ProxyFault::Unspeakable => {
                ("NameUnspeakable", "its host name cannot be told to the egress proxy before it")
            }
            ProxyFault::SpokeFirst => {
                ("ServerSpokeFirst", "what it sent came before the egress proxy's answer, and cannot be told from it")
            }
            ProxyFault::TimedOut => ("ProxyTimeout", "the egress proxy before it did not connect to it in time"),
        }
    }
}
