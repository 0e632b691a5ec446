//! State of the connection to the registry's kube-apiserver, for metrics and status.

use std::time::SystemTime;

/// State of the registry's kube-apiserver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// Its `host:port`, from the kubeconfig.
    pub server: String,
    /// Whether all objects were listed at least once.
    pub complete: bool,
    /// Since when it cannot be watched, and the error. The last known objects stay in use.
    pub failing: Option<(SystemTime, String)>,
}
