//! Mode `Webhook`: a kube-apiserver decides, and what it said is remembered for a while.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;

use super::access_review::{PATH, Said, digest, judge, may_be_remembered, question};
use super::{Attributes, Decision};
use crate::kubeclient::{Client, Patience, Remote};
use crate::observe::metrics::{self, Lookup, Metrics, Review};
use crate::process::Problem;
use crate::review::{Complaint, DecisionCache, Flights, Kept, Key, Landing, Limits, Secret};

/// Four times upstream's; each takes little.
const DECISIONS: Limits = Limits { entries: 32_768, bytes: 16 << 20 };

/// How long answers are believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessReviewSettings {
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

/// Asks a kube-apiserver what users may (`k8s.io/apiserver/plugin/pkg/authorizer/webhook`).
pub struct AccessReviews {
    remote: Remote,
    settings: AccessReviewSettings,
    secret: Secret,
    decisions: DecisionCache<Said>,
    flights: Arc<Flights<Said>>,
    metrics: Arc<Metrics>,
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

impl AccessReviews {
    /// Asks through `remote`, whose client speaks to the kube-apiserver.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(remote: Remote, settings: AccessReviewSettings, metrics: &Arc<Metrics>) -> Result<Arc<Self>, Problem> {
        Ok(Arc::new(AccessReviews {
            remote,
            settings,
            secret: Secret::new()?,
            decisions: DecisionCache::new(metrics::DecisionCache::Access, DECISIONS, metrics.clone()),
            flights: Arc::default(),
            metrics: metrics.clone(),
            stale: Complaint::default(),
            failure: Complaint::default(),
        }))
    }

    /// What the API server says. Does not wait for what is remembered.
    pub(super) async fn decide(self: &Arc<Self>, attributes: Attributes<'_>) -> Decision {
        let key = self.secret.key(|it| digest(attributes, it));
        if let Some(said) = self.decisions.fresh(&key, Instant::now()) {
            self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Hit);
            return said.into();
        }
        // Boxed, so that the requests that need not ask do not carry the room for it.
        Box::pin(self.ask(key, attributes)).await
    }

    /// Lets go of what is past its time. Call it now and then.
    pub fn sweep(&self) {
        self.decisions.sweep(Instant::now());
    }

    async fn ask(self: &Arc<Self>, key: Key, attributes: Attributes<'_>) -> Decision {
        let asked = || Asked {
            key,
            body: question(attributes),
            owner: attributes.user.name.clone(),
            remember: may_be_remembered(attributes),
        };
        let answer = self.flights.join(
            key,
            || self.decisions.fresh(&key, Instant::now()),
            |landing| {
                let (reviews, asked) = (self.clone(), asked());
                self.remote.run(move |client: Rc<Client>| async move {
                    reviews.review(&client, asked, landing).await;
                });
            },
        );
        // The review has a bound of its own; this one holds also when its thread does not get to it.
        let whole = self.settings.patience.whole;
        let answer = tokio::time::timeout(whole, answer).await;
        let why = match answer.unwrap_or_else(|_| Err(format!("no answer within {whole:?}").into())) {
            Ok(said) => {
                self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Miss);
                return said.into();
            }
            Err(why) => why,
        };
        if let Some(Said::Yes) = self.decisions.stale(&key, Instant::now()) {
            self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Stale);
            if self.stale.is_due() {
                tracing::warn!(
                    why = &*why,
                    "the API server cannot be asked; what it allowed before is still allowed (--authorization-stale-allow-ttl)"
                );
            }
            return Decision::Allow;
        }
        self.metrics.reviews().looked_up(metrics::DecisionCache::Access, Lookup::Miss);
        Decision::Error(format!("Webhook: {why}"))
    }

    /// On the client's thread; goes on whatever becomes of who asked.
    async fn review(&self, client: &Client, asked: Asked, landing: Landing<Said>) {
        let tried = |status, took| self.metrics.reviews().asked(Review::Access, status, took);
        let answer = client.call(Method::POST, PATH, Some(asked.body.clone()), self.settings.patience, tried).await;
        let outcome = match answer {
            Ok(answer) if answer.is_success() => judge(&answer.body),
            Ok(answer) => Err(answer.describe()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = &outcome
            && self.failure.is_due()
        {
            tracing::error!(why, "what a user may could not be found out");
        }
        landing.land(outcome.map(|said| self.remember(&asked, said)).map_err(Arc::from));
    }

    fn remember(&self, asked: &Asked, said: Said) -> Said {
        let (ttl, stale) = match &said {
            Said::Yes => (self.settings.authorized_ttl, self.settings.stale_allow_ttl),
            Said::No(_) | Said::Nothing(_) | Said::Both => (self.settings.unauthorized_ttl, Duration::ZERO),
        };
        let now = Instant::now();
        let fresh_until = now + ttl;
        // A no takes the place of the yes before it, also when it is not to be believed for long itself.
        if !asked.remember || said == Said::Both {
            return said;
        }
        let bytes = said.bytes();
        let kept = Kept { value: said, owner: &asked.owner, bytes, fresh_until, stale_until: fresh_until + stale };
        self.decisions.keep(asked.key, kept, now)
    }
}

impl std::fmt::Debug for AccessReviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessReviews").field("settings", &self.settings).finish_non_exhaustive()
    }
}
