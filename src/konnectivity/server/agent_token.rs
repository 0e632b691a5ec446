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
            Ok(Some(user)) => self.check_account(&user.name),
            Ok(None) => Err("service account jwt not valid".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        result.map_err(|why| format!("Failed to validate authentication token, err:lookup failed: {why}"))
    }

    fn check_account(&self, user: &str) -> Result<(), String> {
        let Some(account) = user.strip_prefix("system:serviceaccount:") else {
            return Err("username returned is not a service account".to_owned());
        };
        let Some((namespace, name)) = account.split_once(':').filter(|(_, name)| !name.contains(':')) else {
            return Err("unexpected username format".to_owned());
        };
        if namespace != self.namespace {
            return Err(format!("incoming request from {namespace:?} namespace. Expected {:?}", self.namespace));
        }
        if name != self.service_account {
            return Err(format!("incoming request from {name:?} service account. Expected {:?}", self.service_account));
        }
        Ok(())
    }
}
