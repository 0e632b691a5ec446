//! Requests that the gateway answers itself: version, metrics, discovery, OpenAPI, objects, reviews.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use serde::Serialize;

use super::not_found::{as_kube_apiserver, is_kube_apiserver};
use super::objects;
use super::reviews::{delegation_review, self_review};
use super::target::{ParsedRequest, client_error};
use super::timeouts::local_timeout;
use crate::authorize::{Permit, SelfReview};
use crate::commands::gateway::state::GatewayState;
use crate::delegation_server::DelegationRequest;
use crate::discovery;
use crate::kubeapi::{RequestInfo, RetryAfter, Status};
use crate::message::{Blame, Body, IncomingBody, Refusal};
use crate::observe::access::AccessRecord;
use crate::observe::metrics::ExpositionFormat;
use crate::openapi::{self, OpenApiV2};
use crate::process::ShutdownPhase;
use crate::route::Route;

/// The response to a CORS preflight request, if this is one: browsers send them without credentials.
pub(super) fn cors_preflight_response(parsed: &ParsedRequest<'_>, headers: &HeaderMap) -> Option<Response<Body>> {
    let cors = parsed.shared.responses.cors.as_ref().filter(|_| parsed.target.method == Method::OPTIONS)?;
    cors.allowed_origin(headers)?;
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NO_CONTENT;
    Some(response)
}

/// Checks that requests are served: with `--shutdown-send-retry-after` not once the shutdown has begun, except
/// `/metrics` (`pkg/server/filters/with_retry_after.go`).
///
/// # Errors
/// 429, which also closes the connection.
pub(super) fn check_shutdown(parsed: &ParsedRequest<'_>) -> Result<(), Refusal> {
    let shared = parsed.shared;
    let leaving = shared.responses.send_retry_after && shared.drain.phase() == ShutdownPhase::Leaving;
    if !leaving || parsed.path() == "/metrics" {
        return Ok(());
    }
    parsed.connection.close_after_response();
    let status =
        Status::too_many_requests("The apiserver is shutting down, please try again later.", RetryAfter::ShuttingDown);
    Err(Refusal::new(Blame::Gateway, status))
}

/// A backend's request to the delegation server, if this is one (`--serve-delegation`).
pub(super) fn delegation_request(parsed: &ParsedRequest<'_>, info: &RequestInfo<'_>) -> Option<DelegationRequest> {
    let is_served = parsed.shared.serves_delegation && parsed.route.is_none();
    DelegationRequest::parse(info).filter(|_| is_served)
}

/// The route of a request to a backend; none if it is answered locally.
///
/// # Errors
/// 404 if no upstream of a sidecar owns the path.
///
/// 503 until the registry is complete: an APIService that is not known yet may claim the path, so the request must
/// neither go to the delegate nor get a 404. Kubernetes' text and delay (`k8s.io/apiserver/pkg/server/routes`,
/// `pkg/endpoints/handlers/not_found_handler.go`).
pub(super) fn find_route<'r>(
    parsed: &ParsedRequest<'r>,
    info: &RequestInfo<'_>,
) -> Result<Option<&'r Arc<Route>>, Refusal> {
    let (shared, table) = (parsed.shared, &parsed.target.table);
    if let Some(route) = parsed.route {
        return Ok(Some(route));
    }
    shared.policy.check_serves_locally()?;
    if shared.policy.is_openapi_document(info.path)
        && let Some(route) = shared.documents.openapi.load().owner(info.path).and_then(|owner| table.by_name(owner))
    {
        return Ok(Some(route));
    }
    if table.delegate().is_none() && table.complete {
        return Ok(None);
    }
    let is_local = is_local(shared, info);
    if !is_local && !table.complete {
        return Err(Refusal::new(Blame::Gateway, Status::paths_not_installed()));
    }
    // APIServices registered in a cluster are read and written there, even if the delegate serves nothing else here.
    let is_delegated = !is_local && (shared.delegate.all || is_registration(info));
    Ok(table.delegate().filter(|_| is_delegated))
}

/// Whether a path that no APIService claims is answered locally, even with a delegate.
fn is_local(shared: &GatewayState, info: &RequestInfo<'_>) -> bool {
    matches!(info.path, "/" | "/openapi/v3" | "/openapi/v3/")
        || (info.path == "/metrics" && !shared.delegate.metrics)
        || (matches!(info.path, "/version" | "/version/") && !shared.delegate.all)
        || OpenApiV2::is_path(info.path)
        || shared.documents.discovery.load().has_document_at(info.path)
        || shared.documents.openapi.load().has_document_at(info.path)
        || (is_registration(info) && !shared.delegate.apiservices)
        || shared.api.claims(info)
}

/// Whether a request is for APIServices, or another resource of their group.
fn is_registration(info: &RequestInfo<'_>) -> bool {
    info.is_resource_request && (info.api_group, info.api_version) == ("apiregistration.k8s.io", "v1")
}

/// The response to a request that the gateway answers itself.
///
/// # Errors
/// 404 for an unknown path, 405 for a write to a read-only path; errors of reviews.
pub(super) async fn respond(
    parsed: &ParsedRequest<'_>,
    permit: &Permit<'_>,
    delegation: Option<DelegationRequest>,
    request: Box<Request<IncomingBody>>,
    record: &mut AccessRecord,
) -> Result<Response<Body>, Refusal> {
    let shared = parsed.shared;
    // Boxed: rare, and larger than the rest.
    if let Some(review) = SelfReview::parse(permit.request()) {
        let counter = record.request_body_counter();
        return Box::pin(self_review(shared, review, permit, *request, &counter)).await;
    }
    if let Some(delegation) = delegation {
        let counter = record.request_body_counter();
        return Box::pin(delegation_review(shared, delegation, permit, *request, &counter)).await;
    }
    if shared.api.claims(permit.request()) {
        let counter = record.request_body_counter();
        return Box::pin(objects::respond(parsed, permit, *request, &counter)).await;
    }
    if OpenApiV2::is_path(parsed.path()) {
        let limit = local_timeout(&parsed.target.query, shared.api.settings().request_timeout).map_err(client_error)?;
        return Box::pin(shared.documents.openapi_v2.answer(&parsed.target.method, request.headers(), limit)).await;
    }
    let unbuilt = shared.documents.openapi.load().unbuilt_document(parsed.path());
    if let Some(unbuilt) = unbuilt {
        Box::pin(unbuilt.build()).await;
    }
    document(parsed, permit, request.headers())
}

/// The response to a request for a document of the gateway.
fn document(parsed: &ParsedRequest<'_>, permit: &Permit<'_>, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let (shared, method, info) = (parsed.shared, &parsed.target.method, permit.request());
    if let Some(response) = discovery::answer(&shared.documents.discovery.load(), method, info.path, headers) {
        return response;
    }
    let query = parsed.target.uri.query();
    if let Some(response) = openapi::answer(&shared.documents.openapi.load(), method, info.path, query, headers) {
        return response;
    }
    let text = match info.path {
        "/" => path_index(shared),
        "/version" | "/version/" => version_info(),
        "/metrics" => {
            let accept = headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
            let format = ExpositionFormat::negotiate(accept);
            return read_only(method, Response::new(shared.metrics.render(format).into()), format.content_type());
        }
        _ => return Err(not_found(shared, permit)),
    };
    read_only(method, Response::new(text.into()), "application/json")
}

fn read_only(
    method: &Method,
    mut response: Response<Body>,
    content_type: &'static str,
) -> Result<Response<Body>, Refusal> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let status = Status::method_not_allowed("the server does not allow this method on the requested resource");
        return Err(Refusal::new(Blame::Client, status));
    }
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// 404 for a path that no backend owns, except 403 for a Namespace without an embedded API server. The log has the reason.
///
/// When an object does not exist, kubectl gets its namespace. On 404 it prints "the server could not find the requested
/// resource", as if there were no such kind (`Info.Get` in `cli-runtime/pkg/resource`). No backend knows whether the
/// namespace exists, so reading it is forbidden; then kubectl names the missing object.
fn not_found(shared: &GatewayState, permit: &Permit<'_>) -> Refusal {
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
    if info.is_resource_request && shared.documents.discovery.load().has_document_at(&format!("{list}/{group_version}"))
    {
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

/// The list of paths that kube-apiserver serves at `/`.
fn path_index(shared: &GatewayState) -> String {
    let own = ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
    let mut paths = own.map(String::from).to_vec();
    paths.extend(shared.documents.discovery.load().group_paths());
    paths.sort();
    paths.dedup();
    serde_json::json!({ "paths": paths }).to_string()
}

/// The Kubernetes release that the gateway implements. Clients compare it with their own version, and Helm with a
/// chart's `kubeVersion`.
const KUBERNETES: [u32; 2] = [1, 36];

/// `version.Info` of `k8s.io/apimachinery/pkg/version`: the Kubernetes release; narthex's version is in the build
/// metadata, which semantic versioning does not compare.
fn version_info() -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct VersionInfo {
        major: String,
        minor: String,
        git_version: String,
        git_commit: &'static str,
        git_tree_state: &'static str,
        build_date: &'static str,
        go_version: &'static str,
        compiler: &'static str,
        platform: String,
    }
    let [major, minor] = KUBERNETES;
    let info = VersionInfo {
        major: major.to_string(),
        minor: minor.to_string(),
        git_version: format!("v{major}.{minor}.0+narthex-{}", env!("CARGO_PKG_VERSION")),
        git_commit: "",
        git_tree_state: "",
        build_date: "1970-01-01T00:00:00Z",
        go_version: "",
        compiler: "rustc",
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    };
    // serde_json cannot fail on plain structs of strings.
    serde_json::to_string_pretty(&info).unwrap_or_default()
}
