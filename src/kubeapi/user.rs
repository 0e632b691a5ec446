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

impl User {
    /// As `UserInfo` of `authentication.k8s.io/v1`; what is empty is left out.
    pub fn info(&self) -> serde_json::Value {
        let mut info = serde_json::json!({"username": self.name});
        if !self.uid.is_empty() {
            info["uid"] = self.uid.as_str().into();
        }
        if !self.groups.is_empty() {
            info["groups"] = serde_json::json!(self.groups);
        }
        if !self.extra.is_empty() {
            info["extra"] = serde_json::json!(self.extra);
        }
        info
    }
}
