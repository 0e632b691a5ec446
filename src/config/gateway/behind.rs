//! Backends of the gateway, and forwarding of requests to them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::reading::Reading;
use crate::egress::ProxyEnvironment;
use crate::kubeclient::{Source, election};
use crate::message::ErrorFormat;
use crate::registry;
use crate::tls::PairFiles;

/// Sources of backends, and the identity and routes used to reach them.
#[derive(Clone, Debug)]
pub struct Behind {
    /// Upstreams of a sidecar; empty for a gateway, which has a registry.
    pub upstreams: Vec<registry::UpstreamSettings>,
    /// The registry directory, if one is given.
    pub registry: Option<registry::Settings>,
    /// The API server of all paths that no APIService claims, and its settings.
    pub delegate: Option<(Source, registry::Settings)>,
    /// Whether it serves all of these paths, or only those of APIServices, because it is the source of the registry.
    pub delegates_all: bool,
    /// Whether `/metrics` on the secure port is relayed to the delegate (`--serving-metrics`).
    pub delegates_metrics: bool,
    /// The kube-apiserver to follow as a registry, if one is given.
    pub cluster: Option<Cluster>,
    /// Rules that resolve a Service to endpoints.
    pub rules: registry::Rules,
    /// Front-proxy client certificate; generated when none.
    pub proxy_client: Option<PairFiles>,
    /// DNS resolver.
    pub resolver: ResolverChoice,
    /// File with the egress routes to backends and control planes, if given.
    pub egress: Option<PathBuf>,
    /// Proxies of the environment for direct connections (`--proxy-from-environment`).
    pub environment: Option<ProxyEnvironment>,
}

/// A kube-apiserver as a source of the registry.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// `--kubeconfig`.
    pub source: Source,
    /// What its objects may configure; the directory is the base of file names in annotations.
    pub settings: registry::Settings,
    /// `--leader-elect`: the election of the gateway that writes conditions.
    pub election: Option<election::Settings>,
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
pub struct Forwarding {
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

pub(in crate::config) fn behind(reading: &mut Reading<'_>, data_dir: &Path, forwarding: &Forwarding) -> Behind {
    let settings = registry::Settings {
        dir: reading.path("registry-dir").unwrap_or_default(),
        last_good: (!reading.switch("registry-strict")).then(|| data_dir.join("last-good-registry")),
        allow_url_backends: reading.switch("allow-url-backends"),
        default_request_timeout: forwarding.request_timeout,
        // One backend may use half of the overall limit.
        default_max_inflight: forwarding.max_inflight.map_or(0, |limit| limit.div_ceil(2)),
    };
    let cluster = reading.path("kubeconfig").map(Source::named);
    let election = election(reading, cluster.is_some());
    let delegate = reading.path("delegate-kubeconfig").map(Source::named);
    let delegates_all = delegate.is_some();
    let delegate = delegate.or_else(|| match &cluster {
        Some(Source::File(path)) => Some(Source::File(path.clone())),
        _ => None,
    });
    Behind {
        upstreams: Vec::new(),
        delegate: delegate.map(|source| (source, settings.clone())),
        delegates_all,
        delegates_metrics: delegates_metrics(reading, delegates_all),
        cluster: cluster.map(|source| Cluster { source, settings: settings.clone(), election }),
        registry: Some(settings).filter(|settings| settings.dir != PathBuf::new()),
        rules: registry::Rules {
            endpoints: reading.switch("enable-aggregator-routing"),
            external_name: reading.switch("allow-external-name"),
            zone: zone(reading),
        },
        proxy_client: reading.pair("proxy-client-cert-file", "proxy-client-key-file"),
        resolver: resolver(reading),
        egress: reading.path("egress-selector-config-file"),
        environment: environment(reading),
    }
}

/// `--serving-metrics`.
fn delegates_metrics(reading: &mut Reading<'_>, delegates_all: bool) -> bool {
    const FLAG: &str = "serving-metrics";
    let whose = if reading.given(FLAG) { reading.choice(FLAG) } else { reading.text(FLAG) };
    if whose == "delegate" && !delegates_all {
        reading.problem(FLAG, "delegate needs --delegate-kubeconfig");
    }
    delegates_all && whose != "gateway"
}

pub(in crate::config) fn resolver(reading: &mut Reading<'_>) -> ResolverChoice {
    match reading.choice("resolver").as_str() {
        "hickory" => ResolverChoice::Hickory,
        _ => ResolverChoice::System,
    }
}

fn environment(reading: &mut Reading<'_>) -> Option<ProxyEnvironment> {
    const FLAG: &str = "proxy-from-environment";
    if !reading.switch(FLAG) {
        return None;
    }
    match ProxyEnvironment::read(&|name| reading.environment(name)) {
        Ok((environment, odd)) => {
            if environment.is_empty() {
                reading.warning(FLAG, "has no effect: neither HTTPS_PROXY nor HTTP_PROXY is set");
            }
            for odd in odd {
                reading.warning(FLAG, odd);
            }
            Some(environment).filter(|environment| !environment.is_empty())
        }
        Err(problems) => {
            for problem in &problems.0 {
                reading.problem(FLAG, problem);
            }
            None
        }
    }
}

fn zone(reading: &mut Reading<'_>) -> Option<registry::Zone> {
    let parse = |name: &str| match registry::Zone::new(name) {
        None if !name.is_empty() => Err("longer than 63 characters"),
        zone => Ok(zone),
    };
    reading.parse("zone", parse).flatten()
}

/// Leader election; none with `--leader-elect=false`. The checks are client-go's (`leaderelection.NewLeaderElector`).
fn election(reading: &mut Reading<'_>, somewhere: bool) -> Option<election::Settings> {
    let elects = reading.switch("leader-elect");
    if elects && !somewhere && reading.given("leader-elect") {
        reading.problem("leader-elect", "not used without --kubeconfig");
    }
    let settings = election::Settings {
        lease_duration: reading.positive_duration("leader-elect-lease-duration"),
        renew_deadline: reading.positive_duration("leader-elect-renew-deadline"),
        retry_period: reading.positive_duration("leader-elect-retry-period"),
        name: reading.text("leader-elect-resource-name"),
        namespace: reading.text("leader-elect-resource-namespace"),
    };
    reading.choice("leader-elect-resource-lock");
    if settings.lease_duration <= settings.renew_deadline {
        reading.problem("leader-elect-lease-duration", "must be longer than --leader-elect-renew-deadline");
    } else if settings.renew_deadline <= settings.retry_period.mul_f64(1.2) {
        reading.problem("leader-elect-renew-deadline", "must be longer than 1.2 times --leader-elect-retry-period");
    } else if settings.lease_duration.subsec_nanos() != 0 {
        reading.problem("leader-elect-lease-duration", "must be whole seconds, as in a Lease");
    }
    for name in ["leader-elect-resource-name", "leader-elect-resource-namespace"] {
        let text = reading.text(name);
        if !registry::is_object_name(&text) {
            reading.problem(name, format_args!("{text:?} is not a valid object name"));
        }
    }
    elects.then_some(settings)
}

pub(in crate::config) fn forwarding(reading: &mut Reading<'_>) -> Forwarding {
    Forwarding {
        request_timeout: reading.positive_duration("request-timeout"),
        reject_redirects: reading.switch("aggregator-reject-forwarding-redirect"),
        forward_uid: reading.switch("forward-uid"),
        error_format: match reading.choice("error-format").as_str() {
            "text" => ErrorFormat::Text,
            "kube-rbac-proxy" => ErrorFormat::KubeRbacProxy,
            _ => ErrorFormat::Status,
        },
        max_inflight: Some(reading.size("max-requests-inflight")).filter(|limit| *limit > 0),
        max_mutating_inflight: Some(reading.size("max-mutating-requests-inflight")).filter(|limit| *limit > 0),
    }
}
