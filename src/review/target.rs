//! API version and URL path of reviews.

use std::time::Duration;

/// A version of `authentication.k8s.io` or `authorization.k8s.io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// `v1`.
    #[default]
    V1,
    /// `v1beta1`, not served by kube-apiserver since 1.22, but still used by webhooks.
    V1Beta1,
}

/// The server that a review is posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A kube-apiserver.
    ApiServer(Version),
    /// A webhook, at the URL in its kubeconfig.
    Webhook(Version),
}

impl Default for Target {
    fn default() -> Target {
        Target::ApiServer(Version::V1)
    }
}

impl Version {
    /// The version as in `apiVersion`, after the group.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V1 => "v1",
            Version::V1Beta1 => "v1beta1",
        }
    }

    /// Parses a version.
    pub fn parse(text: &str) -> Option<Version> {
        [Version::V1, Version::V1Beta1].into_iter().find(|version| version.as_str() == text)
    }
}

impl Target {
    /// The API version of the reviews.
    pub fn version(self) -> Version {
        match self {
            Target::ApiServer(version) | Target::Webhook(version) => version,
        }
    }

    /// Returns the path or query to append to the kubeconfig's URL for a resource of a group. A webhook gets the
    /// timeout as a query parameter, as from client-go.
    pub fn path(self, group: &str, resource: &str, patience: Duration) -> String {
        match self {
            Target::ApiServer(version) => format!("/apis/{group}/{}/{resource}", version.as_str()),
            Target::Webhook(_) if patience.subsec_nanos() == 0 => format!("?timeout={}s", patience.as_secs()),
            Target::Webhook(_) => format!("?timeout={}ms", patience.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_review_goes() {
        let path = |target: Target, patience| target.path("g", "reviews", Duration::from_millis(patience));
        assert_eq!(path(Target::default(), 1), "/apis/g/v1/reviews");
        assert_eq!(path(Target::ApiServer(Version::V1Beta1), 1), "/apis/g/v1beta1/reviews");
        assert_eq!(path(Target::Webhook(Version::V1), 3_000), "?timeout=3s");
        assert_eq!(path(Target::Webhook(Version::V1Beta1), 1_500), "?timeout=1500ms");
        assert_eq!(
            ["v1", "v1beta1", "v2", ""].map(Version::parse),
            [Some(Version::V1), Some(Version::V1Beta1), None, None]
        );
    }
}
