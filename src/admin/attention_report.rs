//! One condition that needs the attention of an operator, and the list of them on a status page.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::observe::times::format_age;

/// Maximum number of entries of the list on a status page.
const MAX_SHOWN: usize = 50;

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

/// What needs attention, as a status page shows it.
pub(super) struct AttentionList {
    entries: Vec<AttentionReport>,
    now: SystemTime,
}

impl AttentionList {
    pub(super) fn new(entries: Vec<AttentionReport>, now: SystemTime) -> AttentionList {
        AttentionList { entries, now }
    }

    pub(super) fn shown(&self) -> &[AttentionReport] {
        &self.entries[..self.entries.len().min(MAX_SHOWN)]
    }

    /// Number of entries that are not shown.
    pub(super) fn hidden_count(&self) -> usize {
        self.entries.len().saturating_sub(MAX_SHOWN)
    }

    pub(super) fn age(&self, timestamp: &str) -> String {
        format_age(timestamp, self.now)
    }
}
