//! Flags of listeners, TLS, limits and shutdown.

use crate::config::flag::{Flag, FlagGroup, FlagKind};

const SECURE_PORT: Flag =
    Flag::new("secure-port", FlagKind::Count, "6443", "Port to serve HTTPS on; 0 takes a free one and prints it");

/// Listeners, TLS, limits and shutdown.
pub static SERVING: FlagGroup = FlagGroup {
    heading: "Serving",
    flags: &[
        Flag::new(
            "bind-address",
            FlagKind::Text("IP"),
            "",
            "Address to listen on (default 127.0.0.1 with a generated serving certificate, else 0.0.0.0). Both 0.0.0.0 and :: are all addresses, IPv4 and IPv6",
        ),
        SECURE_PORT,
        Flag::new(
            "tls-cert-file",
            FlagKind::File,
            "",
            "Serving certificate, followed by its intermediates, in PEM; generated when not given",
        ),
        Flag::new("tls-private-key-file", FlagKind::File, "", "Private key of --tls-cert-file"),
        Flag::new(
            "tls-sni-cert-key",
            FlagKind::Repeated("CERT,KEY[:NAME,…]"),
            "",
            "A further certificate and key, selected by the client's server name (SNI); without names, by those in the certificate. May be given again",
        ),
        Flag::new(
            "tls-min-version",
            FlagKind::Choice(&["VersionTLS12", "VersionTLS13"]),
            "VersionTLS12",
            "Oldest TLS version to accept",
        ),
        Flag::new(
            "tls-cipher-suites",
            FlagKind::List("SUITE"),
            "",
            "Cipher suites of TLS 1.2 to accept, by their Go names (default: all that are safe). Those of TLS 1.3 are fixed",
        ),
        Flag::new(
            "cert-dir",
            FlagKind::Directory,
            "",
            "Directory for a generated serving certificate (default: within --data-dir). Not used with --tls-cert-file",
        ),
        Flag::new(
            "http2-max-streams-per-connection",
            FlagKind::Count,
            "0",
            "Streams a client may have open on one HTTP/2 connection; 0 is 250, as in kube-apiserver",
        ),
        Flag::new("disable-http2-serving", FlagKind::Switch, "false", "Serve HTTP/1.1 only"),
        Flag::new(
            "goaway-chance",
            FlagKind::Fraction,
            "0",
            "Probability, from 0 to 0.02, that an HTTP/2 client gets GOAWAY and reconnects, so that clients spread over replicas",
        ),
        Flag::new("request-timeout", FlagKind::Duration, "1m", "Longest time for a request that is not long-running"),
        Flag::new(
            "min-request-timeout",
            FlagKind::Count,
            "1800",
            "Shortest duration in seconds of a watch of --embedded-api that does not name one; the longest is twice that. The backend decides how long a relayed watch lasts",
        ),
        Flag::new(
            "max-requests-inflight",
            FlagKind::Count,
            "400",
            "Non-mutating requests served at the same time, shared fairly among users; 0 for no limit. Watches and other long-running requests do not count",
        ),
        Flag::new(
            "max-mutating-requests-inflight",
            FlagKind::Count,
            "200",
            "Mutating requests served at the same time, shared fairly among users; 0 for no limit",
        ),
        Flag::new(
            "max-connections",
            FlagKind::Count,
            "0",
            "Client connections open at the same time; 0 for as many as the limit on open files allows",
        ),
        Flag::new("max-request-header-bytes", FlagKind::Count, "1048576", "Maximum size of a request's header block"),
        Flag::new("handshake-timeout", FlagKind::Duration, "10s", "Time a client has for the TLS handshake"),
        Flag::new(
            "read-header-timeout",
            FlagKind::Duration,
            "10s",
            "Time a client has to send a header block, or an HTTP/2 frame other than a body's, from its first byte. An HTTP/2 connection with running requests gets GOAWAY after that time, and is closed with its requests after six times as long",
        ),
        Flag::new(
            "idle-timeout",
            FlagKind::Duration,
            "90s",
            "A connection without a request is closed after this time",
        ),
        Flag::new(
            "proxy-protocol",
            FlagKind::Choice(&["off", "optional", "required"]),
            "off",
            "Whether a load balancer announces the client's address by the PROXY protocol, version 1 or 2",
        ),
        Flag::new(
            "proxy-protocol-trusted-cidrs",
            FlagKind::List("CIDR"),
            "",
            "Networks of the load balancers that may send a PROXY protocol header",
        ),
        Flag::new(
            "cors-allowed-origins",
            FlagKind::List("REGEX"),
            "",
            "Origins allowed by CORS, for example ^https://example\\.com(:|$): regular expressions, each anchored at both ends of the host by ^ or // and $ or a port (default: none)",
        ),
        Flag::new(
            "strict-transport-security-directives",
            FlagKind::List("DIRECTIVE"),
            "",
            "Value of the header Strict-Transport-Security in every response: max-age=SECONDS, includeSubDomains, preload (default: no such header)",
        ),
        Flag::new(
            "shutdown-delay-duration",
            FlagKind::Duration,
            "0s",
            "After SIGTERM, /readyz fails and requests are served for this time, so that load balancers notice",
        ),
        Flag::new(
            "shutdown-send-retry-after",
            FlagKind::Switch,
            "false",
            "During --shutdown-delay-duration and after, answer new requests 429 with Retry-After and close their connection",
        ),
        Flag::new(
            "shutdown-watch-termination-grace-period",
            FlagKind::Duration,
            "0s",
            "Time over which watches are ended at shutdown; 0s ends all at once",
        ),
    ],
};

/// The one serving flag of the quickstart.
pub static PORT: FlagGroup = FlagGroup { heading: "Serving", flags: &[SECURE_PORT] };
