//! Credential plugins of a kubeconfig: an exec program, or an OIDC issuer. They issue temporary credentials.

mod exec;
mod login;
mod oidc;
mod remember;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderValue;

pub(super) use exec::Exec;
pub(super) use login::Login;
pub(super) use oidc::Oidc;

use crate::egress::Dialler;
use crate::process::Problem;
use crate::tls::KeyPair;

/// Credentials are renewed this long before they expire: a request in flight must not outlive them.
const MARGIN: Duration = Duration::from_secs(10);

/// A credential plugin. Equal plugins issue the same credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Plugin {
    /// A program (`exec`).
    Exec(Arc<Exec>),
    /// An OIDC issuer (`auth-provider: oidc`).
    Oidc(Arc<Oidc>),
}

/// Credentials issued by a plugin. Has no `Debug`: it holds secrets.
pub(super) struct Granted {
    /// Marked as sensitive.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<KeyPair>>,
    /// Start of the validity. `until` is its end; `None` if it does not expire.
    pub(super) from: SystemTime,
    pub(super) until: Option<SystemTime>,
}

/// Error of a credential plugin, for the user. Its first line is client-go's message, which scripts may match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied(pub(super) String);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Denied {}

impl Plugin {
    /// Requests credentials.
    pub(super) async fn ask(&self, dialler: &Dialler) -> Result<Granted, Denied> {
        match self {
            Plugin::Exec(exec) => exec.run(exec::PATIENCE).await,
            Plugin::Oidc(oidc) => oidc.ask(dialler).await,
        }
    }

    pub(super) fn warning(&self) -> Option<Problem> {
        match self {
            Plugin::Exec(exec) => exec.warning(),
            Plugin::Oidc(_) => None,
        }
    }
}

impl Granted {
    /// Whether they must be renewed.
    pub(super) fn is_due(&self, now: SystemTime) -> bool {
        self.until.is_some_and(|until| {
            // Short-lived credentials are used for three quarters of their life.
            let whole = until.duration_since(self.from).unwrap_or_default();
            now + MARGIN.min(whole / 4) >= until
        })
    }
}

/// The value `Bearer <token>` of the header `Authorization`, marked as sensitive.
fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Removes control characters from untrusted text, which a terminal would interpret.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control() || *letter == '\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_renewed_before_they_end() {
        let now = SystemTime::now();
        let granted = |seconds: Option<u64>| Granted {
            authorization: None,
            identity: None,
            from: now,
            until: seconds.map(|seconds| now + Duration::from_secs(seconds)),
        };
        let due_after =
            |seconds: Option<u64>, after: f64| granted(seconds).is_due(now + Duration::from_secs_f64(after));
        assert!(!due_after(None, 1e6));
        assert!(!due_after(Some(3600), 3589.0) && due_after(Some(3600), 3590.0));
        assert!(!due_after(Some(8), 5.9) && due_after(Some(8), 6.0));
        assert!(due_after(Some(0), 0.0));
    }
}
