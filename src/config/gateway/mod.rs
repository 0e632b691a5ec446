//! The gateway's configuration: parses its flags into the settings of each module.

mod audit;
pub(super) mod authentication;
pub(super) mod backends;
pub(super) mod delegated_auth;
mod embedded_api;
pub mod flags;
mod object_store;
mod service_accounts;
pub(super) mod serving;
mod sidecar_auth;

use std::path::PathBuf;

pub use authentication::{AuthenticationConfig, AuthorizerMode, RequestHeaderSettings};
pub use backends::{BackendsConfig, ForwardingConfig, ResolverChoice};
pub use delegated_auth::DelegatedAuthConfig;
pub use embedded_api::EmbeddedApiConfig;
pub use object_store::{EtcdConfig, ObjectStoreConfig};
pub use service_accounts::ServiceAccountConfig;
pub use serving::{ProxyProtocolMode, ServingCertificateRequest, ServingConfig, ShutdownSettings};
pub use sidecar_auth::{AttributeSource, SidecarAuth};

use super::arguments::{Arguments, CommandFlags};
use super::flag::FlagGroup;
use super::observability::{self, ObservabilityConfig};
use super::parser::{Diagnostics, FlagParser};
use crate::listen::ServerLimits;

/// The command `narthex gateway`.
#[derive(Clone, Copy, Debug, Default)]
pub struct GatewayCommand;

impl CommandFlags for GatewayCommand {
    const FLAGS: &'static [&'static FlagGroup] = flags::GATEWAY;
    const KIND: &'static str = "GatewayConfiguration";
}

/// Configuration of the gateway and of the sidecar, in the types of the modules that use it.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Directory for generated certificates and last good state.
    pub data_dir: PathBuf,
    /// Listener and TLS.
    pub serving: ServingConfig,
    /// Limits of a client.
    pub limits: ServerLimits,
    /// Authentication.
    pub authentication: AuthenticationConfig,
    /// Authorizers, in order; the first that decides wins.
    pub authorization_modes: Vec<AuthorizerMode>,
    /// File with an `AuthorizationConfiguration`; `authorization_modes` is empty then.
    pub authorization_config: Option<PathBuf>,
    /// File with the RBAC objects of [`AuthorizerMode::Static`].
    pub policy_file: Option<PathBuf>,
    /// Whether delegated authentication and authorization are served to backends.
    pub serve_delegation: bool,
    /// Reviews sent to a kube-apiserver or webhook.
    pub delegated_auth: DelegatedAuthConfig,
    /// The embedded API server, if there is one.
    pub embedded_api: Option<EmbeddedApiConfig>,
    /// Backends.
    pub backends: BackendsConfig,
    /// File with the control planes behind the gateway, if it serves several.
    pub control_planes: Option<PathBuf>,
    /// Forwarding of requests.
    pub forwarding: ForwardingConfig,
    /// Shutdown.
    pub shutdown: ShutdownSettings,
    /// Settings in which a sidecar differs.
    pub sidecar: SidecarAuth,
    /// Log, access log, audit and admin listener.
    pub observability: ObservabilityConfig,
}

impl GatewayConfig {
    /// Whether this is a sidecar: its upstreams are configured directly, without a registry.
    pub fn is_sidecar(&self) -> bool {
        !self.backends.upstreams.is_empty()
    }
}

impl Arguments<GatewayCommand> {
    /// Reads command line, environment and file. Errors are returned beside the configuration, so that
    /// the files it names can be checked in the same run; do not start with it if there are any.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (GatewayConfig, Diagnostics) {
        let mut parser = FlagParser::new(&self.raw, GatewayCommand::FLAGS, GatewayCommand::KIND, environment);
        let config = gateway_config(&mut parser);
        (config, parser.finish())
    }
}

/// The configuration that the flags describe.
pub(super) fn gateway_config(parser: &mut FlagParser<'_>) -> GatewayConfig {
    let mut authentication = authentication::authentication(parser);
    let forwarding = backends::forwarding(parser);
    let authorization_config = authentication::authorization_config(parser);
    let configured = authorization_config.is_some();
    let has_store = embedded_api::is_enabled(parser);
    let modes = authentication::authorization_modes(parser, configured, has_store);
    authentication::disable_anonymous_with_always_allow(parser, &mut authentication, &modes);
    let data_dir = data_dir(parser);
    GatewayConfig {
        serving: serving::serving(parser, &authentication),
        limits: serving::limits(parser),
        delegated_auth: delegated_auth::delegated_auth(
            parser,
            &authentication,
            &modes,
            forwarding.request_timeout,
            delegated_auth::FallbackCluster::None,
        ),
        authentication,
        serve_delegation: authentication::serve_delegation(parser, &modes, configured),
        policy_file: authentication::policy_file(parser, &modes, configured, has_store),
        authorization_modes: modes,
        authorization_config,
        embedded_api: embedded_api::embedded_api(parser, has_store, &data_dir, &forwarding),
        backends: backends::backends(parser, &data_dir, &forwarding),
        control_planes: parser.path("control-planes-config"),
        data_dir,
        sidecar: SidecarAuth::for_gateway(forwarding.forward_uid),
        forwarding,
        shutdown: serving::shutdown(parser),
        observability: observability_config(parser),
    }
}

/// Log, access log, audit and admin listener of a command that relays requests.
pub(super) fn observability_config(parser: &mut FlagParser<'_>) -> ObservabilityConfig {
    ObservabilityConfig {
        log: observability::log_settings(parser),
        access: observability::access_log_settings(parser),
        audit: audit::audit_settings(parser),
        admin_address: observability::admin_address(parser),
        admin_token_file: parser.path("admin-token-file"),
        tracing_config_file: parser.path("tracing-config-file"),
    }
}

pub(super) fn secure_port(parser: &mut FlagParser<'_>) -> u16 {
    u16::try_from(parser.count("secure-port", u64::from(u16::MAX))).unwrap_or_default()
}

/// `--data-dir`, or the state directory of the XDG base directory specification; an error without either.
pub(super) fn data_dir(parser: &mut FlagParser<'_>) -> PathBuf {
    let found = optional_data_dir(parser);
    if found.is_none() {
        parser.add_problem("data-dir", "required, because neither XDG_STATE_HOME nor HOME is set");
    }
    found.unwrap_or_default()
}

/// As [`data_dir`], but none without an error.
pub(super) fn optional_data_dir(parser: &mut FlagParser<'_>) -> Option<PathBuf> {
    if let Some(path) = parser.path("data-dir") {
        return Some(path);
    }
    default_data_dir(&|variable| parser.environment(variable))
}

/// The default of `--data-dir`; none without a home.
pub(crate) fn default_data_dir(environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    // The specification: a relative path in these variables is to be ignored.
    let absolute = |variable: &str| environment(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    match (absolute("XDG_STATE_HOME"), absolute("HOME")) {
        (Some(state), _) => Some(state.join("narthex")),
        (None, Some(home)) => Some(home.join(".local/state/narthex")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;
    use crate::process::Problems;

    /// Reads a command line and an environment, with a home at `/home/jane`.
    fn read(line: &[&str], environment: &[(&str, &str)]) -> Result<GatewayConfig, Diagnostics> {
        let command = Arguments::<GatewayCommand>::augment_args(Command::new("gateway"));
        let matches = command.try_get_matches_from(std::iter::once(&"gateway").chain(line)).unwrap();
        let arguments = Arguments::<GatewayCommand>::from_arg_matches(&matches).unwrap();
        let (config, mistakes) =
            arguments.read(&|name| match environment.iter().find(|(variable, _)| *variable == name) {
                Some((_, value)) => Some((*value).to_owned()),
                None => (name == "HOME").then(|| "/home/jane".to_owned()),
            });
        if mistakes.problems == Problems::default() { Ok(config) } else { Err(mistakes) }
    }

    fn mistakes(line: &[&str]) -> String {
        read(line, &[]).expect_err("refused").problems.to_string()
    }

    #[test]
    fn without_any_flag() {
        let config = read(&[], &[]).unwrap();
        insta::assert_debug_snapshot!(config);
    }

    #[test]
    fn data_dir_default_follows_xdg() {
        let data_dir = |environment: &[_]| read(&[], environment).map(|config| config.data_dir);
        assert_eq!(data_dir(&[("XDG_STATE_HOME", "/state")]).unwrap(), PathBuf::from("/state/narthex"));
        let relative = [("XDG_STATE_HOME", "state")];
        assert_eq!(data_dir(&relative).unwrap(), PathBuf::from("/home/jane/.local/state/narthex"));
        assert_eq!(
            data_dir(&[("HOME", "nowhere")]).unwrap_err().problems.to_string(),
            "--data-dir: required, because neither XDG_STATE_HOME nor HOME is set"
        );
        assert_eq!(read(&["--data-dir=here"], &[]).unwrap().data_dir, PathBuf::from("here"));
    }

    #[test]
    fn bind_address_default_depends_on_certificate() {
        let pair = ["--tls-cert-file=s.crt", "--tls-private-key-file=s.key"];
        let address = |line: &[&str]| read(line, &[]).unwrap().serving.address.to_string();
        assert_eq!(address(&[]), "127.0.0.1:6443");
        assert_eq!(address(&pair), "0.0.0.0:6443");
        assert_eq!(address(&[pair[0], pair[1], "--bind-address=::1"]), "[::1]:6443");
        assert_eq!(address(&["--tls-sni-cert-key=s.crt,s.key:a.example"]), "0.0.0.0:6443");
    }

    #[test]
    fn flag_precedence_command_line_environment_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("narthex.yaml");
        let text = "apiVersion: narthex.dev/v1alpha1\nkind: GatewayConfiguration\n\
                    securePort: 3\nidleTimeout: 3s\nanonymousAuth: true\nmaxConnections: 3\n";
        std::fs::write(&file, text).unwrap();
        let environment = [
            ("NARTHEX_CONFIG", file.to_str().unwrap()),
            ("NARTHEX_SECURE_PORT", "2"),
            ("NARTHEX_IDLE_TIMEOUT", "2s"),
            ("NARTHEX_ANONYMOUS_AUTH", "false"),
            // Kubernetes sets this for a Service called narthex; it is no flag.
            ("NARTHEX_PORT", "tcp://10.0.0.1:443"),
        ];
        let config = read(&["--secure-port=1"], &environment).unwrap();
        assert_eq!(config.serving.address.port(), 1);
        assert_eq!(config.limits.idle_timeout.as_secs(), 2);
        assert!(!config.authentication.anonymous);
        assert_eq!(config.limits.max_connections, 3);

        let mistakes =
            read(&[], &[("NARTHEX_CONFIG", file.to_str().unwrap()), ("NARTHEX_SECURE_PORT", "x")]).unwrap_err();
        assert_eq!(mistakes.problems.to_string(), "NARTHEX_SECURE_PORT: \"x\": use a whole number");
    }

    #[test]
    fn log_level_flag_verbosity_and_filter() {
        let log = |line: &[&str], environment: &[_]| {
            let log = read(line, environment).unwrap().observability.log;
            (log.level, log.filter)
        };
        assert_eq!(log(&[], &[]), ("info".to_owned(), None));
        assert_eq!(log(&["-v", "4"], &[]), ("4".to_owned(), None));
        assert_eq!(log(&["-v=6"], &[]), ("6".to_owned(), None));
        assert_eq!(log(&["-v4", "--log-level=warn"], &[]), ("warn".to_owned(), None));
        let filter = [("NARTHEX_LOG", "narthex=trace")];
        assert_eq!(log(&["-v4"], &filter), ("4".to_owned(), Some("narthex=trace".to_owned())));
    }

    #[test]
    fn gateway_flag_error_messages() {
        let cases: &[(&[&str], &str)] = &[
            (&["--bind-address=localhost"], "--bind-address: \"localhost\": not an IP address"),
            (&["--secure-port=70000"], "--secure-port: 70000 is too large; the maximum is 65535"),
            (&["--secure-port", "-1"], "--secure-port: must not be negative"),
            (&["--secure-port=http"], "--secure-port: \"http\": use a whole number"),
            (&["--max-requests-inflight=-1"], "--max-requests-inflight: must not be negative"),
            (&["--goaway-chance=0.03"], "--goaway-chance: 0.03 is not between 0 and 0.02"),
            (&["--goaway-chance", "-0.1"], "--goaway-chance: -0.1 is not between 0 and 0.02"),
            (&["--goaway-chance=NaN"], "--goaway-chance: NaN is not between 0 and 0.02"),
            (&["--request-timeout=0"], "--request-timeout: must be greater than 0"),
            (&["--request-timeout", "-5s"], "--request-timeout: must not be negative"),
            (&["--request-timeout=60"], "--request-timeout: \"60\": use a duration such as 90s, 1m30s or 1h"),
            (&["--anonymous-auth=maybe"], "--anonymous-auth: \"maybe\": use true or false"),
            (
                &["--tls-min-version=VersionTLS10"],
                "--tls-min-version: \"VersionTLS10\" is not supported; use VersionTLS12 or VersionTLS13",
            ),
            (
                &["--error-format=xml"],
                "--error-format: \"xml\" is not supported; use status or text or kube-rbac-proxy",
            ),
            (&["--serving-metrics=delegate"], "--serving-metrics: delegate needs --delegate-kubeconfig"),
            (&["--serving-metrics=both"], "--serving-metrics: \"both\" is not supported; use gateway or delegate"),
            (&["--tls-cert-file=a.crt"], "--tls-cert-file: a.crt needs its key; give --tls-private-key-file too"),
            (
                &["--tls-private-key-file=a.key"],
                "--tls-private-key-file: a.key needs its certificate; give --tls-cert-file too",
            ),
            (
                &["--proxy-client-cert-file=a.crt"],
                "--proxy-client-cert-file: a.crt needs its key; give --proxy-client-key-file too",
            ),
            (
                &["--tls-sni-cert-key=a.crt"],
                "--tls-sni-cert-key: \"a.crt\": expected certificate and key separated by a comma: server.crt,server.key",
            ),
            (
                &["--requestheader-username-headers=a,,b"],
                "--requestheader-username-headers: empty value in \"requestheader-username-headers\"",
            ),
            (
                &["--requestheader-allowed-names=a", "--requestheader-allowed-names=,"],
                "--requestheader-allowed-names: empty value in \"requestheader-allowed-names\"",
            ),
            (
                &["--requestheader-group-headers=X Group"],
                "--requestheader-group-headers: \"X Group\" is not a valid header name",
            ),
            (
                &["--requestheader-uid-headers=X-Uid"],
                "--requestheader-uid-headers: is set without specifying the standard X-Remote-Uid header - API \
                 aggregation will not work",
            ),
            (
                &["--authorization-mode=ABAC"],
                "--authorization-mode: \"ABAC\" is not a mode; supported are AlwaysAllow, AlwaysDeny, RBAC (or Static) and Webhook",
            ),
            (
                &["--authorization-mode="],
                "--authorization-mode: at least one mode is required; supported are AlwaysAllow, AlwaysDeny, RBAC (or Static) and Webhook",
            ),
            (
                &["--authorization-mode=AlwaysAllow,AlwaysAllow"],
                "--authorization-mode: AlwaysAllow is given more than once",
            ),
            (
                &["--authorization-mode=RBAC,Static", "--authorization-policy-file=p.yaml"],
                "--authorization-mode: Static is given more than once",
            ),
            (
                &["--authorization-mode=Static", "--registry-dir=r"],
                "--authorization-policy-file: required with --authorization-mode=RBAC",
            ),
            (
                &["--authorization-policy-file=p.yaml", "--registry-dir=r"],
                "--authorization-policy-file: not used without RBAC among --authorization-mode",
            ),
            (
                &["--authorization-mode=Webhook"],
                "--authorization-kubeconfig: required with --authorization-mode=Webhook; or --authorization-webhook-config-file",
            ),
            (
                &["--authorization-kubeconfig=k"],
                "--authorization-kubeconfig: not used without Webhook among --authorization-mode",
            ),
            (
                &[
                    "--authorization-mode=Webhook",
                    "--authorization-kubeconfig=k",
                    "--authorization-webhook-config-file=w",
                ],
                "--authorization-webhook-config-file: cannot be given together with --authorization-kubeconfig",
            ),
            (
                &["--authorization-config=c", "--authorization-kubeconfig=k"],
                "--authorization-config: can not be specified together with --authorization-kubeconfig",
            ),
            (
                &["--serve-delegation", "--registry-dir=r"],
                "--serve-delegation: needs --authorization-mode Webhook or RBAC, or --authorization-config: with \
                 AlwaysAllow, every user could send reviews about every user, and all would be allowed",
            ),
            (
                &["--authorization-always-allow-paths=/a*b"],
                "--authorization-always-allow-paths: only trailing * allowed in \"a*b\"",
            ),
            (
                &["--authentication-token-webhook-cache-ttl", "-1s"],
                "--authentication-token-webhook-cache-ttl: must not be negative",
            ),
            (&["--api-audiences=a,,b"], "--api-audiences: empty value in \"api-audiences\""),
            (
                &["--proxy-protocol=required"],
                "--proxy-protocol: needs --proxy-protocol-trusted-cidrs: without it, every client could claim any address",
            ),
            (
                &["--proxy-protocol=optional", "--proxy-protocol-trusted-cidrs=10/8"],
                "--proxy-protocol-trusted-cidrs: \"10/8\": use a network such as 10.0.0.0/8 or fd00::/8",
            ),
            (
                &["--audit-policy-file=p.yaml"],
                "--audit-policy-file: has no effect without --audit-log-path or --audit-webhook-config-file",
            ),
            (&["--audit-log-path=a.log"], "--audit-log-path: has no effect without --audit-policy-file"),
            (
                &["--audit-webhook-config-file=k"],
                "--audit-webhook-config-file: has no effect without --audit-policy-file",
            ),
            (&["--audit-log-maxage=7"], "--audit-log-maxage: not used without --audit-log-path"),
            (
                &["--audit-webhook-batch-max-size=7"],
                "--audit-webhook-batch-max-size: not used without --audit-webhook-config-file",
            ),
            (
                &["--audit-policy-file=p", "--audit-log-path=-", "--audit-log-maxbackup=-1"],
                "--audit-log-maxbackup: must not be negative",
            ),
            (
                &["--audit-policy-file=p", "--audit-log-path=-", "--audit-log-format=yaml"],
                "--audit-log-format: \"yaml\" is not supported; use json or legacy",
            ),
            (
                &["--audit-policy-file=p", "--audit-webhook-config-file=k", "--audit-webhook-mode=blocking"],
                "--audit-webhook-mode: \"blocking\" is not supported; use batch",
            ),
            (
                &["--audit-policy-file=p", "--audit-webhook-config-file=k", "--audit-webhook-batch-buffer-size=0"],
                "--audit-webhook-batch-buffer-size: must be greater than 0",
            ),
            (
                &["--admin-address=6480"],
                "--admin-address: \"6480\": missing port in address; use HOST:PORT, such as 127.0.0.1:8443 or :8443",
            ),
            (&["--etcd-prefix=/p"], "--etcd-prefix: needs --etcd-servers"),
            (
                &["--etcd-servers=http://a:1", "--store-file=s"],
                "--store-file: cannot be given together with --etcd-servers",
            ),
            (&["--leader-elect"], "--leader-elect: not used without --kubeconfig or --etcd-servers"),
            (
                &["--kubeconfig=k", "--leader-elect-lease-duration=10s"],
                "--leader-elect-lease-duration: must be longer than --leader-elect-renew-deadline",
            ),
            (
                &["--kubeconfig=k", "--leader-elect-retry-period=9s"],
                "--leader-elect-renew-deadline: must be longer than 1.2 times --leader-elect-retry-period",
            ),
            (
                &["--kubeconfig=k", "--leader-elect-lease-duration=15500ms"],
                "--leader-elect-lease-duration: must be whole seconds, as in a Lease",
            ),
            (
                &["--kubeconfig=k", "--leader-elect-resource-lock=endpoints"],
                "--leader-elect-resource-lock: \"endpoints\" is not supported; use leases",
            ),
            (
                &["--kubeconfig=k", "--leader-elect-resource-namespace=../x"],
                "--leader-elect-resource-namespace: \"../x\" is not a valid object name",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(mistakes(line), *expected, "{line:?}");
        }
    }

    #[test]
    fn audit_flag_defaults_as_upstream() {
        let audit = |line: &[&str]| read(line, &[]).unwrap().observability.audit.unwrap();
        let policy = "--audit-policy-file=p.yaml";
        let both = audit(&[policy, "--audit-log-path=-", "--audit-webhook-config-file=k"]);
        insta::assert_debug_snapshot!(both, @r#"
        Settings {
            policy_file: "p.yaml",
            log: Some(
                AuditLogSettings {
                    path: None,
                    format: Json,
                    max_age: 366,
                    max_backups: 100,
                    max_size: 100,
                },
            ),
            webhook: Some(
                AuditWebhookSettings {
                    config_file: "k",
                    buffer: 10000,
                    batch: 400,
                    wait: 30s,
                    throttle: Some(
                        (
                            10.0,
                            15,
                        ),
                    ),
                    backoff: 10s,
                },
            ),
        }
        "#);
        let log = audit(&[policy, "--audit-log-path=a.log", "--audit-log-format=legacy", "--audit-log-maxsize=0"]);
        assert_eq!(log.log.unwrap().path, Some(PathBuf::from("a.log")));
        let webhook = ["--audit-webhook-config-file=k", "--audit-webhook-batch-throttle-enable=false"];
        assert_eq!(audit(&[policy, webhook[0], webhook[1]]).webhook.unwrap().throttle, None);
    }

    #[test]
    fn gateway_flags_report_all_errors() {
        let text = mistakes(&["--secure-port=x", "--goaway-chance=1", "--tls-cert-file=a.crt"]);
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn proxy_from_environment_flag() {
        let proxies = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", ".svc")];
        assert_eq!(read(&[], &proxies).unwrap().backends.environment_proxies, None);
        let asked = read(&["--proxy-from-environment"], &proxies).unwrap().backends.environment_proxies;
        assert!(asked.is_some_and(|environment| !environment.is_empty()));
        assert_eq!(read(&["--proxy-from-environment"], &[]).unwrap().backends.environment_proxies, None);
        let refused = read(&["--proxy-from-environment"], &[("https_proxy", "ftp://u:secret@h")]).unwrap_err();
        assert_eq!(
            refused.problems.to_string(),
            "--proxy-from-environment: https_proxy: \"ftp://…@h\": unsupported scheme \"ftp\""
        );
    }

    #[test]
    fn admin_address_accepts_names_and_port_alone() {
        for (text, expected) in [
            ("localhost:6481", "127.0.0.1:6481"),
            ("[::1]:6481", "[::1]:6481"),
            (":6481", "0.0.0.0:6481"),
            ("127.0.0.1:http", "127.0.0.1:80"),
        ] {
            let config = read(&[&format!("--admin-address={text}")], &[]).unwrap();
            assert_eq!(
                config.observability.admin_address.map(|address| address.to_string()).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        assert_eq!(read(&["--admin-address="], &[]).unwrap().observability.admin_address, None);
    }

    #[test]
    fn sample_standalone_gateway_loads() {
        let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/standalone/gateway.yaml");
        let config = read(&["--config", sample], &[]).unwrap();
        assert_eq!(config.authorization_modes, [AuthorizerMode::Static("RBAC")]);
        assert_eq!(config.authentication.drop_groups, ["system:masters"]);
        // Paths in a configuration file are relative to that file.
        crate::authorize::RbacPolicy::load(config.policy_file.as_ref().unwrap()).unwrap();
        let authentication = config.authentication.authentication_config.as_ref().unwrap();
        let configuration = crate::authenticate::jwt::AuthenticationConfiguration::load(authentication);
        assert_eq!(configuration.unwrap().issuers.len(), 1);
    }

    #[test]
    fn sample_systemd_gateway_loads() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/systemd/gateway.yaml");
        let config = read(&["--config", file], &[]).unwrap();
        assert_eq!(config.shutdown.delay.as_secs(), 10);
        // Only a unit of this type has its stop timeout extended to the whole shutdown (EXTEND_TIMEOUT_USEC).
        let unit = include_str!("../../../deploy/systemd/narthex.service");
        assert!(unit.lines().any(|line| line == "Type=notify"));
    }
}
