//! The input of authorizers.

use crate::kubeapi::{RequestInfo, User};

/// Attributes of a request to authorize, with the fields of a SubjectAccessReview
/// (`k8s.io/apiserver/pkg/authorization/authorizer.Attributes`).
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// User who makes the request.
    pub user: &'a User,
    /// Verb, group, version, resource, subresource, namespace, name and selectors; or verb and path.
    pub request: &'a RequestInfo<'a>,
}
