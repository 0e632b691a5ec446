//! Authentication, impersonation and authorization of a request.

use std::pin::pin;

use http::HeaderMap;
use kubeapi::{RequestInfo, RetryAfter, Status};

use super::target::{ParsedRequest, client_error};
use super::timeouts::before_deadline;
use crate::authenticate::{AuthenticatedUser, AuthenticationError};
use crate::authorize::rbac_proxy::{PathAccess, RbacProxyRules};
use crate::authorize::{Denial, EffectiveUser, Permit};
use crate::message::{Blame, Refusal};
use crate::observe::access::AccessRecord;
use crate::observe::metrics::Authentication;
use crate::process::ShutdownPhase;

/// An authorized request.
pub(super) struct Access<'r> {
    pub(super) permit: Permit<'r>,
    /// The text of the response's `Warning` header.
    pub(super) warning: Option<&'static str>,
    pub(super) is_anonymous: bool,
    /// Whether query parameters were authorized, so that only their authorized values may be forwarded.
    pub(super) query_authorized: bool,
}

/// Authorizes a request. Removes the client's identity headers and credentials from `headers`.
///
/// # Errors
/// 401, 403, or 404 for a hidden path; 429 if no requests are served any more.
pub(super) async fn authorize<'r>(
    parsed: &ParsedRequest<'r>,
    info: RequestInfo<'r>,
    headers: &mut HeaderMap,
    record: &mut AccessRecord,
) -> Result<Access<'r>, Refusal> {
    check_shutdown(parsed)?;
    let shared = parsed.shared;
    match shared.policy.paths.access(&parsed.target.path) {
        PathAccess::Protected => {}
        PathAccess::NotFound => {
            return Err(client_error(Status::not_found()).with_cause("not among --allow-paths"));
        }
        PathAccess::Open(open) => {
            shared.access.authenticator.strip_identity_headers(headers);
            parsed.start_audit(&info, None, headers, record);
            parsed.start_trace(&info, None, headers, record);
            let permit = Permit::for_open_path(open, &shared.policy.open_path_user, info);
            return Ok(Access { permit, warning: None, is_anonymous: false, query_authorized: false });
        }
    }
    let authenticated = {
        let authenticating =
            pin!(shared.access.authenticator.authenticate(&parsed.connection.peer, parsed.path(), headers));
        before_deadline(parsed.deadline, authenticating).await
    };
    let caller = record_authentication(parsed, &info, headers, authenticated, record)?;
    // Before impersonation, as in kube-apiserver: the caller is trusted, or is not.
    parsed.start_trace(&info, Some(caller.user()), headers, record);
    let user = match EffectiveUser::from_authenticated(&caller) {
        Some(user) => user,
        // Boxed: few requests need it.
        None => Box::pin(impersonate(parsed, &caller, headers, &info, record)).await?,
    };
    let (permit, query_authorized) = match &shared.policy.rules {
        None => {
            let authorizing = pin!(shared.access.authorizer.authorize(&user, info));
            (before_deadline(parsed.deadline, authorizing).await?, true)
        }
        // Boxed: few requests need it.
        Some(rules) => Box::pin(authorize_by_rules(parsed, &rules.get(), &user, info, headers)).await?,
    };
    record_authorization(&permit, record);
    Ok(Access {
        permit: permit?,
        warning: caller.notes().warning,
        is_anonymous: caller.is_anonymous(),
        query_authorized,
    })
}

/// Checks that requests are served: with `--shutdown-send-retry-after` not once the shutdown has begun, except
/// `/metrics` (`pkg/server/filters/with_retry_after.go`).
///
/// # Errors
/// 429, which also closes the connection.
fn check_shutdown(parsed: &ParsedRequest<'_>) -> Result<(), Refusal> {
    let shared = parsed.shared;
    let leaving = shared.responses.send_retry_after && shared.drain.phase() == ShutdownPhase::Leaving;
    if !leaving || parsed.path() == "/metrics" {
        return Ok(());
    }
    parsed.connection.close_after_response();
    let status =
        Status::too_many_requests("The apiserver is shutting down, please try again later.", RetryAfter::ShuttingDown);
    Err(Refusal::new(Blame::Gateway, status))
}

/// Records the result of authentication.
fn record_authentication(
    parsed: &ParsedRequest<'_>,
    info: &RequestInfo<'_>,
    headers: &HeaderMap,
    authenticated: Result<Result<AuthenticatedUser, AuthenticationError>, Refusal>,
    record: &mut AccessRecord,
) -> Result<AuthenticatedUser, Refusal> {
    let metrics = parsed.connection.worker.reports.metrics();
    let in_time = authenticated.inspect_err(|_| parsed.start_audit(info, None, headers, record))?;
    let caller = in_time.inspect_err(|error| {
        metrics.record_authentication(error.result(), None);
        parsed.start_audit(info, Some(Err(error)), headers, record);
    })?;
    parsed.start_audit(info, Some(Ok(&caller)), headers, record);
    metrics.record_authentication(Authentication::Success, Some(&caller.name));
    record.set_user(caller.user());
    parsed.connection.record_certificate_use();
    Ok(caller)
}

/// The impersonated user, if the caller may impersonate it.
async fn impersonate<'w>(
    parsed: &ParsedRequest<'_>,
    caller: &'w AuthenticatedUser,
    headers: &mut HeaderMap,
    info: &RequestInfo<'_>,
    record: &mut AccessRecord,
) -> Result<EffectiveUser<'w>, Refusal> {
    let shared = parsed.shared;
    let groups = shared.access.authenticator.groups();
    let user = {
        let impersonating =
            pin!(shared.access.impersonator.impersonate(&shared.access.authorizer, groups, caller, headers, info));
        before_deadline(parsed.deadline, impersonating).await??
    };
    if let Some(impersonated) = user.impersonated() {
        record.set_impersonated(&impersonated.user, impersonated.constraint);
    }
    Ok(user)
}

/// Authorizes a request by the attributes that `rules` read from it. Returns also whether they read query parameters.
async fn authorize_by_rules<'r>(
    parsed: &ParsedRequest<'r>,
    rules: &RbacProxyRules,
    user: &EffectiveUser<'_>,
    info: RequestInfo<'r>,
    headers: &HeaderMap,
) -> Result<(Result<Permit<'r>, Denial>, bool), Refusal> {
    let target = parsed.target;
    let permissions = rules.required_permissions(&target.method, &target.path, &target.query, headers)?;
    let authorizing = pin!(parsed.shared.access.authorizer.authorize_all(user, info, &permissions));
    Ok((before_deadline(parsed.deadline, authorizing).await?, rules.reads_query_parameters()))
}

/// Records the result of authorization in the audit event.
fn record_authorization(permit: &Result<Permit<'_>, Denial>, record: &mut AccessRecord) {
    if let Some(audit) = record.audit_context() {
        match permit {
            Ok(permit) => audit.record_allowed(permit.reason()),
            Err(denial) => audit.record_denied(denial.forbidden_reason()),
        }
    }
}
