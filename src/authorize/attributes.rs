//! What an authoriser is asked about.

use crate::kubeapi::{RequestInfo, User};

/// One question: may this user do this. The fields are those of a SubjectAccessReview
/// (`k8s.io/apiserver/pkg/authorization/authorizer.Attributes`).
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// Who wants to.
    pub user: &'a User,
    /// What: verb, group, version, resource, subresource, namespace, name, selectors; or verb and path.
    pub request: &'a RequestInfo<'a>,
}
