//! Requests that the gateway answers itself: version, metrics, discovery, OpenAPI, objects, reviews.

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use kubeapi::Status;
use serde::Serialize;
use serde_json::Value;

use super::access::Access;
use super::destination::LocalDestination;
use super::objects;
use super::response::{ResponseBody, add_warning};
use super::reviews::{delegation_review, self_review};
use super::target::{ParsedRequest, client_error};
use super::timeouts::local_timeout;
use super::watch_socket::{WatchSocket, refuse_upgrade};
use crate::authenticate::service_accounts::{KEY_SET_MAX_AGE, TokenIssuer};
use crate::commands::gateway::state::GatewayState;
use crate::discovery::DiscoverySnapshot;
use crate::message::{Blame, Body, IncomingBody, Refusal};
use crate::observe::access::AccessRecord;
use crate::observe::metrics::ExpositionFormat;

const JSON: &str = "application/json";
const JWK_SET: &str = "application/jwk-set+json";

/// The response to a CORS preflight request.
pub(super) fn preflight_response() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// The response to an authorized request that the gateway answers itself.
///
/// # Errors
/// 400 for an upgrade that is not served, 405 for a write to a read-only path; errors of documents, objects and reviews.
pub(super) async fn respond(
    parsed: &ParsedRequest<'_>,
    access: &Access<'_>,
    destination: LocalDestination,
    mut request: Box<Request<IncomingBody>>,
    record: &mut AccessRecord,
) -> Result<Response<ResponseBody>, Refusal> {
    let (shared, method, permit) = (parsed.shared, &parsed.target.method, &access.permit);
    let socket = match destination {
        LocalDestination::Object => WatchSocket::accept(method, permit.request(), &mut request)?,
        _ => refuse_upgrade(request.headers()).map(|()| None)?,
    };
    // Boxed: rare, and larger than the rest.
    let response = match destination {
        LocalDestination::SelfReview(review) => {
            let counter = record.request_body_counter();
            Box::pin(self_review(parsed, review, permit, *request, &counter)).await
        }
        LocalDestination::Delegation(delegation) => {
            let counter = record.request_body_counter();
            Box::pin(delegation_review(parsed, delegation, permit, *request, &counter)).await
        }
        LocalDestination::Object => {
            let counter = record.request_body_counter();
            let audit = record.audit_annotations();
            Box::pin(objects::respond(parsed, permit, *request, &counter, &audit)).await
        }
        LocalDestination::Discovery(document) => document.respond(method, request.headers()),
        LocalDestination::OpenApiV2 => {
            let limit = local_timeout(&parsed.target.query, shared.api.settings().request_timeout);
            let limit = limit.map_err(client_error)?;
            Box::pin(shared.documents.openapi_v2.answer(method, request.headers(), limit)).await
        }
        LocalDestination::OpenApiV3(document) => {
            Box::pin(document.respond(method, parsed.target.uri.query(), request.headers())).await
        }
        LocalDestination::PathIndex(discovery) => {
            read_only(method, path_index(&discovery, shared.api.token_issuer().is_some()).into(), JSON)
        }
        LocalDestination::Version => read_only(method, version_info().into(), JSON),
        LocalDestination::Metrics => metrics_response(shared, method, request.headers()),
        LocalDestination::OpenIdConfiguration => {
            token_document(shared, method, TokenIssuer::openid_configuration, JSON)
        }
        LocalDestination::TokenKeys => token_document(shared, method, |issuer| Ok(issuer.jwks()), JWK_SET),
    };
    let response = add_warning(response?, access.warning);
    Ok(match socket {
        Some(socket) => socket.respond(response, &parsed.connection.handle),
        None => response.map(ResponseBody::Local),
    })
}

/// The response to a request for a document that others verify service account tokens with
/// (`pkg/routes/openidmetadata.go`).
fn token_document(
    shared: &GatewayState,
    method: &Method,
    document: impl FnOnce(&TokenIssuer) -> Result<Value, &'static str>,
    content_type: &'static str,
) -> Result<Response<Body>, Refusal> {
    let document = shared.api.token_issuer().ok_or("no tokens are issued").and_then(|issuer| document(issuer));
    let document = document.map_err(|why| Refusal::new(Blame::Client, Status::not_found()).with_cause(why))?;
    let mut response = read_only(method, document.to_string().into(), content_type)?;
    let seconds = KEY_SET_MAX_AGE.as_secs();
    if let Ok(value) = HeaderValue::try_from(format!("public, max-age={seconds}")) {
        response.headers_mut().insert(CACHE_CONTROL, value);
    }
    Ok(response)
}

fn metrics_response(shared: &GatewayState, method: &Method, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let format = ExpositionFormat::negotiate(accept);
    read_only(method, shared.metrics.render(format).into(), format.content_type())
}

/// The response to GET and HEAD of `body`.
fn read_only(method: &Method, body: Body, content_type: &'static str) -> Result<Response<Body>, Refusal> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let status = Status::method_not_allowed("the server does not allow this method on the requested resource");
        return Err(Refusal::new(Blame::Client, status));
    }
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    Ok(response)
}

/// The list of paths that kube-apiserver serves at `/`.
fn path_index(discovery: &DiscoverySnapshot, issues_tokens: bool) -> String {
    let own = ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
    let mut paths = own.map(String::from).to_vec();
    if issues_tokens {
        paths.extend(["/.well-known/openid-configuration", "/openid/v1/jwks"].map(String::from));
    }
    paths.extend(discovery.group_paths());
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
