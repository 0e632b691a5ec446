//! How the following of a kube-apiserver goes, for whoever asks.

use std::time::SystemTime;

/// What there is to say of the registry's kube-apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Where it is, as its kubeconfig says.
    pub server: String,
    /// Whether everything was there at least once.
    pub complete: bool,
    /// Since when, and why, it cannot be followed; what it said last is used.
    pub failing: Option<(SystemTime, String)>,
}
