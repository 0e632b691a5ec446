//! Authorization checks of one impersonation mode, and the resulting user.

use std::borrow::Cow;
use std::time::Instant;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::extra;
use super::way::{Way, node, service_account};
use crate::authenticate::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use crate::authorize::Attributes;
use crate::authorize::authorizer::{Authorizer, No as Answer};
use crate::kubeapi::{RequestInfo, Status, User};
use crate::observe::metrics::{Impersonation, Impersonations};

const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";
/// From this many groups or values, a constrained mode checks `*` first (`manyAuthorizationChecksInLoop`).
const MANY: usize = 4;
/// The maximum number of concurrent checks of one request.
const AT_ONCE: usize = 8;

/// One impersonation request.
pub(super) struct Check<'c> {
    pub(super) authorizer: &'c Authorizer,
    pub(super) who: &'c User,
    pub(super) wanted: &'c User,
    pub(super) request: &'c RequestInfo<'c>,
    pub(super) metrics: &'c Impersonations,
}

/// Why impersonation is denied.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct No {
    pub(super) status: Status,
    /// The error of a failed authorizer, for the log; none if it was denied.
    pub(super) unknown: Option<String>,
}

/// A required authorization check.
enum Step<'w> {
    One(RequestInfo<'w>),
    /// Either the first (a wildcard), or all of the others.
    Many(RequestInfo<'w>, Vec<RequestInfo<'w>>),
    /// Always denied, for this reason.
    Never(RequestInfo<'w>, String),
}

impl Check<'_> {
    /// Returns the impersonated user if the mode allows it; none if the mode does not apply.
    pub(super) async fn allows(&self, way: Way) -> Option<Result<User, No>> {
        if !way.leads(self.who, self.wanted) {
            return None;
        }
        let who = match way {
            // The node name in the extra was compared already. Without the other extra values, the decision is the same
            // for all pods of a service account, and cached for all of them.
            Way::AssociatedNode => {
                let keys = self.who.extra.keys().cloned().collect();
                &User { extra: [(NODE_KEYS.to_owned(), keys)].into(), ..self.who.clone() }
            }
            _ => self.who,
        };
        Some(self.all(way, who).await.map(|()| somebody(way, self.wanted)))
    }

    async fn all(&self, way: Way, who: &User) -> Result<(), No> {
        if way.constraint().is_some() {
            let verb = format!("impersonate-on:{}:{}", way.name(), self.request.verb);
            self.ask(way, who, &RequestInfo { verb: verb.into(), ..self.request.clone() }).await?;
        }
        // Concurrent; the first denial in upstream's order is returned.
        let steps = stream::iter(steps(way, self.wanted)).map(Ok);
        steps.map_ok(|step| self.take(way, who, step)).try_buffered(AT_ONCE).try_collect().await
    }

    async fn take(&self, way: Way, who: &User, step: Step<'_>) -> Result<(), No> {
        match step {
            Step::One(question) => self.ask(way, who, &question).await,
            Step::Never(question, why) => Err(No::because(who, &question, &why)),
            Step::Many(all, each) => {
                if self.ask(way, who, &all).await.is_ok() {
                    return Ok(());
                }
                let each = stream::iter(&each).map(Ok);
                each.map_ok(|question| self.ask(way, who, question)).try_buffered(AT_ONCE).try_collect().await
            }
        }
    }

    async fn ask(&self, way: Way, who: &User, question: &RequestInfo<'_>) -> Result<(), No> {
        let began = Instant::now();
        let answer = self.authorizer.decide_impersonation(Attributes { user: who, request: question }).await;
        self.metrics.counted(Impersonation::Question, way.name(), answer.is_ok(), began.elapsed());
        answer.map_err(|no| match no {
            Answer::Forbidden(reason) => No::because(who, question, &reason),
            Answer::Unknown(why) => No::unknown(who, question, why),
        })
    }
}

impl No {
    fn because(who: &User, question: &RequestInfo<'_>, reason: &str) -> No {
        No { status: Status::forbidden_to(&who.name, question, reason), unknown: None }
    }

    /// Upstream returns 403 then, too, with the error for the client.
    fn unknown(who: &User, question: &RequestInfo<'_>, why: impl Into<String>) -> No {
        let status = Status::forbidden_to(&who.name, question, "an authorizer failed");
        No { status, unknown: Some(why.into()) }
    }
}

/// The denial after the timeout of all checks.
pub(super) fn too_late(who: &User, wanted: &User) -> No {
    No::unknown(who, &question("impersonate", "", "users", &wanted.name), "timeout of the authorization checks")
}

/// Returns the required checks in upstream's order: name, UID, groups, extra (`impersonationModeState.check`).
fn steps(way: Way, wanted: &User) -> Vec<Step<'_>> {
    let (verb, constrained) = (way.verb(), way.constraint().is_some());
    let group = if constrained { AUTHENTICATION } else { "" };
    let mut steps = vec![Step::One(match (node(&wanted.name), service_account(&wanted.name)) {
        // Any node name: that of the associated node was compared already.
        (Some(_), _) if way == Way::AssociatedNode => question(verb, group, "nodes", "*"),
        (Some(node), _) if constrained => question(verb, group, "nodes", node),
        (_, Some((namespace, name))) => RequestInfo { namespace, ..question(verb, group, "serviceaccounts", name) },
        _ => question(verb, group, "users", &wanted.name),
    })];
    if !wanted.uid.is_empty() {
        steps.push(Step::One(question(verb, AUTHENTICATION, "uids", &wanted.uid)));
    }
    let each = |name| question(verb, group, "groups", name);
    if constrained && wanted.groups.iter().any(String::is_empty) {
        steps.push(Step::Never(each(""), "impersonating the empty string group is not allowed".to_owned()));
    } else if constrained && wanted.groups.iter().any(|group| group == "system:masters") {
        let why = "impersonating the system:masters group is not allowed".to_owned();
        steps.push(Step::Never(each("system:masters"), why));
    } else {
        let groups = wanted.groups.iter().map(|group| each(group));
        add(&mut steps, (constrained && wanted.groups.len() >= MANY).then(|| each("*")), groups);
    }
    let value = |key, value| RequestInfo { subresource: key, ..question(verb, AUTHENTICATION, "userextras", value) };
    if let Some(why) = extra::mistake(&wanted.extra).filter(|_| constrained) {
        steps.push(Step::Never(value("", ""), why));
    } else {
        let values = wanted.extra.iter().flat_map(|(key, values)| values.iter().map(move |one| value(key, one)));
        let many = wanted.extra.values().map(Vec::len).sum::<usize>() >= MANY;
        add(&mut steps, (constrained && many).then(|| value("*", "*")), values);
    }
    steps
}

fn add<'w>(steps: &mut Vec<Step<'w>>, all: Option<RequestInfo<'w>>, each: impl Iterator<Item = RequestInfo<'w>>) {
    match all {
        Some(all) => steps.push(Step::Many(all, each.collect())),
        None => steps.extend(each.map(Step::One)),
    }
}

fn question<'w>(verb: &'w str, group: &'w str, resource: &'w str, name: &'w str) -> RequestInfo<'w> {
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
fn somebody(way: Way, wanted: &User) -> User {
    let mut user = wanted.clone();
    if way.constraint().is_some() && node(&user.name).is_some() {
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
