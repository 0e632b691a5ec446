//! Issues service account tokens (`pkg/serviceaccount/claims.go`, `legacy.go`, `openidmetadata.go`).

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use uuid::Uuid;

use super::key_set::KeySet;
use crate::process::Published;

/// Issuer of tokens that are stored in Secrets.
pub(super) const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";

/// Settings of service account tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// The issuers that are accepted; the first one issues.
    pub issuers: Vec<String>,
    /// The audiences of this server: of tokens that are requested without any.
    pub audiences: Vec<String>,
    /// Where relying parties find the key set.
    pub jwks_uri: String,
    /// The longest lifetime that can be requested, if it is limited.
    pub max_expiration: Option<Duration>,
    /// Whether tokens that a kubelet asks for in its usual way live longer than they say.
    pub extends_expiration: bool,
}

/// Issues tokens; shared by all threads.
pub struct TokenIssuer {
    settings: TokenSettings,
    keys: Published<KeySet>,
}

/// The ServiceAccount of a token.
#[derive(Clone, Copy, Debug)]
pub struct TokenAccount<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
}

/// An object with whose end a token ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundObject {
    /// A Pod, and the node that it runs on, whose uid is empty if the node does not exist.
    Pod(ObjectIdentity, Option<ObjectIdentity>),
    /// A Secret.
    Secret(ObjectIdentity),
    /// A Node.
    Node(ObjectIdentity),
}

/// Name and uid of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// What a new token says.
pub struct TokenClaims<'a> {
    /// Whose it is.
    pub account: TokenAccount<'a>,
    /// The object with whose end it ends.
    pub bound: Option<&'a BoundObject>,
    /// Its audiences.
    pub audiences: &'a [String],
    /// Its lifetime in seconds.
    pub expires_in: i64,
    /// Seconds after which its use is noted as stale.
    pub warns_after: Option<i64>,
}

/// A signed token.
pub struct IssuedToken {
    /// The token.
    pub token: String,
    /// The claim `jti`.
    pub id: String,
}

impl TokenIssuer {
    /// Issues tokens with these keys.
    pub fn new(settings: TokenSettings, keys: Published<KeySet>) -> TokenIssuer {
        TokenIssuer { settings, keys }
    }

    /// The settings.
    pub fn settings(&self) -> &TokenSettings {
        &self.settings
    }

    /// The keys that are in use.
    pub fn keys(&self) -> Arc<KeySet> {
        self.keys.get()
    }

    /// Issues a token. Signing by RSA takes more than a millisecond ([`TokenIssuer::is_slow`]).
    ///
    /// # Errors
    /// No key can sign.
    pub fn issue(&self, claims: &TokenClaims<'_>) -> Result<IssuedToken, &'static str> {
        let id = Uuid::new_v4().to_string();
        let now = unix_seconds(SystemTime::now());
        let TokenAccount { namespace, name, uid } = claims.account;
        let mut private = json!({"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}});
        let bound = match claims.bound {
            None => Vec::new(),
            Some(BoundObject::Pod(pod, node)) => [("pod", Some(pod)), ("node", node.as_ref())].to_vec(),
            Some(BoundObject::Secret(secret)) => vec![("secret", Some(secret))],
            Some(BoundObject::Node(node)) => vec![("node", Some(node))],
        };
        for (kind, object) in bound {
            let Some(object) = object else { continue };
            private[kind] = json!({"name": object.name});
            if !object.uid.is_empty() {
                private[kind]["uid"] = object.uid.as_str().into();
            }
        }
        if let Some(seconds) = claims.warns_after {
            private["warnafter"] = now.saturating_add(seconds).into();
        }
        let claims = json!({
            "aud": claims.audiences,
            "exp": now.saturating_add(claims.expires_in),
            "iat": now,
            "iss": self.settings.issuers.first().map_or("", String::as_str),
            "jti": id,
            "kubernetes.io": private,
            "nbf": now,
            "sub": user_name(namespace, name),
        });
        Ok(IssuedToken { token: self.sign(&claims)?, id })
    }

    /// Issues the token of a Secret, which has no end.
    ///
    /// # Errors
    /// No key can sign.
    pub fn issue_for_secret(&self, account: TokenAccount<'_>, secret: &str) -> Result<String, &'static str> {
        self.sign(&json!({
            "iss": LEGACY_ISSUER,
            "kubernetes.io/serviceaccount/namespace": account.namespace,
            "kubernetes.io/serviceaccount/secret.name": secret,
            "kubernetes.io/serviceaccount/service-account.name": account.name,
            "kubernetes.io/serviceaccount/service-account.uid": account.uid,
            "sub": user_name(account.namespace, account.name),
        }))
    }

    /// Whether issuing a token holds a thread for more than a millisecond.
    pub fn is_slow(&self) -> bool {
        self.keys.load().signing_key(SystemTime::now()).is_some_and(|key| key.is_slow())
    }

    fn sign(&self, claims: &Value) -> Result<String, &'static str> {
        let keys = self.keys.load();
        keys.signing_key(SystemTime::now()).ok_or("there is no key that signs")?.sign(claims)
    }

    /// The document `/.well-known/openid-configuration` (OpenID Connect Discovery 1.0, section 3).
    ///
    /// # Errors
    /// Why it is not served: relying parties need an issuer that is an https URL.
    pub fn openid_configuration(&self) -> Result<Value, &'static str> {
        let issuer = self.settings.issuers.first().map_or("", String::as_str);
        if !issuer.starts_with("https://") || issuer.contains(['?', '#']) {
            return Err("the issuer of service account tokens is no https URL without a query");
        }
        Ok(json!({
            "issuer": issuer,
            "jwks_uri": self.settings.jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": self.keys.load().algorithms(SystemTime::now()),
        }))
    }

    /// The document `/openid/v1/jwks` (RFC 7517).
    pub fn jwks(&self) -> Value {
        self.keys.load().jwks(SystemTime::now())
    }
}

/// The user name of a ServiceAccount.
pub fn user_name(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

pub(super) fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
