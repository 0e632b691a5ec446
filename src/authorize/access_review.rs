//! `SubjectAccessReview`: the request object, its cache key, and the evaluation of the response.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kubeapi::{FieldSelector, LabelOperator, LabelSelector};
use serde::{Deserialize, Serialize};

use super::{Attributes, Decision};
use crate::decision_cache::{Digest, ReviewVersion};

/// Decisions about attributes of this total length or more are not cached (`maxControllerAttrCacheSize` of
/// `k8s.io/apiserver/plugin/pkg/authorizer/webhook`): clients choose the attributes.
const MAX_CACHEABLE_BYTES: usize = 10_000;

/// The verdict of a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReviewVerdict {
    Allowed(Option<Arc<str>>),
    Denied(Arc<str>),
    NoOpinion(Arc<str>),
    /// Both allowed and denied.
    Conflict,
    /// Excluded by match conditions.
    Excluded,
}

/// The request object, with its fields in Kubernetes' order and empty fields omitted.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AccessReviewRequest<'q> {
    kind: &'static str,
    api_version: &'static str,
    metadata: EmptyReviewMetadata,
    spec: Spec<'q>,
    status: UndecidedStatus,
}

#[derive(Serialize)]
struct EmptyReviewMetadata {}

#[derive(Serialize)]
struct UndecidedStatus {
    allowed: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'q> {
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_attributes: Option<ResourceAttributes<'q>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    non_resource_attributes: Option<NonResourceAttributes<'q>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'q str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'q [String],
    /// The name of `groups` in `v1beta1`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    group: &'q [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: &'q BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'q str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceAttributes<'q> {
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'q str,
    #[serde(skip_serializing_if = "str::is_empty")]
    verb: &'q str,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'q str,
    #[serde(skip_serializing_if = "str::is_empty")]
    version: &'q str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: &'q str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'q str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'q str,
    #[serde(skip_serializing_if = "SelectorRequirements::is_empty")]
    field_selector: SelectorRequirements,
    #[serde(skip_serializing_if = "SelectorRequirements::is_empty")]
    label_selector: SelectorRequirements,
}

#[derive(Serialize)]
struct NonResourceAttributes<'q> {
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'q str,
    #[serde(skip_serializing_if = "str::is_empty")]
    verb: &'q str,
}

#[derive(Serialize)]
pub(super) struct SelectorRequirements {
    requirements: Vec<SelectorRequirement>,
}

#[derive(Serialize)]
struct SelectorRequirement {
    key: String,
    operator: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

impl SelectorRequirements {
    pub(super) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns the requirements of a field selector. An invalid one has none, which reviews the broader request.
    pub(super) fn from_field_selector(selector: &str) -> SelectorRequirements {
        let terms = FieldSelector::parse(selector).map(|selector| selector.terms).unwrap_or_default();
        let requirement = |term: kubeapi::FieldTerm| SelectorRequirement {
            key: term.field,
            operator: if term.equal { "In" } else { "NotIn" },
            values: vec![term.value],
        };
        SelectorRequirements { requirements: terms.into_iter().map(requirement).collect() }
    }

    /// Returns the requirements of a label selector. Numeric comparisons cannot be expressed in a review, and are
    /// omitted.
    pub(super) fn from_label_selector(selector: &str) -> SelectorRequirements {
        let parsed = LabelSelector::parse(selector).map(|selector| selector.requirements).unwrap_or_default();
        let requirement = |requirement: kubeapi::LabelRequirement| {
            let operator = match requirement.operator {
                LabelOperator::In => "In",
                LabelOperator::NotIn => "NotIn",
                LabelOperator::Exists => "Exists",
                LabelOperator::DoesNotExist => "DoesNotExist",
                LabelOperator::GreaterThan | LabelOperator::LessThan => return None,
            };
            Some(SelectorRequirement { key: requirement.key, operator, values: requirement.values })
        };
        SelectorRequirements { requirements: parsed.into_iter().filter_map(requirement).collect() }
    }
}

/// Returns the request body.
pub(super) fn request_body(attributes: Attributes<'_>, version: ReviewVersion) -> Bytes {
    let (api_version, groups, group): (_, &[String], &[String]) = match version {
        ReviewVersion::V1 => ("authorization.k8s.io/v1", &attributes.user.groups, &[]),
        ReviewVersion::V1Beta1 => ("authorization.k8s.io/v1beta1", &[], &attributes.user.groups),
    };
    let Attributes { user, request } = attributes;
    let (resource_attributes, non_resource_attributes) = if request.is_resource_request {
        let resource = ResourceAttributes {
            namespace: request.namespace,
            verb: &request.verb,
            group: request.api_group,
            version: request.api_version,
            resource: request.resource,
            subresource: request.subresource,
            name: &request.name,
            field_selector: SelectorRequirements::from_field_selector(&request.field_selector),
            label_selector: SelectorRequirements::from_label_selector(&request.label_selector),
        };
        (Some(resource), None)
    } else {
        (None, Some(NonResourceAttributes { path: request.path, verb: &request.verb }))
    };
    let question = AccessReviewRequest {
        kind: "SubjectAccessReview",
        api_version,
        metadata: EmptyReviewMetadata {},
        spec: Spec {
            resource_attributes,
            non_resource_attributes,
            user: &user.name,
            groups,
            group,
            extra: &user.extra,
            uid: &user.uid,
        },
        status: UndecidedStatus { allowed: false },
    };
    serde_json::to_vec(&question).map(Bytes::from).unwrap_or_default()
}

/// Writes all attributes into the cache key. Selectors are written as received: two spellings of one selector are two
/// keys, which only costs a second review.
pub(super) fn write_digest(attributes: Attributes<'_>, digest: &mut Digest) {
    let Attributes { user, request } = attributes;
    digest.text(&user.name);
    digest.text(&user.uid);
    digest.texts(user.groups.iter().map(String::as_str));
    digest.number(user.extra.len());
    for (key, values) in &user.extra {
        digest.text(key);
        digest.texts(values.iter().map(String::as_str));
    }
    digest.number(usize::from(request.is_resource_request));
    digest.text(&request.verb);
    if request.is_resource_request {
        digest.text(request.api_group);
        digest.text(request.api_version);
        digest.text(request.namespace);
        digest.text(request.resource);
        digest.text(request.subresource);
        digest.text(&request.name);
        digest.text(&request.field_selector);
        digest.text(&request.label_selector);
    } else {
        digest.text(request.path);
    }
}

/// Whether the decision may be cached.
pub(super) fn is_cacheable(attributes: Attributes<'_>) -> bool {
    let request = attributes.request;
    let parts: [&str; 8] = [
        request.namespace,
        &request.verb,
        request.api_group,
        request.api_version,
        request.resource,
        request.subresource,
        &request.name,
        request.path,
    ];
    // Kubernetes does not count the selectors, so that a client can fill its cache with them.
    let selectors = request.field_selector.len() + request.label_selector.len();
    parts.iter().map(|part| part.len()).sum::<usize>() + selectors < MAX_CACHEABLE_BYTES
}

/// Parses the response.
///
/// # Errors
/// When it is invalid; the text is for the log.
pub(super) fn parse_verdict(answer: &[u8]) -> Result<ReviewVerdict, String> {
    #[derive(Deserialize)]
    struct AccessReviewResponse {
        kind: String,
        status: Status,
    }
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Status {
        allowed: bool,
        denied: bool,
        reason: String,
    }
    let reviewed: AccessReviewResponse = serde_json::from_slice(answer)
        .map_err(|error| format!("the API server's response is not a SubjectAccessReview: {error}"))?;
    if reviewed.kind != "SubjectAccessReview" {
        return Err(format!("the API server's response is not a SubjectAccessReview but a {:?}", reviewed.kind));
    }
    match reviewed.status {
        Status { allowed: true, denied: true, .. } => Ok(ReviewVerdict::Conflict),
        Status { denied: true, reason, .. } => Ok(ReviewVerdict::Denied(reason.into())),
        Status { allowed: true, reason, .. } => Ok(ReviewVerdict::Allowed((!reason.is_empty()).then(|| reason.into()))),
        Status { reason, .. } => Ok(ReviewVerdict::NoOpinion(reason.into())),
    }
}

impl ReviewVerdict {
    /// Size of the verdict on the heap, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            ReviewVerdict::Conflict | ReviewVerdict::Excluded => 0,
            ReviewVerdict::Allowed(reason) => reason.as_ref().map_or(0, |reason| reason.len()),
            ReviewVerdict::Denied(reason) | ReviewVerdict::NoOpinion(reason) => reason.len(),
        }
    }
}

impl From<ReviewVerdict> for Decision {
    fn from(verdict: ReviewVerdict) -> Decision {
        match verdict {
            ReviewVerdict::Allowed(reason) => Decision::Allow(reason),
            // Kubernetes' text.
            ReviewVerdict::Conflict => {
                Decision::FatalError("webhook subject access review returned both allow and deny response".to_owned())
            }
            ReviewVerdict::Excluded => Decision::NoOpinion(String::new()),
            ReviewVerdict::Denied(reason) => Decision::Deny(reason.as_ref().to_owned()),
            ReviewVerdict::NoOpinion(reason) => Decision::NoOpinion(reason.as_ref().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kubeapi::{CanonicalPath, Query, RequestInfo, User};

    use super::*;
    use crate::decision_cache::{DecisionKey, DigestSecret};

    fn jane() -> User {
        User {
            name: "jane".into(),
            uid: "42".into(),
            groups: vec!["g1".into(), "system:authenticated".into()],
            extra: [("scopes".to_owned(), vec!["a".to_owned()])].into(),
        }
    }

    fn with<T>(method: &Method, uri: &str, look: impl FnOnce(&RequestInfo<'_>) -> T) -> T {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(query));
        look(&RequestInfo::parse(method, &path, &query).unwrap())
    }

    fn asked(method: &Method, uri: &str) -> serde_json::Value {
        let bytes = with(method, uri, |request| request_body(Attributes { user: &jane(), request }, ReviewVersion::V1));
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn access_review_request_equals_upstream() {
        let uri = "/apis/wardle.example.com/v1alpha1/namespaces/ns/flunders/x/status";
        let bytes =
            with(&Method::GET, uri, |request| request_body(Attributes { user: &jane(), request }, ReviewVersion::V1));
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            concat!(
                r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{},"spec":{"#,
                r#""resourceAttributes":{"namespace":"ns","verb":"get","group":"wardle.example.com","version":"v1alpha1","#,
                r#""resource":"flunders","subresource":"status","name":"x"},"user":"jane","#,
                r#""groups":["g1","system:authenticated"],"extra":{"scopes":["a"]},"uid":"42"},"status":{"allowed":false}}"#
            )
        );
        let anonymous = with(&Method::GET, "/metrics", |request| {
            request_body(
                Attributes { user: &User { name: "bob".into(), ..User::default() }, request },
                ReviewVersion::V1,
            )
        });
        let spec = r#""spec":{"nonResourceAttributes":{"path":"/metrics","verb":"get"},"user":"bob"}"#;
        assert!(std::str::from_utf8(&anonymous).unwrap().contains(spec));
    }

    #[test]
    fn access_review_v1beta1_sends_group_instead_of_groups() {
        let ask =
            |version| with(&Method::GET, "/x", |request| request_body(Attributes { user: &jane(), request }, version));
        let (new, old) = (ask(ReviewVersion::V1), ask(ReviewVersion::V1Beta1));
        let expected = std::str::from_utf8(&new).unwrap();
        let expected = expected.replace("k8s.io/v1", "k8s.io/v1beta1").replace("\"groups\"", "\"group\"");
        assert_eq!(std::str::from_utf8(&old).unwrap(), expected);
    }

    #[test]
    fn access_review_request_contains_selectors() {
        let path = "/apis/g/v1/namespaces/ns/things";
        let of = |query: &str| asked(&Method::GET, &format!("{path}?{query}"))["spec"]["resourceAttributes"].clone();
        let fields = of("fieldSelector=metadata.name%3Dx,spec.a!%3Db");
        assert_eq!(
            fields["fieldSelector"],
            serde_json::json!({"requirements": [
                {"key": "metadata.name", "operator": "In", "values": ["x"]},
                {"key": "spec.a", "operator": "NotIn", "values": ["b"]},
            ]})
        );
        assert_eq!(fields["name"], "x");
        let labels = of("labelSelector=app+in+(b,a),!old,new,n%3E3,x!%3Dy");
        assert_eq!(
            labels["labelSelector"],
            serde_json::json!({"requirements": [
                {"key": "app", "operator": "In", "values": ["a", "b"]},
                {"key": "new", "operator": "Exists"},
                {"key": "old", "operator": "DoesNotExist"},
                {"key": "x", "operator": "NotIn", "values": ["y"]},
            ]})
        );
        // No requirement left, or an invalid selector: the broader request.
        for query in ["labelSelector=n%3E3", "labelSelector=((", "fieldSelector=a", ""] {
            let asked = of(query);
            assert!(asked.get("labelSelector").is_none() && asked.get("fieldSelector").is_none(), "{query}: {asked}");
        }
        // A selector has no meaning on a get.
        let get = asked(&Method::GET, &format!("{path}/x?labelSelector=a%3Db"));
        assert!(get["spec"]["resourceAttributes"].get("labelSelector").is_none());
    }

    #[test]
    fn access_review_cache_key_covers_all_attributes() {
        let secret = DigestSecret::new().unwrap();
        let key = |user: &User, method: &Method, uri: &str| -> DecisionKey {
            with(method, uri, |request| secret.key(|it| write_digest(Attributes { user, request }, it)))
        };
        let path = "/apis/g/v1/namespaces/ns/things?labelSelector=a";
        let base = key(&jane(), &Method::GET, path);
        assert_eq!(base, key(&jane(), &Method::GET, path));
        let change = |change: fn(&mut User)| {
            let mut user = jane();
            change(&mut user);
            key(&user, &Method::GET, path)
        };
        let mut keys = vec![
            base,
            change(|user| user.name.push('t')),
            change(|user| user.uid.push('1')),
            change(|user| user.groups.reverse()),
            change(|user| user.groups.truncate(1)),
            change(|user| user.extra.clear()),
            change(|user| user.extra.get_mut("scopes").unwrap().push("b".into())),
        ];
        for (method, uri) in [
            (Method::DELETE, path),
            (Method::GET, "/apis/g/v1/namespaces/ns/things?labelSelector=b"),
            (Method::GET, "/apis/g/v1/namespaces/ns/things?fieldSelector=a%3Db"),
            (Method::GET, "/apis/g/v1/namespaces/ns/things/x"),
            (Method::GET, "/apis/g/v1/namespaces/ns/things/x/status"),
            (Method::GET, "/apis/g/v1/namespaces/other/things"),
            (Method::GET, "/apis/g/v2/namespaces/ns/things"),
            (Method::GET, "/apis/h/v1/namespaces/ns/things"),
            (Method::GET, "/apis/g/v1/things"),
            (Method::GET, "/healthz"),
            (Method::GET, "/livez"),
            (Method::POST, "/livez"),
        ] {
            keys.push(key(&jane(), &method, uri));
        }
        let all = keys.len();
        assert_eq!(keys.into_iter().collect::<std::collections::HashSet<_>>().len(), all);
    }

    #[test]
    fn access_review_with_long_attributes_is_not_cached() {
        let user = jane();
        let remembered =
            |uri: &str| with(&Method::GET, uri, |request| is_cacheable(Attributes { user: &user, request }));
        assert!(remembered(&format!("/{}", "a".repeat(9_990))));
        assert!(!remembered(&format!("/{}", "a".repeat(10_000))));
        assert!(!remembered(&format!("/apis/g/v1/things?labelSelector=a%3D{}", "a".repeat(10_000))));
    }

    #[test]
    fn access_review_response_parsed_to_verdict() {
        let said =
            |status: &str| parse_verdict(format!(r#"{{"kind":"SubjectAccessReview","status":{status}}}"#).as_bytes());
        assert_eq!(said(r#"{"allowed":true,"reason":"RBAC"}"#), Ok(ReviewVerdict::Allowed(Some("RBAC".into()))));
        assert_eq!(
            said(r#"{"allowed":false,"denied":true,"reason":"never"}"#),
            Ok(ReviewVerdict::Denied("never".into()))
        );
        assert_eq!(said(r#"{"allowed":false,"reason":"not yet"}"#), Ok(ReviewVerdict::NoOpinion("not yet".into())));
        assert_eq!(said(r#"{"evaluationError":"x"}"#), Ok(ReviewVerdict::NoOpinion("".into())));
        assert_eq!(said(r#"{"allowed":true,"denied":true}"#), Ok(ReviewVerdict::Conflict));
        assert!(
            matches!(Decision::from(ReviewVerdict::Conflict), Decision::FatalError(why) if why.contains("both allow and deny"))
        );
        for odd in [
            "",
            "{}",
            r#"{"kind":"SubjectAccessReview","status":{"allowed":"true"}}"#,
            r#"{"status":{"allowed":true}}"#,
            "<html>",
            r#"{"kind":"Status","status":"Failure"}"#,
        ] {
            assert!(parse_verdict(odd.as_bytes()).is_err(), "{odd}");
        }
    }
}
