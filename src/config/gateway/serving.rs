//! Listeners, TLS, limits and shutdown of the gateway.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::Who;
use crate::config::reading::Reading;
use crate::egress::Cidr;
use crate::kubeclient::Source;
use crate::listen::Limits;
use crate::message::browser::{Browsers, check_directive, check_origin};
use crate::tls::server::{NamedPair, ServingSettings};

/// Listeners and TLS.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Address and port to bind; port 0 takes a free one.
    pub address: SocketAddr,
    /// Second address, which serves health checks only (`--proxy-endpoints-port`).
    pub endpoints: Option<SocketAddr>,
    /// Certificates and TLS parameters. Without `pair`, the certificate is generated.
    pub tls: ServingSettings,
    /// The serving certificate to request by a CertificateSigningRequest, if any.
    pub requested: Option<Requested>,
    /// Directory for a generated serving certificate, instead of the data directory.
    pub certificate_dir: Option<PathBuf>,
    /// Probability that an HTTP/2 client gets GOAWAY, 0 to 0.02.
    pub goaway_chance: f64,
    /// Whether and from which networks the PROXY protocol is accepted.
    pub proxy_protocol: ProxyProtocol,
    /// CORS and Strict-Transport-Security, if configured.
    pub browsers: Option<Browsers>,
}

/// A serving certificate to request from a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// `signerName` of the CertificateSigningRequest.
    pub signer: String,
    /// DNS names and IP addresses of the certificate.
    pub names: Vec<String>,
    /// The kube-apiserver to request it from.
    pub source: Source,
}

/// Whether and from which networks the PROXY protocol is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// It is not accepted.
    Off,
    /// A connection from these networks may begin with it.
    Optional(Vec<Cidr>),
    /// A connection must come from these networks and begin with it.
    Required(Vec<Cidr>),
}

/// Timing of the shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Time between failing readiness and refusing new requests.
    pub delay: Duration,
    /// Whether new requests get 429 in that time.
    pub send_retry_after: bool,
    /// Time over which watches are ended.
    pub watch_grace: Duration,
}

/// Reads the serving flags; the CA bundles of `who` are named to clients in the handshake.
pub(in crate::config) fn serving(reading: &mut Reading<'_>, who: &Who) -> Serving {
    let pair = reading.pair("tls-cert-file", "tls-private-key-file");
    let named = named_pairs(reading);
    let self_made = !reading.given("tls-cert-file") && named.is_empty();
    let default = if self_made { Ipv4Addr::LOCALHOST } else { Ipv4Addr::UNSPECIFIED };
    let bind_address = if reading.text("bind-address").is_empty() {
        None
    } else {
        reading.parse("bind-address", |text| text.parse().map_err(|_| "not an IP address"))
    };
    let certificate_dir = reading.path("cert-dir");
    if certificate_dir.is_some() && !self_made {
        reading.warning("cert-dir", "not used, because no serving certificate is generated");
    }
    Serving {
        address: SocketAddr::new(bind_address.unwrap_or(IpAddr::V4(default)), super::port(reading)),
        endpoints: None,
        tls: ServingSettings {
            pair,
            named,
            client_ca: who.client_ca_file.clone(),
            request_header_ca: who.request_header.ca_file.clone(),
            request_header_names_given: !who.request_header.allowed_names.is_empty(),
            min_version: reading.choice("tls-min-version"),
            cipher_suites: reading.list("tls-cipher-suites"),
            unwritten: Vec::new(),
            http2: !reading.switch("disable-http2-serving"),
        },
        requested: None,
        certificate_dir,
        goaway_chance: reading.fraction("goaway-chance", 0.0, 0.02),
        proxy_protocol: proxy_protocol(reading),
        browsers: browsers(reading),
    }
}

fn browsers(reading: &mut Reading<'_>) -> Option<Browsers> {
    const ORIGINS: &str = "cors-allowed-origins";
    const DIRECTIVES: &str = "strict-transport-security-directives";
    let mut checked = |name: &str, check: fn(&str) -> Result<(), String>| {
        let mut texts = reading.list(name);
        texts.retain(|text| check(text).map_err(|message| reading.problem(name, message)).is_ok());
        texts
    };
    let (origins, directives) = (checked(ORIGINS, check_origin), checked(DIRECTIVES, check_directive));
    Browsers::new(&origins, &directives).unwrap_or_else(|error| {
        reading.problem(ORIGINS, error);
        None
    })
}

fn named_pairs(reading: &mut Reading<'_>) -> Vec<NamedPair> {
    const NAME: &str = "tls-sni-cert-key";
    let mut pairs = Vec::new();
    for text in reading.list(NAME) {
        match NamedPair::parse(&text) {
            Ok(mut pair) => {
                for file in [&mut pair.files.certificate, &mut pair.files.key] {
                    *file = reading.resolve(NAME, &file.display().to_string());
                }
                pairs.push(pair);
            }
            // The message without its place: `reading` knows where the flag was given.
            Err(problem) => reading.problem(NAME, problem.message),
        }
    }
    pairs
}

pub(in crate::config) fn limits(reading: &mut Reading<'_>) -> Limits {
    // Accepted for manifests written for kube-apiserver; the backend ends a relayed watch.
    reading.count("min-request-timeout", u64::from(u32::MAX));
    let streams = u32::try_from(reading.count("http2-max-streams-per-connection", i32::MAX as u64)).unwrap_or_default();
    let header_bytes = reading.count("max-request-header-bytes", u64::from(u32::MAX));
    // A request line and a Host header need more than this.
    if header_bytes < 256 && reading.given("max-request-header-bytes") {
        reading.problem("max-request-header-bytes", "must be at least 256");
    }
    let connections = reading.size("max-connections");
    Limits {
        max_connections: if connections == 0 { usize::MAX } else { connections },
        max_request_header_bytes: u32::try_from(header_bytes).unwrap_or(u32::MAX),
        handshake_timeout: reading.positive_duration("handshake-timeout"),
        read_header_timeout: reading.positive_duration("read-header-timeout"),
        idle_timeout: reading.positive_duration("idle-timeout"),
        http2_max_streams: if streams == 0 { 250 } else { streams },
        // The command sets it from `Serving::proxy_protocol`.
        proxy_protocol: None,
    }
}

fn proxy_protocol(reading: &mut Reading<'_>) -> ProxyProtocol {
    const TRUSTED: &str = "proxy-protocol-trusted-cidrs";
    let mut trusted = Vec::new();
    for text in reading.list(TRUSTED) {
        match Cidr::parse(&text) {
            Ok(cidr) => trusted.push(cidr),
            Err(message) => reading.problem(TRUSTED, format_args!("{text:?}: {message}")),
        }
    }
    let required = match reading.choice("proxy-protocol").as_str() {
        "optional" => false,
        "required" => true,
        _ => {
            if reading.given(TRUSTED) {
                reading.warning(TRUSTED, "not used, because --proxy-protocol is off");
            }
            return ProxyProtocol::Off;
        }
    };
    if reading.list(TRUSTED).is_empty() {
        reading.problem(
            "proxy-protocol",
            "needs --proxy-protocol-trusted-cidrs: without it, every client could claim any address",
        );
    }
    if required { ProxyProtocol::Required(trusted) } else { ProxyProtocol::Optional(trusted) }
}

pub(in crate::config) fn shutdown(reading: &mut Reading<'_>) -> Shutdown {
    Shutdown {
        delay: reading.duration("shutdown-delay-duration"),
        send_retry_after: reading.switch("shutdown-send-retry-after"),
        watch_grace: reading.duration("shutdown-watch-termination-grace-period"),
    }
}
