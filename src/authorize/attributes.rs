//! The input of authorizers, and their decision.

use std::sync::Arc;

use kubeapi::{RequestInfo, User};

/// Attributes of a request to authorize, with the fields of a SubjectAccessReview
/// (`k8s.io/apiserver/pkg/authorization/authorizer.Attributes`).
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// User of the request.
    pub user: &'a User,
    /// Verb, group, version, resource, subresource, namespace, name and selectors; or verb and path.
    pub request: &'a RequestInfo<'a>,
}

/// The decision of one authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed; the chain ends. With the reason, if any.
    Allow(Option<Arc<str>>),
    /// Denied; the chain ends. With the reason for the client, or the empty string.
    Deny(String),
    /// No opinion; the chain continues. With the reason for the client if no authorizer allows it, or the empty string.
    NoOpinion(String),
    /// The authorizer failed; the chain continues. With the error for the log.
    Error(String),
    /// The authorizer failed, and the chain ends: the review both allowed and denied, or the webhook's failure policy
    /// is `Deny`. With the error for the log.
    FatalError(String),
}
