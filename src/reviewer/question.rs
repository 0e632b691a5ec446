//! Recognition of delegated authentication and authorization requests.

use crate::authorize::ReviewBody;
use crate::kubeapi::RequestInfo;

/// A request of a backend to the delegation server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Read the ConfigMap.
    Trust,
    /// `TokenReview`.
    Token,
    /// `SubjectAccessReview`.
    Access,
}

impl Question {
    /// Classifies a request by its resource, with any verb; none for other requests.
    pub fn asked(info: &RequestInfo<'_>) -> Option<Question> {
        if !info.is_resource_request || info.api_version != "v1" || !info.subresource.is_empty() {
            return None;
        }
        match (info.api_prefix, info.api_group, info.resource) {
            ("api", "", "configmaps") => Some(Question::Trust),
            ("apis", "authentication.k8s.io", "tokenreviews") if info.namespace.is_empty() => Some(Question::Token),
            ("apis", "authorization.k8s.io", "subjectaccessreviews") if info.namespace.is_empty() => {
                Some(Question::Access)
            }
            _ => None,
        }
    }

    /// The kind of its body; none if it has none.
    pub fn body(self) -> Option<ReviewBody> {
        match self {
            Question::Trust => None,
            Question::Token => Some(ReviewBody::Token),
            Question::Access => Some(ReviewBody::SubjectAccess),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::kubeapi::{CanonicalPath, Query};

    #[test]
    fn what_is_asked() {
        let asked = |path: &str| {
            let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(""));
            Question::asked(&RequestInfo::parse(&Method::POST, &path, &query).unwrap())
        };
        for (path, expected) in [
            ("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", Some(Question::Trust)),
            ("/api/v1/configmaps", Some(Question::Trust)),
            ("/apis/authentication.k8s.io/v1/tokenreviews", Some(Question::Token)),
            ("/apis/authorization.k8s.io/v1/subjectaccessreviews", Some(Question::Access)),
            ("/apis/authorization.k8s.io/v1beta1/subjectaccessreviews", None),
            ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", None),
            ("/apis/authorization.k8s.io/v1/namespaces/x/localsubjectaccessreviews", None),
            ("/api/v1/namespaces/kube-system/secrets", None),
            ("/api/v1/namespaces/kube-system/configmaps/x/status", None),
            ("/configmaps", None),
        ] {
            assert_eq!(asked(path), expected, "{path}");
        }
    }
}
