//! Self reviews, answered by the gateway's own authorizer chain: `SelfSubjectReview`, `SelfSubjectAccessReview` and
//! `SelfSubjectRulesReview`, used by `kubectl auth whoami`, `can-i` and `can-i --list`.

use std::time::SystemTime;

use kubeapi::{RequestInfo, Status, User};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::access_spec::{self, AccessSpec};
use super::{Attributes, AuthorizationMode, Authorizer, ReviewBody, policy};

/// A kind of self review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfReview {
    /// The user's own attributes (`selfsubjectreviews`).
    Subject,
    /// Whether one action is allowed (`selfsubjectaccessreviews`).
    Access,
    /// The list of allowed actions (`selfsubjectrulesreviews`).
    Rules,
}

#[derive(Deserialize, Default)]
struct EmptySpec {}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RulesSpec {
    namespace: String,
}

impl SelfReview {
    /// Classifies a request; none for other resources. Accepts any verb, though only `create` is served.
    pub fn parse(info: &RequestInfo<'_>) -> Option<SelfReview> {
        let is_review_group = info.is_resource_request && info.api_prefix == "apis" && info.api_version == "v1";
        if !is_review_group || !info.namespace.is_empty() || !info.subresource.is_empty() {
            return None;
        }
        Some(match (info.api_group, info.resource) {
            ("authentication.k8s.io", "selfsubjectreviews") => SelfReview::Subject,
            ("authorization.k8s.io", "selfsubjectaccessreviews") => SelfReview::Access,
            ("authorization.k8s.io", "selfsubjectrulesreviews") => SelfReview::Rules,
            _ => return None,
        })
    }

    /// The kind of its body.
    pub fn review_body(self) -> ReviewBody {
        match self {
            SelfReview::Subject => ReviewBody::SelfSubject,
            SelfReview::Access => ReviewBody::SelfSubjectAccess,
            SelfReview::Rules => ReviewBody::SelfSubjectRules,
        }
    }

    /// Returns the response to the review in `body`, which is JSON, for `user`.
    ///
    /// # Errors
    /// 400 for an invalid object, 422 for an invalid spec.
    pub async fn answer(self, authorizer: &Authorizer, user: &User, body: &[u8]) -> Result<Value, Status> {
        let status = match self {
            SelfReview::Subject => {
                self.read_spec::<EmptySpec>(body)?;
                let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or_default();
                let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let (group, kind) = self.kind();
                return Ok(json!({
                    "kind": kind, "apiVersion": format!("{group}/v1"), "metadata": {"creationTimestamp": now},
                    "status": {"userInfo": user.info()},
                }));
            }
            SelfReview::Access => self.review_access(authorizer, user, body).await?,
            SelfReview::Rules => self.review_rules(authorizer, user, body)?,
        };
        let (group, kind) = self.kind();
        let spec =
            serde_json::from_slice::<Value>(body).ok().and_then(|mut body| body.get_mut("spec").map(Value::take));
        // Kubernetes returns the spec, but not for rules.
        let spec = spec.filter(|_| self == SelfReview::Access).unwrap_or_else(|| json!({}));
        Ok(json!({"kind": kind, "apiVersion": format!("{group}/v1"), "metadata": {}, "spec": spec, "status": status}))
    }

    fn kind(self) -> (&'static str, &'static str) {
        match self {
            SelfReview::Subject => ("authentication.k8s.io", "SelfSubjectReview"),
            SelfReview::Access => ("authorization.k8s.io", "SelfSubjectAccessReview"),
            SelfReview::Rules => ("authorization.k8s.io", "SelfSubjectRulesReview"),
        }
    }

    fn read_spec<S: DeserializeOwned + Default>(self, body: &[u8]) -> Result<S, Status> {
        let (group, kind) = self.kind();
        access_spec::read_review_spec(group, kind, body)
    }

    async fn review_access(self, authorizer: &Authorizer, user: &User, body: &[u8]) -> Result<Value, Status> {
        let spec: AccessSpec = self.read_spec(body)?;
        let (group, kind) = self.kind();
        let request = spec.request().map_err(|causes| Status::invalid(group, kind, "", causes))?;
        let decision = authorizer.review(Attributes { user, request: &request }).await;
        Ok(decision.into_json())
    }

    fn review_rules(self, authorizer: &Authorizer, user: &User, body: &[u8]) -> Result<Value, Status> {
        let spec: RulesSpec = self.read_spec(body)?;
        if spec.namespace.is_empty() {
            return Err(Status::bad_request("no namespace on request"));
        }
        let mut rules = UserRules::default();
        for link in &*authorizer.chain.snapshot() {
            match &link.mode {
                AuthorizationMode::AlwaysAllow => rules.add_all(),
                AuthorizationMode::AlwaysDeny => {}
                AuthorizationMode::Static(policies, _) => {
                    let (granted, missing) = policies.rules(user, &spec.namespace);
                    granted.iter().flat_map(|role| &**role).for_each(|rule| rules.add(rule));
                    rules.errors.extend(missing);
                }
                AuthorizationMode::ConfigFile(_) => rules.mark_unsupported("configuration file"),
                AuthorizationMode::Webhook(_) => rules.mark_unsupported("webhook"),
            }
        }
        // As upstream, what a group may by itself is not listed again beside its roles.
        if authorizer.is_privileged(user) && !rules.has_all() {
            rules.add_all();
        }
        Ok(rules.into_json())
    }
}

/// The rules of a user, as far as they can be listed.
#[derive(Default)]
struct UserRules {
    resources: Vec<Value>,
    paths: Vec<Value>,
    incomplete: bool,
    errors: Vec<String>,
}

impl UserRules {
    /// Adds Kubernetes' error for an authorizer that cannot list rules.
    fn mark_unsupported(&mut self, authorizer: &str) {
        self.incomplete = true;
        self.errors.push(format!("{authorizer} authorizer does not support user rule resolution"));
    }

    fn add(&mut self, rule: &policy::PolicyRule) {
        if !rule.resources.is_empty() {
            let mut resource_rule =
                json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                resource_rule["resourceNames"] = json!(rule.resource_names);
            }
            self.resources.push(resource_rule);
        }
        if !rule.non_resource_urls.is_empty() {
            self.paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}));
        }
    }

    /// Whether the user may everything.
    fn has_all(&self) -> bool {
        let is_any = |rule: &Value, fields: &[&str]| fields.iter().all(|field| rule[field][0] == "*");
        self.resources
            .iter()
            .any(|rule| is_any(rule, &["verbs", "apiGroups", "resources"]) && rule["resourceNames"].is_null())
            && self.paths.iter().any(|rule| is_any(rule, &["verbs", "nonResourceURLs"]))
    }

    fn add_all(&mut self) {
        self.add(&policy::PolicyRule::all_resources());
        self.add(&policy::PolicyRule::all_paths());
    }

    fn into_json(self) -> Value {
        let mut status =
            json!({"resourceRules": self.resources, "nonResourceRules": self.paths, "incomplete": self.incomplete});
        match &self.errors[..] {
            [] => {}
            [one] => status["evaluationError"] = one.as_str().into(),
            _ => status["evaluationError"] = format!("[{}]", self.errors.join(", ")).into(),
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorize::RbacPolicy;

    fn user() -> User {
        User { name: "jane".into(), uid: "7".into(), groups: vec!["devs".into()], ..User::default() }
    }

    fn chain() -> Authorizer {
        let head = "apiVersion: rbac.authorization.k8s.io/v1\n";
        let text = format!(
            "{head}kind: ClusterRole\nmetadata: {{name: r}}\nrules:\n\
             - {{apiGroups: [g], resources: [things], verbs: [get], resourceNames: [one]}}\n\
             - {{nonResourceURLs: [/x], verbs: [get]}}\n---\n\
             {head}kind: ClusterRoleBinding\nmetadata: {{name: b}}\nroleRef: {{kind: ClusterRole, name: r}}\n\
             subjects: [{{kind: Group, name: devs}}]\n---\n\
             {head}kind: ClusterRoleBinding\nmetadata: {{name: c}}\nroleRef: {{kind: ClusterRole, name: gone}}\n\
             subjects: [{{kind: User, name: jane}}]\n"
        );
        let policy = RbacPolicy::parse("p", &text, false).unwrap().into();
        Authorizer { chain: vec![AuthorizationMode::Static(policy, "RBAC")].into(), ..Authorizer::default() }
    }

    async fn ask(review: SelfReview, spec: Value) -> Result<Value, Status> {
        review.answer(&chain(), &user(), json!({ "spec": spec }).to_string().as_bytes()).await
    }

    #[tokio::test]
    async fn self_subject_review_returns_user_info() {
        let mut answer = ask(SelfReview::Subject, json!({})).await.unwrap();
        let created = answer["metadata"]["creationTimestamp"].take();
        assert_eq!(created.as_str().map(str::len), Some("2026-01-01T00:00:00Z".len()));
        assert_eq!(
            answer,
            json!({
                "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1",
                "metadata": {"creationTimestamp": null},
                "status": {"userInfo": {"username": "jane", "uid": "7", "groups": ["devs"]}},
            })
        );
    }

    #[tokio::test]
    async fn self_subject_access_review_answered_by_chain() {
        let spec = |verb: &str, name: &str| json!({"resourceAttributes": {"verb": verb, "group": "g", "resource": "things", "name": name}});
        let answer = ask(SelfReview::Access, spec("get", "one")).await.unwrap();
        assert_eq!(
            answer,
            json!({
                "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
                "spec": spec("get", "one"),
                "status": {
                    "allowed": true, "reason": r#"RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "devs""#,
                },
            })
        );
        let missing = r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#;
        for spec in
            [spec("get", "two"), spec("list", ""), json!({"nonResourceAttributes": {"path": "/y", "verb": "get"}})]
        {
            let answer = ask(SelfReview::Access, spec.clone()).await.unwrap();
            assert_eq!(answer["status"], json!({"allowed": false, "reason": missing}), "{spec}");
        }
        let path = json!({"nonResourceAttributes": {"path": "/x", "verb": "get"}});
        assert_eq!(ask(SelfReview::Access, path).await.unwrap()["status"]["allowed"], true);
    }

    #[tokio::test]
    async fn self_subject_reviews_reject_invalid_spec() {
        let both = json!({"resourceAttributes": {}, "nonResourceAttributes": {}});
        for (review, spec, code) in [
            (SelfReview::Access, json!({}), 422),
            (SelfReview::Access, both, 422),
            (SelfReview::Access, json!({"resourceAttributes": {"verb": 1}}), 400),
            (SelfReview::Access, json!(7), 400),
            (SelfReview::Rules, json!({}), 400),
        ] {
            let status = ask(review, spec.clone()).await.unwrap_err();
            assert_eq!(status.code, code, "{spec}: {}", status.message);
        }
        for body in ["", "null", "[]", "{", r#"{"kind":"Pod"}"#, r#"{"apiVersion":"authorization.k8s.io/v2"}"#] {
            let answer = SelfReview::Rules.answer(&chain(), &user(), body.as_bytes()).await;
            assert_eq!(answer.unwrap_err().code, 400, "{body}");
        }
    }

    #[tokio::test]
    async fn self_subject_rules_review_lists_rules() {
        let answer = ask(SelfReview::Rules, json!({"namespace": "default"})).await.unwrap();
        assert_eq!(
            answer["status"],
            json!({
                "resourceRules": [
                    {"verbs": ["get"], "apiGroups": ["g"], "resources": ["things"], "resourceNames": ["one"]},
                ],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}],
                "incomplete": false,
                "evaluationError": r#"clusterrole.rbac.authorization.k8s.io "gone" not found"#,
            })
        );
        let root = User { groups: vec!["system:masters".into()], ..user() };
        let body = json!({"spec": {"namespace": "x"}}).to_string();
        let answer = SelfReview::Rules.answer(&chain(), &root, body.as_bytes()).await.unwrap();
        assert_eq!(answer["status"]["resourceRules"][0]["verbs"], json!(["*"]));
    }
}
