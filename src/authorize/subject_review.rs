//! `SubjectAccessReview` and `LocalSubjectAccessReview`, answered by the gateway's own authorizer chain.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubeapi::{Status, StatusCause, User};
use serde::Deserialize;
use serde_json::{Value, json};

use super::access_spec::{AccessSpec, invalid, read_review_spec};
use super::{Attributes, Authorizer};
use crate::authenticate::GroupFilter;

const GROUP: &str = "authorization.k8s.io";
const KIND: &str = "SubjectAccessReview";
const LOCAL_KIND: &str = "LocalSubjectAccessReview";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    #[serde(flatten)]
    access: AccessSpec,
    user: String,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Option<Vec<String>>>>,
    uid: String,
}

/// Returns the response to the SubjectAccessReview in `body`, which is JSON; with a `namespace` it is a
/// LocalSubjectAccessReview. The group filter `believed` is applied to the reviewed user.
///
/// # Errors
/// 400 for an invalid object, 422 for an invalid spec.
pub async fn subject_access_review(
    authorizer: &Authorizer,
    believed: &GroupFilter,
    namespace: &str,
    body: &[u8],
) -> Result<Value, Status> {
    let is_local = !namespace.is_empty();
    let kind = if is_local { LOCAL_KIND } else { KIND };
    let spec: Spec = read_review_spec(GROUP, kind, body)?;
    let groups = spec.groups.unwrap_or_default();
    let request = spec.access.request();
    let mut causes = if is_local { local_errors(&spec.access, namespace) } else { Vec::new() };
    if spec.user.is_empty() && groups.is_empty() {
        causes.push(invalid("spec.user", "at least one of user or group must be specified"));
    }
    let request = match request {
        Ok(request) if causes.is_empty() => request,
        Ok(_) => return Err(Status::invalid(GROUP, kind, "", causes)),
        Err(more) => {
            causes.splice(0..0, more);
            return Err(Status::invalid(GROUP, kind, "", causes));
        }
    };
    let extra = spec.extra.unwrap_or_default().into_iter().map(|(key, values)| (key, values.unwrap_or_default()));
    let user = User { name: spec.user, uid: spec.uid, groups, extra: extra.collect() };
    let user = believed.filter(Arc::new(user));
    let decision = authorizer.review(Attributes { user: &user, request: &request }).await;
    let sent_spec =
        serde_json::from_slice::<Value>(body).ok().and_then(|mut body| body.get_mut("spec").map(Value::take));
    let metadata = if is_local { json!({"namespace": namespace}) } else { json!({}) };
    Ok(json!({
        "kind": kind, "apiVersion": format!("{GROUP}/v1"), "metadata": metadata,
        "spec": sent_spec.unwrap_or_else(|| json!({})), "status": decision.into_json(),
    }))
}

/// The errors of a review about requests in one namespace (`ValidateLocalSubjectAccessReview`).
fn local_errors(access: &AccessSpec, namespace: &str) -> Vec<StatusCause> {
    let mut causes = Vec::new();
    if access.namespace().is_some_and(|own| own != namespace) {
        causes.push(invalid("spec.resourceAttributes.namespace", "must match metadata.namespace"));
    }
    if access.is_of_path() {
        causes.push(invalid("spec.nonResourceAttributes", "disallowed on this kind of request"));
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorize::{AuthorizationMode, RbacPolicy};

    async fn ask(spec: Value) -> Result<Value, (u16, String)> {
        let text = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\n\
                    rules: [{apiGroups: [g], resources: [things], verbs: [get]}]\n---\n\
                    apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: b}\n\
                    roleRef: {kind: ClusterRole, name: r}\nsubjects: [{kind: Group, name: devs}]\n";
        let policy = RbacPolicy::parse("p", text, false).unwrap().into();
        let authorizer =
            Authorizer { chain: vec![AuthorizationMode::Static(policy, "RBAC")].into(), ..Authorizer::default() };
        let believed = GroupFilter::default();
        let body = json!({ "spec": spec }).to_string();
        let answer = subject_access_review(&authorizer, &believed, "", body.as_bytes()).await;
        answer.map_err(|status| (status.code, status.message))
    }

    #[tokio::test]
    async fn local_review_is_about_its_namespace() {
        let authorizer = Authorizer { chain: vec![AuthorizationMode::AlwaysDeny].into(), ..Authorizer::default() };
        for (namespace, expected) in [("n", 201), ("other", 422)] {
            let attributes = json!({"namespace": namespace, "verb": "get", "resource": "pods"});
            let body =
                json!({"kind": LOCAL_KIND, "spec": {"user": "jane", "resourceAttributes": attributes}}).to_string();
            let answer = subject_access_review(&authorizer, &GroupFilter::default(), "n", body.as_bytes()).await;
            assert_eq!(answer.as_ref().map_or_else(|status| status.code, |_| 201), expected);
            assert!(answer.is_err() || answer.is_ok_and(|review| review["metadata"]["namespace"] == "n"));
        }
    }

    #[tokio::test]
    async fn subject_access_review_ignores_filtered_groups() {
        let body = json!({ "spec": things(json!({"user": "jane", "groups": ["system:masters"]})) }).to_string();
        let authorizer = Authorizer { chain: vec![AuthorizationMode::AlwaysDeny].into(), ..Authorizer::default() };
        for (dropped, allowed) in [(vec![], true), (vec!["system:masters"], false)] {
            let believed = GroupFilter::new(&[], &dropped);
            let answer = subject_access_review(&authorizer, &believed, "", body.as_bytes()).await.unwrap();
            assert_eq!(answer["status"]["allowed"], allowed, "without {dropped:?}");
        }
    }

    fn things(requester: Value) -> Value {
        let mut spec = requester;
        spec["resourceAttributes"] = json!({"verb": "get", "group": "g", "version": "v1", "resource": "things"});
        spec
    }

    #[tokio::test]
    async fn subject_access_review_answered_by_chain() {
        let spec = things(json!({"user": "jane", "groups": ["devs"], "uid": "7", "extra": {"a": ["b"], "c": null}}));
        assert_eq!(
            ask(spec.clone()).await.unwrap(),
            json!({
                "kind": KIND, "apiVersion": "authorization.k8s.io/v1", "metadata": {}, "spec": spec,
                "status": {
                    "allowed": true, "reason": r#"RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to Group "devs""#,
                },
            })
        );
        assert_eq!(ask(things(json!({"user": "bob"}))).await.unwrap()["status"], json!({"allowed": false}));
        let root = things(json!({"groups": ["system:masters"]}));
        assert_eq!(ask(root).await.unwrap()["status"]["allowed"], true);
    }

    #[tokio::test]
    async fn subject_access_review_invalid_spec_is_rejected() {
        for (spec, code, words) in [
            (things(json!({})), 422, "spec.user: Invalid value: at least one of user or group"),
            (json!({"user": "jane"}), 422, "spec.resourceAttributes: Invalid value: exactly one"),
            (json!({}), 422, "exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.user"),
            (json!({"user": 7}), 400, "invalid SubjectAccessReview"),
        ] {
            let (was, message) = ask(spec).await.unwrap_err();
            assert!(was == code && message.contains(words), "{was} {message}");
        }
    }
}
