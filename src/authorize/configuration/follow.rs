//! Builds the authorizer chain of a configuration, and rebuilds it when the file changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::UnixTime;

use super::parse::{
    AuthorizationConfiguration, AuthorizerConfiguration, AuthorizerKind, ConfigurationRequirements,
    WebhookConfiguration, WebhookConnectionInfo,
};
use crate::authorize::webhook::WebhookOptions;
use crate::authorize::{
    AccessReviewClient, AccessReviewSettings, AuthorizationMode, ChainEntry, PROBE_INTERVAL, RbacPolicies,
};
use crate::decision_cache::ReviewTarget;
use crate::egress::Dialer;
use crate::kubeclient::{CallPolicy, Client, ClientHandle, ClientJobs, Kubeconfig, KubeconfigSource};
use crate::observe::metrics::Metrics;
use crate::process::{
    Drain, FileWatcher, OnFailure, Problem, Problems, Published, Publisher, ReloadReporter, ShutdownPhase,
};

/// How often expired decisions are removed from the caches.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// A configuration file that was valid when it was opened.
pub struct AuthorizationConfigFile {
    path: PathBuf,
    follower: FileWatcher,
    requirements: ConfigurationRequirements,
    loaded: LoadedConfiguration,
}

/// Settings of all webhooks, from flags.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizationWebhookSettings {
    /// Value of `--authorization-stale-allow-ttl`.
    pub stale_allow_ttl: Duration,
    /// The maximum timeout of a review (`--request-timeout`).
    pub max_timeout: Duration,
    /// Whether failed webhooks are probed (`--readiness-requires-reviews`).
    pub probes: bool,
}

/// Watches the file, and runs the webhook clients; for the background thread.
pub struct AuthorizationConfigWatcher {
    path: PathBuf,
    follower: FileWatcher,
    requirements: ConfigurationRequirements,
    configuration: AuthorizationConfiguration,
    builder: ChainBuilder,
    chain: Vec<BuiltAuthorizer>,
    publisher: Publisher<Vec<ChainEntry>>,
}

/// A configuration and the kubeconfigs that it names, one for each webhook.
struct LoadedConfiguration {
    configuration: AuthorizationConfiguration,
    kubeconfigs: Vec<Option<(KubeconfigSource, Kubeconfig)>>,
}

/// Builds the authorizers of a configuration.
struct ChainBuilder {
    settings: AuthorizationWebhookSettings,
    policies: Option<RbacPolicies>,
    metrics: Arc<Metrics>,
    /// Webhook clients that are not running yet.
    pending_workers: Vec<WebhookWorker>,
}

/// One authorizer, and its configuration.
#[derive(Clone)]
struct BuiltAuthorizer {
    configuration: AuthorizerConfiguration,
    entry: ChainEntry,
}

/// The client of one webhook, and its queue of calls.
struct WebhookWorker {
    source: KubeconfigSource,
    kubeconfig: Kubeconfig,
    jobs: ClientJobs,
}

impl AuthorizationConfigFile {
    /// Reads the file, and the kubeconfigs that it names, for the first time.
    ///
    /// # Errors
    /// All errors in them.
    pub fn open(path: &Path, demands: ConfigurationRequirements) -> Result<AuthorizationConfigFile, Problems> {
        // Before the first read, so that no change is missed.
        let follower = FileWatcher::new([path]);
        let loaded = load(AuthorizationConfiguration::load(path)?, &demands)?;
        Ok(AuthorizationConfigFile { path: path.to_owned(), follower, requirements: demands, loaded })
    }

    /// Creates the chain and its [`AuthorizationConfigWatcher`]. `policies` are required for authorizers of type RBAC.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn start(
        self,
        settings: AuthorizationWebhookSettings,
        policies: Option<RbacPolicies>,
        metrics: &Arc<Metrics>,
    ) -> Result<(Published<Vec<ChainEntry>>, AuthorizationConfigWatcher), Problem> {
        let mut builder = ChainBuilder { settings, policies, metrics: metrics.clone(), pending_workers: Vec::new() };
        let AuthorizationConfigFile { path, follower, requirements: demands, loaded } = self;
        let configuration = loaded.configuration.clone();
        let chain = builder.build(loaded, &[])?;
        metrics.authorization().set_config(&configuration.text);
        log_chain(&path, &chain, "authorization configuration loaded");
        let (publisher, published) = Published::new(chain_entries(&chain));
        Ok((
            published,
            AuthorizationConfigWatcher {
                path,
                follower,
                requirements: demands,
                configuration,
                builder,
                chain,
                publisher,
            },
        ))
    }
}

impl AuthorizationConfigFile {
    /// Certificates in the kubeconfigs of webhooks that are not valid `now`.
    pub fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        let kubeconfigs = self.loaded.kubeconfigs.iter().enumerate();
        kubeconfigs.filter_map(|(number, of)| Some((number, &of.as_ref()?.1))).flat_map(move |(number, kubeconfig)| {
            kubeconfig.untimely(now).map(move |problem| connection_problem(&self.loaded.configuration, number, problem))
        })
    }
}

/// `problem` of the kubeconfig of webhook `number`, with the field that names it.
fn connection_problem(configuration: &AuthorizationConfiguration, number: usize, problem: Problem) -> Problem {
    Problem::at_field(&configuration.location, format_args!("authorizers[{number}].webhook.connectionInfo"), problem)
}

impl AuthorizationConfigWatcher {
    /// Reloads the file and runs the webhook clients until the process ends. An invalid file keeps the last good
    /// configuration. Needs a `LocalSet`.
    pub async fn run(mut self, dialer: Dialer, on_failure: OnFailure, mut drain: Drain) {
        let (mut round, mut probing) = (tokio::time::interval(SWEEP_INTERVAL), tokio::time::interval(PROBE_INTERVAL));
        let probes = self.builder.settings.probes;
        const UNUSABLE: &str = "authorization configuration changed and is invalid; the last good one stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        loop {
            for plane in self.builder.pending_workers.drain(..) {
                tokio::task::spawn_local(plane.run(dialer.clone()));
            }
            {
                // The same future across the sweeps, as its own poll interval is longer than theirs.
                let mut changed = std::pin::pin!(self.follower.changed());
                loop {
                    tokio::select! {
                        () = &mut changed => break,
                        _ = round.tick() => remove_expired(&self.chain),
                        _ = probing.tick(), if probes => webhooks(&self.chain).for_each(|reviews| reviews.probe()),
                        () = drain.wait_for(ShutdownPhase::Ending) => return,
                    }
                }
            }
            let was_failing = reporter.is_failing();
            match reporter.report(self.reload()) {
                Some(changed) if changed || was_failing => {
                    log_chain(&self.path, &self.chain, "authorization configuration reloaded");
                }
                Some(_) => {}
                None => self.builder.metrics.authorization().record_reload_failure(),
            }
        }
    }

    /// Reloads the file; returns whether the configuration changed.
    fn reload(&mut self) -> Result<bool, Problems> {
        let configuration = AuthorizationConfiguration::load(&self.path)?;
        if configuration == self.configuration {
            return Ok(false);
        }
        let files = configuration.files();
        let loaded = load(configuration.clone(), &self.requirements).inspect_err(|_| {
            // The error may be in one of the kubeconfigs: watch them, too.
            self.follower.add(files);
        })?;
        self.chain = self.builder.build(loaded, &self.chain)?;
        self.publisher.publish(Arc::new(chain_entries(&self.chain)));
        self.builder.metrics.authorization().record_reload(&configuration.text);
        self.configuration = configuration;
        Ok(true)
    }
}

impl ChainBuilder {
    /// Builds the chain. An authorizer with the same configuration as one in `before` is reused with its cache.
    fn build(
        &mut self,
        loaded: LoadedConfiguration,
        before: &[BuiltAuthorizer],
    ) -> Result<Vec<BuiltAuthorizer>, Problem> {
        let mut chain = Vec::new();
        for (configuration, kubeconfig) in loaded.configuration.authorizers.into_iter().zip(loaded.kubeconfigs) {
            if let Some(same) = before.iter().find(|built| built.configuration == configuration) {
                chain.push(same.clone());
                continue;
            }
            let mode = match (&configuration.kind, kubeconfig, &self.policies) {
                (AuthorizerKind::AlwaysAllow, ..) => AuthorizationMode::AlwaysAllow,
                (AuthorizerKind::AlwaysDeny, ..) => AuthorizationMode::AlwaysDeny,
                (AuthorizerKind::Rbac, _, Some(policies)) => AuthorizationMode::Static(policies.clone(), "RBAC"),
                (AuthorizerKind::Webhook(webhook), Some((source, kubeconfig)), _) => {
                    let (remote, jobs) = ClientHandle::new();
                    let reviews = self.webhook(&configuration.name, webhook, remote)?;
                    self.pending_workers.push(WebhookWorker { source, kubeconfig, jobs });
                    AuthorizationMode::Webhook(reviews)
                }
                // Excluded by the checks of the configuration.
                (AuthorizerKind::Rbac, _, None) | (AuthorizerKind::Webhook(_), None, _) => {
                    AuthorizationMode::AlwaysDeny
                }
            };
            let kind = configuration.kind.as_str();
            let decisions = Some(self.metrics.authorization().decisions(kind, &configuration.name));
            let label = format!("{kind} {}", configuration.name).into();
            chain.push(BuiltAuthorizer { entry: ChainEntry { mode, label, decisions }, configuration });
        }
        Ok(chain)
    }

    fn webhook(
        &self,
        name: &str,
        webhook: &WebhookConfiguration,
        remote: ClientHandle,
    ) -> Result<Arc<AccessReviewClient>, Problem> {
        let usual = CallPolicy::default();
        let settings = AccessReviewSettings {
            target: match webhook.connection {
                WebhookConnectionInfo::InCluster => ReviewTarget::ApiServer(webhook.version),
                WebhookConnectionInfo::Kubeconfig(_) => ReviewTarget::Webhook(webhook.version),
            },
            authorized_ttl: webhook.authorized_ttl,
            unauthorized_ttl: webhook.unauthorized_ttl,
            stale_allow_ttl: self.settings.stale_allow_ttl,
            patience: CallPolicy {
                attempt_timeout: webhook.timeout.min(self.settings.max_timeout),
                total_timeout: webhook.timeout.max(usual.total_timeout).min(self.settings.max_timeout),
                ..usual
            },
        };
        let named = WebhookOptions {
            name: name.to_owned(),
            denies_on_failure: webhook.denies_on_failure,
            match_conditions: webhook.match_conditions.clone(),
        };
        AccessReviewClient::with_options(remote, named, settings, &self.metrics)
    }
}

impl WebhookWorker {
    /// Runs the client until the configuration no longer has the webhook.
    async fn run(self, dialer: Dialer) {
        tracing::info!(source = %self.source, server = %self.kubeconfig.server(), "authorization webhook started");
        let client = Client::new(self.source, self.kubeconfig, dialer);
        let mut following = tokio::task::JoinSet::new();
        following.spawn_local(client.clone().follow());
        self.jobs.serve(client).await;
    }
}

impl WebhookConnectionInfo {
    fn source(&self) -> KubeconfigSource {
        match self {
            WebhookConnectionInfo::Kubeconfig(path) => KubeconfigSource::File(path.clone()),
            WebhookConnectionInfo::InCluster => KubeconfigSource::InCluster,
        }
    }
}

impl AuthorizationConfiguration {
    fn files(&self) -> Vec<PathBuf> {
        let file = |authorizer: &AuthorizerConfiguration| match &authorizer.kind {
            AuthorizerKind::Webhook(webhook) => match &webhook.connection {
                WebhookConnectionInfo::Kubeconfig(path) => Some(path.clone()),
                WebhookConnectionInfo::InCluster => None,
            },
            _ => None,
        };
        self.authorizers.iter().filter_map(file).collect()
    }
}

/// Checks a configuration, and reads its kubeconfigs.
fn load(
    configuration: AuthorizationConfiguration,
    demands: &ConfigurationRequirements,
) -> Result<LoadedConfiguration, Problems> {
    let mut problems = configuration.check(demands);
    let mut kubeconfigs = Vec::new();
    for (number, authorizer) in configuration.authorizers.iter().enumerate() {
        let AuthorizerKind::Webhook(webhook) = &authorizer.kind else {
            kubeconfigs.push(None);
            continue;
        };
        let source = webhook.connection.source();
        match source.load() {
            Ok(kubeconfig) => kubeconfigs.push(Some((source, kubeconfig))),
            Err(more) => {
                let at = |problem: Problem| connection_problem(&configuration, number, problem);
                problems.0.extend(more.0.into_iter().map(at));
            }
        }
    }
    problems.into_result(LoadedConfiguration { configuration, kubeconfigs })
}

fn chain_entries(chain: &[BuiltAuthorizer]) -> Vec<ChainEntry> {
    chain.iter().map(|built| built.entry.clone()).collect()
}

fn remove_expired(chain: &[BuiltAuthorizer]) {
    webhooks(chain).for_each(|reviews| reviews.remove_expired());
}

fn webhooks(chain: &[BuiltAuthorizer]) -> impl Iterator<Item = &Arc<AccessReviewClient>> {
    chain.iter().filter_map(|built| match &built.entry.mode {
        AuthorizationMode::Webhook(reviews) => Some(reviews),
        _ => None,
    })
}

fn log_chain(path: &Path, chain: &[BuiltAuthorizer], what: &str) {
    let authorizers: Vec<&str> = chain.iter().map(|built| &*built.entry.label).collect();
    tracing::info!(file = %path.display(), authorizers = authorizers.join(", "), "{what}");
}
