//! Mode `Webhook`: a kube-apiserver, or a webhook, decides, and what it said is remembered for a while.

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

/// Four times upstream's; each takes little.
const DECISIONS: Limits = Limits { entries: 32_768, bytes: 16 << 20 };
/// That match conditions exclude a question follows from the question alone: it holds as long as they do.
const EXCLUDED: Duration = Duration::from_secs(300);

/// How often reviews that fail, or that none were asked of yet, are tried with `--readiness-requires-reviews`.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// How long answers are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessReviewSettings {
    /// Whom we ask, in which version.
    pub target: Target,
    /// `--authorization-webhook-cache-authorized-ttl`.
    pub authorized_ttl: Duration,
    /// `--authorization-webhook-cache-unauthorized-ttl`.
    pub unauthorized_ttl: Duration,
    /// `--authorization-stale-allow-ttl`: for how long after its time a yes still holds when the API server
    /// cannot be asked. A no never does: it would be a no anyway.
    pub stale_allow_ttl: Duration,
    /// How long and how often to ask.
    pub patience: Patience,
}

/// What a configuration says of a webhook besides how long its answers are believed.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    /// For metrics and the log; empty for the one that flags name.
    pub(super) name: String,
    /// Whether nobody else is asked when it cannot say (`failurePolicy: Deny`).
    pub(super) denies_on_failure: bool,
    /// Which questions it is asked; all without them.
    pub(super) conditions: Option<MatchConditions>,
}

/// Asks what users may (`k8s.io/apiserver/plugin/pkg/authorizer/webhook`).
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

/// What the question of one request needs after the request is gone.
struct Asked {
    key: Key,
    body: Bytes,
    owner: String,
    remember: bool,
}

/// Why there is no answer; the text is for the log.
#[derive(Clone)]
struct Failure {
    why: Arc<str>,
    timed_out: bool,
}

impl AccessReviews {
    /// Asks through `remote`, whose client speaks to whom `settings` mean.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(remote: Remote, settings: AccessReviewSettings, metrics: &Arc<Metrics>) -> Result<Arc<Self>, Problem> {
        // As kube-apiserver calls the one that its flags name.
        let name = if matches!(settings.target, Target::Webhook(_)) { "default" } else { "" };
        AccessReviews::named(remote, Named { name: name.to_owned(), ..Named::default() }, settings, metrics)
    }

    /// As [`AccessReviews::new`], for one of several.
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

    /// What the API server says. Does not wait for what is remembered.
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
        // Boxed, so that the requests that need not ask do not carry the room for it.
        Box::pin(self.ask(key, attributes)).await
    }

    /// Asks whether an anonymous user may read `/readyz`, if no call was made yet or the last one failed, so that a
    /// server that works again is known to without a request.
    pub fn probe(self: &Arc<Self>) {
        if self.health.is_unproven() {
            let nobody = User { name: "system:anonymous".to_owned(), ..User::default() };
            let request = RequestInfo { path: "/readyz", verb: "get".into(), ..RequestInfo::default() };
            let asked = question(Attributes { user: &nobody, request: &request }, self.settings.target.version());
            let reviews = self.clone();
            self.remote.run(move |client: Rc<Client>| async move {
                // What comes of it is in the health of the calls.
                let _ = reviews.call(&client, asked).await;
            });
        }
    }

    /// Lets go of what is past its time. Call it now and then.
    pub fn sweep(&self) {
        self.decisions.sweep(Instant::now());
    }

    async fn ask(self: &Arc<Self>, key: Key, attributes: Attributes<'_>) -> Decision {
        // What was decided before met them: they are not evaluated for what is remembered.
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
        // The review has a bound of its own; this one holds also when its thread does not get to it.
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
                    "the API server cannot be asked; what it allowed before is still allowed (--authorization-stale-allow-ttl)"
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

    /// Whether the match conditions let it be asked.
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

    /// On the client's thread; goes on whatever becomes of who asked.
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

    /// kube-apiserver counts its webhooks by their names, an extension API server its one by status.
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

    /// A no takes the place of the yes before it, also when it is not to be believed for long itself.
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
