//! The files that the gateway reads before it listens; `narthex check` reads the same.

use std::process::ExitCode;

use rustls_pki_types::UnixTime;

use super::auditing::AuditFiles;
use super::delegation::Kubeconfigs;
use super::findings::Readable;
use super::settings;
use crate::admin::{AdminToken, AdminTokenFile};
use crate::authenticate::jwt::ConfigurationFile;
use crate::authenticate::{RequestHeaders, TokenFile, Tokens};
use crate::authorize::rbac_proxy::{Rules, RulesFile};
use crate::authorize::{self, Policy, PolicyFile};
use crate::config::sidecar::Asks;
use crate::config::{GatewayConfig, Mistakes, egress};
use crate::egress::{STANDARD_CALLS, Ways, WaysFile};
use crate::observe::log::{self, LogLevel};
use crate::process::{Problem, Problems, Published};
use crate::registry::{ApiService, Cluster, Delegate, Directory, Registry, UpstreamFiles, Upstreams};
use crate::reviewer;
use crate::roles::{tell, warn};
use crate::tls::{self, Bundle, Identity, KeyPair};

/// The validated files of the configuration, to be watched from here on. Reading them has no side effects.
pub struct Files {
    pub(super) serving: tls::server::Files,
    pub(super) identity: Option<(Identity, Published<KeyPair>)>,
    pub(super) registry: Option<(Directory, Registry)>,
    pub(super) delegate: Option<(Delegate, ApiService)>,
    /// The upstreams of a sidecar.
    pub(super) upstreams: Option<(UpstreamFiles, Upstreams)>,
    /// The kube-apiserver with the watched registry.
    pub(super) cluster: Option<Cluster>,
    pub(super) tokens: Option<(TokenFile, Tokens)>,
    pub(super) authentication: Option<ConfigurationFile>,
    pub(super) policy: Option<(PolicyFile, Policy)>,
    pub(super) authorization: Option<authorize::ConfigurationFile>,
    /// kube-rbac-proxy's authorization file.
    pub(super) rules: Option<(RulesFile, Rules)>,
    pub(super) request_headers: RequestHeaders,
    pub(super) kubeconfigs: Kubeconfigs,
    pub(super) audit: Option<AuditFiles>,
    /// The bearer token of the admin listener.
    pub(super) admin_token: Option<(AdminTokenFile, AdminToken)>,
    /// The egress routes to backends and API servers, and their configuration file, if there is one.
    pub(super) egress: (Option<WaysFile>, Ways),
}

fn ways(config: &GatewayConfig) -> Result<(Option<WaysFile>, Ways), Problems> {
    let environment = config.behind.environment.clone();
    match config.behind.egress.clone() {
        None => Ok((None, Ways::of_environment(environment.as_ref())?)),
        Some(path) => {
            let load = {
                let path = path.clone();
                move || egress::load(&path)
            };
            let (file, ways) = WaysFile::open(path, Box::new(load), environment, &STANDARD_CALLS)?;
            Ok((Some(file), ways))
        }
    }
}

/// The purpose of reading the files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::roles) enum Purpose {
    /// To start the gateway.
    Start,
    /// To find errors only.
    Check,
}

impl Files {
    /// Reads every file that `config` names.
    ///
    /// # Errors
    /// All errors in these files.
    pub fn read(config: &GatewayConfig) -> Result<Files, Problems> {
        Files::read_for(Purpose::Start, config)
    }

    /// As [`Files::read`], without falling back to last good copies, and with the findings of `narthex check`.
    ///
    /// # Errors
    /// All errors and findings in these files.
    pub fn check(config: &GatewayConfig) -> Result<Files, Problems> {
        let mut config = config.clone();
        config.behind.registry.iter_mut().for_each(|registry| registry.last_good = None);
        Files::read_for(Purpose::Check, &config)
    }

    fn read_for(purpose: Purpose, config: &GatewayConfig) -> Result<Files, Problems> {
        let mut problems = Problems::default();
        let (serving, untimely) = tls::server::Files::open_for_check(config.serving.tls.clone(), UnixTime::now());
        let serving = keep(&mut problems, serving);
        let tokens = keep(&mut problems, config.who.token_file.as_deref().map(TokenFile::open).transpose());
        let authentication = keep(&mut problems, authentication(config));
        let policy = keep(&mut problems, config.policy_file.as_deref().map(PolicyFile::open).transpose());
        let authorization = keep(&mut problems, authorization(config));
        let rules = keep(&mut problems, rules(config));
        let identity = problems.keep(config.behind.proxy_client.clone().map(Identity::load).transpose());
        if let Some(Some((_, ours))) = &identity {
            problems.keep(backends_know(config, &ours.get()));
        }
        let registry = match (purpose, config.behind.registry.clone()) {
            (Purpose::Start, settings) => keep(&mut problems, settings.map(Directory::open).transpose()),
            (Purpose::Check, settings) => Some(settings.map(|settings| {
                let (directory, registry, wrong) = Directory::check(settings);
                problems.0.extend(wrong.0);
                (directory, registry)
            })),
        };
        let delegate = keep(&mut problems, config.behind.delegate.clone().map(Delegate::open).transpose());
        let upstreams = config.behind.upstreams.clone();
        let upstreams = (!upstreams.is_empty()).then(|| UpstreamFiles::open(upstreams));
        let upstreams = keep(&mut problems, upstreams.transpose());
        let cluster = config.behind.cluster.clone().map(|cluster| Cluster::open(cluster.source, cluster.settings));
        let cluster = keep(&mut problems, cluster.transpose());
        let request_headers = keep(&mut problems, settings::request_headers(config));
        let (kubeconfigs, wrong) = Kubeconfigs::read_some(config);
        problems.0.extend(wrong.0);
        let audit = keep(&mut problems, config.seen.audit.as_ref().map(AuditFiles::read).transpose());
        let admin_token = config.seen.admin_token_file.as_deref().map(AdminTokenFile::open);
        let admin_token = keep(&mut problems, admin_token.transpose());
        let egress = keep(&mut problems, ways(config));
        if let (Some(Some(authentication)), Some((_, ways))) = (&authentication, &egress) {
            problems.0.extend(authentication.lookups(ways).0);
        }
        if purpose == Purpose::Check {
            let identity = identity.iter().flatten().next().map(|(_, ours)| ours.get());
            let readable = Readable {
                identity: identity.as_deref(),
                registry: registry.iter().flatten().next(),
                delegate: delegate.iter().flatten().next().map(|(_, delegate)| delegate),
                upstreams: upstreams.iter().flatten().next().map(|(_, upstreams)| upstreams),
                kubeconfigs: &kubeconfigs,
                authorization: authorization.iter().flatten().next(),
                cluster: cluster.iter().flatten().next(),
                audit: audit.iter().flatten().next(),
                ways: egress.as_ref().map(|(_, ways)| ways),
            };
            problems.0.extend(readable.findings(config, untimely));
        }
        let (
            Some(serving),
            Some(identity),
            Some(registry),
            Some(delegate),
            Some(upstreams),
            Some(cluster),
            Some(tokens),
            Some(authentication),
            Some(policy),
            Some(authorization),
            Some(rules),
            Some(request_headers),
            Some(audit),
            Some(admin_token),
            Some(egress),
        ) = (
            serving,
            identity,
            registry,
            delegate,
            upstreams,
            cluster,
            tokens,
            authentication,
            policy,
            authorization,
            rules,
            request_headers,
            audit,
            admin_token,
            egress,
        )
        else {
            return Err(problems);
        };
        problems.or(Files {
            serving,
            identity,
            registry,
            delegate,
            upstreams,
            cluster,
            tokens,
            authentication,
            policy,
            authorization,
            rules,
            request_headers,
            kubeconfigs,
            audit,
            admin_token,
            egress,
        })
    }

    /// Warnings of files that do not log them when they are read.
    pub(in crate::roles) fn warnings(&self) -> Vec<Problem> {
        let policy = self.policy.iter().flat_map(|(_, policy)| policy.warnings());
        policy.chain(self.rules.iter().flat_map(|(_, rules)| rules.warnings())).cloned().collect()
    }
}

fn authentication(config: &GatewayConfig) -> Result<Option<ConfigurationFile>, Problems> {
    if let Some(flags) = &config.who.open_id_connect {
        return ConfigurationFile::of_flags(flags.clone()).map(Some);
    }
    let Some(path) = config.who.authentication_config.as_deref() else { return Ok(None) };
    let file = ConfigurationFile::open(path)?;
    if file.configuration().anonymous.is_some() && config.who.anonymous_given {
        return Err(Problem::field(path.display(), "anonymous", "must not be given with --anonymous-auth").into());
    }
    Ok(Some(file))
}

fn authorization(config: &GatewayConfig) -> Result<Option<authorize::ConfigurationFile>, Problems> {
    let Some(path) = config.authorization_config.as_deref() else { return Ok(None) };
    let demands =
        authorize::configuration::Demands { policy: config.policy_file.is_some(), decision: config.serve_delegation };
    authorize::ConfigurationFile::open(path, demands).map(Some)
}

fn rules(config: &GatewayConfig) -> Result<Option<(RulesFile, Rules)>, Problems> {
    match &config.guard.asks {
        Asks::Request | Asks::RbacProxy(None) => Ok(None),
        Asks::RbacProxy(Some(path)) => RulesFile::open(path).map(Some),
    }
}

/// With `--serve-delegation` backends get the front-proxy CAs from the gateway; they must include the CA of its own
/// front-proxy certificate. If the CAs come from a cluster, this is checked when they are known.
fn backends_know(config: &GatewayConfig, ours: &KeyPair) -> Result<(), Problem> {
    if !config.serve_delegation || config.delegated.look_up {
        return Ok(());
    }
    let authorities = match config.serving.tls.request_header_ca.as_deref() {
        None => None,
        // Errors in the file are reported where the gateway reads it for its own use.
        Some(path) => match std::fs::read(path).map(|pem| Bundle::from_pem(&pem, path.display())) {
            Ok(Ok(bundle)) => Some(bundle),
            Ok(Err(_)) | Err(_) => return Ok(()),
        },
    };
    reviewer::who_vouches(authorities, ours).map(|_| ())
}

/// Installs the log and reads the files. If there is any error, reports all of them and returns the exit status.
pub(in crate::roles) fn prepare(
    config: &GatewayConfig,
    mut mistakes: Mistakes,
    role: &str,
    purpose: Purpose,
) -> Result<(LogLevel, Files), ExitCode> {
    warn(&mistakes.warnings);
    // Installed first: warnings about files are logged while they are read.
    let log_level = mistakes.problems.keep(log::install(&config.seen.log));
    let files = match purpose {
        Purpose::Start => Files::read(config),
        Purpose::Check => Files::check(config),
    };
    let files = files.map_err(|problems| mistakes.of_files(problems)).ok();
    match (log_level, files) {
        (Some(log_level), Some(files)) if mistakes.problems.0.is_empty() => Ok((log_level, files)),
        _ => Err(tell(role, &mistakes.problems)),
    }
}

fn keep<T>(problems: &mut Problems, result: Result<T, Problems>) -> Option<T> {
    result.map_err(|more| problems.0.extend(more.0)).ok()
}
