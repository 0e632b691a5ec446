//! Static rules (`authorization.static`): requests allowed without a SubjectAccessReview.

use std::sync::Arc;

use kubeapi::User;

use crate::authorize::Attributes;

/// A static rule. An empty field matches all values.
#[derive(Debug)]
pub(super) struct StaticRule {
    pub(super) user: String,
    /// Groups; the user must be in one of them.
    pub(super) groups: Vec<String>,
    pub(super) verb: String,
    pub(super) target: RuleTarget,
    /// The reason, for audit and the log.
    pub(super) reason: Arc<str>,
}

/// The resource or path of a static rule.
#[derive(Debug)]
pub(super) enum RuleTarget {
    Resource { namespace: String, api_group: String, resource: String, subresource: String, name: String },
    Path(String),
}

impl StaticRule {
    pub(super) fn allows(&self, attributes: Attributes<'_>) -> bool {
        let Attributes { user, request } = attributes;
        self.matches_user(user)
            && matches_or_empty(&self.verb, &request.verb)
            && match &self.target {
                RuleTarget::Resource { namespace, api_group, resource, subresource, name } => {
                    request.is_resource_request
                        && matches_or_empty(namespace, request.namespace)
                        && matches_or_empty(api_group, request.api_group)
                        && matches_or_empty(resource, request.resource)
                        && matches_or_empty(subresource, request.subresource)
                        && matches_or_empty(name, &request.name)
                }
                RuleTarget::Path(path) => !request.is_resource_request && path == request.path,
            }
    }

    fn matches_user(&self, user: &User) -> bool {
        matches_or_empty(&self.user, &user.name)
            && (self.groups.is_empty() || self.groups.iter().any(|group| user.groups.contains(group)))
    }
}

fn matches_or_empty(expected: &str, found: &str) -> bool {
    expected.is_empty() || expected == found
}
