//! `TokenReview`, answered by the gateway's own token authenticators.

use kubeapi::Status;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::authenticate::{AuthenticatedToken, Authenticator, TokenError};
use crate::authorize::read_review;

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenReview";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    token: String,
    audiences: Option<Vec<String>>,
}

/// Returns the response to the TokenReview in `body`, which is JSON.
///
/// # Errors
/// 400 for an invalid object.
pub async fn token_review(authenticator: &Authenticator, body: &[u8]) -> Result<Value, Status> {
    let spec: Spec = read_review(GROUP, KIND, body)?;
    let audiences = spec.audiences.unwrap_or_default();
    if spec.token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let status = status(authenticator.review_token(&spec.token, &audiences).await);
    let mut shown_spec = json!({"token": spec.token});
    if !audiences.is_empty() {
        shown_spec["audiences"] = json!(audiences);
    }
    Ok(json!({
        "kind": KIND, "apiVersion": format!("{GROUP}/v1"), "metadata": {"creationTimestamp": null},
        "spec": shown_spec, "status": status,
    }))
}

fn status(result: Result<AuthenticatedToken, TokenError>) -> Value {
    let AuthenticatedToken { user, audiences } = match result {
        Ok(token) => token,
        // In Kubernetes' words, which extension API servers turn into a 401.
        Err(TokenError::Unknown) => return json!({"user": {}, "error": "invalid bearer token"}),
        Err(TokenError::Failed(why)) => {
            tracing::debug!(why, "reviewed token could not be verified");
            return json!({"user": {}, "error": "invalid bearer token, or an authenticator failed"});
        }
    };
    let mut status = json!({"authenticated": true, "user": user.info()});
    if !audiences.is_empty() {
        status["audiences"] = json!(audiences);
    }
    status
}
