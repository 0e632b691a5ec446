//! Who a request acts for.

use std::collections::BTreeMap;

/// An authenticated identity, as `k8s.io/apiserver/pkg/authentication/user.Info` has it.
///
/// The order and the repetition of groups and of extra values are what the authenticator said: they
/// reach the backend unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Never empty once a request is authenticated.
    pub name: String,
    /// Empty when the authenticator knows none.
    pub uid: String,
    /// Includes `system:authenticated` or `system:unauthenticated` once the chain is done.
    pub groups: Vec<String>,
    /// Keys are lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}
