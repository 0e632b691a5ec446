//! The authorizer chain, and the permit that proves authorization.

use std::ops::Deref;
use std::sync::Arc;

use super::rbac_proxy::{Open, Questions, Rules};
use super::{AccessReviews, Actor, AlwaysAllowPaths, Attributes, Policy};
use crate::kubeapi::{RequestInfo, Status, User};
use crate::message::{Blame, Judged, Refusal};
use crate::observe::metrics::Decisions;
use crate::process::Published;

/// The authorizers, in order.
#[derive(Clone, Debug)]
pub enum Modes {
    /// Those of `--authorization-mode`.
    Named(Vec<Link>),
    /// Those of `--authorization-config`; reloaded.
    Followed(Published<Vec<Link>>),
}

/// One authorizer of the chain.
#[derive(Clone)]
pub struct Link {
    /// Its mode.
    pub mode: Mode,
    /// Its name in logs and reports.
    pub label: Arc<str>,
    /// The metrics of its decisions, if any.
    pub decisions: Option<Arc<Decisions>>,
}

/// A snapshot of the authorizers.
enum Now<'m> {
    Named(&'m [Link]),
    Followed(Arc<Vec<Link>>),
}

/// An authorization mode.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Allows every request: the backends authorize again.
    AlwaysAllow,
    /// Denies every request.
    AlwaysDeny,
    /// Allows by RBAC objects from a file; reloaded. With the name that was given, `RBAC` or `Static`.
    Static(Published<Policy>, &'static str),
    /// Allows by the static rules of kube-rbac-proxy's file; reloaded.
    ConfigFile(Published<Rules>),
    /// Sends a SubjectAccessReview to a kube-apiserver or webhook (`Webhook`).
    Webhook(Arc<AccessReviews>),
}

/// The decision of one authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed; the chain ends. With the reason, if any.
    Allow(Option<Arc<str>>),
    /// Denied; the chain ends. With the reason for the client, or the empty string.
    Deny(String),
    /// No opinion; the chain continues. With the reason for the client if no authorizer allows it, or the empty string.
    NoOpinion(String),
    /// The authorizer failed; the chain continues. With the error for the log.
    Error(String),
    /// The authorizer failed, and the chain ends: the review both allowed and denied, or the webhook's failure policy
    /// is `Deny`. With the error for the log.
    Halt(String),
}

/// A denied request. Becomes the response to the client.
#[derive(Debug)]
pub struct Denied {
    refusal: Refusal,
    no: No,
}

/// Why a request is denied.
#[derive(Debug)]
pub(super) enum No {
    /// It was denied, or not allowed; with the reason for the client, or the empty string.
    Forbidden(String),
    /// An authorizer failed, and no other allowed it; with the error for the log.
    Unknown(String),
}

/// The result of a served access review, like `SubjectAccessReviewStatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// Whether an authorizer denied it explicitly.
    pub denied: bool,
    /// The reason, or the empty string.
    pub reason: String,
    /// The evaluation error for the client, without details, which go to the log.
    pub error: String,
}

/// Authorizes requests by the chain of modes.
#[derive(Clone, Debug)]
pub struct Authorizer {
    /// Groups that are allowed everything; `system:masters` upstream.
    pub privileged_groups: Vec<String>,
    /// Paths that need no authorization.
    pub always_allow_paths: AlwaysAllowPaths,
    /// The chain of modes.
    pub modes: Modes,
}

/// Proof that a request is authorized for a user. Only [`Authorizer::authorize`], [`Authorizer::authorize_all`] and
/// [`Permit::open`] create one.
#[derive(Clone, Debug)]
pub struct Permit<'r> {
    user: Arc<User>,
    request: RequestInfo<'r>,
    why: Option<Arc<str>>,
}

impl Modes {
    /// Returns a snapshot of the authorizers.
    pub(super) fn now(&self) -> impl Deref<Target = [Link]> {
        match self {
            Modes::Named(links) => Now::Named(links),
            // An owned snapshot: the caller may await while using it.
            Modes::Followed(links) => Now::Followed(links.get()),
        }
    }
}

impl From<Vec<Mode>> for Modes {
    fn from(modes: Vec<Mode>) -> Modes {
        let link = |mode: Mode| Link { label: mode.as_str().into(), mode, decisions: None };
        Modes::Named(modes.into_iter().map(link).collect())
    }
}

impl Deref for Now<'_> {
    type Target = [Link];

    fn deref(&self) -> &[Link] {
        match self {
            Now::Named(links) => links,
            Now::Followed(links) => links,
        }
    }
}

impl Link {
    async fn decide(&self, attributes: Attributes<'_>) -> Decision {
        let decision = self.mode.decide(attributes).await;
        if let Some(decisions) = &self.decisions {
            match &decision {
                Decision::Allow(_) => decisions.allowed(),
                Decision::Deny(_) | Decision::Halt(_) => decisions.denied(),
                Decision::NoOpinion(_) | Decision::Error(_) => {}
            }
        }
        decision
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label)
    }
}

impl Mode {
    /// Decides. An access review may wait for a network call; a cached one does not.
    async fn decide(&self, attributes: Attributes<'_>) -> Decision {
        match self {
            Mode::AlwaysAllow => Decision::Allow(None),
            Mode::AlwaysDeny => Decision::NoOpinion("Everything is forbidden.".to_owned()),
            Mode::Static(policy, _) => {
                let policy = policy.load();
                match policy.allows(attributes) {
                    Some(why) => Decision::Allow(Some(why.clone())),
                    None => Decision::NoOpinion(policy.why_not(attributes)),
                }
            }
            Mode::ConfigFile(rules) => match rules.load().allows(attributes) {
                Some(why) => Decision::Allow(Some(why.clone())),
                None => Decision::NoOpinion(String::new()),
            },
            Mode::Webhook(reviews) => reviews.decide(attributes).await,
        }
    }

    /// The name in `--authorization-mode`, if it is allowed there.
    fn as_str(&self) -> &'static str {
        match self {
            Mode::AlwaysAllow => "AlwaysAllow",
            Mode::AlwaysDeny => "AlwaysDeny",
            Mode::Static(_, name) => name,
            Mode::ConfigFile(_) => "ConfigFile",
            Mode::Webhook(_) => "Webhook",
        }
    }

    /// Whether it can authorize impersonation. `AlwaysAllow` cannot: it relies on the backends to authorize again, but
    /// they only see the impersonated user. Static rules of kube-rbac-proxy, which has no impersonation, cannot: a rule
    /// without verb and resource would allow it to every user.
    fn judges(&self) -> bool {
        match self {
            Mode::AlwaysAllow | Mode::AlwaysDeny | Mode::ConfigFile(_) => false,
            Mode::Static(..) | Mode::Webhook(_) => true,
        }
    }
}

impl Denied {
    fn new(user: &User, request: &RequestInfo<'_>, no: No) -> Denied {
        let refusal = match &no {
            // The message names user and action, and is in the log.
            No::Forbidden(reason) => Refusal::new(Blame::Client, Status::forbidden_to(&user.name, request, reason)),
            No::Unknown(why) => Refusal::new(Blame::Gateway, could_not_be_asked(request)).because(why),
        };
        let judged = Judged {
            user: user.name.clone(),
            verb: request.verb.clone().into_owned(),
            resource: request.resource.to_owned(),
            subresource: request.subresource.to_owned(),
        };
        Denied { refusal: refusal.of(judged), no }
    }

    /// The reason (or the empty string) if the request was denied or not allowed; none if an authorizer failed.
    pub fn forbidden(&self) -> Option<&str> {
        match &self.no {
            No::Forbidden(reason) => Some(reason),
            No::Unknown(_) => None,
        }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Refusal {
        denied.refusal
    }
}

impl Default for Authorizer {
    /// Allows every request.
    fn default() -> Authorizer {
        Authorizer {
            privileged_groups: vec!["system:masters".to_owned()],
            always_allow_paths: AlwaysAllowPaths::health(),
            modes: vec![Mode::AlwaysAllow].into(),
        }
    }
}

impl Authorizer {
    /// Authorizes `request` for `actor`; returns the proof.
    pub async fn authorize<'r>(&self, actor: &Actor<'_>, request: RequestInfo<'r>) -> Result<Permit<'r>, Denied> {
        let user = actor.user();
        match self.decide(Attributes { user, request: &request }, |_| true).await {
            Ok(why) => Ok(Permit { user: user.clone(), request, why }),
            Err(no) => Err(Denied::new(user, &request, no)),
        }
    }

    /// Authorizes a request by `questions` instead of its own attributes; all of them must be allowed. The reason is
    /// that of the last.
    pub async fn authorize_all<'r>(
        &self,
        actor: &Actor<'_>,
        request: RequestInfo<'r>,
        questions: &Questions<'_>,
    ) -> Result<Permit<'r>, Denied> {
        let user = actor.user();
        let mut why = None;
        for question in questions.iter() {
            why = match self.decide(Attributes { user, request: &question }, |_| true).await {
                Ok(why) => why,
                Err(no) => return Err(Denied::new(user, &question, no)),
            };
        }
        Ok(Permit { user: user.clone(), request, why })
    }

    /// Evaluates the chain for a served access review.
    pub async fn explain(&self, attributes: Attributes<'_>) -> Judgement {
        let mut judgement = Judgement::default();
        if self.is_privileged(attributes.user) || self.always_allow_paths.allow(attributes.request) {
            judgement.allowed = true;
            return judgement;
        }
        let mut reasons = Vec::new();
        for link in &*self.modes.now() {
            match link.decide(attributes).await {
                // A decision overrides errors of earlier authorizers.
                Decision::Allow(why) => {
                    judgement = Judgement { allowed: true, ..Judgement::default() };
                    reasons = why.iter().map(ToString::to_string).collect();
                    break;
                }
                Decision::Deny(reason) => {
                    judgement = Judgement { denied: true, ..Judgement::default() };
                    reasons = vec![reason];
                    break;
                }
                Decision::NoOpinion(reason) => reasons.push(reason),
                Decision::Error(_) => judgement.error = "an authorizer failed".to_owned(),
                Decision::Halt(_) => {
                    let error = "an authorizer failed, or its response was contradictory".to_owned();
                    judgement = Judgement { denied: true, error, ..Judgement::default() };
                    reasons.clear();
                    break;
                }
            }
        }
        reasons.retain(|reason| !reason.is_empty());
        judgement.reason = reasons.join("\n");
        judgement
    }

    /// Whether any mode can authorize impersonation. Privileged groups and always-allowed paths do not count.
    pub(super) fn judges_impersonation(&self) -> bool {
        self.modes.now().iter().any(|link| link.mode.judges())
    }

    /// Authorizes impersonation, only by modes that evaluate each user.
    pub(super) async fn decide_impersonation(&self, attributes: Attributes<'_>) -> Result<(), No> {
        let counts = |mode: &Mode| mode.judges() || matches!(mode, Mode::AlwaysDeny);
        self.decide(attributes, counts).await.map(drop)
    }

    /// The names of the authorizers in order, for the operator.
    pub fn describe(&self) -> Vec<String> {
        self.modes.now().iter().map(|link| link.label.as_ref().to_owned()).collect()
    }

    /// Whether a user is in a privileged group.
    pub fn is_privileged(&self, user: &User) -> bool {
        user.groups.iter().any(|group| self.privileged_groups.contains(group))
    }

    /// Evaluates the chain like upstream's union: an error counts only if no other authorizer allows or denies. Modes
    /// that do not `count` are skipped.
    async fn decide(&self, attributes: Attributes<'_>, count: impl Fn(&Mode) -> bool) -> Result<Option<Arc<str>>, No> {
        if self.is_privileged(attributes.user) || self.always_allow_paths.allow(attributes.request) {
            return Ok(None);
        }
        let (mut reasons, mut errors) = (Vec::new(), Vec::new());
        for link in self.modes.now().iter().filter(|link| count(&link.mode)) {
            match link.decide(attributes).await {
                Decision::Allow(why) => return Ok(why),
                Decision::Deny(reason) => return Err(No::Forbidden(reason)),
                Decision::NoOpinion(reason) => reasons.push(reason),
                Decision::Error(why) => errors.push(why),
                Decision::Halt(why) => return Err(No::Unknown(why)),
            }
        }
        if !errors.is_empty() {
            return Err(No::Unknown(errors.join("; ")));
        }
        reasons.retain(|reason| !reason.is_empty());
        // Upstream's union joins with a newline.
        Err(No::Forbidden(reasons.join("\n")))
    }
}

impl<'r> Permit<'r> {
    /// Creates a permit for an open path, which needs no authorization.
    pub fn open(_: Open, nobody: &Arc<User>, request: RequestInfo<'r>) -> Permit<'r> {
        Permit { user: nobody.clone(), request, why: None }
    }

    /// The authorized user.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// The reason, if any.
    pub fn why(&self) -> Option<&Arc<str>> {
        self.why.as_ref()
    }

    /// The authorized request.
    pub fn request(&self) -> &RequestInfo<'r> {
        &self.request
    }
}

/// The Status for a failed authorizer. Upstream's filter sends plain text with the error; here the error stays in the
/// log.
fn could_not_be_asked(request: &RequestInfo<'_>) -> Status {
    let path = crate::kubeapi::Quoted(request.path);
    Status::internal_error(format_args!("authorization of {path} failed: an authorizer could not decide"))
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::authenticate::Authenticated;
    use crate::kubeapi::{CanonicalPath, Query};

    async fn ask(authorizer: &Authorizer, who: &Authenticated, path: &str) -> Result<String, (u16, String)> {
        let path = CanonicalPath::parse(path).unwrap();
        let query = Query::parse("");
        let request = RequestInfo::parse(&Method::GET, &path, &query).unwrap();
        let permit = authorizer.authorize(&Actor::oneself(who).unwrap(), request).await;
        permit
            .map(|permit| format!("{} {}", permit.user().name, permit.request().verb))
            .map_err(|denied| (denied.refusal.status().code, denied.refusal.status().message.clone()))
    }

    fn jane(groups: &[&str]) -> Authenticated {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Authenticated::for_test(User { name: "jane".into(), groups, ..User::default() }, false)
    }

    #[tokio::test]
    async fn the_first_mode_with_an_opinion_decides() {
        let path = "/apis/g/v1/namespaces/x/things/y";
        let chain = |modes: &[Mode]| Authorizer { modes: modes.to_vec().into(), ..Authorizer::default() };
        for modes in [&[Mode::AlwaysAllow][..], &[Mode::AlwaysDeny, Mode::AlwaysAllow]] {
            assert_eq!(ask(&chain(modes), &jane(&[]), path).await, Ok("jane get".to_owned()));
        }
        let denied = (
            403,
            r#"things.g "y" is forbidden: User "jane" cannot get resource "things" in API group "g" in the namespace "x": Everything is forbidden."#
                .to_owned(),
        );
        assert_eq!(ask(&chain(&[Mode::AlwaysDeny]), &jane(&[]), path).await, Err(denied));
        assert!(ask(&chain(&[]), &jane(&[]), path).await.is_err());
        assert!(ask(&chain(&[Mode::AlwaysDeny]), &jane(&["system:masters"]), path).await.is_ok());
        assert!(ask(&chain(&[Mode::AlwaysDeny]), &jane(&[]), "/livez").await.is_ok());
        assert!(ask(&chain(&[Mode::AlwaysDeny]), &jane(&[]), "/version").await.is_err());
    }

    /// Privileged groups can be turned off.
    #[tokio::test]
    async fn no_group_is_privileged_unless_named() {
        let authorizer =
            Authorizer { privileged_groups: Vec::new(), modes: vec![Mode::AlwaysDeny].into(), ..Authorizer::default() };
        assert!(ask(&authorizer, &jane(&["system:masters"]), "/version").await.is_err());
    }
}
