//! A refusal says who is to blame, what the client may read, and what only the log may know.

use crate::kubeapi::Status;

/// Who is to blame for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The request was wrong, or its sender may not.
    Client,
    /// We could not, or would not just now.
    Gateway,
    /// What stands behind us failed.
    Backend,
}

impl Blame {
    /// The word of it in access records.
    pub fn as_str(self) -> &'static str {
        match self {
            Blame::Client => "client",
            Blame::Gateway => "gateway",
            Blame::Backend => "backend",
        }
    }
}

/// A request that is answered with a [`Status`] instead of being relayed.
///
/// Boxed inside so that the happy path carries one pointer.
#[derive(Debug)]
pub struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    blame: Blame,
    status: Status,
    cause: String,
    text: Option<&'static str>,
    rbac_proxy_text: Option<&'static str>,
    judged: Option<Judged>,
    warning: Option<&'static str>,
}

/// What was judged, as kube-rbac-proxy tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Name of the user.
    pub user: String,
    /// `get`, `list`, …
    pub verb: String,
    /// Empty for a path.
    pub resource: String,
    /// May be empty.
    pub subresource: String,
}

impl Refusal {
    /// A refusal the client reads as `status`.
    pub fn new(blame: Blame, status: Status) -> Refusal {
        let (text, rbac_proxy_text, judged, warning) = (None, None, None, None);
        Refusal(Box::new(Inner { blame, status, cause: String::new(), text, rbac_proxy_text, judged, warning }))
    }

    /// Adds the private cause, which goes to the log and the access record and never to the client.
    #[must_use]
    pub fn because(mut self, cause: impl std::fmt::Display) -> Refusal {
        self.0.cause = cause.to_string();
        self
    }

    /// Sets what `--error-format=text` answers instead of the Status.
    #[must_use]
    pub fn with_text(mut self, text: &'static str) -> Refusal {
        self.0.text = Some(text);
        self
    }

    /// kube-aggregator's text for it, if it has one of its own.
    pub fn text(&self) -> Option<&'static str> {
        self.0.text
    }

    /// Sets what `--error-format=kube-rbac-proxy` answers instead of the Status.
    #[must_use]
    pub fn with_rbac_proxy_text(mut self, text: &'static str) -> Refusal {
        self.0.rbac_proxy_text = Some(text);
        self
    }

    /// kube-rbac-proxy's text for it, if it has one of its own.
    pub fn rbac_proxy_text(&self) -> Option<&'static str> {
        self.0.rbac_proxy_text
    }

    /// Adds what was judged, for `--error-format=kube-rbac-proxy`.
    #[must_use]
    pub fn of(mut self, judged: Judged) -> Refusal {
        self.0.judged = Some(judged);
        self
    }

    /// What was judged, if this is about a permission.
    pub fn judged(&self) -> Option<&Judged> {
        self.0.judged.as_ref()
    }

    /// Adds a `Warning: 299`, which kubectl shows to its user.
    #[must_use]
    pub fn with_warning(mut self, text: &'static str) -> Refusal {
        self.0.warning = Some(text);
        self
    }

    /// What the client is warned of, if anything.
    pub fn warning(&self) -> Option<&'static str> {
        self.0.warning
    }

    /// Who is to blame.
    pub fn blame(&self) -> Blame {
        self.0.blame
    }

    /// What the client reads.
    pub fn status(&self) -> &Status {
        &self.0.status
    }

    /// What only the log may know; empty when there is nothing more to say.
    pub fn cause(&self) -> &str {
        &self.0.cause
    }
}
