//! What lies behind the gateway, and how requests are relayed to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::reading::Reading;
use crate::egress::ProxyEnvironment;
use crate::kubeclient::{Source, election};
use crate::message::ErrorFormat;
use crate::registry;
use crate::tls::PairFiles;

/// Where the backends are known from, and who we are to them.
#[derive(Clone, Debug)]
pub struct Behind {
    /// The servers a sidecar stands in front of; none for a gateway, which has a registry.
    pub upstreams: Vec<registry::UpstreamSettings>,
    /// The registry directory, if one is given.
    pub registry: Option<registry::Settings>,
    /// The kubeconfig of the server that owns what no APIService claims, if there is one, and how it is treated.
    pub delegate: Option<(Source, registry::Settings)>,
    /// Whether it owns all of that, or only the APIServices themselves: it is where the registry comes from.
    pub delegates_all: bool,
    /// Whether `/metrics` of the secure port is the delegate's (`--serving-metrics`).
    pub delegates_metrics: bool,
    /// The kube-apiserver whose registry is followed, if one is given.
    pub cluster: Option<Cluster>,
    /// How requests for a Service find their way.
    pub rules: registry::Rules,
    /// Our certificate as a front proxy; none when we make it ourselves.
    pub proxy_client: Option<PairFiles>,
    /// Who looks names up.
    pub resolver: ResolverChoice,
    /// The file that describes the ways to backends and control planes, if one is given.
    pub egress: Option<PathBuf>,
    /// The proxies for what goes direct by that file, if they are asked for.
    pub environment: Option<ProxyEnvironment>,
}

/// A kube-apiserver that registers backends.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// `--kubeconfig`.
    pub source: Source,
    /// What its objects may say; the directory is where their annotations' files are.
    pub settings: registry::Settings,
    /// `--leader-elect`: among whom one writes the conditions there.
    pub election: Option<election::Settings>,
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

pub(in crate::config) fn behind(reading: &mut Reading<'_>, data_dir: &Path, forwarding: &Forwarding) -> Behind {
    let settings = registry::Settings {
        dir: reading.path("registry-dir").unwrap_or_default(),
        last_good: (!reading.switch("registry-strict")).then(|| data_dir.join("last-good-registry")),
        allow_url_backends: reading.switch("allow-url-backends"),
        default_request_timeout: forwarding.request_timeout,
        // One backend may take half of what all may take together.
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
                reading.warning(FLAG, "neither HTTPS_PROXY nor HTTP_PROXY is set: all goes as without this flag");
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
        None if !name.is_empty() => Err("longer than the 63 characters that a zone's name can have"),
        zone => Ok(zone),
    };
    reading.parse("zone", parse).flatten()
}

/// Nothing if everybody is to write. The rules are client-go's (`leaderelection.NewLeaderElector`).
fn election(reading: &mut Reading<'_>, somewhere: bool) -> Option<election::Settings> {
    let elects = reading.switch("leader-elect");
    if elects && !somewhere && reading.given("leader-elect") {
        reading.problem("leader-elect", "not used without --kubeconfig: nothing is written anywhere");
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
        reading.problem("leader-elect-lease-duration", "must be whole seconds: a Lease says no less");
    }
    for name in ["leader-elect-resource-name", "leader-elect-resource-namespace"] {
        let text = reading.text(name);
        if !registry::is_object_name(&text) {
            reading.problem(name, format_args!("{text:?} is no name of an object"));
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
