//! The `Available` condition of an APIService.

use std::borrow::Cow;
use std::time::SystemTime;

/// Status, reason, message and transition time of the condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailabilityCondition {
    /// Whether the backend is available.
    pub status: ConditionStatus,
    /// CamelCase reason, kube-aggregator's where it has one: `CapturedBody`, `FailedDiscoveryCheck`, `ServiceNotFound`,
    /// …
    pub reason: Cow<'static, str>,
    /// Human-readable message. Clients read it: it names objects, never an internal address.
    pub message: String,
    /// Detail for logs and the status page: addresses, a library's error text. May be empty.
    pub detail: String,
    /// Time of the last change of `status` (`lastTransitionTime`). Reason and message may change without it.
    pub since: SystemTime,
}

/// Status of the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The backend answers.
    True,
    /// The backend does not answer; its requests are rejected.
    False,
    /// Not probed yet; requests are admitted.
    Unknown,
}

impl ConditionStatus {
    /// The Kubernetes spelling of the status.
    pub fn as_str(self) -> &'static str {
        match self {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
            ConditionStatus::Unknown => "Unknown",
        }
    }
}

impl AvailabilityCondition {
    /// The condition with the state of the circuit in its message. `reason` says why requests fail while probes
    /// succeed. Status and reason stay those of the probes, as other aggregators that probe the backend report them.
    pub(super) fn with_open_circuit(&self, reason: Option<&str>) -> AvailabilityCondition {
        let mut condition = self.clone();
        if let (ConditionStatus::True, Some(reason)) = (self.status, reason) {
            condition.message =
                format!("the discovery check passed, but requests get no answer: {reason}; circuit open");
        }
        condition
    }

    /// Whether this is the condition of an APIService without a backend of its own.
    pub(super) fn is_local(&self) -> bool {
        self.status == ConditionStatus::True && self.reason == "Local"
    }

    /// The condition of a backend that was not probed yet.
    pub fn unknown(now: SystemTime) -> AvailabilityCondition {
        AvailabilityCondition {
            status: ConditionStatus::Unknown,
            reason: Cow::Borrowed("NotProbed"),
            message: "the backend has not been probed yet".to_owned(),
            detail: String::new(),
            since: now,
        }
    }
}
