//! Impersonation: the `Impersonate-*` headers and their authorization.
//!
//! Like the filter of kube-apiserver 1.36 (`k8s.io/apiserver/pkg/endpoints/filters/impersonation`, KEP-5284):
//! impersonation modes are tried in order, each with several authorization checks; the mode that last succeeded for a
//! user is tried first. Kubernetes caches the result of a mode for 10s. Here only the single decisions are cached, with
//! the configured TTL, so that a revoked permission is not cached twice as long.

mod check;
mod effective_user;
mod extra;
mod mode;
mod mode_cache;
pub(super) mod requested_user;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;

pub use effective_user::{EffectiveUser, ImpersonatedUser};

use kubeapi::{RequestInfo, Status, User};

use super::Authorizer;
use crate::authenticate::{AuthenticatedUser, GroupFilter};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::{ImpersonationStep, Metrics};
use check::{ImpersonationCheck, ImpersonationDenial};
use mode::ImpersonationMode;
use mode_cache::ModeCache;

/// Timeout of all checks of one request together; the same as for one check, because there may be many.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Authorizes impersonation. One per process.
pub struct Impersonator {
    mode_cache: ModeCache,
    metrics: Arc<Metrics>,
}

impl Impersonator {
    /// Creates an impersonator that records into `metrics`.
    pub fn new(metrics: &Arc<Metrics>) -> Impersonator {
        Impersonator { mode_cache: ModeCache::default(), metrics: metrics.clone() }
    }

    /// Returns the effective user of a request with `Impersonate-*` in its `headers`, and removes those headers. The
    /// group filter `groups` is applied to the impersonated user.
    ///
    /// # Errors
    /// 403 in Kubernetes' words when `authorizer` denies it or fails; 403 when no mode can authorize impersonation; 400
    /// for invalid headers.
    pub async fn impersonate<'w>(
        &self,
        authorizer: &Authorizer,
        groups: &GroupFilter,
        requester: &'w AuthenticatedUser,
        headers: &mut HeaderMap,
        request: &RequestInfo<'_>,
    ) -> Result<EffectiveUser<'w>, Refusal> {
        if !authorizer.can_authorize_impersonation() {
            return Err(Refusal::new(Blame::Client, no_authorizer_status(requester))
                .with_cause("no mode can authorize impersonation"));
        }
        let requested = requested_user::parse_headers(headers).map_err(|status| Refusal::new(Blame::Client, status))?;
        requested_user::strip_headers(headers);
        let Some(requested) = requested else { return Ok(EffectiveUser::without_impersonation(requester)) };
        let began = Instant::now();
        let found =
            tokio::time::timeout(TIMEOUT, self.find_allowed_mode(authorizer, requester, &requested, request)).await;
        let found = found.unwrap_or_else(|_| Err(check::timed_out(requester, &requested)));
        let mode_name = found.as_ref().map_or("", |(mode, _)| mode.name());
        self.metrics.impersonations().record(ImpersonationStep::Attempt, mode_name, found.is_ok(), began.elapsed());
        let (mode, user) = found.map_err(|ImpersonationDenial { status, error: unknown }| {
            let blame = if unknown.is_some() { Blame::Gateway } else { Blame::Client };
            let cause =
                format!("impersonation of {:?}: {}", requested.name, unknown.as_ref().unwrap_or(&status.message));
            Refusal::new(blame, status).with_cause(cause)
        })?;
        let user = groups.filter(Arc::new(user));
        tracing::debug!(user = requester.name, impersonated = user.name, way = mode.name(), "impersonation allowed");
        Ok(EffectiveUser::impersonating(requester, ImpersonatedUser { user, constraint: mode.constraint() }))
    }

    /// Returns the first mode that allows it, and the impersonated user; otherwise the first denial.
    async fn find_allowed_mode(
        &self,
        authorizer: &Authorizer,
        requester: &User,
        requested_user: &User,
        request: &RequestInfo<'_>,
    ) -> Result<(ImpersonationMode, User), ImpersonationDenial> {
        let check = ImpersonationCheck {
            authorizer,
            impersonator: requester,
            requested_user,
            request,
            metrics: self.metrics.impersonations(),
        };
        let last = self.mode_cache.get(&requester.name);
        let others = ImpersonationMode::ALL.into_iter().filter(|mode| Some(*mode) != last);
        let mut first = None;
        for mode in last.into_iter().chain(others) {
            match check.try_mode(mode).await {
                None => {}
                Some(Ok(user)) => {
                    self.mode_cache.set(&requester.name, mode);
                    return Ok((mode, user));
                }
                Some(Err(no)) => first = first.or(Some(no)),
            }
        }
        // There is always a denial: the legacy mode applies to every user.
        Err(first.unwrap_or_else(|| check::timed_out(requester, requested_user)))
    }
}

impl std::fmt::Debug for Impersonator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Impersonator").finish_non_exhaustive()
    }
}

fn no_authorizer_status(user: &User) -> Status {
    Status::forbidden(format_args!(
        "User {} cannot impersonate: no authorization mode of this gateway can authorize the Impersonate-* headers; \
         remove them, or use the API server directly",
        kubeapi::GoQuoted(&user.name)
    ))
}
