//! Mode `Webhook`: authorization by SubjectAccessReview at a kube-apiserver or a webhook, with a cache of decisions.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use kubeapi::{RequestInfo, User};

use super::access_review::{ReviewVerdict, is_cacheable, parse_verdict, request_body, write_digest};
use super::match_conditions::MatchConditions;
use super::{Attributes, Decision};
use crate::decision_cache::{
    CacheLimits, CachedDecision, DecisionCache, DecisionKey, DigestSecret, FlightGuard, LogThrottle, ReviewTarget,
    SingleFlight,
};
use crate::kubeclient::{ApiResponse, CallError, CallPolicy, Client, ClientHandle};
use crate::observe::metrics::{self, CacheResult, CallHealth, CallKind, Metrics, ReviewKind, RoundTrip};
use crate::process::Problem;

/// Limits of the decision cache: four times Kubernetes'; entries are small.
const CACHE_LIMITS: CacheLimits = CacheLimits { entries: 32_768, bytes: 16 << 20 };
/// Cache TTL of requests excluded by match conditions. These depend on the request alone, so a long TTL is safe.
const EXCLUDED_TTL: Duration = Duration::from_secs(300);

/// Probe interval of review servers that failed or were not called yet, with `--readiness-requires-reviews`.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Settings of access reviews.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessReviewSettings {
    /// The server to call and its API version.
    pub target: ReviewTarget,
    /// `--authorization-webhook-cache-authorized-ttl`: cache TTL of allowed decisions.
    pub authorized_ttl: Duration,
    /// `--authorization-webhook-cache-unauthorized-ttl`: cache TTL of denied decisions.
    pub unauthorized_ttl: Duration,
    /// `--authorization-stale-allow-ttl`: how long after its TTL an allowed decision is used while the API server
    /// fails. A stale denial is never used: the request is denied anyway.
    pub stale_allow_ttl: Duration,
    /// Timeouts and retries.
    pub patience: CallPolicy,
}

/// Settings of a webhook in the configuration file, except the TTLs.
#[derive(Clone, Debug, Default)]
pub(super) struct WebhookOptions {
    /// Name of the webhook in metrics and the log; empty for the one configured by flags.
    pub(super) name: String,
    /// Whether the chain ends when the webhook fails (`failurePolicy: Deny`).
    pub(super) denies_on_failure: bool,
    /// Conditions on the requests that are reviewed; all requests if none.
    pub(super) match_conditions: Option<MatchConditions>,
}

/// Authorizes requests by SubjectAccessReview (`k8s.io/apiserver/plugin/pkg/authorizer/webhook`).
pub struct AccessReviewClient {
    remote: ClientHandle,
    webhook: WebhookOptions,
    settings: AccessReviewSettings,
    path: String,
    secret: DigestSecret,
    decisions: DecisionCache<ReviewVerdict>,
    single_flight: Arc<SingleFlight<Result<ReviewVerdict, ReviewFailure>>>,
    metrics: Arc<Metrics>,
    webhook_metrics: Arc<metrics::WebhookMetrics>,
    health: Arc<CallHealth>,
    stale_log: LogThrottle,
    failure_log: LogThrottle,
}

/// A review to send, independent of the request that caused it.
struct PendingReview {
    key: DecisionKey,
    body: Bytes,
    owner: String,
    is_cacheable: bool,
}

/// The error of a review, for the log.
#[derive(Clone)]
struct ReviewFailure {
    why: Arc<str>,
    is_timeout: bool,
}

impl AccessReviewClient {
    /// Creates a client that sends its calls through `remote`.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(
        remote: ClientHandle,
        settings: AccessReviewSettings,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, Problem> {
        // kube-apiserver's name for the webhook configured by flags.
        let name = if matches!(settings.target, ReviewTarget::Webhook(_)) { "default" } else { "" };
        AccessReviewClient::with_options(
            remote,
            WebhookOptions { name: name.to_owned(), ..WebhookOptions::default() },
            settings,
            metrics,
        )
    }

    /// Like [`AccessReviewClient::new`], for one of several webhooks.
    pub(super) fn with_options(
        remote: ClientHandle,
        named: WebhookOptions,
        settings: AccessReviewSettings,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, Problem> {
        Ok(Arc::new(AccessReviewClient {
            remote,
            settings,
            path: settings.target.path(
                "authorization.k8s.io",
                "subjectaccessreviews",
                settings.patience.attempt_timeout,
            ),
            secret: DigestSecret::new()?,
            decisions: DecisionCache::new(metrics::DecisionCacheKind::Access, CACHE_LIMITS, metrics.clone()),
            single_flight: Arc::default(),
            metrics: metrics.clone(),
            webhook_metrics: metrics.authorization().webhook(&named.name),
            health: metrics.calls().register(CallKind::SubjectAccessReview, &named.name),
            stale_log: LogThrottle::default(),
            failure_log: LogThrottle::default(),
            webhook: named,
        }))
    }

    /// Decides by the server's response. A cached decision does not wait.
    pub(super) async fn decide(self: &Arc<Self>, attributes: Attributes<'_>) -> Decision {
        let key = self.secret.key(|it| write_digest(attributes, it));
        if let Some(said) = self.decisions.get_fresh(&key, Instant::now()) {
            self.metrics.reviews().record_lookup(metrics::DecisionCacheKind::Access, CacheResult::Hit);
            self.health.record_cache_hit();
            if said == ReviewVerdict::Excluded {
                self.webhook_metrics.record_exclusion();
            }
            return said.into();
        }
        // Boxed, to keep the futures of requests with a cached decision small.
        Box::pin(self.review_shared(key, attributes)).await
    }

    /// Reviews access of an anonymous user to `/readyz` if no call was made yet or the last one failed, to detect a
    /// recovered server without waiting for a request.
    pub fn probe(self: &Arc<Self>) {
        if self.health.is_unproven() {
            let anonymous = User { name: "system:anonymous".to_owned(), ..User::default() };
            let request = RequestInfo { path: "/readyz", verb: "get".into(), ..RequestInfo::default() };
            let body = request_body(Attributes { user: &anonymous, request: &request }, self.settings.target.version());
            let reviews = self.clone();
            self.remote.run(move |client: Rc<Client>| async move {
                // The outcome is recorded in the health of the calls.
                let _ = reviews.send_review(&client, body).await;
            });
        }
    }

    /// Removes expired entries. Call it periodically.
    pub fn remove_expired(&self) {
        self.decisions.remove_expired(Instant::now());
    }

    async fn review_shared(self: &Arc<Self>, key: DecisionKey, attributes: Attributes<'_>) -> Decision {
        // Match conditions are evaluated only on a cache miss: cached decisions have passed them.
        match self.matches_conditions(attributes) {
            Ok(true) => {}
            Ok(false) => {
                self.webhook_metrics.record_exclusion();
                if is_cacheable(attributes) {
                    self.insert(key, &attributes.user.name, ReviewVerdict::Excluded, EXCLUDED_TTL, Duration::ZERO);
                }
                return ReviewVerdict::Excluded.into();
            }
            Err(why) => return self.failure_decision(&why),
        }
        let pending_review = || PendingReview {
            key,
            body: request_body(attributes, self.settings.target.version()),
            owner: attributes.user.name.clone(),
            is_cacheable: is_cacheable(attributes),
        };
        let answer = self.single_flight.join(
            key,
            || self.decisions.get_fresh(&key, Instant::now()).map(Ok),
            |landing| {
                let (reviews, review) = (self.clone(), pending_review());
                self.remote.run(move |client: Rc<Client>| async move {
                    reviews.complete_flight(&client, review, landing).await;
                });
            },
        );
        // The review has its own timeout; this one also holds when its thread is stuck.
        let whole = self.settings.patience.total_timeout;
        let failure = match tokio::time::timeout(whole, answer).await {
            Ok(Ok(Ok(said))) => {
                self.metrics.reviews().record_lookup(metrics::DecisionCacheKind::Access, CacheResult::Miss);
                return said.into();
            }
            Ok(Ok(Err(failure))) => failure,
            Ok(Err(why)) => ReviewFailure { why, is_timeout: false },
            Err(_) => ReviewFailure { why: format!("no answer within {whole:?}").into(), is_timeout: true },
        };
        if let Some(said @ ReviewVerdict::Allowed(_)) = self.decisions.get_stale(&key, Instant::now()) {
            self.metrics.reviews().record_lookup(metrics::DecisionCacheKind::Access, CacheResult::Stale);
            if self.stale_log.is_due() {
                tracing::warn!(
                    why = &*failure.why,
                    "SubjectAccessReview failed; stale allowed decisions are used (--authorization-stale-allow-ttl)"
                );
            }
            return said.into();
        }
        self.metrics.reviews().record_lookup(metrics::DecisionCacheKind::Access, CacheResult::Miss);
        if !self.webhook.denies_on_failure && !self.webhook.name.is_empty() {
            self.webhook_metrics.record_fail_open(failure.is_timeout);
        }
        self.failure_decision(&failure.why)
    }

    /// Whether the match conditions include the request.
    fn matches_conditions(&self, attributes: Attributes<'_>) -> Result<bool, String> {
        let Some(conditions) = &self.webhook.match_conditions else { return Ok(true) };
        let began = Instant::now();
        let meant = conditions.matches(attributes);
        self.webhook_metrics.record_conditions(began.elapsed(), meant.is_err());
        if let Err(why) = &meant
            && self.failure_log.is_due()
        {
            tracing::error!(webhook = self.webhook.name, why, "match conditions could not be evaluated");
        }
        meant
    }

    fn failure_decision(&self, why: &str) -> Decision {
        let why = match &*self.webhook.name {
            "" => format!("Webhook: {why}"),
            name => format!("Webhook {name}: {why}"),
        };
        if self.webhook.denies_on_failure { Decision::FatalError(why) } else { Decision::Error(why) }
    }

    /// Runs a review on the client's thread. It continues when the request that started it is canceled.
    async fn complete_flight(
        &self,
        client: &Client,
        review: PendingReview,
        landing: FlightGuard<Result<ReviewVerdict, ReviewFailure>>,
    ) {
        let outcome = self.send_review(client, review.body.clone()).await.map(|verdict| self.store(&review, verdict));
        landing.complete(Ok(outcome));
    }

    async fn send_review(&self, client: &Client, question: Bytes) -> Result<ReviewVerdict, ReviewFailure> {
        let (mut timed_out, began) = (false, Instant::now());
        let tried = |answer: &Result<ApiResponse, CallError>, took| {
            timed_out = is_timeout(answer);
            self.record_attempt(answer, took);
        };
        let answer = client.call(Method::POST, &self.path, Some(question), self.settings.patience, tried).await;
        let outcome = match answer {
            Ok(answer) if answer.is_success() => parse_verdict(&answer.body),
            Ok(answer) => Err(answer.describe()),
            Err(error) => Err(error.to_string()),
        };
        self.health.record(client.server(), outcome.as_ref().map(drop).map_err(String::as_str), began.elapsed());
        outcome.map_err(|why| ReviewFailure { why: why.into(), is_timeout: timed_out })
    }

    /// Counts an attempt: like kube-apiserver by webhook name, or like an extension API server by status.
    fn record_attempt(&self, answer: &Result<ApiResponse, CallError>, duration: Duration) {
        if self.webhook.name.is_empty() {
            return self.metrics.reviews().record_request(
                ReviewKind::Access,
                answer.as_ref().ok().map(|answer| answer.status),
                duration,
            );
        }
        let result = match answer {
            Ok(answer) if answer.is_success() && parse_verdict(&answer.body).is_ok() => RoundTrip::Success,
            _ if is_timeout(answer) => RoundTrip::Timeout,
            _ => RoundTrip::Error,
        };
        self.webhook_metrics.record_request(result, duration);
    }

    fn store(&self, review: &PendingReview, verdict: ReviewVerdict) -> ReviewVerdict {
        let (ttl, stale) = match &verdict {
            ReviewVerdict::Allowed(_) => (self.settings.authorized_ttl, self.settings.stale_allow_ttl),
            ReviewVerdict::Denied(_) | ReviewVerdict::NoOpinion(_) => (self.settings.unauthorized_ttl, Duration::ZERO),
            ReviewVerdict::Conflict | ReviewVerdict::Excluded => return verdict,
        };
        if !review.is_cacheable {
            return verdict;
        }
        self.insert(review.key, &review.owner, verdict, ttl, stale)
    }

    /// Inserts a verdict. A denial replaces an earlier allowed decision even if its own TTL is zero.
    fn insert(
        &self,
        key: DecisionKey,
        owner: &str,
        verdict: ReviewVerdict,
        ttl: Duration,
        stale: Duration,
    ) -> ReviewVerdict {
        let now = Instant::now();
        let (bytes, fresh_until) = (verdict.heap_bytes(), now + ttl);
        let decision = CachedDecision { value: verdict, owner, bytes, fresh_until, stale_until: fresh_until + stale };
        self.decisions.insert(key, decision, now)
    }
}

fn is_timeout(answer: &Result<ApiResponse, CallError>) -> bool {
    match answer {
        Ok(answer) => answer.status == 504,
        Err(error) => matches!(error, CallError::TimedOut(_)),
    }
}

impl std::fmt::Debug for AccessReviewClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessReviews")
            .field("name", &self.webhook.name)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
