//! Builds the authorizer chain of a configuration, and rebuilds it when the file changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::UnixTime;

use super::read::{Configuration, Connection, Demands, Kind, Webhook, Written};
use crate::authorize::webhook::Named;
use crate::authorize::{AccessReviewSettings, AccessReviews, Link, Mode, PROBE_INTERVAL, Policy};
use crate::egress::Dialler;
use crate::kubeclient::{Client, Jobs, Kubeconfig, Patience, Remote, Source};
use crate::observe::metrics::Metrics;
use crate::process::{Drain, Follower, OnFailure, Phase, Problem, Problems, Published, Publisher};
use crate::review::Target;

/// How often expired decisions are removed from the caches.
const SWEEP: Duration = Duration::from_secs(10);

/// A configuration file that was valid when it was opened.
pub struct ConfigurationFile {
    path: PathBuf,
    follower: Follower,
    demands: Demands,
    loaded: Loaded,
}

/// Settings of all webhooks, from flags.
#[derive(Clone, Copy, Debug)]
pub struct WebhookSettings {
    /// `--authorization-stale-allow-ttl`.
    pub stale_allow_ttl: Duration,
    /// The maximum timeout of a review (`--request-timeout`).
    pub longest: Duration,
    /// Whether failed webhooks are probed (`--readiness-requires-reviews`).
    pub probes: bool,
}

/// Watches the file, and runs the webhook clients; for the background thread.
pub struct Following {
    path: PathBuf,
    follower: Follower,
    demands: Demands,
    configuration: Configuration,
    builder: Builder,
    chain: Vec<Built>,
    publisher: Publisher<Vec<Link>>,
}

/// A configuration and the kubeconfigs that it names, one for each webhook.
struct Loaded {
    configuration: Configuration,
    kubeconfigs: Vec<Option<(Source, Kubeconfig)>>,
}

/// Builds authorizers.
struct Builder {
    settings: WebhookSettings,
    policy: Option<Published<Policy>>,
    metrics: Arc<Metrics>,
    /// Webhook clients that are not running yet.
    planes: Vec<Plane>,
}

/// One authorizer, and its configuration.
#[derive(Clone)]
struct Built {
    written: Written,
    link: Link,
}

/// The client of one webhook, and its queue of calls.
struct Plane {
    source: Source,
    kubeconfig: Kubeconfig,
    jobs: Jobs,
}

impl ConfigurationFile {
    /// Reads the file, and the kubeconfigs that it names, for the first time.
    ///
    /// # Errors
    /// All errors in them.
    pub fn open(path: &Path, demands: Demands) -> Result<ConfigurationFile, Problems> {
        // Before the first read, so that no change is missed.
        let follower = Follower::new([path]);
        let loaded = load(Configuration::load(path)?, &demands)?;
        Ok(ConfigurationFile { path: path.to_owned(), follower, demands, loaded })
    }

    /// Creates the chain and its [`Following`]. `policy` is required for authorizers of type RBAC.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn start(
        self,
        settings: WebhookSettings,
        policy: Option<Published<Policy>>,
        metrics: &Arc<Metrics>,
    ) -> Result<(Published<Vec<Link>>, Following), Problem> {
        let mut builder = Builder { settings, policy, metrics: metrics.clone(), planes: Vec::new() };
        let ConfigurationFile { path, follower, demands, loaded } = self;
        let configuration = loaded.configuration.clone();
        let chain = builder.build(loaded, &[])?;
        metrics.authorization().configured(&configuration.text);
        tell(&path, &chain, "authorization configuration loaded");
        let (publisher, published) = Published::new(links(&chain));
        Ok((published, Following { path, follower, demands, configuration, builder, chain, publisher }))
    }
}

impl ConfigurationFile {
    /// Certificates in the kubeconfigs of webhooks that are not valid `now`.
    pub fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        let kubeconfigs = self.loaded.kubeconfigs.iter().enumerate();
        kubeconfigs.filter_map(|(number, of)| Some((number, &of.as_ref()?.1))).flat_map(move |(number, kubeconfig)| {
            kubeconfig.untimely(now).map(move |problem| connection_problem(&self.loaded.configuration, number, problem))
        })
    }
}

/// `problem` of the kubeconfig of webhook `number`, with the field that names it.
fn connection_problem(configuration: &Configuration, number: usize, problem: Problem) -> Problem {
    Problem::field(&configuration.place, format_args!("authorizers[{number}].webhook.connectionInfo"), problem)
}

impl Following {
    /// Reloads the file and runs the webhook clients until the process ends. An invalid file keeps the last good
    /// configuration. Needs a `LocalSet`.
    pub async fn run(mut self, dialler: Dialler, on_failure: OnFailure, mut drain: Drain) {
        let (mut round, mut probing) = (tokio::time::interval(SWEEP), tokio::time::interval(PROBE_INTERVAL));
        let probes = self.builder.settings.probes;
        let mut told: Option<Problems> = None;
        loop {
            for plane in self.builder.planes.drain(..) {
                tokio::task::spawn_local(plane.serve(dialler.clone()));
            }
            {
                // The same future across the sweeps, as its own poll interval is longer than theirs.
                let mut changed = std::pin::pin!(self.follower.changed());
                loop {
                    tokio::select! {
                        () = &mut changed => break,
                        _ = round.tick() => sweep(&self.chain),
                        _ = probing.tick(), if probes => webhooks(&self.chain).for_each(|reviews| reviews.probe()),
                        () = drain.reached(Phase::Ending) => return,
                    }
                }
            }
            match self.read_again() {
                Ok(changed) => {
                    if changed || told.is_some() {
                        tell(&self.path, &self.chain, "authorization configuration reloaded");
                    }
                    if told.take().is_some() {
                        on_failure(&Problems::default());
                    }
                }
                Err(problems) => {
                    self.builder.metrics.authorization().reload_failed();
                    if told.as_ref() != Some(&problems) {
                        problems
                            .log("authorization configuration changed and is invalid; the last good one stays in use");
                        on_failure(&problems);
                        told = Some(problems);
                    }
                }
            }
        }
    }

    /// Reloads the file; returns whether the configuration changed.
    fn read_again(&mut self) -> Result<bool, Problems> {
        let configuration = Configuration::load(&self.path)?;
        if configuration == self.configuration {
            return Ok(false);
        }
        let files = configuration.files();
        let loaded = load(configuration.clone(), &self.demands).inspect_err(|_| {
            // The error may be in one of the kubeconfigs: watch them, too.
            self.follower.add(files);
        })?;
        self.chain = self.builder.build(loaded, &self.chain)?;
        self.publisher.publish(Arc::new(links(&self.chain)));
        self.builder.metrics.authorization().reloaded(&configuration.text);
        self.configuration = configuration;
        Ok(true)
    }
}

impl Builder {
    /// Builds the chain. An authorizer with the same configuration as one in `before` is reused with its cache.
    fn build(&mut self, loaded: Loaded, before: &[Built]) -> Result<Vec<Built>, Problem> {
        let mut chain = Vec::new();
        for (written, kubeconfig) in loaded.configuration.authorizers.into_iter().zip(loaded.kubeconfigs) {
            if let Some(same) = before.iter().find(|built| built.written == written) {
                chain.push(same.clone());
                continue;
            }
            let mode = match (&written.kind, kubeconfig, &self.policy) {
                (Kind::AlwaysAllow, ..) => Mode::AlwaysAllow,
                (Kind::AlwaysDeny, ..) => Mode::AlwaysDeny,
                (Kind::Rbac, _, Some(policy)) => Mode::Static(policy.clone(), "RBAC"),
                (Kind::Webhook(webhook), Some((source, kubeconfig)), _) => {
                    let (remote, jobs) = Remote::new();
                    let reviews = self.webhook(&written.name, webhook, remote)?;
                    self.planes.push(Plane { source, kubeconfig, jobs });
                    Mode::Webhook(reviews)
                }
                // Excluded by the checks of the configuration.
                (Kind::Rbac, _, None) | (Kind::Webhook(_), None, _) => Mode::AlwaysDeny,
            };
            let kind = written.kind.as_str();
            let decisions = Some(self.metrics.authorization().decisions(kind, &written.name));
            let label = format!("{kind} {}", written.name).into();
            chain.push(Built { link: Link { mode, label, decisions }, written });
        }
        Ok(chain)
    }

    fn webhook(&self, name: &str, webhook: &Webhook, remote: Remote) -> Result<Arc<AccessReviews>, Problem> {
        let usual = Patience::default();
        let settings = AccessReviewSettings {
            target: match webhook.connection {
                Connection::InCluster => Target::ApiServer(webhook.version),
                Connection::Kubeconfig(_) => Target::Webhook(webhook.version),
            },
            authorized_ttl: webhook.authorized_ttl,
            unauthorized_ttl: webhook.unauthorized_ttl,
            stale_allow_ttl: self.settings.stale_allow_ttl,
            patience: Patience {
                attempt: webhook.timeout.min(self.settings.longest),
                whole: webhook.timeout.max(usual.whole).min(self.settings.longest),
                ..usual
            },
        };
        let named = Named {
            name: name.to_owned(),
            denies_on_failure: webhook.denies_on_failure,
            conditions: webhook.conditions.clone(),
        };
        AccessReviews::named(remote, named, settings, &self.metrics)
    }
}

impl Plane {
    /// Runs the client until the configuration no longer has the webhook.
    async fn serve(self, dialler: Dialler) {
        tracing::info!(source = %self.source, server = %self.kubeconfig.server(), "authorization webhook started");
        let client = Client::new(self.source, self.kubeconfig, dialler);
        let mut following = tokio::task::JoinSet::new();
        following.spawn_local(client.clone().follow());
        self.jobs.serve(client).await;
    }
}

impl Connection {
    fn source(&self) -> Source {
        match self {
            Connection::Kubeconfig(path) => Source::File(path.clone()),
            Connection::InCluster => Source::InCluster,
        }
    }
}

impl Configuration {
    fn files(&self) -> Vec<PathBuf> {
        let file = |authorizer: &Written| match &authorizer.kind {
            Kind::Webhook(webhook) => match &webhook.connection {
                Connection::Kubeconfig(path) => Some(path.clone()),
                Connection::InCluster => None,
            },
            _ => None,
        };
        self.authorizers.iter().filter_map(file).collect()
    }
}

/// Checks a configuration, and reads its kubeconfigs.
fn load(configuration: Configuration, demands: &Demands) -> Result<Loaded, Problems> {
    let mut problems = configuration.check(demands);
    let mut kubeconfigs = Vec::new();
    for (number, authorizer) in configuration.authorizers.iter().enumerate() {
        let Kind::Webhook(webhook) = &authorizer.kind else {
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
    problems.or(Loaded { configuration, kubeconfigs })
}

fn links(chain: &[Built]) -> Vec<Link> {
    chain.iter().map(|built| built.link.clone()).collect()
}

fn sweep(chain: &[Built]) {
    webhooks(chain).for_each(|reviews| reviews.sweep());
}

fn webhooks(chain: &[Built]) -> impl Iterator<Item = &Arc<AccessReviews>> {
    chain.iter().filter_map(|built| match &built.link.mode {
        Mode::Webhook(reviews) => Some(reviews),
        _ => None,
    })
}

fn tell(path: &Path, chain: &[Built], what: &str) {
    let authorizers: Vec<&str> = chain.iter().map(|built| &*built.link.label).collect();
    tracing::info!(file = %path.display(), authorizers = authorizers.join(", "), "{what}");
}
