//! Credentials that a kubeconfig does not hold itself: a program of the person's, or an issuer of tokens, gives them for
//! a while.

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

/// So long before they end, credentials are renewed: as long as a request may be under way.
const MARGIN: Duration = Duration::from_secs(10);

/// Who gives the credentials. Two that are equal give the same.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Plugin {
    /// A program (`exec`).
    Exec(Arc<Exec>),
    /// An issuer of tokens (`auth-provider: oidc`).
    Oidc(Arc<Oidc>),
}

/// What was given. Has no `Debug`: it holds secrets.
pub(super) struct Granted {
    /// Marked as sensitive.
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<KeyPair>>,
    /// Since when and until when it is good, if it ends.
    pub(super) from: SystemTime,
    pub(super) until: Option<SystemTime>,
}

/// Why there are no credentials, in words for the person: the first line is client-go's, which scripts may look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied(pub(super) String);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Denied {}

impl Plugin {
    /// Asks for credentials.
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
    /// Whether it is time for others.
    pub(super) fn is_due(&self, now: SystemTime) -> bool {
        self.until.is_some_and(|until| {
            // What lasts for seconds only is used for most of them.
            let whole = until.duration_since(self.from).unwrap_or_default();
            now + MARGIN.min(whole / 4) >= until
        })
    }
}

/// `Bearer` and a token, not to be shown.
fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Text of others without what a terminal would obey.
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
