//! Faults of egress proxies, and their messages for clients.

/// Why a dial through a proxy failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFault {
    /// The proxy is unreachable.
    Unreachable,
    /// The TLS handshake with the proxy failed.
    Untrusted,
    /// The proxy rejected the gateway's credentials.
    Credentials,
    /// The proxy's response is invalid or truncated.
    InvalidResponse,
    /// The proxy responded with a redirect.
    Redirected,
    /// The proxy does not allow connections to the destination.
    Forbidden,
    /// The proxy does not support the request.
    Unsupported,
    /// The Konnectivity server has no agent.
    NoAgent,
    /// The proxy failed for another reason.
    Failed,
    /// The network is unreachable from the proxy.
    NetworkUnreachable,
    /// The host is unreachable from the proxy.
    HostUnreachable,
    /// The destination refused the proxy's connection.
    ConnectionRefused,
    /// The TTL of the proxy's packets expired.
    TtlExpired,
    /// Name lookup failed, at the proxy or, where the gateway resolves names, here.
    NameNotResolved,
    /// The proxy's name server failed.
    NoNameServer,
    /// The name cannot be sent to the proxy.
    InvalidName,
    /// The destination's first bytes arrived before the proxy's response.
    ServerSpokeFirst,
    /// The proxy did not answer in time.
    TimedOut,
}

impl ProxyFault {
    /// Stable reason, for status causes.
    pub fn reason(self) -> &'static str {
        self.texts().0
    }

    /// Message about an APIService's backend, for clients: without addresses.
    pub fn message(self) -> &'static str {
        self.texts().1
    }

    /// Corresponding HTTP status code.
    pub fn status(self) -> u16 {
        match self {
            ProxyFault::Forbidden => 403,
            ProxyFault::Unsupported | ProxyFault::InvalidName => 500,
            ProxyFault::Unreachable | ProxyFault::NoAgent => 503,
            ProxyFault::TimedOut => 504,
            _ => 502,
        }
    }

    /// Whether another proxy of the selection might succeed.
    pub(in crate::egress) fn is_proxy_specific(self) -> bool {
        !matches!(
            self,
            ProxyFault::Forbidden
                | ProxyFault::ConnectionRefused
                | ProxyFault::NameNotResolved
                | ProxyFault::InvalidName
                | ProxyFault::ServerSpokeFirst
        )
    }

    /// Whether the fault is the proxy's for every destination; any other may be specific to one destination.
    pub(in crate::egress) fn is_destination_independent(self) -> bool {
        matches!(self, ProxyFault::Unreachable | ProxyFault::Untrusted | ProxyFault::Credentials | ProxyFault::NoAgent)
    }

    /// Whether the proxy was asked to connect; otherwise the dial failed before.
    pub(in crate::egress) fn was_connect_sent(self) -> bool {
        !matches!(self, ProxyFault::Unreachable | ProxyFault::Untrusted)
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            ProxyFault::Unreachable => ("ProxyUnreachable", "its egress proxy cannot be reached"),
            ProxyFault::Untrusted => ("ProxyHandshakeFailed", "the TLS handshake with its egress proxy failed"),
            ProxyFault::Credentials => {
                ("ProxyCredentialsRefused", "its egress proxy does not accept the gateway's credentials")
            }
            ProxyFault::InvalidResponse => ("ProxyAnswerInvalid", "the response of its egress proxy is invalid"),
            ProxyFault::Redirected => {
                ("ProxyRedirects", "its egress proxy responds with a redirect, which is not followed")
            }
            ProxyFault::Forbidden => ("ProxyForbids", "its egress proxy does not allow connections to it"),
            ProxyFault::Unsupported => ("ProxyUnsuited", "its egress proxy does not support the request"),
            ProxyFault::NoAgent => ("NoAgent", "no Konnectivity agent is connected"),
            ProxyFault::Failed => ("ProxyFailed", "its egress proxy could not connect to it"),
            ProxyFault::NetworkUnreachable => {
                ("NetworkUnreachable", "its network is unreachable from its egress proxy")
            }
            ProxyFault::HostUnreachable => ("HostUnreachable", "its endpoint is unreachable from its egress proxy"),
            ProxyFault::ConnectionRefused => {
                ("ConnectionRefused", "its endpoint refused the connection of its egress proxy")
            }
            ProxyFault::TtlExpired => ("TTLExpired", "the TTL of the packets of its egress proxy expired"),
            ProxyFault::NameNotResolved | ProxyFault::NoNameServer => {
                ("NameNotResolved", "its host name cannot be resolved")
            }
            ProxyFault::InvalidName => ("NameUnspeakable", "its host name is not valid for its egress proxy"),
            ProxyFault::ServerSpokeFirst => {
                ("ServerSpokeFirst", "it sent data before the response of its egress proxy arrived")
            }
            ProxyFault::TimedOut => ("ProxyTimeout", "its egress proxy did not connect to it in time"),
        }
    }
}
