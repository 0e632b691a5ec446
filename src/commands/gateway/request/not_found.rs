//! The refusal of a request that nothing serves. With the embedded API server it is a kube-apiserver's.

use std::sync::Arc;

use http::HeaderMap;
use kubeapi::{RequestInfo, Status};

use super::destination::RoutingError;
use super::watch_socket::refuse_upgrade;
use crate::authorize::Permit;
use crate::commands::gateway::state::GatewayState;
use crate::discovery::DiscoverySnapshot;
use crate::message::{Blame, Refusal};

/// The refusal of an authorized request that has no destination: 404; 403 for a Namespace without an embedded API server;
/// 503 until the registry is complete, with Kubernetes' text and delay (`k8s.io/apiserver/pkg/server/routes`,
/// `pkg/endpoints/handlers/not_found_handler.go`); 400 for an upgrade at an unknown path.
pub(super) fn routing_refusal(
    shared: &GatewayState,
    permit: &Permit<'_>,
    error: &RoutingError,
    headers: &HeaderMap,
) -> Refusal {
    match error {
        RoutingError::NoUpstream => {
            Refusal::new(Blame::Client, Status::not_found()).with_cause("no upstream owns the path")
        }
        RoutingError::RegistryIncomplete => Refusal::new(Blame::Gateway, Status::paths_not_installed()),
        RoutingError::UnknownDocument => {
            refuse_upgrade(headers).err().unwrap_or_else(|| Refusal::new(Blame::Client, Status::not_found()))
        }
        RoutingError::UnknownPath(discovery) => {
            refuse_upgrade(headers).err().unwrap_or_else(|| unknown_path(shared, permit, discovery))
        }
    }
}

/// 404 for a path that no backend owns, except 403 for a Namespace without an embedded API server. The log has the reason.
///
/// When an object does not exist, kubectl gets its namespace. On 404 it prints "the server could not find the requested
/// resource", as if there were no such kind (`Info.Get` in `cli-runtime/pkg/resource`). No backend knows whether the
/// namespace exists, so reading it is forbidden; then kubectl names the missing object.
fn unknown_path(shared: &GatewayState, permit: &Permit<'_>, discovery: &Arc<DiscoverySnapshot>) -> Refusal {
    let info = permit.request();
    let refusal = |status| Refusal::new(Blame::Client, status);
    let namespace = (info.api_group, info.api_version, info.resource, info.subresource) == ("", "v1", "namespaces", "");
    if namespace && info.verb == "get" {
        let reason = "no APIService claims v1, so no server here could allow it";
        return refusal(Status::forbidden_to(&permit.user().name, info, reason));
    }
    let Some(group_version) = group_version(info) else {
        return as_kube_apiserver(shared, info, refusal(Status::not_found()));
    };
    let list = if info.api_group.is_empty() { "/api" } else { "/apis" };
    if info.is_resource_request && discovery.find_document(&format!("{list}/{group_version}")).is_some() {
        let cause = format!("{group_version} has no resource {:?}", info.resource);
        return as_kube_apiserver(shared, info, refusal(Status::not_found()).with_cause(cause));
    }
    let hint = match info.api_group {
        "authentication.k8s.io" | "authorization.k8s.io" => {
            format!("no APIService claims {group_version}; --serve-delegation serves its reviews")
        }
        _ => format!("no APIService claims {group_version}; kubectl get apiservices shows those that are registered"),
    };
    if is_kube_apiserver(shared) {
        return as_kube_apiserver(shared, info, refusal(Status::not_found()).with_cause(hint));
    }
    let mut status = Status::not_found();
    // kubectl prints the message alone.
    status.message = format!("{} ({hint})", status.message);
    refusal(status.with_cause("NoAPIService", hint))
}

/// The group and version in the path of a resource or a discovery document, if any.
fn group_version(info: &RequestInfo<'_>) -> Option<String> {
    if info.is_resource_request {
        return Some(match info.api_group {
            "" => info.api_version.to_owned(),
            group => format!("{group}/{}", info.api_version),
        });
    }
    let rest = info.path.trim_end_matches('/');
    let named = rest.strip_prefix("/api/").filter(|version| !version.contains('/'));
    named.or_else(|| rest.strip_prefix("/apis/").filter(|named| named.matches('/').count() <= 1)).map(str::to_owned)
}

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
