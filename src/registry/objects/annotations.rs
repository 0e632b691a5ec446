//! The `narthex.dev/` annotations of an APIService, which configure its backend.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use kubeapi::{duration, names};

use crate::message::{AllowedHeaders, hop_by_hop};
use crate::process::{Problem, Problems};
use crate::registry::objects::long_running::LongRunning;
use crate::registry::objects::url_backend::UrlBackend;
use crate::registry::settings::Settings;
use crate::tls::PairFiles;

/// Settings of the requests to one APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendSettings {
    /// Name that the backend's certificate must have, if not the Service's or the URL's.
    pub server_name: Option<String>,
    /// Timeout from the end of the request to the end of the response, unless long-running; zero for no limit.
    pub request_timeout: Duration,
    /// Timeout of the TCP and TLS handshakes together.
    pub connect_timeout: Duration,
    /// Maximum number of concurrent requests that are not long-running; 0 for no limit.
    pub max_inflight: usize,
    /// Maximum bytes of a request body.
    pub max_request_bytes: Option<u64>,
    /// Requests without a timeout, besides those that Kubernetes treats as long-running.
    pub long_running: LongRunning,
    /// Allowed tokens of the header `Upgrade`.
    pub upgrade_protocols: UpgradeProtocols,
    /// Requests that are retried.
    pub retry: RetryMode,
    /// Number of consecutive failed probes that make an available APIService unavailable.
    pub failure_threshold: u32,
    /// Number of consecutive successful probes that make an unavailable APIService available.
    pub success_threshold: u32,
    /// Interval between probes.
    pub probe_interval: Duration,
    /// Timeout of one probe of one endpoint.
    pub probe_timeout: Duration,
    /// Name of the egress selection.
    pub egress: String,
    /// Client certificate and key to use instead of the shared pair.
    pub client_certificate: Option<PairFiles>,
    /// Whether the client's `Host` header is forwarded, instead of the backend's own name. Not set by an annotation.
    pub keeps_host: bool,
    /// Whether the backend alone serves the web origin that clients see. Cookies, CORS headers and the like are then
    /// forwarded in both directions. Not set by an annotation.
    pub owns_origin: bool,
    /// Response headers and trailers that are forwarded although they affect the web origin shared by all APIs.
    pub allowed_response_headers: AllowedHeaders,
    /// Headers in which a reverse proxy in front describes the client, and which are forwarded to the backend
    /// ([`hop_by_hop::is_proxy_identity_header`]). Not set by an annotation.
    pub allowed_request_headers: AllowedHeaders,
}

/// Selection of the requests that may be retried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryMode {
    /// GET, HEAD and OPTIONS, and any request that the backend provably did not start.
    #[default]
    Safe,
    /// Any request that the backend provably did not start. Also a GET, HEAD or OPTIONS on a reused connection that
    /// closed before the first byte of a response. Not set by an annotation.
    NotStarted,
    /// No request is retried.
    Never,
}

/// Allowed tokens of the header `Upgrade`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeProtocols(Option<Vec<String>>);

impl UpgradeProtocols {
    /// Reads a comma-separated list. `*` allows any token, an empty list none.
    pub fn parse(text: &str) -> UpgradeProtocols {
        let tokens = text.split(',').map(str::trim).filter(|token| !token.is_empty());
        let tokens: Vec<String> = tokens.map(str::to_owned).collect();
        UpgradeProtocols(if tokens.iter().any(|token| token == "*") { None } else { Some(tokens) })
    }

    /// Whether this token of a header `Upgrade` is allowed, ignoring case.
    pub fn allows(&self, token: &str) -> bool {
        self.0.as_ref().is_none_or(|tokens| tokens.iter().any(|one| one.eq_ignore_ascii_case(token)))
    }
}

/// Prefix of the annotations.
const PREFIX: &str = "narthex.dev/";

/// Annotation of a URL backend, instead of a Service.
pub const URL: &str = "narthex.dev/url";
/// Annotation of certificate files. Their content may change while the manifest stays the same.
pub(in crate::registry) const CLIENT_CERTIFICATE: &str = "client-certificate";

const KNOWN_ANNOTATIONS: [&str; 16] = [
    "allow-response-headers",
    "url",
    "server-name",
    "request-timeout",
    "connect-timeout",
    "max-inflight",
    "max-request-bytes",
    "long-running",
    "upgrade-protocols",
    "retry",
    "failure-threshold",
    "success-threshold",
    "probe-interval",
    "probe-timeout",
    "egress",
    CLIENT_CERTIFICATE,
];

/// Most errors that [`validate_annotations`] returns.
const MAX_INVALID_ANNOTATIONS: usize = 32;

/// Maximum of all timeouts. Endless requests are configured with `long-running`.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

/// An annotation that the registry refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAnnotation<'a> {
    /// Name, with the domain `narthex.dev`.
    pub name: &'a str,
    /// The whole value.
    pub value: &'a str,
    /// What is wrong, without the value.
    pub detail: String,
}

/// The annotations in the domain `narthex.dev` that are unknown or have an invalid value, at most 32 of them.
/// `has_service` is whether `spec.service` is set, beside which there can be no URL.
pub fn validate_annotations<'a>(
    annotations: impl Iterator<Item = (&'a str, &'a str)>,
    has_service: bool,
    settings: &Settings,
) -> Vec<InvalidAnnotation<'a>> {
    let mut parsed = default_settings(settings);
    let invalid = annotations.filter_map(|(name, value)| {
        let result = match name {
            URL => parse_url(value, has_service, settings).map(drop),
            _ => set_annotation(&mut parsed, name.strip_prefix(PREFIX)?, value.trim(), settings),
        };
        let message = result.err()?;
        let detail = message.strip_prefix(&format!("{:?} ", value.trim())).unwrap_or(&message).to_owned();
        Some(InvalidAnnotation { name, value, detail })
    });
    invalid.take(MAX_INVALID_ANNOTATIONS).collect()
}

/// Reads the annotations, with the defaults of `settings` for missing ones.
pub(in crate::registry) fn parse_annotations(
    location: &str,
    annotations: &BTreeMap<String, String>,
    settings: &Settings,
    problems: &mut Problems,
) -> BackendSettings {
    let mut backend_settings = default_settings(settings);
    for (name, value) in annotations {
        let Some(key) = name.strip_prefix(PREFIX) else { continue };
        if let Err(message) = set_annotation(&mut backend_settings, key, value.trim(), settings) {
            problems.0.push(Problem::at_field(location, format_args!("metadata.annotations[{name}]"), message));
        }
    }
    backend_settings
}

/// Reads [`URL`]. `has_service` is whether `spec.service` is set.
///
/// # Errors
/// Another backend, `--allow-url-backends` is missing, or the URL is invalid.
pub(in crate::registry) fn parse_url(url: &str, has_service: bool, settings: &Settings) -> Result<UrlBackend, String> {
    if has_service {
        return Err("spec.service is set too: only one of them can be the backend".to_owned());
    }
    if !settings.allow_url_backends {
        return Err("URL backends are not allowed: start with --allow-url-backends to allow them".to_owned());
    }
    UrlBackend::parse(url)
}

fn default_settings(settings: &Settings) -> BackendSettings {
    BackendSettings {
        server_name: None,
        request_timeout: settings.default_request_timeout,
        connect_timeout: Duration::from_secs(2),
        max_inflight: settings.default_max_inflight,
        max_request_bytes: None,
        long_running: LongRunning::default(),
        upgrade_protocols: UpgradeProtocols::parse("SPDY/3.1,websocket"),
        retry: RetryMode::Safe,
        failure_threshold: 3,
        success_threshold: 1,
        probe_interval: Duration::from_secs(30),
        probe_timeout: Duration::from_secs(5),
        egress: "cluster".to_owned(),
        client_certificate: None,
        keeps_host: false,
        owns_origin: false,
        allowed_response_headers: AllowedHeaders::default(),
        allowed_request_headers: AllowedHeaders::default(),
    }
}

fn set_annotation(
    backend_settings: &mut BackendSettings,
    key: &str,
    value: &str,
    settings: &Settings,
) -> Result<(), String> {
    match key {
        "allow-response-headers" => {
            let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
            backend_settings.allowed_response_headers =
                AllowedHeaders::parse(names, hop_by_hop::is_untrusted_response_header)?;
        }
        "server-name" => {
            if !names::is_host_name(value) && value.parse::<std::net::IpAddr>().is_err() {
                return Err(format!("{value:?} is neither a DNS name nor an IP address"));
            }
            backend_settings.server_name = Some(value.to_owned());
        }
        "request-timeout" => {
            backend_settings.request_timeout = duration::parse(value)
                .ok()
                .filter(|all| *all <= MAX_DURATION)
                .ok_or_else(|| format!("{value:?} is not a duration such as 30s or 1m30s (0 for none, at most 24h)"))?;
        }
        "connect-timeout" => backend_settings.connect_timeout = parse_timeout(value)?,
        "probe-interval" => {
            // A typing error must not turn the probe into a load test.
            backend_settings.probe_interval = parse_timeout(value)?;
            if backend_settings.probe_interval < Duration::from_millis(100) {
                return Err(format!("{value:?} is too short: at least 100ms"));
            }
        }
        "probe-timeout" => backend_settings.probe_timeout = parse_timeout(value)?,
        "max-inflight" => {
            backend_settings.max_inflight =
                value.parse().map_err(|_| format!("{value:?} is not an integer (0 for no limit)"))?;
        }
        "max-request-bytes" => {
            backend_settings.max_request_bytes =
                Some(parse_byte_size(value).ok_or_else(|| format!("{value:?} is not a size such as 1048576 or 1Mi"))?);
        }
        "long-running" => backend_settings.long_running = LongRunning::parse(value)?,
        "upgrade-protocols" => backend_settings.upgrade_protocols = UpgradeProtocols::parse(value),
        "retry" => {
            backend_settings.retry = match value {
                "safe" => RetryMode::Safe,
                "never" => RetryMode::Never,
                _ => return Err(format!("{value:?} is neither \"safe\" nor \"never\"")),
            };
        }
        "failure-threshold" => backend_settings.failure_threshold = parse_threshold(value)?,
        "success-threshold" => backend_settings.success_threshold = parse_threshold(value)?,
        "egress" => {
            if value.is_empty() {
                return Err("must name an egress selection".to_owned());
            }
            // Names of selections are case-insensitive (`k8s.io/apiserver/pkg/server/egressselector`).
            backend_settings.egress = value.to_ascii_lowercase();
        }
        CLIENT_CERTIFICATE => backend_settings.client_certificate = Some(resolve_pair_files(&settings.dir, value)?),
        // Read together with spec.service, by `parse_url`.
        "url" => {}
        _ => {
            let near =
                closest_match(key, &KNOWN_ANNOTATIONS).map(|nearest| format!(", did you mean {PREFIX}{nearest}?"));
            return Err(format!("unknown annotation{}", near.unwrap_or_default()));
        }
    }
    Ok(())
}

fn parse_timeout(value: &str) -> Result<Duration, String> {
    duration::parse(value)
        .ok()
        .filter(|all| !all.is_zero() && *all <= MAX_DURATION)
        .ok_or_else(|| format!("{value:?} is not a duration such as 500ms or 1m30s, above 0 and at most 24h"))
}

fn parse_threshold(value: &str) -> Result<u32, String> {
    value
        .parse()
        .ok()
        .filter(|n| (1..=1000).contains(n))
        .ok_or_else(|| format!("{value:?} is not an integer from 1 to 1000"))
}

/// Parses a size in bytes: an integer with an optional suffix `k`, `M`, `G` (1000s) or `Ki`, `Mi`, `Gi` (1024s).
fn parse_byte_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// The certificate and key files named `path` below `dir`. They are checked when they are loaded.
fn resolve_pair_files(dir: &Path, path: &str) -> Result<PairFiles, String> {
    if dir == Path::new("") {
        return Err("must be a path below --registry-dir, which is not set".to_owned());
    }
    let relative = Path::new(path);
    if path.is_empty() || !relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(format!("{path:?} must be a path below the registry directory, without .."));
    }
    // `Path::with_extension` would replace a part of a name with a dot.
    let with_suffix = |suffix: &str| {
        let mut file = dir.join(relative).into_os_string();
        file.push(suffix);
        PathBuf::from(file)
    };
    Ok(PairFiles::new(with_suffix(".crt"), with_suffix(".key")))
}

/// The entry of `candidates` that is closest to the misspelled `word`, if one is close enough.
pub(in crate::registry) fn closest_match<'k>(word: &str, candidates: &[&'k str]) -> Option<&'k str> {
    let scored = candidates.iter().map(|one| (edit_distance(word, one), *one)).min();
    scored.filter(|(steps, one)| *steps <= 2.max(one.len() / 3)).map(|(_, one)| one)
}

fn edit_distance(a: &str, b: &str) -> usize {
    // Bounds the cost: a name in a file may have any length, and a long one is no typing error.
    if a.len() > 100 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let step = if x == y { corner } else { 1 + corner.min(row[j]).min(row[j + 1]) };
            corner = row[j + 1];
            row[j + 1] = step;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(pairs: &[(&str, &str)], settings: &Settings) -> (BackendSettings, Vec<String>) {
        let annotations = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut problems = Problems::default();
        let ours = parse_annotations("f", &annotations, settings, &mut problems);
        (ours, problems.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn annotations_all_parsed() {
        let settings = Settings { dir: PathBuf::from("dir"), ..Settings::default() };
        let (ours, problems) = read_all(
            &[
                ("narthex.dev/server-name", "api.example.com"),
                ("narthex.dev/allow-response-headers", "NEL, Service-Worker-Allowed"),
                ("narthex.dev/request-timeout", "0"),
                ("narthex.dev/connect-timeout", "500ms"),
                ("narthex.dev/max-inflight", "7"),
                ("narthex.dev/max-request-bytes", "3Mi"),
                ("narthex.dev/long-running", "verb:list"),
                ("narthex.dev/upgrade-protocols", ""),
                ("narthex.dev/retry", "never"),
                ("narthex.dev/failure-threshold", "1"),
                ("narthex.dev/success-threshold", "2"),
                ("narthex.dev/probe-interval", "1s"),
                ("narthex.dev/probe-timeout", "2s"),
                ("narthex.dev/egress", "dmz"),
                ("narthex.dev/client-certificate", "special.v1"),
                ("example.com/anything", "else"),
            ],
            &settings,
        );
        assert_eq!(problems, [""; 0]);
        assert_eq!(ours.server_name.as_deref(), Some("api.example.com"));
        assert!(ours.allowed_response_headers.allows("nel") && !ours.allowed_response_headers.allows("report-to"));
        assert_eq!((ours.request_timeout, ours.connect_timeout), (Duration::ZERO, Duration::from_millis(500)));
        assert_eq!((ours.max_inflight, ours.max_request_bytes), (7, Some(3 << 20)));
        assert!(ours.long_running.matches("list", "", ""));
        assert!(!ours.upgrade_protocols.allows("websocket"));
        assert_eq!(ours.retry, RetryMode::Never);
        assert_eq!((ours.failure_threshold, ours.success_threshold), (1, 2));
        assert_eq!((ours.probe_interval, ours.probe_timeout), (Duration::from_secs(1), Duration::from_secs(2)));
        assert_eq!(ours.egress, "dmz");
        assert_eq!(ours.client_certificate, Some(PairFiles::new("dir/special.v1.crt", "dir/special.v1.key")));
    }

    #[test]
    fn annotation_defaults_match_the_reference() {
        let (ours, _) = read_all(&[], &Settings::default());
        assert_eq!((ours.failure_threshold, ours.success_threshold), (3, 1));
        assert_eq!((ours.probe_interval, ours.probe_timeout), (Duration::from_secs(30), Duration::from_secs(5)));
        assert_eq!((ours.request_timeout, ours.connect_timeout), (Duration::from_secs(60), Duration::from_secs(2)));
        assert_eq!((ours.max_inflight, ours.egress.as_str()), (200, "cluster"));
        assert!(ours.upgrade_protocols.allows("SPDY/3.1") && ours.upgrade_protocols.allows("WebSocket"));
        assert!(!ours.upgrade_protocols.allows("h2c"));
        assert!(UpgradeProtocols::parse("*").allows("anything"));
    }

    #[test]
    fn annotation_errors_name_annotation_and_suggestion() {
        let (_, problems) = read_all(
            &[
                ("narthex.dev/request-timout", "1s"),
                ("narthex.dev/zzz", ""),
                ("narthex.dev/probe-timeout", "0s"),
                ("narthex.dev/probe-interval", "1ms"),
                ("narthex.dev/retry", "always"),
                ("narthex.dev/max-inflight", "-1"),
                ("narthex.dev/client-certificate", "../pair"),
                ("narthex.dev/failure-threshold", "0"),
                ("narthex.dev/server-name", "https://x"),
                ("narthex.dev/allow-response-headers", "NEL,Warning"),
            ],
            &Settings::default(),
        );
        assert_eq!(problems.len(), 10, "{problems:#?}");
        let all = problems.join("\n");
        assert!(all.contains("metadata.annotations[narthex.dev/request-timout]: unknown annotation, did you mean narthex.dev/request-timeout?"));
        assert!(
            all.contains("metadata.annotations[narthex.dev/zzz]: unknown annotation\n")
                || all.ends_with("unknown annotation")
        );
    }

    #[test]
    fn byte_sizes_parsed() {
        assert_eq!(parse_byte_size("0"), Some(0));
        assert_eq!(parse_byte_size("3Mi"), Some(3 << 20));
        assert_eq!(parse_byte_size("5k"), Some(5000));
        for wrong in ["", "Mi", "-1", "1.5Mi", "1 Mi", "1T", "99999999999999999999", "99999999999999Gi"] {
            assert_eq!(parse_byte_size(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn edit_distance_counts_changes() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "ab"), 2);
    }
}
