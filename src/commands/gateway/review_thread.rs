//! The thread that sends TokenReviews and SubjectAccessReviews to API servers, with one client per kubeconfig.
//!
//! One thread for all workers, so that there is one set of connections; separate from the control thread, so that
//! merging documents there delays no review here.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use rustls_pki_types::UnixTime;

use super::settings::EgressSettings;
use crate::admin::timestamp;
use crate::authenticate::{self, TokenReviewClient, TokenReviewSettings};
use crate::authorize::{AccessReviewClient, PROBE_INTERVAL, configuration};
use crate::commands::threads::TaskThreads;
use crate::config::GatewayConfig;
use crate::decision_cache::ReviewTarget;
use crate::egress::Dialer;
use crate::kubeclient::certificate_request;
use crate::kubeclient::{Client, ClientHandle, ClientJobs, Kubeconfig, KubeconfigSource};
use crate::observe::health::HealthCheck;
use crate::observe::metrics::{CallHealth, CallKind, CallStatus, Metrics};
use crate::process::{Drain, OnFailure, Problem, Problems, Published};
use crate::tls::server::ClusterTrust;

/// Interval of removing expired decisions from the caches.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The loaded kubeconfigs.
pub(super) struct Kubeconfigs {
    authentication: Option<LoadedKubeconfig>,
    token_webhook: Option<LoadedKubeconfig>,
    authorization: Option<LoadedKubeconfig>,
    /// The cluster that signs the serving certificate.
    serving: Option<LoadedKubeconfig>,
}

struct LoadedKubeconfig {
    source: KubeconfigSource,
    kubeconfig: Kubeconfig,
}

/// Delegated authentication and authorization, used by the authenticator and the authorizer.
pub(super) struct DelegatedAuth {
    /// In the order in which they are called.
    pub(super) token_reviews: Vec<Arc<TokenReviewClient>>,
    pub(super) access_reviews: Option<Arc<AccessReviewClient>>,
    /// The CAs from ConfigMap `extension-apiserver-authentication`, if it is read.
    pub(super) cluster_trust: Option<Published<ClusterTrust>>,
    /// What the requested serving certificate waits for, if one is requested.
    pub(super) certificate_wait: Option<Published<Option<String>>>,
}

/// An API server and its queue of reviews.
struct ReviewServer {
    kubeconfig: LoadedKubeconfig,
    jobs: ClientJobs,
    lookup: Option<AuthConfigRequest>,
}

/// The first read of ConfigMap `extension-apiserver-authentication`.
struct AuthConfigRequest {
    tolerate_failure: bool,
    health: Arc<CallHealth>,
    ready: Sender<Result<Published<ClusterTrust>, Problem>>,
}

impl Kubeconfigs {
    /// Reads the kubeconfigs that `config` names. Invalid ones are left out and reported.
    pub(super) fn read_some(config: &GatewayConfig) -> (Kubeconfigs, Problems) {
        let mut problems = Problems::default();
        let mut read = |source: Option<KubeconfigSource>| {
            let source = source?;
            match source.load() {
                Ok(kubeconfig) => Some(LoadedKubeconfig { source, kubeconfig }),
                Err(more) => {
                    // Both flags nearly always name the same file.
                    let news: Vec<Problem> = more.0.into_iter().filter(|it| !problems.0.contains(it)).collect();
                    problems.0.extend(news);
                    None
                }
            }
        };
        let named = |path: &Option<PathBuf>| path.clone().map(KubeconfigSource::from_flag);
        let authentication = read(named(&config.delegated_auth.authentication_kubeconfig));
        let token_webhook = read(named(&config.delegated_auth.token_webhook));
        let authorization = read(named(&config.delegated_auth.authorization_kubeconfig));
        let serving = read(config.serving.certificate_request.as_ref().map(|requested| requested.source.clone()));
        (Kubeconfigs { authentication, token_webhook, authorization, serving }, problems)
    }
}

impl Kubeconfigs {
    /// Certificates in the kubeconfigs that are not valid `now`.
    pub(super) fn invalid_certificates(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        let all = [&self.authentication, &self.token_webhook, &self.authorization, &self.serving];
        all.into_iter().flatten().flat_map(move |named| named.kubeconfig.untimely(now))
    }
}

impl DelegatedAuth {
    /// Starts the thread, if there is a server to call or the authorizer configuration may name one later.
    /// It ends when all senders of reviews are dropped.
    ///
    /// # Errors
    /// The first read of ConfigMap `extension-apiserver-authentication` fails, and that is not tolerated.
    pub(super) fn start(
        kubeconfigs: Kubeconfigs,
        requested: Option<certificate_request::SigningRequest>,
        authorizers: Option<(configuration::AuthorizationConfigWatcher, OnFailure)>,
        config: &GatewayConfig,
        egress: &EgressSettings,
        threads: &TaskThreads,
        drain: &Drain,
    ) -> Result<DelegatedAuth, Problem> {
        let metrics = &egress.metrics;
        let (delegated, egress) = (&config.delegated_auth, egress.clone());
        let mut planes = Vec::new();
        let (ready, looked_up) = std::sync::mpsc::channel();
        let lookup = delegated.lookup_auth_configmap.then(|| AuthConfigRequest {
            tolerate_failure: delegated.tolerate_lookup_failure,
            health: metrics.calls().register(CallKind::ConfigMap, ""),
            ready,
        });
        let mut plane = |named, lookup| {
            let (remote, jobs) = ClientHandle::new();
            planes.push(ReviewServer { kubeconfig: named, jobs, lookup });
            remote
        };
        let mut token_reviews = Vec::new();
        if let Some(named) = kubeconfigs.token_webhook {
            let target = ReviewTarget::Webhook(delegated.token_webhook_version);
            let settings = TokenReviewSettings { target, ..delegated.token_reviews.clone() };
            token_reviews.push(TokenReviewClient::new(plane(named, None), settings, metrics)?);
        }
        if let Some(named) = kubeconfigs.authentication {
            token_reviews.push(TokenReviewClient::new(plane(named, lookup), delegated.token_reviews.clone(), metrics)?);
        }
        let access_reviews = match kubeconfigs.authorization.map(|named| plane(named, None)) {
            Some(remote) => Some(AccessReviewClient::new(remote, delegated.access_reviews, metrics)?),
            None => None,
        };
        let requested = kubeconfigs.serving.zip(requested);
        let csr_health = requested.is_some().then(|| metrics.calls().register(CallKind::CertificateSigningRequest, ""));
        let (waiting, certificate) = Published::new(Some("the certificate was not requested yet".to_owned()));
        let certificate = requested.is_some().then_some(certificate);
        if let Some((_, wanted)) = &requested
            && wanted.pending.is_issued(SystemTime::now())
        {
            waiting.publish(Arc::new(None));
        }
        if !planes.is_empty() || authorizers.is_some() || requested.is_some() {
            let drain = drain.clone();
            log_review_servers(&planes);
            let tokens: Vec<Weak<TokenReviewClient>> = token_reviews.iter().map(Arc::downgrade).collect();
            let access = access_reviews.as_ref().map(Arc::downgrade).unwrap_or_default();
            let probes = delegated.readiness_requires_reviews;
            threads.spawn("reviews", async move || {
                let dialer = egress.dialer();
                let serving = planes.into_iter().map(|plane| plane.serve(dialer.clone()));
                let (client_dialer, ending) = (dialer.clone(), drain.clone());
                let requesting = async {
                    if let (Some((LoadedKubeconfig { source, kubeconfig }, wanted)), Some(health)) =
                        (requested, csr_health)
                    {
                        let client = Client::new(source, kubeconfig, client_dialer);
                        let keeping = certificate_request::run(client.clone(), wanted, waiting, health, ending);
                        futures_util::future::join(keeping, client.follow()).await;
                    }
                };
                let following = async {
                    if let Some((authorizers, on_failure)) = authorizers {
                        authorizers.run(dialer.clone(), on_failure, drain).await;
                    }
                };
                tokio::select! {
                    _ = futures_util::future::join3(futures_util::future::join_all(serving), following, requesting) => {}
                    () = sweep(&tokens, &access, probes) => {}
                }
            })?;
        }
        let announced = match delegated.lookup_auth_configmap.then(|| looked_up.recv()) {
            None => None,
            Some(Ok(announced)) => Some(announced?),
            Some(Err(_)) => {
                return Err(Problem::new(
                    "reviews",
                    "the thread that reads the authentication ConfigMap ended before it had a result",
                ));
            }
        };
        Ok(DelegatedAuth { token_reviews, access_reviews, cluster_trust: announced, certificate_wait: certificate })
    }
}

/// Logs each API server once.
fn log_review_servers(planes: &[ReviewServer]) {
    for (number, ReviewServer { kubeconfig: named, .. }) in planes.iter().enumerate() {
        if !planes[..number].iter().any(|before| before.kubeconfig.source == named.source) {
            let server = named.kubeconfig.server();
            tracing::info!(file = %named.source, %server, "reviews are sent to an API server");
        }
    }
}

impl ReviewServer {
    async fn serve(self, dialer: Dialer) {
        let LoadedKubeconfig { source, kubeconfig } = self.kubeconfig;
        let client = Client::new(source, kubeconfig, dialer);
        let mut following = tokio::task::JoinSet::new();
        following.spawn_local(Rc::clone(&client).follow());
        if let Some(lookup) = self.lookup {
            lookup.run(&client, &mut following).await;
        }
        self.jobs.serve(client).await;
    }
}

impl AuthConfigRequest {
    async fn run(self, client: &Rc<Client>, following: &mut tokio::task::JoinSet<()>) {
        let found = match authenticate::load_auth_configmap(client.clone(), self.health.clone()).await {
            Ok(found) => found,
            Err(failure) if self.tolerate_failure => {
                // Kubernetes' texts, which people search for; but the ConfigMap is watched from here on.
                tracing::warn!("Error looking up in-cluster authentication configuration: {failure}");
                tracing::warn!(
                    "Continuing without authentication configuration. This may treat all requests as anonymous."
                );
                tracing::warn!(
                    "To require authentication configuration lookup to succeed, set --authentication-tolerate-lookup-failure=false"
                );
                authenticate::AuthConfigMapWatcher::new(client.clone(), self.health.clone())
            }
            Err(failure) => {
                let why = format!(
                    "{failure} (see --authentication-skip-lookup and --authentication-tolerate-lookup-failure)"
                );
                let _ = self.ready.send(Err(Problem::new("--authentication-kubeconfig", why)));
                return;
            }
        };
        let (publisher, published) = Published::new(found.cluster_trust().clone());
        let _ = self.ready.send(Ok(published));
        following.spawn_local(found.run(publisher));
    }
}

async fn sweep(tokens: &[Weak<TokenReviewClient>], access: &Weak<AccessReviewClient>, probes: bool) {
    let (mut round, mut probing) = (tokio::time::interval(SWEEP_INTERVAL), tokio::time::interval(PROBE_INTERVAL));
    loop {
        tokio::select! {
            _ = round.tick() => {
                tokens.iter().filter_map(Weak::upgrade).for_each(|tokens| tokens.remove_expired());
                access.upgrade().iter().for_each(|access| access.remove_expired());
            }
            _ = probing.tick(), if probes => {
                tokens.iter().filter_map(Weak::upgrade).for_each(|tokens| tokens.probe());
                access.upgrade().iter().for_each(|access| access.probe());
            }
        }
    }
}

/// A health check that notes failing reviews. With `--readiness-requires-reviews` it fails while a review fails, and
/// until the first one succeeds.
pub(super) fn review_check(metrics: &Arc<Metrics>, required: bool) -> HealthCheck {
    let metrics = metrics.clone();
    HealthCheck::with_note("reviews", move || {
        let all = metrics.calls().status().into_iter().filter(|of| of.kind.is_review());
        let bad = |of: &CallStatus| match &of.failure {
            // Served without authentication: no address, no error.
            Some(failure) => Some(format!("{} failing since {}", of.kind.as_str(), timestamp(failure.since))),
            None if required && of.successes == 0 => Some(format!("no {} has succeeded yet", of.kind.as_str())),
            None => None,
        };
        let bad: Vec<String> = all.filter_map(|of| bad(&of)).collect();
        match (bad.is_empty(), required) {
            (true, _) => Ok(None),
            (false, true) => Err(bad.join("; ")),
            (false, false) => Ok(Some(bad.join("; ").into())),
        }
    })
}
