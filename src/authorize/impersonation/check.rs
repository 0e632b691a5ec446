//! Authorization checks of one impersonation mode, and the resulting user.

use std::borrow::Cow;
use std::time::Instant;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kubeapi::{RequestInfo, Status, User};

use super::extra;
use super::mode::{ImpersonationMode, node_name, service_account};
use crate::authenticate::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use crate::authorize::Attributes;
use crate::authorize::authorizer::{Authorizer, DenyReason as Answer};
use crate::observe::metrics::{ImpersonationMetrics, ImpersonationStep};

const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";
/// From this many groups or values, a constrained mode checks `*` first (`manyAuthorizationChecksInLoop`).
const WILDCARD_THRESHOLD: usize = 4;
/// The maximum number of concurrent checks of one request.
const MAX_CONCURRENT_CHECKS: usize = 8;

/// One impersonation request.
pub(super) struct ImpersonationCheck<'c> {
    pub(super) authorizer: &'c Authorizer,
    pub(super) impersonator: &'c User,
    pub(super) requested_user: &'c User,
    pub(super) request: &'c RequestInfo<'c>,
    pub(super) metrics: &'c ImpersonationMetrics,
}

/// Why impersonation is denied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImpersonationDenial {
    pub(super) status: Status,
    /// The error of a failed authorizer, for the log; none if it was denied.
    pub(super) error: Option<String>,
}

/// A required authorization check.
enum CheckStep<'w> {
    Single(RequestInfo<'w>),
    /// Either the first (a wildcard), or all of the others.
    WildcardOrEach(RequestInfo<'w>, Vec<RequestInfo<'w>>),
    /// Always denied, for this reason.
    Denied(RequestInfo<'w>, String),
}

impl ImpersonationCheck<'_> {
    /// Returns the impersonated user if the mode allows it; none if the mode does not apply.
    pub(super) async fn try_mode(&self, mode: ImpersonationMode) -> Option<Result<User, ImpersonationDenial>> {
        if !mode.applies(self.impersonator, self.requested_user) {
            return None;
        }
        let requester = match mode {
            // The node name in the extra was compared already. Without the other extra values, the decision is the same
            // for all pods of a service account, and cached for all of them.
            ImpersonationMode::AssociatedNode => {
                let keys = self.impersonator.extra.keys().cloned().collect();
                &User { extra: [(NODE_KEYS.to_owned(), keys)].into(), ..self.impersonator.clone() }
            }
            _ => self.impersonator,
        };
        Some(self.check_all(mode, requester).await.map(|()| impersonated_user(mode, self.requested_user)))
    }

    async fn check_all(&self, mode: ImpersonationMode, requester: &User) -> Result<(), ImpersonationDenial> {
        if mode.constraint().is_some() {
            let verb = format!("impersonate-on:{}:{}", mode.name(), self.request.verb);
            self.authorize(mode, requester, &RequestInfo { verb: verb.into(), ..self.request.clone() }).await?;
        }
        // Concurrent; the first denial in Kubernetes' order is returned.
        let steps = stream::iter(check_steps(mode, self.requested_user)).map(Ok);
        steps
            .map_ok(|step| self.run_step(mode, requester, step))
            .try_buffered(MAX_CONCURRENT_CHECKS)
            .try_collect()
            .await
    }

    async fn run_step(
        &self,
        mode: ImpersonationMode,
        requester: &User,
        step: CheckStep<'_>,
    ) -> Result<(), ImpersonationDenial> {
        match step {
            CheckStep::Single(question) => self.authorize(mode, requester, &question).await,
            CheckStep::Denied(question, why) => Err(ImpersonationDenial::forbidden(requester, &question, &why)),
            CheckStep::WildcardOrEach(all, each) => {
                if self.authorize(mode, requester, &all).await.is_ok() {
                    return Ok(());
                }
                let each = stream::iter(&each).map(Ok);
                each.map_ok(|question| self.authorize(mode, requester, question))
                    .try_buffered(MAX_CONCURRENT_CHECKS)
                    .try_collect()
                    .await
            }
        }
    }

    async fn authorize(
        &self,
        mode: ImpersonationMode,
        requester: &User,
        question: &RequestInfo<'_>,
    ) -> Result<(), ImpersonationDenial> {
        let began = Instant::now();
        let answer = self.authorizer.authorize_impersonation(Attributes { user: requester, request: question }).await;
        self.metrics.record(ImpersonationStep::AuthorizationCheck, mode.name(), answer.is_ok(), began.elapsed());
        answer.map_err(|no| match no {
            Answer::Forbidden(reason) => ImpersonationDenial::forbidden(requester, question, &reason),
            Answer::Unknown(why) => ImpersonationDenial::unknown(requester, question, why),
        })
    }
}

impl ImpersonationDenial {
    fn forbidden(requester: &User, question: &RequestInfo<'_>, reason: &str) -> ImpersonationDenial {
        ImpersonationDenial { status: Status::forbidden_to(&requester.name, question, reason), error: None }
    }

    /// Kubernetes returns 403 then, too, with the error for the client.
    fn unknown(requester: &User, question: &RequestInfo<'_>, why: impl Into<String>) -> ImpersonationDenial {
        let status = Status::forbidden_to(&requester.name, question, "an authorizer failed");
        ImpersonationDenial { status, error: Some(why.into()) }
    }
}

/// The denial after the timeout of all checks.
pub(super) fn timed_out(requester: &User, requested_user: &User) -> ImpersonationDenial {
    ImpersonationDenial::unknown(
        requester,
        &request_info("impersonate", "", "users", &requested_user.name),
        "timeout of the authorization checks",
    )
}

/// Returns the required checks in Kubernetes' order: name, UID, groups, extra (`impersonationModeState.check`).
fn check_steps(mode: ImpersonationMode, requested_user: &User) -> Vec<CheckStep<'_>> {
    let (verb, constrained) = (mode.verb(), mode.constraint().is_some());
    let group = if constrained { AUTHENTICATION } else { "" };
    let mut steps =
        vec![CheckStep::Single(match (node_name(&requested_user.name), service_account(&requested_user.name)) {
            // Any node name: that of the associated node was compared already.
            (Some(_), _) if mode == ImpersonationMode::AssociatedNode => request_info(verb, group, "nodes", "*"),
            (Some(node), _) if constrained => request_info(verb, group, "nodes", node),
            (_, Some((namespace, name))) => {
                RequestInfo { namespace, ..request_info(verb, group, "serviceaccounts", name) }
            }
            _ => request_info(verb, group, "users", &requested_user.name),
        })];
    if !requested_user.uid.is_empty() {
        steps.push(CheckStep::Single(request_info(verb, AUTHENTICATION, "uids", &requested_user.uid)));
    }
    let each = |name| request_info(verb, group, "groups", name);
    if constrained && requested_user.groups.iter().any(String::is_empty) {
        steps.push(CheckStep::Denied(each(""), "impersonating the empty string group is not allowed".to_owned()));
    } else if constrained && requested_user.groups.iter().any(|group| group == "system:masters") {
        let why = "impersonating the system:masters group is not allowed".to_owned();
        steps.push(CheckStep::Denied(each("system:masters"), why));
    } else {
        let groups = requested_user.groups.iter().map(|group| each(group));
        add_steps(
            &mut steps,
            (constrained && requested_user.groups.len() >= WILDCARD_THRESHOLD).then(|| each("*")),
            groups,
        );
    }
    let value =
        |key, value| RequestInfo { subresource: key, ..request_info(verb, AUTHENTICATION, "userextras", value) };
    if let Some(why) = extra::validate(&requested_user.extra).filter(|_| constrained) {
        steps.push(CheckStep::Denied(value("", ""), why));
    } else {
        let values =
            requested_user.extra.iter().flat_map(|(key, values)| values.iter().map(move |one| value(key, one)));
        let many = requested_user.extra.values().map(Vec::len).sum::<usize>() >= WILDCARD_THRESHOLD;
        add_steps(&mut steps, (constrained && many).then(|| value("*", "*")), values);
    }
    steps
}

fn add_steps<'w>(
    steps: &mut Vec<CheckStep<'w>>,
    all: Option<RequestInfo<'w>>,
    each: impl Iterator<Item = RequestInfo<'w>>,
) {
    match all {
        Some(all) => steps.push(CheckStep::WildcardOrEach(all, each.collect())),
        None => steps.extend(each.map(CheckStep::Single)),
    }
}

fn request_info<'w>(verb: &'w str, group: &'w str, resource: &'w str, name: &'w str) -> RequestInfo<'w> {
    RequestInfo {
        is_resource_request: true,
        verb: Cow::Borrowed(verb),
        api_prefix: if group.is_empty() { "api" } else { "apis" },
        api_group: group,
        api_version: "v1",
        resource,
        name: Cow::Borrowed(name),
        ..RequestInfo::default()
    }
}

/// Returns the impersonated user with the implied groups of nodes, service accounts, authenticated and anonymous users.
fn impersonated_user(mode: ImpersonationMode, requested_user: &User) -> User {
    let mut user = requested_user.clone();
    if mode.constraint().is_some() && node_name(&user.name).is_some() {
        user.groups = vec!["system:nodes".to_owned()];
    }
    if let Some((namespace, _)) = service_account(&user.name)
        && user.groups.is_empty()
    {
        user.groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let is_in = |group: &str| user.groups.iter().any(|one| one == group);
    let added = match (user.name == ANONYMOUS, is_in(UNAUTHENTICATED)) {
        (_, true) => None,
        (true, false) => Some(UNAUTHENTICATED),
        (false, false) => Some(AUTHENTICATED).filter(|group| !is_in(group)),
    };
    user.groups.extend(added.map(str::to_owned));
    user
}
