//! Static rules (`authorization.static`): requests allowed without a SubjectAccessReview.

use std::sync::Arc;

use crate::authorize::Attributes;
use crate::kubeapi::User;

/// A static rule. An empty field matches all values.
#[derive(Debug)]
pub(super) struct StaticRule {
    pub(super) user: String,
    /// Groups; the user must be in one of them.
    pub(super) groups: Vec<String>,
    pub(super) verb: String,
    pub(super) what: What,
    /// The reason, for audit and the log.
    pub(super) why: Arc<str>,
}

/// The resource or path of a static rule.
#[derive(Debug)]
pub(super) enum What {
    Resource { namespace: String, api_group: String, resource: String, subresource: String, name: String },
    Path(String),
}

impl StaticRule {
    pub(super) fn allows(&self, attributes: Attributes<'_>) -> bool {
        let Attributes { user, request } = attributes;
        self.is_for(user)
            && is(&self.verb, &request.verb)
            && match &self.what {
                What::Resource { namespace, api_group, resource, subresource, name } => {
                    request.is_resource_request
                        && is(namespace, request.namespace)
                        && is(api_group, request.api_group)
                        && is(resource, request.resource)
                        && is(subresource, request.subresource)
                        && is(name, &request.name)
                }
                What::Path(path) => !request.is_resource_request && path == request.path,
            }
    }

    fn is_for(&self, user: &User) -> bool {
        is(&self.user, &user.name)
            && (self.groups.is_empty() || self.groups.iter().any(|group| user.groups.contains(group)))
    }
}

fn is(wanted: &str, found: &str) -> bool {
    wanted.is_empty() || wanted == found
}
