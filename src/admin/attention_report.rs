//! One condition that needs the attention of an operator.

use serde::{Deserialize, Serialize};

/// One condition that needs attention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttentionReport {
    /// `failure` if requests are affected or configuration is not in use, else `warning`.
    pub severity: String,
    /// The section of the status page with the details: `backends`, `endpoints`, `calls`, …
    pub section: String,
    /// Name of the object.
    pub subject: String,
    /// What is wrong, and why.
    pub text: String,
    /// Since when, from [`timestamp`](super::timestamp); empty if that is not known.
    pub since: String,
}

impl AttentionReport {
    /// Whether this is a failure.
    pub fn is_failure(&self) -> bool {
        self.severity == "failure"
    }

    pub(super) fn failure(section: &str, subject: impl Into<String>, text: impl Into<String>) -> AttentionReport {
        AttentionReport {
            severity: "failure".to_owned(),
            section: section.to_owned(),
            subject: subject.into(),
            text: text.into(),
            since: String::new(),
        }
    }

    pub(super) fn warning(section: &str, subject: impl Into<String>, text: impl Into<String>) -> AttentionReport {
        AttentionReport { severity: "warning".to_owned(), ..AttentionReport::failure(section, subject, text) }
    }

    pub(super) fn since(self, since: &str) -> AttentionReport {
        AttentionReport { since: since.to_owned(), ..self }
    }
}
