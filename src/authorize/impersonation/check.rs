//! The questions that one way of impersonating asks, and who comes out of it.

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
/// From so many groups or values on, a constrained way first asks about all at once (`manyAuthorizationChecksInLoop`).
const MANY: usize = 4;
/// Questions of one request that are asked at once.
const AT_ONCE: usize = 8;

/// One request to act as somebody else.
pub(super) struct Check<'c> {
    pub(super) authorizer: &'c Authorizer,
    pub(super) who: &'c User,
    pub(super) wanted: &'c User,
    pub(super) request: &'c RequestInfo<'c>,
    pub(super) metrics: &'c Impersonations,
}

/// Why not.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct No {
    pub(super) status: Status,
    /// Why it could not be found out, for the log; none if it was.
    pub(super) unknown: Option<String>,
}

/// What has to be allowed.
enum Step<'w> {
    One(RequestInfo<'w>),
    /// The first, or all of the others.
    Many(RequestInfo<'w>, Vec<RequestInfo<'w>>),
    /// Never, for this reason.
    Never(RequestInfo<'w>, String),
}

impl Check<'_> {
    /// Who they are in this way, if that is allowed; none if it is not a way for them.
    pub(super) async fn allows(&self, way: Way) -> Option<Result<User, No>> {
        if !way.leads(self.who, self.wanted) {
            return None;
        }
        let who = match way {
            // The node's name is one of many in the extra, and verified already: without them the answer is the same
            // for all pods of a service account, wherever they run.
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
        // Several at a time; the first no in upstream's order is the one that is told.
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

    /// Upstream refuses with 403 then, too, and tells the client the error besides.
    fn unknown(who: &User, question: &RequestInfo<'_>, why: impl Into<String>) -> No {
        let status = Status::forbidden_to(&who.name, question, "an authorizer could not be asked");
        No { status, unknown: Some(why.into()) }
    }
}

/// The no of questions that took too long together.
pub(super) fn too_late(who: &User, wanted: &User) -> No {
    No::unknown(who, &question("impersonate", "", "users", &wanted.name), "it took too long to find out")
}

/// What has to be allowed, in upstream's order: name, UID, groups, extra (`impersonationModeState.check`).
fn steps(way: Way, wanted: &User) -> Vec<Step<'_>> {
    let (verb, constrained) = (way.verb(), way.constraint().is_some());
    let group = if constrained { AUTHENTICATION } else { "" };
    let mut steps = vec![Step::One(match (node(&wanted.name), service_account(&wanted.name)) {
        // Whichever node it is: the one that they are on was compared already.
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

/// Who somebody is who was impersonated in this way: with the groups that nodes, service accounts, known and unknown
/// users have.
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
