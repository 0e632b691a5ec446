//! Requests that the gateway answers itself: health, version, metrics, discovery, OpenAPI, APIServices, reviews.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::connection::ClientConnection;
use super::state::GatewayState;
use crate::authorize::{self, Permit, ReviewBody, SelfReview};
use crate::availability::apiservice_api::ApiServiceHandler;
use crate::delegation_server::{self, DelegationRequest, DelegationServer};
use crate::kubeapi::{Query, RequestInfo, Status};
use crate::message::{Blame, Body, BodyError, IncomingBody, Refusal};
use crate::observe::access::{AccessRecord, BodyCounter, EndReason};
use crate::observe::metrics::ExpositionFormat;
use crate::process::UserTurns;
use crate::route::{Route, RouteTable};
use crate::{discovery, openapi};

/// Timeout for the body of a review to arrive, and for waiting until a large one can be parsed.
const REVIEW_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Limits parsing of large bodies to one at a time; users take turns.
static SLOW_READ_SLOTS: LazyLock<UserTurns> = LazyLock::new(UserTurns::default);

/// The response to a health check, if `path` is one; `others` are the lines of the delegate's checks.
pub(super) fn health_response(
    shared: &GatewayState,
    method: &Method,
    path: &str,
    query: Option<&str>,
    others: &str,
) -> Option<Response<Body>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let mut answers = shared.health.iter().filter_map(|health| health.respond_with_others(path, query, others));
    answers.next().map(|response| response.map(Body::from))
}

/// Whether `path` is an OpenAPI v3 document, which its backend serves.
pub(super) fn is_openapi(path: &str) -> bool {
    path.starts_with("/openapi/v3/")
}

/// The route of the backend that serves the OpenAPI document `path`.
pub(super) fn openapi_owner<'t>(shared: &GatewayState, table: &'t RouteTable, path: &str) -> Option<&'t Arc<Route>> {
    if !is_openapi(path) {
        return None;
    }
    table.by_name(shared.openapi.load().owner(path)?)
}

/// The route of the delegate for `info`, which no APIService claims; none if the gateway answers it itself or there is
/// no delegate.
///
/// # Errors
/// 503 until the registry is complete: an APIService that is not known yet may claim the path, so the request must
/// neither go to the delegate nor get a 404. Upstream's text and delay (`k8s.io/apiserver/pkg/server/routes`,
/// `pkg/endpoints/handlers/not_found_handler.go`).
pub(super) fn delegate_route<'t>(
    shared: &GatewayState,
    table: &'t RouteTable,
    info: &RequestInfo<'_>,
) -> Result<Option<&'t Arc<Route>>, Refusal> {
    if table.delegate().is_none() && table.complete {
        return Ok(None);
    }
    let ours = matches!(info.path, "/" | "/openapi/v3" | "/openapi/v3/")
        || (info.path == "/metrics" && !shared.delegates_metrics)
        || (matches!(info.path, "/version" | "/version/") && !shared.delegates_all)
        || openapi::OpenApiV2::is_path(info.path)
        || shared.documents.load().has_document_at(info.path)
        || shared.openapi.load().has_document_at(info.path)
        || (ApiServiceHandler::claims(info) && !shared.registrations_elsewhere);
    if !ours && !table.complete {
        return Err(Refusal::new(Blame::Gateway, Status::paths_not_installed()));
    }
    // APIServices registered in a cluster are read and written there, even if the delegate serves nothing else here.
    let theirs = !ours && (shared.delegates_all || ApiServiceHandler::claims(info));
    Ok(table.delegate().filter(|_| theirs))
}

/// Marks a relayed OpenAPI document as immutable if it matches the hash in the query.
pub(super) fn mark_openapi_immutable(response: &mut Response<Body>, query: Option<&str>) {
    let hash = openapi::split_hash(query).1;
    openapi::mark_immutable(response.headers_mut(), hash, std::time::SystemTime::now());
}

/// The response to a request that the gateway answers itself.
///
/// # Errors
/// 404 for an unknown path, 405 for a write to a read-only path.
pub(super) fn respond(
    connection: &ClientConnection,
    permit: &Permit<'_>,
    method: &Method,
    uri: &Uri,
    query: &Query<'_>,
    headers: &HeaderMap,
) -> Result<Response<Body>, Refusal> {
    let shared = &*connection.worker.shared;
    let info = permit.request();
    let decoded = info.path;
    if let Some(answer) = discovery::answer(&shared.documents.load(), method, decoded, headers) {
        return answer;
    }
    if let Some(answer) = openapi::answer(&shared.openapi.load(), method, decoded, uri.query(), headers) {
        return answer;
    }
    if ApiServiceHandler::claims(info) {
        return shared.reports.answer(info, query, headers);
    }
    let text = match decoded {
        "/" => path_index(shared),
        "/version" | "/version/" => version_info(),
        "/metrics" => {
            let accept = headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
            let format = ExpositionFormat::negotiate(accept);
            return read_only(method, Response::new(shared.metrics.render(format).into()), format.content_type());
        }
        _ => return Err(Refusal::new(Blame::Client, not_found(permit))),
    };
    read_only(method, Response::new(text.into()), "application/json")
}

/// The response to a SelfSubjectReview, SelfSubjectAccessReview or SelfSubjectRulesReview.
///
/// # Errors
/// 405 for other verbs than create; 413, 415, 400 and 422 for an invalid body.
pub(super) async fn self_review(
    connection: &ClientConnection,
    review: SelfReview,
    permit: &Permit<'_>,
    request: Request<IncomingBody>,
    receipt: &BodyCounter,
) -> Result<Response<Body>, Refusal> {
    let body = read_review_body(permit, review.review_body(), request, receipt).await?;
    let answer = review.answer(&connection.worker.shared.authorizer, permit.user(), &body).await;
    answer.map(|answer| created_response(&answer)).map_err(|status| Refusal::new(Blame::Client, status))
}

/// The response to a backend's TokenReview, SubjectAccessReview or ConfigMap request (`--serve-delegation`).
///
/// # Errors
/// As [`self_review`], and errors of requests for the ConfigMap.
pub(super) async fn delegation_review(
    connection: &ClientConnection,
    reviewer: &DelegationServer,
    question: DelegationRequest,
    permit: &Permit<'_>,
    query: &Query<'_>,
    request: Request<IncomingBody>,
    receipt: &BodyCounter,
) -> Result<Response<Body>, Refusal> {
    let shared = &*connection.worker.shared;
    let Some(form) = question.review_body() else {
        return delegation_server::handle_config_map(reviewer, permit.request(), query, request.headers());
    };
    let body = read_review_body(permit, form, request, receipt).await?;
    let answer = match question {
        DelegationRequest::TokenReview => delegation_server::token_review(&shared.authenticator, &body).await,
        DelegationRequest::SubjectAccessReview | DelegationRequest::ConfigMap => {
            authorize::subject_access_review(&shared.authorizer, shared.authenticator.groups(), &body).await
        }
    };
    answer.map(|answer| created_response(&answer)).map_err(|status| Refusal::new(Blame::Client, status))
}

/// Reads the body of a review, as JSON.
async fn read_review_body(
    permit: &Permit<'_>,
    form: ReviewBody,
    request: Request<IncomingBody>,
    receipt: &BodyCounter,
) -> Result<Vec<u8>, Refusal> {
    let refuse = |status| Refusal::new(Blame::Client, status);
    if permit.request().verb != "create" {
        let message = "the server does not allow this method on the requested resource";
        return Err(refuse(Status::method_not_allowed(message)));
    }
    let (head, body) = request.into_parts();
    let most = form.max_bytes();
    let read = tokio::time::timeout(REVIEW_BODY_TIMEOUT, Limited::new(body, most).collect()).await;
    let read = read.map_err(|_| refuse(Status::request_timeout("the body did not arrive in time")))?;
    let body = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            refuse(Status::request_entity_too_large(format_args!("limit is {most}")))
        } else {
            refuse(Status::bad_request("the request body is incomplete")).with_cause(error)
        }
    })?;
    let kind = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = body.to_bytes();
    receipt.record(&body);
    if !ReviewBody::is_slow(kind, body.len()) {
        return form.read(kind, &body).map_err(refuse);
    }
    // On a blocking thread, so that other requests of this worker do not wait.
    let turn = SLOW_READ_SLOTS.wait(&permit.user().name);
    let Ok(Some(_turn)) = tokio::time::timeout(REVIEW_BODY_TIMEOUT, turn).await else {
        return Err(refuse(Status::too_many_requests("too many large reviews at once, please try again later", 1)));
    };
    let kind = kind.to_owned();
    let read = tokio::task::spawn_blocking(move || form.read(&kind, &body)).await;
    read.map_err(|error| refuse(Status::internal_error("the body could not be read")).with_cause(error))?
        .map_err(refuse)
}

fn created_response(answer: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(format!("{answer}\n").into());
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
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

/// 404 for a path that no backend owns, except 403 for a Namespace.
///
/// When an object does not exist, kubectl gets its namespace. On 404 it prints "the server could not find the requested
/// resource", as if there were no such kind (`Info.Get` in `cli-runtime/pkg/resource`). No backend knows whether the
/// namespace exists, so reading it is forbidden; then kubectl names the missing object.
fn not_found(permit: &Permit<'_>) -> Status {
    let info = permit.request();
    let namespace = (info.api_group, info.api_version, info.resource, info.subresource) == ("", "v1", "namespaces", "");
    if namespace && info.verb == "get" {
        let reason = "no APIService claims v1, so no server here could allow it";
        return Status::forbidden_to(&permit.user().name, info, reason);
    }
    let Some(group_version) = group_version(info) else { return Status::not_found() };
    let hint = format!("no APIService claims {group_version}; kubectl get apiservices shows those that are registered");
    let mut status = Status::not_found();
    // kubectl prints the message alone.
    status.message = format!("{} ({hint})", status.message);
    status.with_cause("NoAPIService", hint)
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
    paths.extend(shared.documents.load().group_paths());
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
    let [major, minor] = KUBERNETES;
    serde_json::json!({
        "major": major.to_string(),
        "minor": minor.to_string(),
        "gitVersion": format!("v{major}.{minor}.0+narthex-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
    .to_string()
}

/// Wraps a locally produced stream so that its access record ends with it.
pub(super) fn record_stream(body: Body, record: AccessRecord) -> Body {
    Body::stream(RecordedBody { body, record })
}

struct RecordedBody {
    body: Body,
    record: AccessRecord,
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.record.record_response_body(frame.data_ref().map_or(&[], |data| data));
            }
            Poll::Ready(None) => self.record.set_end(EndReason::Complete),
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
