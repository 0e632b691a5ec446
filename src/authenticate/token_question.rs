//! Who holds a token, for somebody else who asks (`TokenReview` of `--serve-delegation`).

use std::sync::Arc;

use super::jwt::Holder;
use super::{Authenticator, Settings};
use crate::kubeapi::User;

/// The holder of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenHolder {
    /// Who it is.
    pub user: Arc<User>,
    /// Which of the audiences that were asked for the token is for.
    pub audiences: Vec<String>,
}

/// Why a token is nobody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoHolder {
    /// Nobody here knows it.
    Unknown,
    /// Somebody who might know it could not say, or says that something is wrong with it; with the reason for the log.
    Failed(String),
}

impl Authenticator {
    /// Who holds `token`, by the authenticators of tokens alone, in their order. Somebody who asks without
    /// `audiences` means those of `--api-audiences`.
    ///
    /// As upstream's `WrapAudienceAgnosticToken` has it, a token that a file or an issuer vouches for is for the
    /// audiences of `--api-audiences`; of others whoever reviews them says whom they are for.
    ///
    /// # Errors
    /// Why it is nobody's.
    pub async fn holder_of(&self, token: &str, audiences: &[String]) -> Result<TokenHolder, NoHolder> {
        let Settings { tokens, jwt, token_reviews, groups, audiences: ours, .. } = &self.settings;
        let wanted = if audiences.is_empty() { ours } else { audiences };
        let both: Vec<String> = wanted.iter().filter(|audience| ours.contains(audience)).cloned().collect();
        let is_ours = wanted.is_empty() || !both.is_empty();
        let known = |user, audiences| Ok(TokenHolder { user: groups.filter(user), audiences });
        let mut errors = Vec::new();
        if let Some(tokens) = tokens.as_ref().filter(|_| is_ours)
            && let Some(user) = tokens.load().user(token).cloned()
        {
            return known(user, both);
        }
        if let Some(jwt) = jwt.as_ref().filter(|_| is_ours) {
            match jwt.holder(token).await {
                Holder::Known(user) => return known(user, both),
                Holder::Unknown => {}
                Holder::Wrong(why) => errors.push(format!("JWT: {why}")),
            }
        }
        for reviews in token_reviews {
            match reviews.holder_for(token, wanted).await {
                Ok(Some((user, audiences))) => return known(Arc::new(user), audiences),
                Ok(None) => {}
                Err(why) => errors.push(why.to_string()),
            }
        }
        Err(if errors.is_empty() { NoHolder::Unknown } else { NoHolder::Failed(errors.join("; ")) })
    }
}
