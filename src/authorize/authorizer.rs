//! The authorizer chain, and the [`Permit`] that proves authorization.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use kubeapi::{RequestInfo, Status, User};

use super::policy::PolicyRule;
use super::rbac_proxy::{OpenPath, RbacProxyRules, RequiredPermissions};
use super::{AccessReviewClient, AlwaysAllowPaths, Attributes, Decision, EffectiveUser, RbacPolicies};
use crate::message::{Blame, Refusal, ReviewedAttributes};
use crate::observe::metrics::DecisionCounts;
use crate::process::Published;

/// The authorizers, in order.
#[derive(Clone, Debug)]
pub enum AuthorizerChain {
    /// The authorizers of `--authorization-mode`.
    Fixed(Vec<ChainEntry>),
    /// The authorizers of `--authorization-config`; reloaded.
    Reloaded(Published<Vec<ChainEntry>>),
}

/// One authorizer of the chain.
#[derive(Clone)]
pub struct ChainEntry {
    /// Mode of the authorizer.
    pub mode: AuthorizationMode,
    /// Name of the authorizer in logs and reports.
    pub label: Arc<str>,
    /// The metrics of its decisions, if any.
    pub decisions: Option<Arc<DecisionCounts>>,
}

/// A snapshot of the authorizers.
enum ChainSnapshot<'m> {
    Fixed(&'m [ChainEntry]),
    Reloaded(Arc<Vec<ChainEntry>>),
}

/// An authorization mode.
#[derive(Clone, Debug)]
pub enum AuthorizationMode {
    /// Allows every request: the backends authorize again.
    AlwaysAllow,
    /// Denies every request.
    AlwaysDeny,
    /// Allows by RBAC objects from a file and stored ones; followed. With the name that was given, `RBAC` or `Static`.
    Static(RbacPolicies, &'static str),
    /// Allows by the static rules of kube-rbac-proxy's file; reloaded.
    ConfigFile(Published<RbacProxyRules>),
    /// Sends a SubjectAccessReview to a kube-apiserver or webhook (`Webhook`).
    Webhook(Arc<AccessReviewClient>),
}

/// A denied request. Becomes the response to the client.
#[derive(Debug)]
pub struct Denial {
    refusal: Refusal,
    reason: DenyReason,
}

/// Why a request is denied.
#[derive(Debug)]
pub(super) enum DenyReason {
    /// Denied, or not allowed by any authorizer; with the reason for the client, or the empty string.
    Forbidden(String),
    /// An authorizer failed and no other allowed the request; with the error for the log.
    Unknown(String),
}

/// The result of a served access review, like `SubjectAccessReviewStatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewStatus {
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
    /// Groups that are allowed everything; `system:masters` in Kubernetes.
    pub privileged_groups: Vec<String>,
    /// Paths that need no authorization.
    pub always_allow_paths: AlwaysAllowPaths,
    /// The chain of modes.
    pub chain: AuthorizerChain,
}

/// Proof that a request is authorized for a user. Only [`Authorizer::authorize`], [`Authorizer::authorize_all`] and
/// [`Permit::for_open_path`] create one.
#[derive(Clone, Debug)]
pub struct Permit<'r> {
    user: Arc<User>,
    request: RequestInfo<'r>,
    reason: Option<Arc<str>>,
}

impl AuthorizerChain {
    /// Returns a snapshot of the authorizers.
    pub(super) fn snapshot(&self) -> impl Deref<Target = [ChainEntry]> {
        match self {
            AuthorizerChain::Fixed(links) => ChainSnapshot::Fixed(links),
            // An owned snapshot: the caller may await while using it.
            AuthorizerChain::Reloaded(links) => ChainSnapshot::Reloaded(links.get()),
        }
    }
}

impl From<Vec<AuthorizationMode>> for AuthorizerChain {
    fn from(modes: Vec<AuthorizationMode>) -> AuthorizerChain {
        let link = |mode: AuthorizationMode| ChainEntry { label: mode.as_str().into(), mode, decisions: None };
        AuthorizerChain::Fixed(modes.into_iter().map(link).collect())
    }
}

impl Deref for ChainSnapshot<'_> {
    type Target = [ChainEntry];

    fn deref(&self) -> &[ChainEntry] {
        match self {
            ChainSnapshot::Fixed(links) => links,
            ChainSnapshot::Reloaded(links) => links,
        }
    }
}

impl ChainEntry {
    async fn decide(&self, attributes: Attributes<'_>) -> Decision {
        let decision = self.mode.decide(attributes).await;
        if let Some(decisions) = &self.decisions {
            match &decision {
                Decision::Allow(_) => decisions.record_allowed(),
                Decision::Deny(_) | Decision::FatalError(_) => decisions.record_denied(),
                Decision::NoOpinion(_) | Decision::Error(_) => {}
            }
        }
        decision
    }
}

impl std::fmt::Debug for ChainEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.label)
    }
}

impl AuthorizationMode {
    /// Decides. An access review may wait for a network call; a cached one does not.
    async fn decide(&self, attributes: Attributes<'_>) -> Decision {
        match self {
            AuthorizationMode::AlwaysAllow => Decision::Allow(None),
            AuthorizationMode::AlwaysDeny => Decision::NoOpinion("Everything is forbidden.".to_owned()),
            AuthorizationMode::Static(policies, _) => {
                if let Some(why) = policies.load().find_map(|policy| policy.allows(attributes).cloned()) {
                    return Decision::Allow(Some(why));
                }
                let reasons = policies.load().map(|policy| policy.denial_reason(attributes));
                Decision::NoOpinion(reasons.filter(|reason| !reason.is_empty()).collect::<Vec<_>>().join(", "))
            }
            AuthorizationMode::ConfigFile(rules) => match rules.load().allows(attributes) {
                Some(why) => Decision::Allow(Some(why.clone())),
                None => Decision::NoOpinion(String::new()),
            },
            AuthorizationMode::Webhook(reviews) => reviews.decide(attributes).await,
        }
    }

    /// The name in `--authorization-mode`, if it is allowed there.
    fn as_str(&self) -> &'static str {
        match self {
            AuthorizationMode::AlwaysAllow => "AlwaysAllow",
            AuthorizationMode::AlwaysDeny => "AlwaysDeny",
            AuthorizationMode::Static(_, name) => name,
            AuthorizationMode::ConfigFile(_) => "ConfigFile",
            AuthorizationMode::Webhook(_) => "Webhook",
        }
    }

    /// Whether the authorizer can authorize impersonation. `AlwaysAllow` cannot: it relies on the backends to authorize
    /// again, but they only see the impersonated user. Static rules of kube-rbac-proxy, which has no impersonation,
    /// cannot: a rule without verb and resource would allow it to every user.
    fn evaluates_users(&self) -> bool {
        match self {
            AuthorizationMode::AlwaysAllow | AuthorizationMode::AlwaysDeny | AuthorizationMode::ConfigFile(_) => false,
            AuthorizationMode::Static(..) | AuthorizationMode::Webhook(_) => true,
        }
    }
}

impl Denial {
    fn new(user: &User, request: &RequestInfo<'_>, no: DenyReason) -> Denial {
        let refusal = match &no {
            // The message names user and action, and is in the log.
            DenyReason::Forbidden(reason) => {
                Refusal::new(Blame::Client, Status::forbidden_to(&user.name, request, reason))
            }
            DenyReason::Unknown(why) => Refusal::new(Blame::Gateway, authorization_unknown(request)).with_cause(why),
        };
        let attributes = ReviewedAttributes {
            user: user.name.clone(),
            verb: request.verb.clone().into_owned(),
            resource: request.resource.to_owned(),
            subresource: request.subresource.to_owned(),
        };
        Denial { refusal: refusal.with_attributes(attributes), reason: no }
    }

    /// What the client gets.
    pub fn status(&self) -> &Status {
        self.refusal.status()
    }

    /// The reason (or the empty string) if the request was denied or not allowed; none if an authorizer failed.
    pub fn forbidden_reason(&self) -> Option<&str> {
        match &self.reason {
            DenyReason::Forbidden(reason) => Some(reason),
            DenyReason::Unknown(_) => None,
        }
    }
}

impl From<Denial> for Refusal {
    fn from(denied: Denial) -> Refusal {
        denied.refusal
    }
}

impl Default for Authorizer {
    /// Allows every request.
    fn default() -> Authorizer {
        Authorizer {
            privileged_groups: vec!["system:masters".to_owned()],
            always_allow_paths: AlwaysAllowPaths::health_endpoints(),
            chain: vec![AuthorizationMode::AlwaysAllow].into(),
        }
    }
}

impl Authorizer {
    /// Authorizes `request` for `actor`; returns the proof.
    pub async fn authorize<'r>(
        &self,
        actor: &EffectiveUser<'_>,
        request: RequestInfo<'r>,
    ) -> Result<Permit<'r>, Denial> {
        let user = actor.user();
        match self.decide(Attributes { user, request: &request }, |_| true).await {
            Ok(why) => Ok(Permit { user: user.clone(), request, reason: why }),
            Err(no) => Err(Denial::new(user, &request, no)),
        }
    }

    /// Authorizes the user of `permit` to create the object that the request names; returns the proof.
    pub(super) async fn authorize_creation<'r>(&self, permit: &Permit<'r>) -> Result<Permit<'r>, Denial> {
        let user = permit.user();
        let (field_selector, label_selector) = (Cow::default(), Cow::default());
        let request =
            RequestInfo { verb: Cow::Borrowed("create"), field_selector, label_selector, ..permit.request().clone() };
        match self.decide(Attributes { user, request: &request }, |_| true).await {
            Ok(why) => Ok(Permit { user: user.clone(), request, reason: why }),
            Err(no) => Err(Denial::new(user, &request, no)),
        }
    }

    /// Authorizes a request by `questions` instead of its own attributes; all of them must be allowed. The reason is
    /// that of the last.
    pub async fn authorize_all<'r>(
        &self,
        actor: &EffectiveUser<'_>,
        request: RequestInfo<'r>,
        questions: &RequiredPermissions<'_>,
    ) -> Result<Permit<'r>, Denial> {
        let user = actor.user();
        let mut why = None;
        for question in questions.iter() {
            why = match self.decide(Attributes { user, request: &question }, |_| true).await {
                Ok(why) => why,
                Err(no) => return Err(Denial::new(user, &question, no)),
            };
        }
        Ok(Permit { user: user.clone(), request, reason: why })
    }

    /// The rules of a user in a namespace, role by role, of all authorizers that have such, and errors about roles that do
    /// not exist.
    pub(super) fn rules(&self, user: &User, namespace: &str) -> (Vec<Arc<Vec<PolicyRule>>>, Vec<String>) {
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for link in &*self.chain.snapshot() {
            let AuthorizationMode::Static(policies, _) = &link.mode else { continue };
            let (granted, missing) = policies.rules(user, namespace);
            rules.extend(granted);
            errors.extend(missing);
        }
        (rules, errors)
    }

    /// Evaluates the chain for a served access review.
    pub async fn review(&self, attributes: Attributes<'_>) -> ReviewStatus {
        let mut judgment = ReviewStatus::default();
        if self.is_privileged(attributes.user) || self.always_allow_paths.allows(attributes.request) {
            judgment.allowed = true;
            return judgment;
        }
        let mut reasons = Vec::new();
        for link in &*self.chain.snapshot() {
            match link.decide(attributes).await {
                // A decision overrides errors of earlier authorizers.
                Decision::Allow(why) => {
                    judgment = ReviewStatus { allowed: true, ..ReviewStatus::default() };
                    reasons = why.iter().map(ToString::to_string).collect();
                    break;
                }
                Decision::Deny(reason) => {
                    judgment = ReviewStatus { denied: true, ..ReviewStatus::default() };
                    reasons = vec![reason];
                    break;
                }
                Decision::NoOpinion(reason) => reasons.push(reason),
                Decision::Error(_) => judgment.error = "an authorizer failed".to_owned(),
                Decision::FatalError(_) => {
                    let error = "an authorizer failed, or its response was contradictory".to_owned();
                    judgment = ReviewStatus { denied: true, error, ..ReviewStatus::default() };
                    reasons.clear();
                    break;
                }
            }
        }
        reasons.retain(|reason| !reason.is_empty());
        judgment.reason = reasons.join("\n");
        judgment
    }

    /// Whether any mode can authorize impersonation. Privileged groups and always-allowed paths do not count.
    pub(super) fn can_authorize_impersonation(&self) -> bool {
        self.chain.snapshot().iter().any(|link| link.mode.evaluates_users())
    }

    /// Authorizes impersonation, only by modes that evaluate each user.
    pub(super) async fn authorize_impersonation(&self, attributes: Attributes<'_>) -> Result<(), DenyReason> {
        let counts = |mode: &AuthorizationMode| mode.evaluates_users() || matches!(mode, AuthorizationMode::AlwaysDeny);
        self.decide(attributes, counts).await.map(drop)
    }

    /// The names of the authorizers in order, for the operator.
    pub fn describe(&self) -> Vec<String> {
        self.chain.snapshot().iter().map(|link| link.label.as_ref().to_owned()).collect()
    }

    /// Whether a user is in a privileged group.
    pub fn is_privileged(&self, user: &User) -> bool {
        user.groups.iter().any(|group| self.privileged_groups.contains(group))
    }

    /// Evaluates the chain like Kubernetes' union: an error counts only if no other authorizer allows or denies. Modes
    /// that do not `count` are skipped.
    async fn decide(
        &self,
        attributes: Attributes<'_>,
        count: impl Fn(&AuthorizationMode) -> bool,
    ) -> Result<Option<Arc<str>>, DenyReason> {
        if self.is_privileged(attributes.user) || self.always_allow_paths.allows(attributes.request) {
            return Ok(None);
        }
        let (mut reasons, mut errors) = (Vec::new(), Vec::new());
        for link in self.chain.snapshot().iter().filter(|link| count(&link.mode)) {
            match link.decide(attributes).await {
                Decision::Allow(why) => return Ok(why),
                Decision::Deny(reason) => return Err(DenyReason::Forbidden(reason)),
                Decision::NoOpinion(reason) => reasons.push(reason),
                Decision::Error(why) => errors.push(why),
                Decision::FatalError(why) => return Err(DenyReason::Unknown(why)),
            }
        }
        if !errors.is_empty() {
            return Err(DenyReason::Unknown(errors.join("; ")));
        }
        reasons.retain(|reason| !reason.is_empty());
        // Kubernetes' union joins with a newline.
        Err(DenyReason::Forbidden(reasons.join("\n")))
    }
}

impl<'r> Permit<'r> {
    /// Creates a permit for an open path, which needs no authorization.
    pub fn for_open_path(_: OpenPath, user: &Arc<User>, request: RequestInfo<'r>) -> Permit<'r> {
        Permit { user: user.clone(), request, reason: None }
    }

    /// The authorized user.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// The reason, if any.
    pub fn reason(&self) -> Option<&Arc<str>> {
        self.reason.as_ref()
    }

    /// The authorized request.
    pub fn request(&self) -> &RequestInfo<'r> {
        &self.request
    }
}

/// The Status for a failed authorizer. Kubernetes' filter sends plain text with the error; here the error stays in the
/// log.
fn authorization_unknown(request: &RequestInfo<'_>) -> Status {
    let path = kubeapi::GoQuoted(request.path);
    Status::internal_error(format_args!("authorization of {path} failed: an authorizer could not decide"))
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kubeapi::{CanonicalPath, Query};

    use super::*;
    use crate::authenticate::AuthenticatedUser;

    async fn ask(authorizer: &Authorizer, caller: &AuthenticatedUser, path: &str) -> Result<String, (u16, String)> {
        let path = CanonicalPath::parse(path).unwrap();
        let query = Query::parse("");
        let request = RequestInfo::parse(&Method::GET, &path, &query).unwrap();
        let permit = authorizer.authorize(&EffectiveUser::from_authenticated(caller).unwrap(), request).await;
        permit
            .map(|permit| format!("{} {}", permit.user().name, permit.request().verb))
            .map_err(|denied| (denied.refusal.status().code, denied.refusal.status().message.clone()))
    }

    fn jane(groups: &[&str]) -> AuthenticatedUser {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        AuthenticatedUser::for_test(User { name: "jane".into(), groups, ..User::default() }, false)
    }

    #[tokio::test]
    async fn authorizer_chain_first_decision_wins() {
        let path = "/apis/g/v1/namespaces/x/things/y";
        let chain = |modes: &[AuthorizationMode]| Authorizer { chain: modes.to_vec().into(), ..Authorizer::default() };
        for modes in
            [&[AuthorizationMode::AlwaysAllow][..], &[AuthorizationMode::AlwaysDeny, AuthorizationMode::AlwaysAllow]]
        {
            assert_eq!(ask(&chain(modes), &jane(&[]), path).await, Ok("jane get".to_owned()));
        }
        let denied = (
            403,
            r#"things.g "y" is forbidden: User "jane" cannot get resource "things" in API group "g" in the namespace "x": Everything is forbidden."#
                .to_owned(),
        );
        assert_eq!(ask(&chain(&[AuthorizationMode::AlwaysDeny]), &jane(&[]), path).await, Err(denied));
        assert!(ask(&chain(&[]), &jane(&[]), path).await.is_err());
        assert!(ask(&chain(&[AuthorizationMode::AlwaysDeny]), &jane(&["system:masters"]), path).await.is_ok());
        assert!(ask(&chain(&[AuthorizationMode::AlwaysDeny]), &jane(&[]), "/livez").await.is_ok());
        assert!(ask(&chain(&[AuthorizationMode::AlwaysDeny]), &jane(&[]), "/version").await.is_err());
    }

    /// Privileged groups can be turned off.
    #[tokio::test]
    async fn privileged_groups_can_be_empty() {
        let authorizer = Authorizer {
            privileged_groups: Vec::new(),
            chain: vec![AuthorizationMode::AlwaysDeny].into(),
            ..Authorizer::default()
        };
        assert!(ask(&authorizer, &jane(&["system:masters"]), "/version").await.is_err());
    }
}
