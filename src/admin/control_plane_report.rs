//! A control plane in the status report.

use serde::{Deserialize, Serialize};

/// A control plane behind the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ControlPlaneReport {
    /// Its name.
    pub name: String,
    /// Its host names, or its path prefix.
    pub requests: String,
    /// `starting`, `serving` or `failed`.
    pub state: String,
    /// Why it could not be started, or mistakes in its files, of which the last good content is in use.
    pub problems: Vec<String>,
    /// Number of its APIServices, without the delegate.
    pub apiservices: u64,
    /// Those that are not available.
    pub unavailable: Vec<String>,
    /// Requests in flight, without long-running ones.
    pub inflight: u64,
}

impl ControlPlaneReport {
    /// Whether it could not be started.
    pub fn is_failed(&self) -> bool {
        self.state == "failed"
    }

    /// Problems and unavailable APIServices, in one line.
    pub fn problem_line(&self) -> String {
        let unavailable = self.unavailable.iter().map(|name| format!("unavailable: {name}"));
        self.problems.iter().cloned().chain(unavailable).collect::<Vec<_>>().join("; ")
    }
}
