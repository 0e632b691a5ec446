//! What lies behind the gateway, and how requests are relayed to it.

use std::path::PathBuf;
use std::time::Duration;

use super::Pair;
use crate::config::reading::Reading;

/// Where the backends are known from, and who we are to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Directory of manifests.
    pub registry_dir: Option<PathBuf>,
    /// Our certificate as a front proxy; none when we make it ourselves.
    pub proxy_client: Option<Pair>,
    /// Endpoints themselves, rather than the Service's cluster IP.
    pub route_to_endpoints: bool,
    /// Whether the annotation `narthex.dev/url` is honoured.
    pub allow_url_backends: bool,
    /// Whether a Service of type ExternalName is honoured.
    pub allow_external_name: bool,
    /// Who looks names up.
    pub resolver: ResolverChoice,
}

/// Who looks names up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolverChoice {
    /// The system.
    System,
    /// hickory-resolver, in this process.
    Hickory,
}

/// How requests are relayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Longest time for a request that is not long-running.
    pub request_timeout: Duration,
    /// Whether a backend's redirect becomes 502.
    pub reject_redirects: bool,
    /// Whether backends are told the user's UID.
    pub forward_uid: bool,
    /// How failures of backends are told.
    pub error_format: ErrorFormat,
    /// Reading requests at the same time; none for no limit.
    pub max_inflight: Option<usize>,
    /// Changing requests at the same time; none for no limit.
    pub max_mutating_inflight: Option<usize>,
}

/// How failures of backends are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorFormat {
    /// As a metav1.Status.
    Status,
    /// As the plain texts of kube-aggregator.
    Text,
}

pub(super) fn behind(reading: &mut Reading<'_>) -> Behind {
    let proxy_client = reading.pair("proxy-client-cert-file", "proxy-client-key-file");
    Behind {
        registry_dir: reading.directory("registry-dir"),
        proxy_client: proxy_client.map(|(certificate, key)| Pair { certificate, key }),
        route_to_endpoints: reading.switch("enable-aggregator-routing"),
        allow_url_backends: reading.switch("allow-url-backends"),
        allow_external_name: reading.switch("allow-external-name"),
        resolver: match reading.choice("resolver").as_str() {
            "hickory" => ResolverChoice::Hickory,
            _ => ResolverChoice::System,
        },
    }
}

pub(super) fn forwarding(reading: &mut Reading<'_>) -> Forwarding {
    Forwarding {
        request_timeout: reading.positive_duration("request-timeout"),
        reject_redirects: reading.switch("aggregator-reject-forwarding-redirect"),
        forward_uid: reading.switch("forward-uid"),
        error_format: match reading.choice("error-format").as_str() {
            "text" => ErrorFormat::Text,
            _ => ErrorFormat::Status,
        },
        max_inflight: Some(reading.size("max-requests-inflight")).filter(|limit| *limit > 0),
        max_mutating_inflight: Some(reading.size("max-mutating-requests-inflight")).filter(|limit| *limit > 0),
    }
}
