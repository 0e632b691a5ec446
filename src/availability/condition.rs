//! The `Available` condition of an APIService.

use std::borrow::Cow;
use std::time::SystemTime;

/// What is known, why, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Whether the backend can be used.
    pub status: ConditionStatus,
    /// One word, of kube-aggregator's where it has one: `Passed`, `FailedDiscoveryCheck`, `ServiceNotFound`, …
    pub reason: Cow<'static, str>,
    /// For a person. Clients read it, so it names objects and never an inner address.
    pub message: String,
    /// What only logs and the status page show: addresses, a library's error text. May be empty.
    pub detail: String,
    /// When `status` last changed (`lastTransitionTime`); reason and message may change without it.
    pub since: SystemTime,
}

/// `True`, `False` or `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It answers.
    True,
    /// It does not; its requests are refused.
    False,
    /// Not asked yet; its requests are let through.
    Unknown,
}

impl ConditionStatus {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }
}

impl Condition {
    /// The same as its circuit has it: of a backend whose probes are answered and whose requests are not, for this
    /// `reason`, it says both. Status and reason stay those of the probes, as of every other aggregator that probes it.
    pub(super) fn beside_circuit(&self, reason: Option<&str>) -> Condition {
        let mut condition = self.clone();
        if let (ConditionStatus::True, Some(reason)) = (self.status, reason) {
            condition.message =
                format!("the discovery check passed, but requests get no answer: {reason}; circuit open");
        }
        condition
    }

    /// Whether it is that of an APIService without a backend of its own.
    pub(super) fn is_local(&self) -> bool {
        self.status == ConditionStatus::True && self.reason == "Local"
    }

    /// Nobody has asked the backend yet.
    pub fn unknown(now: SystemTime) -> Condition {
        Condition {
            status: ConditionStatus::Unknown,
            reason: Cow::Borrowed("NotProbed"),
            message: "the backend has not been asked yet".to_owned(),
            detail: String::new(),
            since: now,
        }
    }
}
