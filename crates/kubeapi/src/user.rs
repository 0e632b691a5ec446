//! The authenticated user of a request.

use std::collections::BTreeMap;

/// Extra key with the ID of the credential of a user (Kubernetes' `user.CredentialIDKey`).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The ID of the credential that is a token with this claim `jti` (Kubernetes' `CredentialIDForJTI`).
pub fn token_credential_id(jti: &str) -> String {
    format!("JTI={jti}")
}

/// An authenticated user (`k8s.io/apiserver/pkg/authentication/user.Info`).
///
/// Groups and extra values keep the authenticator's order and duplicates, also in the headers to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Never empty once a request is authenticated.
    pub name: String,
    /// Empty if the authenticator provides none.
    pub uid: String,
    /// Includes `system:authenticated` or `system:unauthenticated` after authentication.
    pub groups: Vec<String>,
    /// Keys are lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// As `UserInfo` of `authentication.k8s.io/v1`, without empty fields.
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
