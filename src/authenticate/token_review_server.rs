//! Token authentication for served TokenReviews (`--serve-delegation`).

use std::sync::Arc;

use kubeapi::User;

use super::jwt::JwtResult;
use super::{Authenticator, Settings};

/// A verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticatedToken {
    /// The user of the token.
    pub user: Arc<User>,
    /// The requested audiences for which the token is valid.
    pub audiences: Vec<String>,
}

/// Why a token was not authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// No authenticator accepts the token.
    Unknown,
    /// An authenticator failed, or found the token invalid; with the reason for the log.
    Failed(String),
}

impl Authenticator {
    /// Authenticates `token` by the token authenticators, in their order. Without `audiences`, those of
    /// `--api-audiences` are used.
    ///
    /// As in Kubernetes' `WrapAudienceAgnosticToken`, a token accepted by the token file or a JWT issuer is valid for
    /// the audiences of `--api-audiences`. For other tokens the TokenReview response names the audiences.
    ///
    /// # Errors
    /// Why the token was not authenticated.
    pub async fn review_token(&self, token: &str, audiences: &[String]) -> Result<AuthenticatedToken, TokenError> {
        let Settings { tokens, service_accounts, jwt, token_reviews, group_filter: groups, audiences: ours, .. } =
            &self.settings;
        let requested = if audiences.is_empty() { ours } else { audiences };
        let both: Vec<String> = requested.iter().filter(|audience| ours.contains(audience)).cloned().collect();
        let is_ours = requested.is_empty() || !both.is_empty();
        let authenticated = |user, audiences| Ok(AuthenticatedToken { user: groups.filter(user), audiences });
        let mut errors = Vec::new();
        if let Some(tokens) = tokens.as_ref().filter(|_| is_ours)
            && let Some(user) = tokens.load().user(token).cloned()
        {
            return authenticated(user, both);
        }
        if let Some(accounts) = service_accounts {
            match accounts.review(token, requested).await {
                Ok(Some((user, audiences))) => return authenticated(user, audiences),
                Ok(None) => {}
                Err(error) => errors.push(error.to_string()),
            }
        }
        if let Some(jwt) = jwt.as_ref().filter(|_| is_ours) {
            match jwt.authenticate(token).await {
                JwtResult::User(user) => return authenticated(user, both),
                JwtResult::Unknown => {}
                JwtResult::Invalid(why) => errors.push(format!("JWT: {why}")),
            }
        }
        for reviews in token_reviews {
            match reviews.authenticate_for(token, requested).await {
                Ok(Some((user, audiences))) => return authenticated(Arc::new(user), audiences),
                Ok(None) => {}
                Err(why) => errors.push(why.to_string()),
            }
        }
        Err(if errors.is_empty() { TokenError::Unknown } else { TokenError::Failed(errors.join("; ")) })
    }
}
