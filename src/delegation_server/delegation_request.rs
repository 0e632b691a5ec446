//! Recognition of delegated authentication and authorization requests.

use kubeapi::RequestInfo;

use crate::authorize::ReviewBody;

/// A request of a backend to the delegation server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DelegationRequest {
    /// `TokenReview`.
    TokenReview,
    /// `SubjectAccessReview`.
    SubjectAccessReview,
    /// `LocalSubjectAccessReview`: about requests in the namespace of its path.
    LocalSubjectAccessReview,
}

impl DelegationRequest {
    /// Classifies a request by its resource, with any verb; none for other requests.
    pub fn parse(info: &RequestInfo<'_>) -> Option<DelegationRequest> {
        if !info.is_resource_request || info.api_version != "v1" || !info.subresource.is_empty() {
            return None;
        }
        match (info.api_prefix, info.api_group, info.resource) {
            ("apis", "authentication.k8s.io", "tokenreviews") if info.namespace.is_empty() => {
                Some(DelegationRequest::TokenReview)
            }
            ("apis", "authorization.k8s.io", "subjectaccessreviews") if info.namespace.is_empty() => {
                Some(DelegationRequest::SubjectAccessReview)
            }
            ("apis", "authorization.k8s.io", "localsubjectaccessreviews") if !info.namespace.is_empty() => {
                Some(DelegationRequest::LocalSubjectAccessReview)
            }
            _ => None,
        }
    }

    /// The kind of its body.
    pub fn review_body(self) -> ReviewBody {
        match self {
            DelegationRequest::TokenReview => ReviewBody::Token,
            DelegationRequest::SubjectAccessReview | DelegationRequest::LocalSubjectAccessReview => {
                ReviewBody::SubjectAccess
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kubeapi::{CanonicalPath, Query};

    use super::*;

    #[test]
    fn delegation_request_parsed_from_path() {
        let asked = |path: &str| {
            let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(""));
            DelegationRequest::parse(&RequestInfo::parse(&Method::POST, &path, &query).unwrap())
        };
        for (path, expected) in [
            ("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", None),
            ("/apis/authentication.k8s.io/v1/tokenreviews", Some(DelegationRequest::TokenReview)),
            ("/apis/authorization.k8s.io/v1/subjectaccessreviews", Some(DelegationRequest::SubjectAccessReview)),
            ("/apis/authorization.k8s.io/v1beta1/subjectaccessreviews", None),
            ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", None),
            (
                "/apis/authorization.k8s.io/v1/namespaces/x/localsubjectaccessreviews",
                Some(DelegationRequest::LocalSubjectAccessReview),
            ),
            ("/apis/authorization.k8s.io/v1/localsubjectaccessreviews", None),
            ("/api/v1/namespaces/kube-system/secrets", None),
            ("/configmaps", None),
        ] {
            assert_eq!(asked(path), expected, "{path}");
        }
    }
}
