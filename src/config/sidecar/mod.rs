//! The sidecar's configuration: the gateway's, with upstreams instead of a registry.

pub mod flags;
mod kube_rbac_proxy_flags;
mod oidc_flags;
mod sidecar_auth;
mod upstreams;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kubeapi::names;

use super::arguments::{Arguments, CommandFlags};
use super::environment_proxies::environment_proxies;
use super::flag::FlagGroup;
use super::gateway::delegated_auth::FallbackCluster;
use super::gateway::{
    self, AttributeSource, AuthorizerMode, BackendsConfig, ForwardingConfig, GatewayConfig, ServingCertificateRequest,
};
use super::host_port::listen_address;
use super::parser::{Diagnostics, FlagParser};
use crate::kubeclient::KubeconfigSource;
use crate::message::ErrorFormat;
use crate::{registry, tls};

/// The command `narthex sidecar`.
#[derive(Clone, Copy, Debug, Default)]
pub struct SidecarCommand;

impl CommandFlags for SidecarCommand {
    const FLAGS: &'static [&'static FlagGroup] = flags::SIDECAR;
    const KIND: &'static str = "SidecarConfiguration";
}

/// The environment variable that is set in every pod.
const IN_POD_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";

/// The program name it was started under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramName {
    /// `narthex`.
    Narthex,
    /// `kube-rbac-proxy`: with the defaults of that program.
    KubeRbacProxy,
}

impl Arguments<SidecarCommand> {
    /// Reads command line, environment and file. Errors are returned beside the configuration; do not start with it if
    /// there are any.
    pub fn read(
        &self,
        name: ProgramName,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> (GatewayConfig, Diagnostics) {
        let mut parser = FlagParser::new(&self.raw, SidecarCommand::FLAGS, SidecarCommand::KIND, environment);
        let as_rbac_proxy = name == ProgramName::KubeRbacProxy;
        if as_rbac_proxy {
            parser = parser.with_defaults(sidecar_auth::DEFAULTS);
        }
        let mut authentication = gateway::authentication::authentication(&mut parser);
        let forwarding = forwarding(&mut parser);
        let authorization_config = gateway::authentication::authorization_config(&mut parser);
        let configured = authorization_config.is_some();
        let modes = gateway::authentication::authorization_modes(&mut parser, configured, false);
        gateway::authentication::disable_anonymous_with_always_allow(&mut parser, &mut authentication, &modes);
        let api_server = api_server(&mut parser);
        let delegated = gateway::delegated_auth::delegated_auth(
            &mut parser,
            &authentication,
            &modes,
            forwarding.request_timeout,
            FallbackCluster::ApiServer(api_server.as_deref()),
        );
        check_token_reviewer(&mut parser, &authentication, &modes, api_server.as_deref());
        let mut serving = gateway::serving::serving(&mut parser, &authentication);
        if parser.is_given("secure-listen-address") {
            if let Some(address) = parser.parse("secure-listen-address", listen_address) {
                serving.address = address;
            }
            for other in ["bind-address", "secure-port"] {
                if parser.is_given(other) {
                    parser.add_problem(other, "cannot be given together with --secure-listen-address");
                }
            }
        } else if as_rbac_proxy && !["bind-address", "secure-port"].iter().any(|other| parser.is_given(other)) {
            parser.add_problem("secure-listen-address", "required: the address to serve on, such as 0.0.0.0:8443");
        }
        serving.health_address = health_address(&mut parser, serving.address);
        serving.certificate_request = certificate_request(&mut parser, api_server.as_deref());
        let given = |name: &str| parser.is_given(name);
        if as_rbac_proxy && needs_generated_certificate(&serving) && !given("cert-dir") && !given("data-dir") {
            serving.tls.in_memory_names = tls::in_memory_serving_names();
        }
        let mut config = GatewayConfig {
            data_dir: data_dir(&mut parser, &serving),
            limits: gateway::serving::limits(&mut parser),
            serving,
            delegated_auth: delegated,
            authentication,
            serve_delegation: false,
            policy_file: gateway::authentication::policy_file(&mut parser, &modes, configured, false),
            authorization_modes: modes,
            authorization_config,
            embedded_api: None,
            backends: backends(&mut parser, &forwarding),
            control_planes: None,
            sidecar: sidecar_auth::sidecar_auth(&mut parser, as_rbac_proxy),
            forwarding,
            shutdown: gateway::serving::shutdown(&mut parser),
            observability: gateway::observability_config(&mut parser),
        };
        // kube-rbac-proxy keeps the header Host.
        let keeps_host = config.sidecar.attribute_source != AttributeSource::Request;
        config.backends.upstreams.iter_mut().for_each(|upstream| upstream.keeps_host = keeps_host);
        kube_rbac_proxy_flags::read(&mut parser, &mut config);
        oidc_flags::read(&mut parser, &mut config);
        (config, parser.finish())
    }
}

/// The data directory. It is optional if nothing is stored: a pod's file system may be read-only and its user without a
/// home.
fn data_dir(parser: &mut FlagParser<'_>, serving: &gateway::ServingConfig) -> PathBuf {
    let keeps = serving.certificate_request.is_some()
        || needs_generated_certificate(serving) && serving.tls.in_memory_names.is_empty();
    if keeps { gateway::data_dir(parser) } else { gateway::optional_data_dir(parser).unwrap_or_default() }
}

/// Whether no flag provides a serving certificate, so that one is generated.
fn needs_generated_certificate(serving: &gateway::ServingConfig) -> bool {
    serving.certificate_request.is_none() && serving.tls.pair.is_none() && serving.tls.named.is_empty()
}

/// The address of `--proxy-endpoints-port`, at the host of the main listener.
fn health_address(parser: &mut FlagParser<'_>, beside: SocketAddr) -> Option<SocketAddr> {
    const PORT: &str = "proxy-endpoints-port";
    let port = u16::try_from(parser.count(PORT, u64::from(u16::MAX))).ok().filter(|port| *port != 0)?;
    if port == beside.port() {
        parser.add_problem(PORT, "must differ from the port of --secure-listen-address");
    }
    Some(SocketAddr::new(beside.ip(), port))
}

/// `--kubeconfig`, or `in-cluster` within a pod.
fn api_server(parser: &mut FlagParser<'_>) -> Option<PathBuf> {
    let given = parser.path("kubeconfig");
    given.or_else(|| parser.environment(IN_POD_VARIABLE).map(|_| PathBuf::from("in-cluster")))
}

/// `--request-serving-certificate`, from the cluster of `--kubeconfig`.
fn certificate_request(parser: &mut FlagParser<'_>, api_server: Option<&Path>) -> Option<ServingCertificateRequest> {
    const SIGNER: &str = "request-serving-certificate";
    const NAMES: &str = "serving-certificate-names";
    let (signer, names) = (parser.text(SIGNER), parser.list(NAMES));
    if signer.is_empty() {
        if !names.is_empty() {
            parser.add_problem(NAMES, format_args!("not used without --{SIGNER}"));
        }
        return None;
    }
    // As kube-apiserver validates it (pkg/apis/certificates/validation): a domain and a path.
    if signer.split_once('/').is_none_or(|(domain, path)| !names::is_dns_subdomain(domain) || path.is_empty()) {
        parser.add_problem(SIGNER, format_args!("{signer:?} is not a signer name, such as example.com/serving"));
    }
    if names.is_empty() {
        parser.add_problem(NAMES, format_args!("required with --{SIGNER}: the Service's, such as library.library.svc"));
    }
    for other in ["tls-cert-file", "tls-sni-cert-key"] {
        if parser.is_given(other) {
            parser.add_problem(other, format_args!("cannot be given together with --{SIGNER}"));
        }
    }
    let Some(api_server) = api_server else {
        parser.add_problem(SIGNER, "needs --kubeconfig: the cluster of the signer");
        return None;
    };
    Some(ServingCertificateRequest { signer, names, source: KubeconfigSource::from_flag(api_server.to_owned()) })
}

/// Checks that some authenticator and, for tokens of a cluster, a TokenReview server is configured.
fn check_token_reviewer(
    parser: &mut FlagParser<'_>,
    authentication: &gateway::AuthenticationConfig,
    modes: &[AuthorizerMode],
    api_server: Option<&Path>,
) {
    const AUTHORIZATION_KUBECONFIG: &str = "authorization-kubeconfig";
    if api_server.is_some() {
        return;
    }
    let tokens = authentication.token_file.is_some()
        || authentication.authentication_config.is_some()
        || oidc_flags::is_given(parser)
        || parser.is_given("authentication-kubeconfig")
        || parser.is_given("authentication-token-webhook-config-file");
    let others = authentication.client_ca_file.is_some()
        || authentication.request_header.ca_file.is_some()
        || authentication.anonymous;
    if others && !tokens && parser.is_given(AUTHORIZATION_KUBECONFIG) {
        let message = "tokens of that cluster are refused, because no TokenReview is sent to it; use --kubeconfig \
                       instead, or also --authentication-kubeconfig";
        parser.add_warning(AUTHORIZATION_KUBECONFIG, message);
    }
    // Without an authorizer either, only one error is reported.
    let decided = !modes.contains(&AuthorizerMode::Webhook)
        || parser.is_given(AUTHORIZATION_KUBECONFIG)
        || parser.is_given("authorization-webhook-config-file");
    if !tokens && !others && decided {
        parser.add_problem(
            "kubeconfig",
            "required for authentication; or --authentication-kubeconfig, --client-ca-file, --authentication-config or \
             --token-auth-file",
        );
    }
}

fn forwarding(parser: &mut FlagParser<'_>) -> ForwardingConfig {
    ForwardingConfig {
        request_timeout: parser.positive_duration("request-timeout"),
        // A redirect of an ordinary server is meant for its client.
        reject_redirects: false,
        forward_uid: parser.switch("forward-uid"),
        error_format: match parser.choice("error-format").as_str() {
            "kube-rbac-proxy" => ErrorFormat::KubeRbacProxy,
            _ => ErrorFormat::Status,
        },
        max_inflight: Some(parser.memory_count("max-requests-inflight")).filter(|limit| *limit > 0),
        max_mutating_inflight: Some(parser.memory_count("max-mutating-requests-inflight")).filter(|limit| *limit > 0),
    }
}

fn backends(parser: &mut FlagParser<'_>, forwarding: &ForwardingConfig) -> BackendsConfig {
    let resolver = gateway::backends::resolver(parser);
    BackendsConfig {
        upstreams: upstreams::upstreams(parser, forwarding.request_timeout),
        registry: None,
        delegate: None,
        delegates_unclaimed_paths: false,
        delegates_metrics: false,
        cluster: None,
        election: None,
        resolve_rules: registry::ResolveRules::default(),
        proxy_client: None,
        resolver,
        egress: None,
        // As kube-rbac-proxy, whose upstreams and API server are reached by Go's default transport.
        environment_proxies: environment_proxies(parser),
    }
}
