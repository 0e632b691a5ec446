//! Authentication of agents by service account tokens (`--agent-service-account`).

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::authenticate::TokenReviewClient;

/// The service account of agents, and the server that reviews their tokens.
pub struct AgentTokens {
    /// Reviews tokens for `--authentication-audience`, and caches the results.
    pub reviews: Arc<TokenReviewClient>,
    /// `--agent-namespace`.
    pub namespace: String,
    /// `--agent-service-account`.
    pub service_account: String,
}

impl AgentTokens {
    /// Checks the token of a call.
    ///
    /// # Errors
    /// The text of the reference, without the token.
    pub(super) async fn authenticate(&self, headers: &HeaderMap) -> Result<(), String> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else {
            return Err("Authentication context was not found in metadata".to_owned());
        };
        let more = values.count();
        if more > 0 {
            return Err(format!("too many ({}) tokens are received", more + 1));
        }
        let text = value.to_str().unwrap_or_default();
        let Some(token) = text.strip_prefix("Bearer ") else {
            return Err("received token does not have \"Bearer \" prefix".to_owned());
        };
        // A file with a token often ends with a line break.
        let result = match self.reviews.authenticate(token.trim()).await {
            Ok(Some(user)) => check_account(&user.name, &self.namespace, &self.service_account),
            Ok(None) => Err("service account jwt not valid".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        result.map_err(|why| format!("Failed to validate authentication token, err:lookup failed: {why}"))
    }
}

/// Checks that `user` is the service account `expected` in the namespace `expected_namespace`.
fn check_account(user: &str, expected_namespace: &str, expected: &str) -> Result<(), String> {
    let Some(account) = user.strip_prefix("system:serviceaccount:") else {
        return Err("username returned is not a service account".to_owned());
    };
    let Some((namespace, name)) = account.split_once(':').filter(|(_, name)| !name.contains(':')) else {
        return Err("unexpected username format".to_owned());
    };
    if namespace != expected_namespace {
        return Err(format!("incoming request from {namespace:?} namespace. Expected {expected_namespace:?}"));
    }
    if name != expected {
        return Err(format!("incoming request from {name:?} service account. Expected {expected:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_tokens_of_other_accounts_are_refused() {
        let check = |user: &str| check_account(user, "kube-system", "konnectivity-agent");
        assert_eq!(check("system:serviceaccount:kube-system:konnectivity-agent"), Ok(()));
        for (user, part) in [
            ("kubernetes-admin", "not a service account"),
            ("", "not a service account"),
            ("system:node:konnectivity-agent", "not a service account"),
            ("system:serviceaccount:kube-system", "unexpected username format"),
            ("system:serviceaccount:kube-system:konnectivity-agent:x", "unexpected username format"),
            ("system:serviceaccount:default:konnectivity-agent", "from \"default\" namespace"),
            ("system:serviceaccount:kube-system:default", "from \"default\" service account"),
            ("system:serviceaccount::konnectivity-agent", "from \"\" namespace"),
        ] {
            let refused = check(user).unwrap_err();
            assert!(refused.contains(part), "{user}: {refused}");
        }
    }
}
