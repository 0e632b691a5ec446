//! API version and URL path of reviews.

use std::time::Duration;

/// A version of `authentication.k8s.io` or `authorization.k8s.io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `v1`.
    #[default]
    V1,
    /// `v1beta1`, not served by kube-apiserver since 1.22, but still used by webhooks.
    V1Beta1,
}

/// The server that a review is posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReviewTarget {
    /// A kube-apiserver.
    ApiServer(ReviewVersion),
    /// A webhook, at the URL in its kubeconfig.
    Webhook(ReviewVersion),
}

impl Default for ReviewTarget {
    fn default() -> ReviewTarget {
        ReviewTarget::ApiServer(ReviewVersion::V1)
    }
}

impl ReviewVersion {
    /// The version as in `apiVersion`, after the group.
    pub fn as_str(self) -> &'static str {
        match self {
            ReviewVersion::V1 => "v1",
            ReviewVersion::V1Beta1 => "v1beta1",
        }
    }

    /// Parses a version.
    pub fn parse(text: &str) -> Option<ReviewVersion> {
        [ReviewVersion::V1, ReviewVersion::V1Beta1].into_iter().find(|version| version.as_str() == text)
    }
}

impl ReviewTarget {
    /// The API version of the reviews.
    pub fn version(self) -> ReviewVersion {
        match self {
            ReviewTarget::ApiServer(version) | ReviewTarget::Webhook(version) => version,
        }
    }

    /// Returns the path or query to append to the kubeconfig's URL for a resource of a group. A webhook gets the
    /// timeout as a query parameter, as from client-go.
    pub fn path(self, group: &str, resource: &str, patience: Duration) -> String {
        match self {
            ReviewTarget::ApiServer(version) => format!("/apis/{group}/{}/{resource}", version.as_str()),
            ReviewTarget::Webhook(_) if patience.subsec_nanos() == 0 => format!("?timeout={}s", patience.as_secs()),
            ReviewTarget::Webhook(_) => format!("?timeout={}ms", patience.as_millis()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn review_target_path_by_kind_and_version() {
        let path = |target: ReviewTarget, patience| target.path("g", "reviews", Duration::from_millis(patience));
        assert_eq!(path(ReviewTarget::default(), 1), "/apis/g/v1/reviews");
        assert_eq!(path(ReviewTarget::ApiServer(ReviewVersion::V1Beta1), 1), "/apis/g/v1beta1/reviews");
        assert_eq!(path(ReviewTarget::Webhook(ReviewVersion::V1), 3_000), "?timeout=3s");
        assert_eq!(path(ReviewTarget::Webhook(ReviewVersion::V1Beta1), 1_500), "?timeout=1500ms");
        assert_eq!(
            ["v1", "v1beta1", "v2", ""].map(ReviewVersion::parse),
            [Some(ReviewVersion::V1), Some(ReviewVersion::V1Beta1), None, None]
        );
    }
}
