//! The sidecar's configuration: the gateway's, with upstreams instead of a registry.

mod compatible;
pub mod flags;
mod guard;
mod openid;
mod upstreams;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::arguments::{Arguments, Role};
use super::flag::{Flag, Group};
use super::gateway::delegated::Otherwise;
use super::gateway::{self, Behind, Forwarding, GatewayConfig, Mode, Requested};
use super::listening::listen_address;
use super::reading::{Mistakes, Reading};
use crate::kubeclient::Source;
use crate::message::ErrorFormat;
use crate::{registry, tls};

pub use guard::{Asks, Guard};

/// The command `narthex sidecar`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sidecar;

impl Role for Sidecar {
    const FLAGS: &'static [&'static Group] = flags::SIDECAR;
    const LATER: &'static [Flag] = gateway::flags::LATER;
    const KIND: &'static str = "SidecarConfiguration";
}

/// The environment variable that is set in every pod.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// The program name it was started under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// `narthex`.
    Narthex,
    /// `kube-rbac-proxy`: with the defaults of that program.
    KubeRbacProxy,
}

impl Arguments<Sidecar> {
    /// Reads command line, environment and file. Errors are returned beside the configuration; do not start with it if
    /// there are any.
    pub fn read(&self, name: Name, environment: &dyn Fn(&str) -> Option<String>) -> (GatewayConfig, Mistakes) {
        let mut reading = Reading::new(&self.written, Sidecar::FLAGS, Sidecar::LATER, Sidecar::KIND, environment);
        let as_rbac_proxy = name == Name::KubeRbacProxy;
        if as_rbac_proxy {
            reading = reading.with_defaults(guard::DEFAULTS);
        }
        let mut who = gateway::who::who(&mut reading);
        let forwarding = forwarding(&mut reading);
        let authorization_config = gateway::who::authorization_config(&mut reading);
        let configured = authorization_config.is_some();
        let modes = gateway::who::modes(&mut reading, configured);
        gateway::who::without_anonymous(&mut reading, &mut who, &modes);
        let api_server = api_server(&mut reading);
        let delegated = gateway::delegated::delegated(
            &mut reading,
            &who,
            &modes,
            forwarding.request_timeout,
            Otherwise::ApiServer(api_server.as_deref()),
        );
        without_anybody_to_ask(&mut reading, &who, &modes, api_server.as_deref());
        let mut serving = gateway::serving::serving(&mut reading, &who);
        if reading.given("secure-listen-address") {
            if let Some(address) = reading.parse("secure-listen-address", listen_address) {
                serving.address = address;
            }
            for other in ["bind-address", "secure-port"] {
                if reading.given(other) {
                    reading.problem(other, "cannot be given together with --secure-listen-address");
                }
            }
        } else if as_rbac_proxy && !["bind-address", "secure-port"].iter().any(|other| reading.given(other)) {
            reading.problem("secure-listen-address", "required: the address to serve on, such as 0.0.0.0:8443");
        }
        serving.endpoints = endpoints(&mut reading, serving.address);
        serving.requested = requested(&mut reading, api_server.as_deref());
        let given = |name: &str| reading.given(name);
        if as_rbac_proxy && self_made(&serving) && !given("cert-dir") && !given("data-dir") {
            serving.tls.unwritten = tls::unwritten_names();
        }
        let mut config = GatewayConfig {
            data_dir: data_dir(&mut reading, &serving),
            limits: gateway::serving::limits(&mut reading),
            serving,
            delegated,
            who,
            serve_delegation: false,
            policy_file: gateway::who::policy_file(&mut reading, &modes, configured),
            modes,
            authorization_config,
            behind: behind(&mut reading, &forwarding),
            guard: guard::guard(&mut reading, as_rbac_proxy),
            forwarding,
            shutdown: gateway::serving::shutdown(&mut reading),
            seen: gateway::seen(&mut reading),
        };
        // kube-rbac-proxy keeps the header Host.
        let keeps_host = config.guard.asks != Asks::Request;
        config.behind.upstreams.iter_mut().for_each(|upstream| upstream.keeps_host = keeps_host);
        compatible::read(&mut reading, &mut config);
        openid::read(&mut reading, &mut config);
        (config, reading.end())
    }
}

/// The data directory. It is optional if nothing is stored: a pod's file system may be read-only and its user without a
/// home.
fn data_dir(reading: &mut Reading<'_>, serving: &gateway::Serving) -> PathBuf {
    let keeps = serving.requested.is_some() || self_made(serving) && serving.tls.unwritten.is_empty();
    if keeps { gateway::data_dir(reading) } else { gateway::data_dir_if_any(reading).unwrap_or_default() }
}

/// Whether no flag provides a serving certificate, so that one is generated.
fn self_made(serving: &gateway::Serving) -> bool {
    serving.requested.is_none() && serving.tls.pair.is_none() && serving.tls.named.is_empty()
}

/// The address of `--proxy-endpoints-port`, at the host of the main listener.
fn endpoints(reading: &mut Reading<'_>, beside: SocketAddr) -> Option<SocketAddr> {
    const PORT: &str = "proxy-endpoints-port";
    let port = u16::try_from(reading.count(PORT, u64::from(u16::MAX))).ok().filter(|port| *port != 0)?;
    if port == beside.port() {
        reading.problem(PORT, "must differ from the port of --secure-listen-address");
    }
    Some(SocketAddr::new(beside.ip(), port))
}

/// `--kubeconfig`, or `in-cluster` within a pod.
fn api_server(reading: &mut Reading<'_>) -> Option<PathBuf> {
    let given = reading.path("kubeconfig");
    given.or_else(|| reading.environment(IN_POD).map(|_| PathBuf::from("in-cluster")))
}

/// `--request-serving-certificate`, from the cluster of `--kubeconfig`.
fn requested(reading: &mut Reading<'_>, api_server: Option<&Path>) -> Option<Requested> {
    const SIGNER: &str = "request-serving-certificate";
    const NAMES: &str = "serving-certificate-names";
    let (signer, names) = (reading.text(SIGNER), reading.list(NAMES));
    if signer.is_empty() {
        if !names.is_empty() {
            reading.problem(NAMES, format_args!("not used without --{SIGNER}"));
        }
        return None;
    }
    // As kube-apiserver validates it (pkg/apis/certificates/validation): a domain and a path.
    if signer.split_once('/').is_none_or(|(domain, path)| !registry::is_object_name(domain) || path.is_empty()) {
        reading.problem(SIGNER, format_args!("{signer:?} is not a signer name, such as example.com/serving"));
    }
    if names.is_empty() {
        reading.problem(NAMES, format_args!("required with --{SIGNER}: the Service's, such as library.library.svc"));
    }
    for other in ["tls-cert-file", "tls-sni-cert-key"] {
        if reading.given(other) {
            reading.problem(other, format_args!("cannot be given together with --{SIGNER}"));
        }
    }
    let Some(api_server) = api_server else {
        reading.problem(SIGNER, "needs --kubeconfig: the cluster of the signer");
        return None;
    };
    Some(Requested { signer, names, source: Source::named(api_server.to_owned()) })
}

/// Checks that some authenticator and, for tokens of a cluster, a TokenReview server is configured.
fn without_anybody_to_ask(reading: &mut Reading<'_>, who: &gateway::Who, modes: &[Mode], api_server: Option<&Path>) {
    const CLUSTER_S: &str = "authorization-kubeconfig";
    if api_server.is_some() {
        return;
    }
    let tokens = who.token_file.is_some()
        || who.authentication_config.is_some()
        || openid::is_given(reading)
        || reading.given("authentication-kubeconfig")
        || reading.given("authentication-token-webhook-config-file");
    let others = who.client_ca_file.is_some() || who.request_header.ca_file.is_some() || who.anonymous;
    if others && !tokens && reading.given(CLUSTER_S) {
        let message = "tokens of that cluster are refused, because no TokenReview is sent to it; use --kubeconfig \
                       instead, or also --authentication-kubeconfig";
        reading.warning(CLUSTER_S, message);
    }
    // Without an authorizer either, only one error is reported.
    let decided = !modes.contains(&Mode::Webhook)
        || reading.given(CLUSTER_S)
        || reading.given("authorization-webhook-config-file");
    if !tokens && !others && decided {
        reading.problem(
            "kubeconfig",
            "required for authentication; or --authentication-kubeconfig, --client-ca-file, --authentication-config or \
             --token-auth-file",
        );
    }
}

fn forwarding(reading: &mut Reading<'_>) -> Forwarding {
    Forwarding {
        request_timeout: reading.positive_duration("request-timeout"),
        // A redirect of an ordinary server is meant for its client.
        reject_redirects: false,
        forward_uid: reading.switch("forward-uid"),
        error_format: match reading.choice("error-format").as_str() {
            "kube-rbac-proxy" => ErrorFormat::KubeRbacProxy,
            _ => ErrorFormat::Status,
        },
        max_inflight: Some(reading.size("max-requests-inflight")).filter(|limit| *limit > 0),
        max_mutating_inflight: Some(reading.size("max-mutating-requests-inflight")).filter(|limit| *limit > 0),
    }
}

fn behind(reading: &mut Reading<'_>, forwarding: &Forwarding) -> Behind {
    let resolver = gateway::behind::resolver(reading);
    Behind {
        upstreams: upstreams::upstreams(reading, forwarding.request_timeout),
        registry: None,
        delegate: None,
        delegates_all: false,
        delegates_metrics: false,
        cluster: None,
        rules: registry::Rules::default(),
        proxy_client: None,
        resolver,
        egress: None,
        environment: None,
    }
}
