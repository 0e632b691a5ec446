//! Who asks to be taken for somebody else, and whether they may: the `Impersonate-*` headers.
//!
//! As upstream's filter of kube-apiserver 1.36 (`k8s.io/apiserver/pkg/endpoints/filters/impersonation`, KEP-5284): the
//! ways of impersonating in their order, each a handful of questions to the authorizer, the one that last worked for a
//! user first. Upstream remembers what came of a way for ten seconds; here each answer is remembered where it is asked
//! for, for the time that the operator gave, so that a right which is taken back does not live twice as long.

mod actor;
mod check;
mod extra;
mod last;
#[cfg(test)]
mod tests;
pub(super) mod wanted;
mod way;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;

pub use actor::{Actor, Impersonated};

use super::Authorizer;
use crate::authenticate::{Authenticated, GroupFilter};
use crate::kubeapi::{RequestInfo, Status, User};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::{Impersonation, Metrics};
use check::{Check, No};
use last::LastWays;
use way::Way;

/// For how long all questions about one request are waited for: as long as for one, because there may be many.
const PATIENCE: Duration = Duration::from_secs(15);

/// Judges who may act as whom. One for the process.
pub struct Impersonator {
    last: LastWays,
    metrics: Arc<Metrics>,
}

impl Impersonator {
    /// One that counts in `metrics`.
    pub fn new(metrics: &Arc<Metrics>) -> Impersonator {
        Impersonator { last: LastWays::default(), metrics: metrics.clone() }
    }

    /// For whom a request is to be judged whose `headers` hold `Impersonate-*`, and takes those headers away. `groups`
    /// says which groups nobody brings in, this way neither.
    ///
    /// # Errors
    /// 403 in upstream's words when `authorizer` does not allow it or could not be asked, and when nothing in it judges
    /// anybody; 400 for headers that make no sense.
    pub async fn impersonate<'w>(
        &self,
        authorizer: &Authorizer,
        groups: &GroupFilter,
        who: &'w Authenticated,
        headers: &mut HeaderMap,
        request: &RequestInfo<'_>,
    ) -> Result<Actor<'w>, Refusal> {
        if !authorizer.judges_impersonation() {
            return Err(Refusal::new(Blame::Client, nobody_judges(who)).because("impersonation is not judged here"));
        }
        let wanted = wanted::read(headers).map_err(|status| Refusal::new(Blame::Client, status))?;
        wanted::take_away(headers);
        let Some(wanted) = wanted else { return Ok(Actor::as_themselves(who)) };
        let began = Instant::now();
        let found = tokio::time::timeout(PATIENCE, self.find(authorizer, who, &wanted, request)).await;
        let found = found.unwrap_or_else(|_| Err(check::too_late(who, &wanted)));
        let way = found.as_ref().map_or("", |(way, _)| way.name());
        self.metrics.impersonations().counted(Impersonation::Attempt, way, found.is_ok(), began.elapsed());
        let (way, user) = found.map_err(|No { status, unknown }| {
            let blame = if unknown.is_some() { Blame::Gateway } else { Blame::Client };
            let cause = format!("not as {:?}: {}", wanted.name, unknown.as_ref().unwrap_or(&status.message));
            Refusal::new(blame, status).because(cause)
        })?;
        let user = groups.filter(Arc::new(user));
        tracing::debug!(user = who.name, impersonated = user.name, way = way.name(), "impersonation");
        Ok(Actor::impersonating(who, Impersonated { user, constraint: way.constraint() }))
    }

    /// The first way in which it is allowed, and who they then are; else the first no.
    async fn find(
        &self,
        authorizer: &Authorizer,
        who: &User,
        wanted: &User,
        request: &RequestInfo<'_>,
    ) -> Result<(Way, User), No> {
        let check = Check { authorizer, who, wanted, request, metrics: self.metrics.impersonations() };
        let last = self.last.get(&who.name);
        let others = Way::ALL.into_iter().filter(|way| Some(*way) != last);
        let mut first = None;
        for way in last.into_iter().chain(others) {
            match check.allows(way).await {
                None => {}
                Some(Ok(user)) => {
                    self.last.set(&who.name, way);
                    return Ok((way, user));
                }
                Some(Err(no)) => first = first.or(Some(no)),
            }
        }
        // There is always a no: the old way is open to everybody.
        Err(first.unwrap_or_else(|| check::too_late(who, wanted)))
    }
}

impl std::fmt::Debug for Impersonator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Impersonator").finish_non_exhaustive()
    }
}

fn nobody_judges(user: &User) -> Status {
    Status::forbidden(format_args!(
        "User {} cannot impersonate: no authorization mode of this gateway can judge the Impersonate-* headers; leave \
         them out, or ask the API server directly",
        crate::kubeapi::Quoted(&user.name)
    ))
}
