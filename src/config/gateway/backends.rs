//! Backends of the gateway, and forwarding of requests to them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kubeapi::names;

use crate::config::parser::FlagParser;
use crate::egress::ProxyEnvironment;
use crate::kubeclient::{KubeconfigSource, election};
use crate::message::ErrorFormat;
use crate::registry;
use crate::tls::PairFiles;

/// Sources of backends, and the identity and routes used to reach them.
#[derive(Clone, Debug)]
pub struct BackendsConfig {
    /// Upstreams of a sidecar; empty for a gateway, which has a registry.
    pub upstreams: Vec<registry::UpstreamSettings>,
    /// The registry directory, if one is given.
    pub registry: Option<registry::Settings>,
    /// The API server of all paths that no APIService claims, and its settings.
    pub delegate: Option<(KubeconfigSource, registry::Settings)>,
    /// Whether the delegate serves all of these paths, or only those of APIServices, because it is the source of the
    /// registry.
    pub delegates_unclaimed_paths: bool,
    /// Whether `/metrics` on the secure port is relayed to the delegate (`--serving-metrics`).
    pub delegates_metrics: bool,
    /// The kube-apiserver to follow as a registry, if one is given.
    pub cluster: Option<ClusterRegistrySettings>,
    /// `--leader-elect`: the election among gateways with the same kube-apiserver or etcd.
    pub election: Option<election::Settings>,
    /// Rules that resolve a Service to endpoints.
    pub resolve_rules: registry::ResolveRules,
    /// Front-proxy client certificate; generated when none.
    pub proxy_client: Option<PairFiles>,
    /// DNS resolver.
    pub resolver: ResolverChoice,
    /// File with the egress routes to backends and control planes, if given.
    pub egress: Option<PathBuf>,
    /// Proxies of the environment for direct connections (`--proxy-from-environment`).
    pub environment_proxies: Option<ProxyEnvironment>,
}

/// A kube-apiserver as a source of the registry.
#[derive(Clone, Debug)]
pub struct ClusterRegistrySettings {
    /// Value of `--kubeconfig`.
    pub source: KubeconfigSource,
    /// Limits of what the cluster's objects may configure; the directory is the base of file names in annotations.
    pub settings: registry::Settings,
}

/// A DNS resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolverChoice {
    /// The system.
    System,
    /// hickory-resolver, in this process.
    Hickory,
}

/// Forwarding of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingConfig {
    /// Timeout of requests that are not long-running.
    pub request_timeout: Duration,
    /// Whether a backend's redirect becomes 502.
    pub reject_redirects: bool,
    /// Whether the user's UID is sent to backends.
    pub forward_uid: bool,
    /// Format of errors.
    pub error_format: ErrorFormat,
    /// Non-mutating requests at the same time; none for no limit.
    pub max_inflight: Option<usize>,
    /// Mutating requests at the same time; none for no limit.
    pub max_mutating_inflight: Option<usize>,
}

pub(in crate::config) fn backends(
    parser: &mut FlagParser<'_>,
    data_dir: &Path,
    forwarding: &ForwardingConfig,
) -> BackendsConfig {
    let settings = registry_settings(parser, data_dir, forwarding);
    let cluster = parser.path("kubeconfig").map(KubeconfigSource::from_flag);
    let is_elected = cluster.is_some() || parser.is_given("etcd-servers");
    let election = election(parser, is_elected).filter(|_| is_elected);
    let delegate = parser.path("delegate-kubeconfig").map(KubeconfigSource::from_flag);
    let delegates_all = delegate.is_some();
    let delegate = delegate.or_else(|| match &cluster {
        Some(KubeconfigSource::File(path)) => Some(KubeconfigSource::File(path.clone())),
        _ => None,
    });
    BackendsConfig {
        upstreams: Vec::new(),
        delegate: delegate.map(|source| (source, settings.clone())),
        delegates_unclaimed_paths: delegates_all,
        delegates_metrics: delegates_metrics(parser, delegates_all),
        cluster: cluster.map(|source| ClusterRegistrySettings { source, settings: settings.clone() }),
        election,
        registry: Some(settings).filter(|settings| settings.dir != PathBuf::new()),
        resolve_rules: registry::ResolveRules {
            routes_to_endpoints: parser.switch("enable-aggregator-routing"),
            allows_external_name: parser.switch("allow-external-name"),
            zone: zone(parser),
        },
        proxy_client: parser.key_pair_files("proxy-client-cert-file", "proxy-client-key-file"),
        resolver: resolver(parser),
        egress: parser.path("egress-selector-config-file"),
        environment_proxies: environment_proxies(parser),
    }
}

/// Limits of what registered objects may configure, and the registry directory, empty if none is given.
pub(super) fn registry_settings(
    parser: &mut FlagParser<'_>,
    data_dir: &Path,
    forwarding: &ForwardingConfig,
) -> registry::Settings {
    registry::Settings {
        dir: parser.path("registry-dir").unwrap_or_default(),
        last_good: (!parser.switch("registry-strict")).then(|| data_dir.join("last-good-registry")),
        allow_url_backends: parser.switch("allow-url-backends"),
        default_request_timeout: forwarding.request_timeout,
        // One backend may use half of the overall limit.
        default_max_inflight: forwarding.max_inflight.map_or(0, |limit| limit.div_ceil(2)),
    }
}

/// Reads `--serving-metrics`: whether `/metrics` is relayed to the delegate.
fn delegates_metrics(parser: &mut FlagParser<'_>, delegates_all: bool) -> bool {
    const FLAG: &str = "serving-metrics";
    let source = if parser.is_given(FLAG) { parser.choice(FLAG) } else { parser.text(FLAG) };
    if source == "delegate" && !delegates_all {
        parser.add_problem(FLAG, "delegate needs --delegate-kubeconfig");
    }
    delegates_all && source != "gateway"
}

pub(in crate::config) fn resolver(parser: &mut FlagParser<'_>) -> ResolverChoice {
    match parser.choice("resolver").as_str() {
        "hickory" => ResolverChoice::Hickory,
        _ => ResolverChoice::System,
    }
}

fn environment_proxies(parser: &mut FlagParser<'_>) -> Option<ProxyEnvironment> {
    const FLAG: &str = "proxy-from-environment";
    if !parser.switch(FLAG) {
        return None;
    }
    match ProxyEnvironment::read(&|name| parser.environment(name)) {
        Ok((environment, odd)) => {
            if environment.is_empty() {
                parser.add_warning(FLAG, "has no effect: neither HTTPS_PROXY nor HTTP_PROXY is set");
            }
            for odd in odd {
                parser.add_warning(FLAG, odd);
            }
            Some(environment).filter(|environment| !environment.is_empty())
        }
        Err(problems) => {
            for problem in &problems.0 {
                parser.add_problem(FLAG, problem);
            }
            None
        }
    }
}

fn zone(parser: &mut FlagParser<'_>) -> Option<registry::Zone> {
    let parse = |name: &str| match registry::Zone::new(name) {
        None if !name.is_empty() => Err("longer than 63 characters"),
        zone => Ok(zone),
    };
    parser.parse("zone", parse).flatten()
}

/// Leader election; none with `--leader-elect=false`. The checks are client-go's (`leaderelection.NewLeaderElector`).
fn election(parser: &mut FlagParser<'_>, somewhere: bool) -> Option<election::Settings> {
    let elects = parser.switch("leader-elect");
    if elects && !somewhere && parser.is_given("leader-elect") {
        parser.add_problem("leader-elect", "not used without --kubeconfig or --etcd-servers");
    }
    let settings = election::Settings {
        lease_duration: parser.positive_duration("leader-elect-lease-duration"),
        renew_deadline: parser.positive_duration("leader-elect-renew-deadline"),
        retry_period: parser.positive_duration("leader-elect-retry-period"),
        name: parser.text("leader-elect-resource-name"),
        namespace: parser.text("leader-elect-resource-namespace"),
    };
    parser.choice("leader-elect-resource-lock");
    if settings.lease_duration <= settings.renew_deadline {
        parser.add_problem("leader-elect-lease-duration", "must be longer than --leader-elect-renew-deadline");
    } else if settings.renew_deadline <= settings.retry_period.mul_f64(1.2) {
        parser.add_problem("leader-elect-renew-deadline", "must be longer than 1.2 times --leader-elect-retry-period");
    } else if settings.lease_duration.subsec_nanos() != 0 {
        parser.add_problem("leader-elect-lease-duration", "must be whole seconds, as in a Lease");
    }
    for name in ["leader-elect-resource-name", "leader-elect-resource-namespace"] {
        let text = parser.text(name);
        if !names::is_dns_subdomain(&text) {
            parser.add_problem(name, format_args!("{text:?} is not a valid object name"));
        }
    }
    elects.then_some(settings)
}

pub(in crate::config) fn forwarding(parser: &mut FlagParser<'_>) -> ForwardingConfig {
    ForwardingConfig {
        request_timeout: parser.positive_duration("request-timeout"),
        reject_redirects: parser.switch("aggregator-reject-forwarding-redirect"),
        forward_uid: parser.switch("forward-uid"),
        error_format: match parser.choice("error-format").as_str() {
            "text" => ErrorFormat::Text,
            "kube-rbac-proxy" => ErrorFormat::KubeRbacProxy,
            _ => ErrorFormat::Status,
        },
        max_inflight: Some(parser.memory_count("max-requests-inflight")).filter(|limit| *limit > 0),
        max_mutating_inflight: Some(parser.memory_count("max-mutating-requests-inflight")).filter(|limit| *limit > 0),
    }
}
