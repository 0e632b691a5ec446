//! Authorization of a creation by a request whose own verb is another: a PUT creates objects of some kinds
//! (`withAuthorization` in `k8s.io/apiserver/pkg/endpoints/handlers/update.go`).

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use kubeapi::{RequestInfo, Status, User};

use super::Attributes;
use super::authorizer::{Authorizer, Denial, Permit};
use super::policy::PolicyRule;

/// Asks, at most once and only if an object would be created, whether the user of a request may create it. A request
/// with the verb `create` is authorized already.
pub struct CreateAuthorization<'p> {
    authorizer: &'p Authorizer,
    permit: &'p Permit<'p>,
    decision: OnceCell<Result<(), Status>>,
    denial: Cell<Option<Denial>>,
}

impl<'p> CreateAuthorization<'p> {
    /// The question about the request of `permit`.
    pub fn new(authorizer: &'p Authorizer, permit: &'p Permit<'p>) -> CreateAuthorization<'p> {
        CreateAuthorization { authorizer, permit, decision: OnceCell::new(), denial: Cell::new(None) }
    }

    /// Checks that the request may create the object that it names.
    ///
    /// # Errors
    /// 403, or 500 if an authorizer failed. [`take_denial`](CreateAuthorization::take_denial) has the rest of it.
    pub async fn check(&self) -> Result<(), Status> {
        if self.permit.request().verb == "create" {
            return Ok(());
        }
        if let Some(decision) = self.decision.get() {
            return decision.clone();
        }
        let decision = self.authorizer.authorize_creation(self.permit).await.map(drop).map_err(|denial| {
            let status = denial.status().clone();
            self.denial.set(Some(denial));
            status
        });
        self.decision.get_or_init(|| decision).clone()
    }

    /// The user of the request.
    pub fn user(&self) -> &User {
        self.permit.user()
    }

    /// Whether the user may use a verb on a signer of certificates, by its name or by `domain/*`
    /// (`IsAuthorizedForSignerName` in `pkg/apis/certificates`).
    pub async fn allows_signer(&self, verb: &str, signer: &str) -> bool {
        const SIGNERS: (&str, &str) = ("certificates.k8s.io", "signers");
        let domain = signer.split('/').next().unwrap_or_default();
        self.allows(verb, SIGNERS, ("", signer)).await || self.allows(verb, SIGNERS, ("", &format!("{domain}/*"))).await
    }

    /// Whether the user may also use another verb, on an object of a group and resource in a namespace.
    pub async fn allows(&self, verb: &str, (group, resource): (&str, &str), (namespace, name): (&str, &str)) -> bool {
        let request = RequestInfo {
            is_resource_request: true,
            verb: verb.into(),
            api_prefix: "apis",
            api_group: group,
            api_version: "*",
            resource,
            namespace,
            name: name.into(),
            ..RequestInfo::default()
        };
        self.authorizer.review(Attributes { user: self.permit.user(), request: &request }).await.allowed
    }

    /// The rules of the user in a namespace, role by role, and errors about roles that do not exist.
    pub fn rules(&self, namespace: &str) -> (Vec<Arc<Vec<PolicyRule>>>, Vec<String>) {
        self.authorizer.rules(self.permit.user(), namespace)
    }

    /// The denial, for the log and the metrics.
    pub fn take_denial(&self) -> Option<Denial> {
        self.denial.take()
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kubeapi::{CanonicalPath, Query};

    use super::*;
    use crate::authenticate::AuthenticatedUser;
    use crate::authorize::{AuthorizationMode, EffectiveUser, RbacPolicy};

    fn authorizer(verbs: &str) -> Authorizer {
        let policy = format!(
            r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{{"name":"r"}},
            "rules":[{{"apiGroups":[""],"resources":["services"],"verbs":[{verbs}]}}]}}
---
{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{{"name":"b"}},
            "roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"}},
            "subjects":[{{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}}]}}"#
        );
        let policy = RbacPolicy::parse("p.yaml", &policy, false).unwrap();
        let mode = AuthorizationMode::Static(policy.into(), "RBAC");
        Authorizer { chain: vec![mode].into(), ..Authorizer::default() }
    }

    #[tokio::test]
    async fn creation_by_update_needs_the_verb_create() {
        let user = User { name: "jane".into(), ..User::default() };
        let jane = AuthenticatedUser::for_test(user, false);
        let path = CanonicalPath::parse("/api/v1/namespaces/n/services/s").unwrap();
        let query = Query::parse("");
        for (method, verbs, expected) in [
            (Method::PUT, r#""update","create""#, Ok(())),
            (
                Method::PUT,
                r#""update""#,
                Err(
                    r#"services "s" is forbidden: User "jane" cannot create resource "services" in API group "" in the namespace "n""#,
                ),
            ),
            (Method::POST, r#""create""#, Ok(())),
        ] {
            let authorizer = authorizer(verbs);
            let info = RequestInfo::parse(&method, &path, &query).unwrap();
            let actor = EffectiveUser::from_authenticated(&jane).unwrap();
            let permit = authorizer.authorize(&actor, info).await.unwrap();
            let creation = CreateAuthorization::new(&authorizer, &permit);
            for _ in 0..2 {
                let checked = creation.check().await.map_err(|status| (status.code, status.message));
                assert_eq!(checked, expected.map_err(|text: &str| (403, text.to_owned())), "{method} {verbs}");
            }
            assert_eq!(creation.take_denial().is_some(), expected.is_err());
        }
    }
}
