//! What is not found, as a kube-apiserver says it.

use crate::commands::gateway::state::GatewayState;
use crate::kubeapi::{RequestInfo, Status};
use crate::message::Refusal;

/// Whether the embedded API server is here instead of a kube-apiserver, and answers as one.
pub(super) fn is_kube_apiserver(shared: &GatewayState) -> bool {
    shared.api.has_builtin_group("")
}

/// A refusal as a kube-apiserver sends it: a path that is not below one of its own groups and is not found at all is
/// answered with a text (`NotFoundHandler` and `director` in `k8s.io/apiserver/pkg/server/handler.go`).
pub(super) fn as_kube_apiserver(shared: &GatewayState, info: &RequestInfo<'_>, refusal: Refusal) -> Refusal {
    let is_unknown = refusal.status().code == 404 && *refusal.status() == Status::not_found();
    if !is_unknown || !is_kube_apiserver(shared) || has_own_service(shared, info.path) {
        return refusal;
    }
    refusal.with_plain_text("404 page not found")
}

/// Whether a kube-apiserver has a web service for a path: what it does not know below it is not found with a Status.
fn has_own_service(shared: &GatewayState, path: &str) -> bool {
    let (root, rest) = path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    match root {
        "api" | "version" => true,
        "apis" => {
            let group = rest.split('/').next().unwrap_or_default();
            matches!(group, "authentication.k8s.io" | "authorization.k8s.io") || shared.api.has_builtin_group(group)
        }
        _ => false,
    }
}
