//! The gateway's configuration: parses its flags into the settings of each module.

mod audit;
pub(super) mod behind;
pub(super) mod delegated;
pub mod flags;
pub(super) mod serving;
pub(super) mod who;

use std::path::PathBuf;

pub use behind::{Behind, Forwarding, ResolverChoice};
pub use delegated::Delegated;
pub use serving::{ProxyProtocol, Requested, Serving, Shutdown};
pub use who::{Mode, RequestHeader, Who};

use super::arguments::{Arguments, Role};
use super::flag::{Flag, Group};
use super::reading::{Mistakes, Reading};
use super::seen::{self, Seen};
use super::sidecar::Guard;
use crate::listen::Limits;

/// The command `narthex gateway`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gateway;

impl Role for Gateway {
    const FLAGS: &'static [&'static Group] = flags::GATEWAY;
    const LATER: &'static [Flag] = flags::LATER;
    const KIND: &'static str = "GatewayConfiguration";
}

/// Configuration of the gateway and of the sidecar, in the types of the modules that use it.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Directory for generated certificates and last good state.
    pub data_dir: PathBuf,
    /// Listener and TLS.
    pub serving: Serving,
    /// Limits of a client.
    pub limits: Limits,
    /// Authentication.
    pub who: Who,
    /// Authorizers, in order; the first that decides wins.
    pub modes: Vec<Mode>,
    /// File with an `AuthorizationConfiguration`; `modes` is empty then.
    pub authorization_config: Option<PathBuf>,
    /// File with the RBAC objects of [`Mode::Static`].
    pub policy_file: Option<PathBuf>,
    /// Whether delegated authentication and authorization are served to backends.
    pub serve_delegation: bool,
    /// Reviews sent to a kube-apiserver or webhook.
    pub delegated: Delegated,
    /// Backends.
    pub behind: Behind,
    /// Forwarding of requests.
    pub forwarding: Forwarding,
    /// Shutdown.
    pub shutdown: Shutdown,
    /// Settings in which a sidecar differs.
    pub guard: Guard,
    /// Log, access log, audit and admin listener.
    pub seen: Seen,
}

impl GatewayConfig {
    /// Whether this is a sidecar: its upstreams are configured directly, without a registry.
    pub fn is_sidecar(&self) -> bool {
        !self.behind.upstreams.is_empty()
    }
}

impl Arguments<Gateway> {
    /// Reads command line, environment and file. Errors are returned beside the configuration, so that
    /// the files it names can be checked in the same run; do not start with it if there are any.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (GatewayConfig, Mistakes) {
        let mut reading = Reading::new(&self.written, Gateway::FLAGS, Gateway::LATER, Gateway::KIND, environment);
        let mut who = who::who(&mut reading);
        let forwarding = behind::forwarding(&mut reading);
        let authorization_config = who::authorization_config(&mut reading);
        let configured = authorization_config.is_some();
        let modes = who::modes(&mut reading, configured);
        who::without_anonymous(&mut reading, &mut who, &modes);
        let data_dir = data_dir(&mut reading);
        let config = GatewayConfig {
            serving: serving::serving(&mut reading, &who),
            limits: serving::limits(&mut reading),
            delegated: delegated::delegated(
                &mut reading,
                &who,
                &modes,
                forwarding.request_timeout,
                delegated::Otherwise::Nobody,
            ),
            who,
            serve_delegation: who::serve_delegation(&mut reading, &modes, configured),
            policy_file: who::policy_file(&mut reading, &modes, configured),
            modes,
            authorization_config,
            behind: behind::behind(&mut reading, &data_dir, &forwarding),
            data_dir,
            guard: Guard::of_gateway(forwarding.forward_uid),
            forwarding,
            shutdown: serving::shutdown(&mut reading),
            seen: seen(&mut reading),
        };
        (config, reading.end())
    }
}

/// Log, access log, audit and admin listener of a command that relays requests.
pub(super) fn seen(reading: &mut Reading<'_>) -> Seen {
    Seen {
        log: seen::log_settings(reading),
        access: seen::access(reading),
        audit: audit::audit(reading),
        admin_address: seen::admin_address(reading),
        admin_token_file: reading.path("admin-token-file"),
    }
}

pub(super) fn port(reading: &mut Reading<'_>) -> u16 {
    u16::try_from(reading.count("secure-port", u64::from(u16::MAX))).unwrap_or_default()
}

/// `--data-dir`, or the state directory of the XDG base directory specification; an error without either.
pub(super) fn data_dir(reading: &mut Reading<'_>) -> PathBuf {
    let found = data_dir_if_any(reading);
    if found.is_none() {
        reading.problem("data-dir", "required, because neither XDG_STATE_HOME nor HOME is set");
    }
    found.unwrap_or_default()
}

/// As [`data_dir`], but none without an error.
pub(super) fn data_dir_if_any(reading: &mut Reading<'_>) -> Option<PathBuf> {
    if let Some(path) = reading.path("data-dir") {
        return Some(path);
    }
    // The specification: a relative path in these variables is to be ignored.
    let absolute = |variable| reading.environment(variable).map(PathBuf::from).filter(|path| path.is_absolute());
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
    fn read(line: &[&str], environment: &[(&str, &str)]) -> Result<GatewayConfig, Mistakes> {
        let command = Arguments::<Gateway>::augment_args(Command::new("gateway"));
        let matches = command.try_get_matches_from(std::iter::once(&"gateway").chain(line)).unwrap();
        let arguments = Arguments::<Gateway>::from_arg_matches(&matches).unwrap();
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
    fn the_data_directory_follows_xdg() {
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
    fn everyone_can_connect_only_with_a_certificate_of_the_operator() {
        let pair = ["--tls-cert-file=s.crt", "--tls-private-key-file=s.key"];
        let address = |line: &[&str]| read(line, &[]).unwrap().serving.address.to_string();
        assert_eq!(address(&[]), "127.0.0.1:6443");
        assert_eq!(address(&pair), "0.0.0.0:6443");
        assert_eq!(address(&[pair[0], pair[1], "--bind-address=::1"]), "[::1]:6443");
        assert_eq!(address(&["--tls-sni-cert-key=s.crt,s.key:a.example"]), "0.0.0.0:6443");
    }

    #[test]
    fn command_line_over_environment_over_file() {
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
        assert!(!config.who.anonymous);
        assert_eq!(config.limits.max_connections, 3);

        let mistakes =
            read(&[], &[("NARTHEX_CONFIG", file.to_str().unwrap()), ("NARTHEX_SECURE_PORT", "x")]).unwrap_err();
        assert_eq!(mistakes.problems.to_string(), "NARTHEX_SECURE_PORT: \"x\": use a whole number");
    }

    #[test]
    fn the_log_level_has_three_names() {
        let log = |line: &[&str], environment: &[_]| {
            let log = read(line, environment).unwrap().seen.log;
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
    fn every_mistake_says_what_would_be_right() {
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
            (&["--authorization-mode=Static"], "--authorization-policy-file: required with --authorization-mode=RBAC"),
            (
                &["--authorization-policy-file=p.yaml"],
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
                &["--serve-delegation"],
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
            (&["--leader-elect"], "--leader-elect: not used without --kubeconfig"),
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
            (
                &["--tracing-config-file=x"],
                "--tracing-config-file: not in this version yet; this version has --access-log and the metrics at --admin-address",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(mistakes(line), *expected, "{line:?}");
        }
    }

    #[test]
    fn the_audit_is_as_upstream_has_it() {
        let audit = |line: &[&str]| read(line, &[]).unwrap().seen.audit.unwrap();
        let policy = "--audit-policy-file=p.yaml";
        let both = audit(&[policy, "--audit-log-path=-", "--audit-webhook-config-file=k"]);
        insta::assert_debug_snapshot!(both, @r#"
        Settings {
            policy_file: "p.yaml",
            log: Some(
                LogSettings {
                    path: None,
                    format: Json,
                    max_age: 366,
                    max_backups: 100,
                    max_size: 100,
                },
            ),
            webhook: Some(
                WebhookSettings {
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
    fn all_mistakes_at_once() {
        let text = mistakes(&["--secure-port=x", "--goaway-chance=1", "--tls-cert-file=a.crt"]);
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn what_comes_later_is_known() {
        assert_eq!(mistakes(&["--tracing-config-file=t.yaml"]).lines().count(), 1);
    }

    #[test]
    fn the_environments_proxies_are_asked_for() {
        let proxies = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", ".svc")];
        assert_eq!(read(&[], &proxies).unwrap().behind.environment, None);
        let asked = read(&["--proxy-from-environment"], &proxies).unwrap().behind.environment;
        assert!(asked.is_some_and(|environment| !environment.is_empty()));
        assert_eq!(read(&["--proxy-from-environment"], &[]).unwrap().behind.environment, None);
        let refused = read(&["--proxy-from-environment"], &[("https_proxy", "ftp://u:secret@h")]).unwrap_err();
        assert_eq!(
            refused.problems.to_string(),
            "--proxy-from-environment: https_proxy: \"ftp://…@h\": unsupported scheme \"ftp\""
        );
    }

    #[test]
    fn admin_address_takes_names_and_a_port_alone() {
        for (text, expected) in [
            ("localhost:6481", "127.0.0.1:6481"),
            ("[::1]:6481", "[::1]:6481"),
            (":6481", "0.0.0.0:6481"),
            ("127.0.0.1:http", "127.0.0.1:80"),
        ] {
            let config = read(&[&format!("--admin-address={text}")], &[]).unwrap();
            assert_eq!(
                config.seen.admin_address.map(|address| address.to_string()).as_deref(),
                Some(expected),
                "{text}"
            );
        }
        assert_eq!(read(&["--admin-address="], &[]).unwrap().seen.admin_address, None);
    }

    #[test]
    fn the_sample_without_a_kube_apiserver_is_understood() {
        let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/standalone/gateway.yaml");
        let config = read(&["--config", sample], &[]).unwrap();
        assert_eq!(config.modes, [Mode::Static("RBAC")]);
        assert_eq!(config.who.drop_groups, ["system:masters"]);
        // Paths in a configuration file are relative to that file.
        crate::authorize::Policy::load(config.policy_file.as_ref().unwrap()).unwrap();
        let authentication = config.who.authentication_config.as_ref().unwrap();
        let configuration = crate::authenticate::jwt::Configuration::load(authentication);
        assert_eq!(configuration.unwrap().issuers.len(), 1);
    }

    #[test]
    fn the_sample_for_systemd_is_understood() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/systemd/gateway.yaml");
        let config = read(&["--config", file], &[]).unwrap();
        assert_eq!(config.shutdown.delay.as_secs(), 10);
        // The unit's stop timeout covers the whole shutdown.
        let end = config.shutdown.delay + config.forwarding.request_timeout + config.shutdown.watch_grace;
        let unit = include_str!("../../../deploy/systemd/narthex.service");
        let patience = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s')).unwrap();
        assert!(end.as_secs() < patience.parse().unwrap());
    }
}
