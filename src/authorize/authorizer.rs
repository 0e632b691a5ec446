//! The chain of authorisers, and the permit that proves it was asked.

use std::ops::Deref;
use std::sync::Arc;

use super::rbac_proxy::{Open, Questions, Rules};
use super::{AccessReviews, Actor, AlwaysAllowPaths, Attributes, Policy};
use crate::kubeapi::{RequestInfo, Status, User};
use crate::message::{Blame, Judged, Refusal};
use crate::observe::metrics::Decisions;
use crate::process::Published;

/// The authorizers, in the order in which they are asked.
#[derive(Clone, Debug)]
pub enum Modes {
    /// Those of `--authorization-mode`.
    Named(Vec<Link>),
    /// Those of `--authorization-config`; followed.
    Followed(Published<Vec<Link>>),
}

/// One of them.
#[derive(Clone)]
pub struct Link {
    /// What it is.
    pub mode: Mode,
    /// What to call it to the operator.
    pub label: Arc<str>,
    /// Where its decisions are counted, if they are.
    pub decisions: Option<Arc<Decisions>>,
}

/// The authorizers as they are now.
enum Now<'m> {
    Named(&'m [Link]),
    Followed(Arc<Vec<Link>>),
}

/// One way to decide.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Everybody who is known may everything: what stands behind us authorises again.
    AlwaysAllow,
    /// Nobody may anything.
    AlwaysDeny,
    /// Whoever RBAC objects from a file allow; followed. Under the name that was given, `RBAC` or `Static`.
    Static(Published<Policy>, &'static str),
    /// Whatever the static rules of kube-rbac-proxy's file allow; followed.
    ConfigFile(Published<Rules>),
    /// A kube-apiserver is asked (`Webhook`).
    Webhook(Arc<AccessReviews>),
}

/// What one authoriser says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes, whatever others say; with the reason, if there is one to give.
    Allow(Option<Arc<str>>),
    /// No, whatever others say; with the reason for the client, or the empty text.
    Deny(String),
    /// Let others say; with the reason for the client should nobody allow it, or the empty text.
    NoOpinion(String),
    /// It could not be found out; let others say. With the reason for the log.
    Error(String),
    /// It could not be found out, and nobody else is to be asked: yes and no were said at once, or a webhook's
    /// failure policy has it so. With the reason for the log.
    Halt(String),
}

/// Not allowed. Turns into the answer for the client.
#[derive(Debug)]
pub struct Denied {
    refusal: Refusal,
    no: No,
}

/// Why a request is not allowed.
#[derive(Debug)]
pub(super) enum No {
    /// With the reason for the client, or the empty text.
    Forbidden(String),
    /// Nobody allowed it, and who might have could not be asked or made no sense; with the reason for the log.
    Unknown(String),
}

/// What the chain says, for whoever asks rather than does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Whether it is allowed.
    pub allowed: bool,
    /// Whether somebody denied it, rather than nobody allowed it.
    pub denied: bool,
    /// Why, or the empty text.
    pub reason: String,
    /// Who could not be asked, for the client: without the reasons, which stay in the log.
    pub error: String,
}

/// Asks each mode in turn.
#[derive(Clone, Debug)]
pub struct Authorizer {
    /// Groups that may everything; upstream has `system:masters`.
    pub privileged_groups: Vec<String>,
    /// Paths that need no permission.
    pub always_allow_paths: AlwaysAllowPaths,
    /// Who is asked.
    pub modes: Modes,
}

/// This request for this user was judged, and may be. Only [`Authorizer::authorize`],
/// [`Authorizer::authorize_all`] and [`Permit::open`] make one.
#[derive(Clone, Debug)]
pub struct Permit<'r> {
    user: Arc<User>,
    request: RequestInfo<'r>,
    why: Option<Arc<str>>,
}

impl Modes {
    /// The authorizers as they are now.
    pub(super) fn now(&self) -> impl Deref<Target = [Link]> {
        match self {
            Modes::Named(links) => Now::Named(links),
            // Not only looked at: somebody may have to be waited for.
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
    /// An access review may wait for a network; what is remembered of it does not.
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

    /// As it is written in `--authorization-mode`, if it is written there.
    fn as_str(&self) -> &'static str {
        match self {
            Mode::AlwaysAllow => "AlwaysAllow",
            Mode::AlwaysDeny => "AlwaysDeny",
            Mode::Static(_, name) => name,
            Mode::ConfigFile(_) => "ConfigFile",
            Mode::Webhook(_) => "Webhook",
        }
    }

    /// Whether it says of each user what they may. `AlwaysAllow` has no say in who may act as whom: it lets everybody
    /// through because what stands behind us authorises again, but whom that sees is decided here. Static rules of
    /// kube-rbac-proxy, which knows nobody who acts as somebody else, mean no such right: one that names no verb and
    /// no resource would give it to all.
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
            // The log has the message, which says who may not do what.
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

    /// Why, or the empty text, if somebody forbade it or nobody allowed it; none if that could not be found out.
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
    /// Everybody who is known may everything.
    fn default() -> Authorizer {
        Authorizer {
            privileged_groups: vec!["system:masters".to_owned()],
            always_allow_paths: AlwaysAllowPaths::health(),
            modes: vec![Mode::AlwaysAllow].into(),
        }
    }
}

impl Authorizer {
    /// Says whether `actor` may do what `request` asks; if so, gives the proof of it.
    pub async fn authorize<'r>(&self, actor: &Actor<'_>, request: RequestInfo<'r>) -> Result<Permit<'r>, Denied> {
        let user = actor.user();
        match self.decide(Attributes { user, request: &request }, |_| true).await {
            Ok(why) => Ok(Permit { user: user.clone(), request, why }),
            Err(no) => Err(Denied::new(user, &request, no)),
        }
    }

    /// The same of a request that is judged by `questions` instead of itself, all of which must be answered with yes.
    /// The reason is that of the last.
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

    /// What the chain says of a question that somebody only asks.
    pub async fn explain(&self, attributes: Attributes<'_>) -> Judgement {
        let mut judgement = Judgement::default();
        if self.is_privileged(attributes.user) || self.always_allow_paths.allow(attributes.request) {
            judgement.allowed = true;
            return judgement;
        }
        let mut reasons = Vec::new();
        for link in &*self.modes.now() {
            match link.decide(attributes).await {
                // Who has an opinion makes up for those before who could not be asked.
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
                Decision::Error(_) => judgement.error = "an authorizer could not be asked".to_owned(),
                Decision::Halt(_) => {
                    let error = "an authorizer could not be asked, or made no sense".to_owned();
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

    /// Whether there is a mode that can say who may act as whom. Groups and paths that are always allowed are none.
    pub(super) fn judges_impersonation(&self) -> bool {
        self.modes.now().iter().any(|link| link.mode.judges())
    }

    /// Whether somebody may act as somebody else: only modes have a say in it that say of each user what they may.
    pub(super) async fn decide_impersonation(&self, attributes: Attributes<'_>) -> Result<(), No> {
        let counts = |mode: &Mode| mode.judges() || matches!(mode, Mode::AlwaysDeny);
        self.decide(attributes, counts).await.map(drop)
    }

    /// Who decides, in order, for the operator.
    pub fn describe(&self) -> Vec<String> {
        self.modes.now().iter().map(|link| link.label.as_ref().to_owned()).collect()
    }

    /// Whether a user may everything by being in a group.
    pub fn is_privileged(&self, user: &User) -> bool {
        user.groups.iter().any(|group| self.privileged_groups.contains(group))
    }

    /// The chain, as upstream's union: an error counts only when nobody else allows or denies.
    /// Only modes that `count` are asked.
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
    /// A request that everybody may send, for whoever did.
    pub fn open(_: Open, nobody: &Arc<User>, request: RequestInfo<'r>) -> Permit<'r> {
        Permit { user: nobody.clone(), request, why: None }
    }

    /// Who may.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Why, if there is a reason to give.
    pub fn why(&self) -> Option<&Arc<str>> {
        self.why.as_ref()
    }

    /// What they may.
    pub fn request(&self) -> &RequestInfo<'r> {
        &self.request
    }
}

/// Upstream's filter says the same in plain text, and the error besides; ours stays in the log.
fn could_not_be_asked(request: &RequestInfo<'_>) -> Status {
    let path = crate::kubeapi::Quoted(request.path);
    Status::internal_error(format_args!("it could not be found out whether {path} is allowed"))
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

    /// Pitfall 44: that a group may everything can be turned off.
    #[tokio::test]
    async fn no_group_is_privileged_unless_named() {
        let authorizer =
            Authorizer { privileged_groups: Vec::new(), modes: vec![Mode::AlwaysDeny].into(), ..Authorizer::default() };
        assert!(ask(&authorizer, &jane(&["system:masters"]), "/version").await.is_err());
    }
}
