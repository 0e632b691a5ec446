//! Listeners, TLS, limits and shutdown of the gateway.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::AuthenticationConfig;
use crate::config::parser::FlagParser;
use crate::egress::parse_cidr;
use crate::kubeclient::KubeconfigSource;
use crate::listen::ServerLimits;
use crate::message::cors_hsts::{BrowserPolicy, check_cors_origin, check_hsts_directive};
use crate::tls::server::{NamedCertKey, ServingSettings};

/// Listeners and TLS.
#[derive(Clone, Debug, PartialEq)]
pub struct ServingConfig {
    /// Address and port to bind; port 0 takes a free one.
    pub address: SocketAddr,
    /// Second address, which serves health checks only (`--proxy-endpoints-port`).
    pub health_address: Option<SocketAddr>,
    /// Certificates and TLS parameters. Without `pair`, the certificate is generated.
    pub tls: ServingSettings,
    /// The serving certificate to request by a CertificateSigningRequest, if any.
    pub certificate_request: Option<ServingCertificateRequest>,
    /// Directory for a generated serving certificate, instead of the data directory.
    pub certificate_dir: Option<PathBuf>,
    /// Probability that an HTTP/2 client gets GOAWAY, 0 to 0.02.
    pub goaway_chance: f64,
    /// Whether and from which networks the PROXY protocol is accepted.
    pub proxy_protocol: ProxyProtocolMode,
    /// CORS and Strict-Transport-Security, if configured.
    pub cors: Option<BrowserPolicy>,
}

/// A serving certificate to request from a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingCertificateRequest {
    /// `signerName` of the CertificateSigningRequest.
    pub signer: String,
    /// DNS names and IP addresses of the certificate.
    pub names: Vec<String>,
    /// The kube-apiserver to request it from.
    pub source: KubeconfigSource,
}

/// Whether and from which networks the PROXY protocol is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyProtocolMode {
    /// The PROXY protocol is not accepted.
    Off,
    /// A connection from these networks may begin with the PROXY protocol.
    Optional(Vec<IpNet>),
    /// A connection must come from these networks and begin with it.
    Required(Vec<IpNet>),
}

/// Timing of the shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownSettings {
    /// Time between failing readiness and refusing new requests.
    pub delay: Duration,
    /// Whether new requests get 429 in that time.
    pub send_retry_after: bool,
    /// Time over which watches are ended.
    pub watch_grace: Duration,
}

/// Reads the serving flags; the CA bundles of `authentication` are named to clients in the handshake.
pub(in crate::config) fn serving(parser: &mut FlagParser<'_>, authentication: &AuthenticationConfig) -> ServingConfig {
    let pair = parser.key_pair_files("tls-cert-file", "tls-private-key-file");
    let named = sni_pairs(parser);
    let self_made = !parser.is_given("tls-cert-file") && named.is_empty();
    let default = if self_made { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let bind_address = if parser.text("bind-address").is_empty() {
        None
    } else {
        parser.parse("bind-address", |text| text.parse().map_err(|_| "not an IP address"))
    };
    let certificate_dir = parser.path("cert-dir");
    if certificate_dir.is_some() && !self_made {
        parser.add_warning("cert-dir", "not used, because no serving certificate is generated");
    }
    ServingConfig {
        address: SocketAddr::new(bind_address.unwrap_or(IpAddr::V4(default)), super::secure_port(parser)),
        health_address: None,
        tls: ServingSettings {
            pair,
            named,
            client_ca: authentication.client_ca_file.clone(),
            request_header_ca: authentication.request_header.ca_file.clone(),
            request_header_names_given: !authentication.request_header.allowed_names.is_empty(),
            min_version: parser.choice("tls-min-version"),
            cipher_suites: parser.list("tls-cipher-suites"),
            in_memory_names: Vec::new(),
            http2: !parser.switch("disable-http2-serving"),
            requests_any_certificate: parser.is_given("control-planes-config"),
        },
        certificate_request: None,
        certificate_dir,
        goaway_chance: parser.fraction("goaway-chance", 0.0, 0.02),
        proxy_protocol: proxy_protocol(parser),
        cors: cors(parser),
    }
}

fn cors(parser: &mut FlagParser<'_>) -> Option<BrowserPolicy> {
    const ORIGINS: &str = "cors-allowed-origins";
    const DIRECTIVES: &str = "strict-transport-security-directives";
    let mut checked = |name: &str, check: fn(&str) -> Result<(), String>| {
        let mut texts = parser.list(name);
        texts.retain(|text| check(text).map_err(|message| parser.add_problem(name, message)).is_ok());
        texts
    };
    let (origins, directives) = (checked(ORIGINS, check_cors_origin), checked(DIRECTIVES, check_hsts_directive));
    BrowserPolicy::new(&origins, &directives).unwrap_or_else(|error| {
        parser.add_problem(ORIGINS, error);
        None
    })
}

fn sni_pairs(parser: &mut FlagParser<'_>) -> Vec<NamedCertKey> {
    const NAME: &str = "tls-sni-cert-key";
    let mut pairs = Vec::new();
    for text in parser.list(NAME) {
        match NamedCertKey::parse(&text) {
            Ok(mut pair) => {
                for file in [&mut pair.files.certificate, &mut pair.files.key] {
                    *file = parser.resolve_path(NAME, &file.display().to_string());
                }
                pairs.push(pair);
            }
            // The message without its place: `reading` knows where the flag was given.
            Err(problem) => parser.add_problem(NAME, problem.message),
        }
    }
    pairs
}

pub(in crate::config) fn limits(parser: &mut FlagParser<'_>) -> ServerLimits {
    // Read again for --embedded-api; the backend ends a relayed watch.
    parser.count("min-request-timeout", u64::from(u32::MAX));
    let streams = u32::try_from(parser.count("http2-max-streams-per-connection", i32::MAX as u64)).unwrap_or_default();
    let header_bytes = parser.count("max-request-header-bytes", u64::from(u32::MAX));
    // A request line and a Host header need more than this.
    if header_bytes < 256 && parser.is_given("max-request-header-bytes") {
        parser.add_problem("max-request-header-bytes", "must be at least 256");
    }
    let connections = parser.memory_count("max-connections");
    ServerLimits {
        max_connections: if connections == 0 { usize::MAX } else { connections },
        max_request_header_bytes: u32::try_from(header_bytes).unwrap_or(u32::MAX),
        handshake_timeout: parser.positive_duration("handshake-timeout"),
        read_header_timeout: parser.positive_duration("read-header-timeout"),
        idle_timeout: parser.positive_duration("idle-timeout"),
        http2_max_streams: if streams == 0 { 250 } else { streams },
        // The command sets it from `ServingConfig::proxy_protocol`.
        proxy_protocol: None,
    }
}

fn proxy_protocol(parser: &mut FlagParser<'_>) -> ProxyProtocolMode {
    const TRUSTED: &str = "proxy-protocol-trusted-cidrs";
    let mut trusted = Vec::new();
    for text in parser.list(TRUSTED) {
        match parse_cidr(&text) {
            Ok(cidr) => trusted.push(cidr),
            Err(message) => parser.add_problem(TRUSTED, format_args!("{text:?}: {message}")),
        }
    }
    let required = match parser.choice("proxy-protocol").as_str() {
        "optional" => false,
        "required" => true,
        _ => {
            if parser.is_given(TRUSTED) {
                parser.add_warning(TRUSTED, "not used, because --proxy-protocol is off");
            }
            return ProxyProtocolMode::Off;
        }
    };
    if parser.list(TRUSTED).is_empty() {
        parser.add_problem(
            "proxy-protocol",
            "needs --proxy-protocol-trusted-cidrs: without it, every client could claim any address",
        );
    }
    if required { ProxyProtocolMode::Required(trusted) } else { ProxyProtocolMode::Optional(trusted) }
}

pub(in crate::config) fn shutdown(parser: &mut FlagParser<'_>) -> ShutdownSettings {
    ShutdownSettings {
        delay: parser.duration("shutdown-delay-duration"),
        send_retry_after: parser.switch("shutdown-send-retry-after"),
        watch_grace: parser.duration("shutdown-watch-termination-grace-period"),
    }
}
