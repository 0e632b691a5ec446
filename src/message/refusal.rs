//! A refusal: the party at fault, the Status for the client, and the cause for the log.

use kubeapi::Status;

/// The party at fault for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The request is invalid or not allowed.
    Client,
    /// The gateway failed or is overloaded.
    Gateway,
    /// The backend failed.
    Backend,
}

impl Blame {
    /// The value in access records.
    pub fn as_str(self) -> &'static str {
        match self {
            Blame::Client => "client",
            Blame::Gateway => "gateway",
            Blame::Backend => "backend",
        }
    }
}

/// A refused request, which is answered with a [`Status`] instead of being relayed.
///
/// Boxed, to keep `Result`s with it small.
#[derive(Debug)]
pub struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    blame: Blame,
    status: Status,
    cause: String,
    text: Option<&'static str>,
    is_text: bool,
    rbac_proxy_text: Option<&'static str>,
    attributes: Option<ReviewedAttributes>,
    warnings: Vec<String>,
}

/// The authorization attributes of a refused request, for kube-rbac-proxy's error texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReviewedAttributes {
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
    /// Creates a refusal with `status` for the client.
    pub fn new(blame: Blame, status: Status) -> Refusal {
        let (text, rbac_proxy_text, judged) = (None, None, None);
        Refusal(Box::new(Inner {
            blame,
            status,
            cause: String::new(),
            text,
            is_text: false,
            rbac_proxy_text,
            attributes: judged,
            warnings: Vec::new(),
        }))
    }

    /// Adds the cause, which goes to the log and the access record, never to the client.
    #[must_use]
    pub fn with_cause(mut self, cause: impl std::fmt::Display) -> Refusal {
        self.0.cause = cause.to_string();
        self
    }

    /// Sets the response text for `--error-format=text`.
    #[must_use]
    pub fn with_text(mut self, text: &'static str) -> Refusal {
        self.0.text = Some(text);
        self
    }

    /// Sets the response text for every client, where a kube-apiserver sends no Status.
    #[must_use]
    pub fn with_plain_text(mut self, text: &'static str) -> Refusal {
        self.0.is_text = true;
        self.with_text(text)
    }

    /// Whether the response is a text for every client.
    pub fn is_plain_text(&self) -> bool {
        self.0.is_text
    }

    /// kube-aggregator's specific text, if any.
    pub fn text(&self) -> Option<&'static str> {
        self.0.text
    }

    /// Sets the response text for `--error-format=kube-rbac-proxy`.
    #[must_use]
    pub fn with_rbac_proxy_text(mut self, text: &'static str) -> Refusal {
        self.0.rbac_proxy_text = Some(text);
        self
    }

    /// kube-rbac-proxy's specific text, if any.
    pub fn rbac_proxy_text(&self) -> Option<&'static str> {
        self.0.rbac_proxy_text
    }

    /// Adds the authorization attributes, for `--error-format=kube-rbac-proxy`.
    #[must_use]
    pub fn with_attributes(mut self, attributes: ReviewedAttributes) -> Refusal {
        self.0.attributes = Some(attributes);
        self
    }

    /// The authorization attributes, if the refusal is about authorization.
    pub fn attributes(&self) -> Option<&ReviewedAttributes> {
        self.0.attributes.as_ref()
    }

    /// Adds `Warning: 299` headers, which kubectl prints.
    #[must_use]
    pub fn with_warnings(mut self, texts: impl IntoIterator<Item = String>) -> Refusal {
        self.0.warnings.extend(texts);
        self
    }

    /// The texts of the `Warning` headers.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// The party at fault.
    pub fn blame(&self) -> Blame {
        self.0.blame
    }

    /// The Status for the client.
    pub fn status(&self) -> &Status {
        &self.0.status
    }

    /// The cause for the log; may be empty.
    pub fn cause(&self) -> &str {
        &self.0.cause
    }
}
