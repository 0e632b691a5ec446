//! Approval of APIs in groups of the Kubernetes community (`pkg/apihelpers/helpers.go` of apiextensions-apiserver).

use kubeapi::GoQuoted;
use kubeapi::go_url::GoUrl;

/// Annotation with the address of the approval, or why there is none.
pub const APPROVAL_ANNOTATION: &str = "api-approved.kubernetes.io";

/// What the annotation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalState {
    /// It is neither an address nor a reason.
    Invalid,
    /// It is an address.
    Approved,
    /// It is a reason why there is no approval.
    Bypassed,
    /// It is missing or empty.
    Missing,
}

/// Whether APIs of a group need an approval.
pub fn is_protected_group(group: &str) -> bool {
    let is_below = |domain: &str| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    is_below("k8s.io") || is_below("kubernetes.io")
}

/// What an annotation says, and a text about it.
pub fn approval_state(annotation: &str) -> (ApprovalState, String) {
    let needed = format!("protected groups must have approval annotation {}", GoQuoted(APPROVAL_ANNOTATION));
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    if annotation.is_empty() {
        return (ApprovalState::Missing, format!("{needed}, {see}"));
    }
    if annotation.starts_with("unapproved") {
        return (ApprovalState::Bypassed, format!("not approved: {}", GoQuoted(annotation)));
    }
    match GoUrl::parse_request_uri(annotation) {
        Ok(url) if !url.host.is_empty() && !url.scheme.is_empty() => {
            (ApprovalState::Approved, format!("approved in {annotation}"))
        }
        _ => {
            let why = format!("{needed} with either a URL or a reason starting with \"unapproved\", {see}");
            (ApprovalState::Invalid, why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_approval_needed_in_groups_of_the_community() {
        for (group, is_protected) in
            [("k8s.io", true), ("a.k8s.io", true), ("x.kubernetes.io", true), ("ak8s.io", false), ("a.io", false)]
        {
            assert_eq!(is_protected_group(group), is_protected, "{group}");
        }
        for (annotation, state) in [
            ("", ApprovalState::Missing),
            ("unapproved, legacy", ApprovalState::Bypassed),
            ("https://github.com/a/b/pull/1", ApprovalState::Approved),
            ("approved", ApprovalState::Invalid),
            ("/path", ApprovalState::Invalid),
        ] {
            assert_eq!(approval_state(annotation).0, state, "{annotation}");
        }
    }
}
