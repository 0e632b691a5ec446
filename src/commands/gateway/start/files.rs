//! The files that the gateway reads before it listens; `narthex check` reads the same.

use std::process::ExitCode;

use rustls_pki_types::UnixTime;
use store::check_store_file;

use super::backend_files::{BackendFiles, ReadPurpose};
use super::findings::ReadableFiles;
use crate::admin::{AdminToken, AdminTokenFile};
use crate::authenticate::jwt::AuthenticationConfigFile;
use crate::authenticate::{RequestHeaderConfig, StaticTokens, TokenFile};
use crate::authorize::rbac_proxy::{RbacProxyRules, RulesFile};
use crate::authorize::{self, PolicyFile, RbacPolicy};
use crate::commands::gateway::audit_setup::AuditFiles;
use crate::commands::gateway::etcd_connections::EtcdTlsFiles;
use crate::commands::gateway::object_store::store_problem;
use crate::commands::gateway::review_thread::Kubeconfigs;
use crate::commands::gateway::settings;
use crate::commands::store::check_content as check_store_content;
use crate::commands::{print_warnings, report_problems};
use crate::config::control_planes::{self, ControlPlaneConfig};
use crate::config::gateway::AttributeSource;
use crate::config::{Diagnostics, GatewayConfig, egress};
use crate::egress::{EgressConfigFile, EgressRoutes, STANDARD_CALLS};
use crate::observe::log::{self, LogLevel};
use crate::observe::trace::TracingConfiguration;
use crate::process::{FileWatcher, Problem, Problems};
use crate::tls;

/// The validated files of the configuration, to be watched from here on. Reading them has no side effects.
pub struct GatewayFiles {
    pub(super) instance: InstanceFiles,
    pub(super) audit: Option<AuditFiles>,
    /// Value of `--tracing-config-file`.
    pub(super) tracing: Option<TracingConfiguration>,
    /// The bearer token of the admin listener.
    pub(super) admin_token: Option<(AdminTokenFile, AdminToken)>,
    /// The egress routes to backends and API servers, and their configuration file, if there is one.
    pub(super) egress: (Option<EgressConfigFile>, EgressRoutes),
    /// The control planes behind the gateway, and the watcher of their file.
    pub(super) control_planes: Option<(FileWatcher, Vec<ControlPlaneConfig>)>,
}

/// The validated files of one instance: those of the process, or of a control plane.
pub(super) struct InstanceFiles {
    pub(super) serving: tls::server::ServingFiles,
    pub(super) authentication: AuthenticationFiles,
    pub(super) authorization: AuthorizationFiles,
    pub(super) backends: BackendFiles,
    pub(super) request_headers: RequestHeaderConfig,
    pub(super) kubeconfigs: Kubeconfigs,
}

/// Files of authentication.
pub(super) struct AuthenticationFiles {
    pub(super) tokens: Option<(TokenFile, StaticTokens)>,
    /// `--authentication-config`, or one issuer by flags.
    pub(super) configuration: Option<AuthenticationConfigFile>,
}

/// Files of authorization.
pub(super) struct AuthorizationFiles {
    pub(super) policy: Option<(PolicyFile, RbacPolicy)>,
    /// Value of `--authorization-config`.
    pub(super) chain: Option<authorize::AuthorizationConfigFile>,
    /// kube-rbac-proxy's authorization file.
    pub(super) rules: Option<(RulesFile, RbacProxyRules)>,
}

fn egress_routes(config: &GatewayConfig) -> Result<(Option<EgressConfigFile>, EgressRoutes), Problems> {
    let environment = config.backends.environment_proxies.clone();
    if let Some(environment) = &environment {
        environment.log_use();
    }
    match config.backends.egress.clone() {
        None => Ok((None, EgressRoutes::from_environment(environment.as_ref())?)),
        Some(path) => {
            let load = {
                let path = path.clone();
                move || egress::load(&path)
            };
            let (file, ways) = EgressConfigFile::open(path, Box::new(load), environment, &STANDARD_CALLS)?;
            Ok((Some(file), ways))
        }
    }
}

fn control_planes(
    purpose: ReadPurpose,
    config: &GatewayConfig,
) -> Result<Option<(FileWatcher, Vec<ControlPlaneConfig>)>, Problems> {
    let Some(path) = &config.control_planes else { return Ok(None) };
    // Before the first read, so that no change is missed.
    let watcher = FileWatcher::new([path]);
    let control_planes = control_planes::load(path, config)?;
    let mut problems = Problems::default();
    if purpose == ReadPurpose::Check {
        for control_plane in &control_planes {
            let found = GatewayFiles::check(&control_plane.gateway).err().unwrap_or_default();
            problems.0.extend(control_plane.locate(found).0);
        }
    }
    problems.into_result(Some((watcher, control_planes)))
}

impl GatewayFiles {
    /// Reads every file that `config` names.
    ///
    /// # Errors
    /// All errors in these files.
    pub fn read(config: &GatewayConfig) -> Result<GatewayFiles, Problems> {
        GatewayFiles::read_for(ReadPurpose::Start, config)
    }

    /// As [`GatewayFiles::read`], without falling back to last good copies, and with the findings of `narthex check`.
    ///
    /// # Errors
    /// All errors and findings in these files.
    pub fn check(config: &GatewayConfig) -> Result<GatewayFiles, Problems> {
        let mut config = config.clone();
        config.backends.registry.iter_mut().for_each(|registry| registry.last_good = None);
        GatewayFiles::read_for(ReadPurpose::Check, &config)
    }

    fn read_for(purpose: ReadPurpose, config: &GatewayConfig) -> Result<GatewayFiles, Problems> {
        let mut problems = Problems::default();
        let (serving, untimely) =
            tls::server::ServingFiles::open_for_check(config.serving.tls.clone(), UnixTime::now());
        let serving = problems.collect(serving);
        let authentication = AuthenticationFiles::read(config, &mut problems);
        let authorization = AuthorizationFiles::read(config, &mut problems);
        let backends = BackendFiles::read(purpose, config, &mut problems);
        let request_headers = problems.collect(settings::request_headers(config));
        let (kubeconfigs, invalid) = Kubeconfigs::read_some(config);
        problems.0.extend(invalid.0);
        let audit = problems.collect(config.observability.audit.as_ref().map(AuditFiles::read).transpose()).flatten();
        let tracing = config.observability.tracing_config_file.as_deref().map(TracingConfiguration::load);
        let tracing = problems.collect(tracing.transpose()).flatten();
        let admin_token = config.observability.admin_token_file.as_deref().map(AdminTokenFile::open);
        let admin_token = problems.collect(admin_token.transpose()).flatten();
        let egress = problems.collect(egress_routes(config));
        let store_file = config.embedded_api.as_ref().and_then(|embedded| embedded.store.file());
        let store = store_file.map(check_store_file);
        let is_whole = problems.collect(store.transpose().map_err(|error| store_problem(&error))).is_some();
        if let (ReadPurpose::Check, true, Some(file)) = (purpose, is_whole, store_file) {
            problems.collect(check_store_content(file));
        }
        let etcd = config.embedded_api.as_ref().and_then(|embedded| embedded.store.etcd());
        problems.collect(etcd.map(EtcdTlsFiles::open).transpose());
        let service_accounts = config.embedded_api.as_ref().map(|embedded| embedded.service_accounts.keys.check());
        problems.collect(service_accounts.transpose());
        let control_planes = problems.collect(control_planes(purpose, config)).flatten();
        let egress_routes = egress.as_ref().map(|(_, routes)| routes);
        if let (Some(configuration), Some(routes)) = (&authentication.configuration, egress_routes) {
            problems.0.extend(configuration.check_egress(routes).0);
        }
        if purpose == ReadPurpose::Check {
            let (authorization, audit) = (authorization.chain.as_ref(), audit.as_ref());
            let readable =
                ReadableFiles { backends: &backends, kubeconfigs: &kubeconfigs, authorization, audit, egress_routes };
            problems.0.extend(readable.findings(config, untimely));
        }
        let (Some(serving), Some(request_headers), Some(egress)) = (serving, request_headers, egress) else {
            return Err(problems);
        };
        let instance = InstanceFiles { serving, authentication, authorization, backends, request_headers, kubeconfigs };
        problems.into_result(GatewayFiles { instance, audit, tracing, admin_token, egress, control_planes })
    }

    /// Warnings of files that do not log them when they are read.
    pub(in crate::commands) fn warnings(&self) -> Vec<Problem> {
        let policy = self.instance.authorization.policy.iter().flat_map(|(_, policy)| policy.warnings());
        let control_planes = self.control_planes.iter().flat_map(|(_, all)| all).flat_map(ControlPlaneConfig::warnings);
        let rules = self.instance.authorization.rules.iter().flat_map(|(_, rules)| rules.warnings());
        policy.chain(rules).chain(control_planes).cloned().collect()
    }
}

impl AuthenticationFiles {
    fn read(config: &GatewayConfig, problems: &mut Problems) -> AuthenticationFiles {
        AuthenticationFiles {
            tokens: problems
                .collect(config.authentication.token_file.as_deref().map(TokenFile::open).transpose())
                .flatten(),
            configuration: problems.collect(authentication(config)).flatten(),
        }
    }
}

impl AuthorizationFiles {
    fn read(config: &GatewayConfig, problems: &mut Problems) -> AuthorizationFiles {
        AuthorizationFiles {
            policy: problems.collect(config.policy_file.as_deref().map(PolicyFile::open).transpose()).flatten(),
            chain: problems.collect(authorization(config)).flatten(),
            rules: problems.collect(rules(config)).flatten(),
        }
    }
}

fn authentication(config: &GatewayConfig) -> Result<Option<AuthenticationConfigFile>, Problems> {
    if let Some(flags) = &config.authentication.open_id_connect {
        return AuthenticationConfigFile::from_flags(flags.clone()).map(Some);
    }
    let Some(path) = config.authentication.authentication_config.as_deref() else { return Ok(None) };
    let file = AuthenticationConfigFile::open(path)?;
    if file.configuration().anonymous.is_some() && config.authentication.anonymous_given {
        return Err(Problem::at_field(path.display(), "anonymous", "must not be given with --anonymous-auth").into());
    }
    Ok(Some(file))
}

fn authorization(config: &GatewayConfig) -> Result<Option<authorize::AuthorizationConfigFile>, Problems> {
    let Some(path) = config.authorization_config.as_deref() else { return Ok(None) };
    let demands = authorize::configuration::ConfigurationRequirements {
        has_policy: config.policy_file.is_some() || config.embedded_api.is_some(),
        needs_decision: config.serve_delegation,
    };
    authorize::AuthorizationConfigFile::open(path, demands).map(Some)
}

fn rules(config: &GatewayConfig) -> Result<Option<(RulesFile, RbacProxyRules)>, Problems> {
    match &config.sidecar.attribute_source {
        AttributeSource::Request | AttributeSource::RbacProxy(None) => Ok(None),
        AttributeSource::RbacProxy(Some(path)) => RulesFile::open(path).map(Some),
    }
}

/// Installs the log and reads the files. If there is any error, reports all of them and returns the exit status.
pub(in crate::commands) fn prepare(
    config: &GatewayConfig,
    mut mistakes: Diagnostics,
    role: &str,
    purpose: ReadPurpose,
) -> Result<(LogLevel, GatewayFiles), ExitCode> {
    print_warnings(&mistakes.warnings);
    // Installed first: warnings about files are logged while they are read.
    let log_level = mistakes.problems.collect(log::install(&config.observability.log));
    let files = match purpose {
        ReadPurpose::Start => GatewayFiles::read(config),
        ReadPurpose::Check => GatewayFiles::check(config),
    };
    let files = files.map_err(|problems| mistakes.add_file_problems(problems)).ok();
    match (log_level, files) {
        (Some(log_level), Some(files)) if mistakes.problems.0.is_empty() => Ok((log_level, files)),
        _ => Err(report_problems(role, &mistakes.problems)),
    }
}
