//! Credential plugins of a kubeconfig: an exec program, or an OIDC issuer. They issue temporary credentials.

mod credential_cache;
mod exec;
mod oidc;
mod save_tokens;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;

pub(super) use credential_cache::CredentialCache;
pub(super) use exec::{ExecConfig, ExecPlugin};
pub(super) use oidc::OidcPlugin;

use crate::egress::Dialer;
use crate::process::Problem;
use crate::tls::KeyPair;

/// Credentials are renewed this long before they expire: a request in flight must not outlive them.
const RENEWAL_MARGIN: Duration = Duration::from_secs(10);

/// A credential plugin. Equal plugins issue the same credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum CredentialPlugin {
    /// A program (`exec`).
    Exec(Arc<ExecPlugin>),
    /// An OIDC issuer (`auth-provider: oidc`).
    Oidc(Arc<OidcPlugin>),
}

/// Credentials issued by a plugin. Has no `Debug`: it holds secrets.
pub(super) struct PluginCredentials {
    /// Marked as sensitive.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<KeyPair>>,
    /// Start of the validity. `until` is its end; `None` if it does not expire.
    pub(super) valid_from: SystemTime,
    pub(super) expires_at: Option<SystemTime>,
}

/// Error of a credential plugin, for the user. Its first line is client-go's message, which scripts may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialError(pub(super) String);

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CredentialError {}

impl CredentialPlugin {
    /// Requests credentials.
    pub(super) async fn request_credentials(&self, dialer: &Dialer) -> Result<PluginCredentials, CredentialError> {
        match self {
            CredentialPlugin::Exec(exec) => exec.run(exec::EXEC_TIMEOUT).await,
            CredentialPlugin::Oidc(oidc) => oidc.request_credentials(dialer).await,
        }
    }

    pub(super) fn warning(&self) -> Option<Problem> {
        match self {
            CredentialPlugin::Exec(exec) => exec.warning(),
            CredentialPlugin::Oidc(_) => None,
        }
    }
}

impl PluginCredentials {
    /// Whether the credentials must be renewed.
    pub(super) fn needs_renewal(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|until| {
            // Short-lived credentials are used for three quarters of their life.
            let whole = until.duration_since(self.valid_from).unwrap_or_default();
            now + RENEWAL_MARGIN.min(whole / 4) >= until
        })
    }
}

/// The value `Bearer <token>` of the header `Authorization`, marked as sensitive.
fn bearer_header(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Removes control characters from untrusted text, which a terminal would interpret.
fn strip_control_characters(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() || *letter == '\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_credentials_renewed_before_expiry() {
        let now = SystemTime::now();
        let granted = |seconds: Option<u64>| PluginCredentials {
            authorization: None,
            identity: None,
            valid_from: now,
            expires_at: seconds.map(|seconds| now + Duration::from_secs(seconds)),
        };
        let due_after =
            |seconds: Option<u64>, after: f64| granted(seconds).needs_renewal(now + Duration::from_secs_f64(after));
        assert!(!due_after(None, 1e6));
        assert!(!due_after(Some(3600), 3589.0) && due_after(Some(3600), 3590.0));
        assert!(!due_after(Some(8), 5.9) && due_after(Some(8), 6.0));
        assert!(due_after(Some(0), 0.0));
    }
}
