//! Mode `Webhook`: authorization by SubjectAccessReview at a kube-apiserver or a webhook, with a cache of decisions.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;

use super::access_review::{Said, digest, judge, may_be_remembered, question};
use super::configuration::MatchConditions;
use super::{Attributes, Decision};
use crate::kubeapi::{RequestInfo, User};
use crate::kubeclient::{Answer, CallError, Client, Patience, Remote};
use crate::observe::metrics::{self, CallHealth, CallKind, Lookup, Metrics, Review, RoundTrip};
use crate::process::Problem;
use crate::review::{Complaint, DecisionCache, Flights, Kept, Key, Landing, Limits, Secret, Target};

/// Limits of the decision cache: four times upstream's; entries are small.
const DECISIONS: Limits = Limits { entries: 32_768, bytes: 16 << 20 };
/// Cache TTL of requests excluded by match conditions. These depend on the request alone, so a long TTL is safe.
const EXCLUDED: Duration = Duration::from_secs(300);

/// Probe interval of review servers that failed or were not called yet, with `--readiness-requires-reviews`.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Settings of access reviews.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessReviewSettings {
    /// The server to call and its API version.
    pub target: Target,
    /// `--authorization-webhook-cache-authorized-ttl`: cache TTL of allowed decisions.
    pub authorized_ttl: Duration,
    /// `--authorization-webhook-cache-unauthorized-ttl`: cache TTL of denied decisions.
    pub unauthorized_ttl: Duration,
    /// `--authorization-stale-allow-ttl`: how long after its TTL an allowed decision is used while the API server
    /// fails. A stale denial is never used: the request is denied anyway.
    pub stale_allow_ttl: Duration,
    /// Timeouts and retries.
    pub patience: Patience,
}

/// Settings of a webhook in the configuration file, except the TTLs.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    /// Its name for metrics and the log; empty for the one configured by flags.
    pub(super) name: String,
    /// Whether the chain ends when it fails (`failurePolicy: Deny`).
    pub(super) denies_on_failure: bool,
    /// Which requests it is called for; all if none.
    pub(super) conditions: Option<MatchConditions>,
}

/// Authorizes requests by SubjectAccessReview (`k8s.io/apiserver/plugin/pkg/authorizer/webhook`).
pub struct AccessReviews {
    remote: Remote,
    named: Named,
    settings: AccessReviewSettings,
    path: String,
    secret: Secret,
    decisions: DecisionCache<Said>,
    flights: Arc<Flights<Result<Said, Failure>>>,
    metrics: Arc<Metrics>,
    counting: Arc<metrics::Webhook>,
    health: Arc<CallHealth>,
    stale: Complaint,
    failure: Complaint,
}

/// A review to send, independent of the request that caused it.
struct Asked {
    key: Key,
    body: Bytes,
    owner: String,
    remember: bool,
}

/// The error of a review, for the log.
#[derive(Clone)]
struct Failure {
    why: Arc<str>,
    timed_out: bool,
}

impl AccessReviews {
    /// Creates a client that sends its calls through `remote`.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(remote: Remote, settings: AccessReviewSettings, metrics: &Arc<Metrics>) -> Result<Arc<Self>, Problem> {
        // kube-apiserver's name for the webhook configured by flags.
        let name = if matches!(settings.target, Target::Webhook(_)) { "default" } else { "" };
        AccessReviews::named(remote, Named { name: name.to_owned(), ..Named::default() }, settings, metrics)
    }

    /// Like [`AccessReviews::new`], for one of several webhooks.
    pub(super) fn named(
        remote: Remote,
        named: Named,
        settings: AccessReviewSettings,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, Problem> {
        Ok(Arc::new(AccessReviews {
            remote,
            settings,
            path: settings.target.path("authorization.k8s.io", "subjectaccessreviews", settings.patience.attempt),
            secret: Secret::new()?,
            decisions: DecisionCache::new(metrics::DecisionCache::Access, DECISIONS, metrics.clone()),
            flights: Arc::default(),
            metrics: metrics.clone(),
            counting: metrics.authorization().webhook(&named.name),
            health: metrics.calls().register(CallKind::SubjectAccessReview, &named.name),
            stale: Complaint::default(),
            failure: Complaint::default(),
            named,
        }))
    }

    /// Decides by the server's response. A cached decision does not wait.
    pub(super) async fn decide(self: &Arc<Self>, attributes: Attributes<'_>) -> Decision {
        let key = self.secret.key(|it| digest(attributes, it));
        if let Some(said) = self.decisions.fresh(&key, Instant::now()) {
            self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Hit);
            self.health.cache_hit();
            if said == Said::Excluded {
                self.counting.excluded();
            }
            return said.into();
        }
        // Boxed, to keep the futures of requests with a cached decision small.
        Box::pin(self.ask(key, attributes)).await
    }

    /// Reviews access of an anonymous user to `/readyz` if no call was made yet or the last one failed, to detect a
    /// recovered server without waiting for a request.
    pub fn probe(self: &Arc<Self>) {
        if self.health.is_unproven() {
            let nobody = User { name: "system:anonymous".to_owned(), ..User::default() };
            let request = RequestInfo { path: "/readyz", verb: "get".into(), ..RequestInfo::default() };
            let asked = question(Attributes { user: &nobody, request: &request }, self.settings.target.version());
            let reviews = self.clone();
            self.remote.run(move |client: Rc<Client>| async move {
                // The outcome is recorded in the health of the calls.
                let _ = reviews.call(&client, asked).await;
            });
        }
    }

    /// Removes expired entries. Call it periodically.
    pub fn sweep(&self) {
        self.decisions.sweep(Instant::now());
    }

    async fn ask(self: &Arc<Self>, key: Key, attributes: Attributes<'_>) -> Decision {
        // Match conditions are evaluated only on a cache miss: cached decisions have passed them.
        match self.is_meant(attributes) {
            Ok(true) => {}
            Ok(false) => {
                self.counting.excluded();
                if may_be_remembered(attributes) {
                    self.keep(key, &attributes.user.name, Said::Excluded, EXCLUDED, Duration::ZERO);
                }
                return Said::Excluded.into();
            }
            Err(why) => return self.cannot_say(&why),
        }
        let asked = || Asked {
            key,
            body: question(attributes, self.settings.target.version()),
            owner: attributes.user.name.clone(),
            remember: may_be_remembered(attributes),
        };
        let answer = self.flights.join(
            key,
            || self.decisions.fresh(&key, Instant::now()).map(Ok),
            |landing| {
                let (reviews, asked) = (self.clone(), asked());
                self.remote.run(move |client: Rc<Client>| async move {
                    reviews.review(&client, asked, landing).await;
                });
            },
        );
        // The review has its own timeout; this one also holds when its thread is stuck.
        let whole = self.settings.patience.whole;
        let failure = match tokio::time::timeout(whole, answer).await {
            Ok(Ok(Ok(said))) => {
                self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Miss);
                return said.into();
            }
            Ok(Ok(Err(failure))) => failure,
            Ok(Err(why)) => Failure { why, timed_out: false },
            Err(_) => Failure { why: format!("no answer within {whole:?}").into(), timed_out: true },
        };
        if let Some(said @ Said::Yes(_)) = self.decisions.stale(&key, Instant::now()) {
            self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Stale);
            if self.stale.is_due() {
                tracing::warn!(
                    why = &*failure.why,
                    "SubjectAccessReview failed; stale allowed decisions are used (--authorization-stale-allow-ttl)"
                );
            }
            return said.into();
        }
        self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Miss);
        if !self.named.denies_on_failure && !self.named.name.is_empty() {
            self.counting.failed_open(failure.timed_out);
        }
        self.cannot_say(&failure.why)
    }

    /// Whether the match conditions include the request.
    fn is_meant(&self, attributes: Attributes<'_>) -> Result<bool, String> {
        let Some(conditions) = &self.named.conditions else { return Ok(true) };
        let began = Instant::now();
        let meant = conditions.hold(attributes);
        self.counting.conditions_evaluated(began.elapsed(), meant.is_err());
        if let Err(why) = &meant
            && self.failure.is_due()
        {
            tracing::error!(webhook = self.named.name, why, "match conditions could not be evaluated");
        }
        meant
    }

    fn cannot_say(&self, why: &str) -> Decision {
        let why = match &*self.named.name {
            "" => format!("Webhook: {why}"),
            name => format!("Webhook {name}: {why}"),
        };
        if self.named.denies_on_failure { Decision::Halt(why) } else { Decision::Error(why) }
    }

    /// Runs a review on the client's thread. It continues when the request that started it is canceled.
    async fn review(&self, client: &Client, asked: Asked, landing: Landing<Result<Said, Failure>>) {
        let outcome = self.call(client, asked.body.clone()).await.map(|said| self.remember(&asked, said));
        landing.land(Ok(outcome));
    }

    async fn call(&self, client: &Client, question: Bytes) -> Result<Said, Failure> {
        let (mut timed_out, began) = (false, Instant::now());
        let tried = |answer: &Result<Answer, CallError>, took| {
            timed_out = is_timeout(answer);
            self.count(answer, took);
        };
        let answer = client.call(Method::POST, &self.path, Some(question), self.settings.patience, tried).await;
        let outcome = match answer {
            Ok(answer) if answer.is_success() => judge(&answer.body),
            Ok(answer) => Err(answer.describe()),
            Err(error) => Err(error.to_string()),
        };
        self.health.record(client.server(), outcome.as_ref().map(drop).map_err(String::as_str), began.elapsed());
        outcome.map_err(|why| Failure { why: why.into(), timed_out })
    }

    /// Counts an attempt: like kube-apiserver by webhook name, or like an extension API server by status.
    fn count(&self, answer: &Result<Answer, CallError>, took: Duration) {
        if self.named.name.is_empty() {
            return self.metrics.reviews().asked(
                Review::Access,
                answer.as_ref().ok().map(|answer| answer.status),
                took,
            );
        }
        let result = match answer {
            Ok(answer) if answer.is_success() && judge(&answer.body).is_ok() => RoundTrip::Success,
            _ if is_timeout(answer) => RoundTrip::Timeout,
            _ => RoundTrip::Error,
        };
        self.counting.asked(result, took);
    }

    fn remember(&self, asked: &Asked, said: Said) -> Said {
        let (ttl, stale) = match &said {
            Said::Yes(_) => (self.settings.authorized_ttl, self.settings.stale_allow_ttl),
            Said::No(_) | Said::Nothing(_) => (self.settings.unauthorized_ttl, Duration::ZERO),
            Said::Both | Said::Excluded => return said,
        };
        if !asked.remember {
            return said;
        }
        self.keep(asked.key, &asked.owner, said, ttl, stale)
    }

    /// Inserts a verdict. A denial replaces an earlier allowed decision even if its own TTL is zero.
    fn keep(&self, key: Key, owner: &str, said: Said, ttl: Duration, stale: Duration) -> Said {
        let now = Instant::now();
        let (bytes, fresh_until) = (said.bytes(), now + ttl);
        let kept = Kept { value: said, owner, bytes, fresh_until, stale_until: fresh_until + stale };
        self.decisions.keep(key, kept, now)
    }
}

fn is_timeout(answer: &Result<Answer, CallError>) -> bool {
    match answer {
        Ok(answer) => answer.status == 504,
        Err(error) => matches!(error, CallError::TimedOut(_)),
    }
}

impl std::fmt::Debug for AccessReviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessReviews")
            .field("name", &self.named.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
