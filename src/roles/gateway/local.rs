//! What the gateway answers itself: health, version, metrics, discovery, OpenAPI, the APIServices.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::connection::Connection;
use super::shared::Shared;
use crate::authorize::{self, Permit, ReviewBody, SelfReview};
use crate::availability::report::Reports;
use crate::kubeapi::{Query, RequestInfo, Status};
use crate::message::{Blame, Body, BodyError, Received, Refusal};
use crate::observe::access::{AccessRecord, End, Receipt};
use crate::observe::metrics::Format;
use crate::process::UserTurns;
use crate::reviewer::{self, Question, Reviewer};
use crate::route::{Route, Table};
use crate::{discovery, openapi};

/// Time for the body of a question to arrive, and for its turn to be read when that is slow.
const REVIEW_PATIENCE: Duration = Duration::from_secs(10);
/// Bodies that are slow to read are read one at a time: by one thread of the process, not all of them.
static SLOW_READS: LazyLock<UserTurns> = LazyLock::new(UserTurns::default);

/// The answer to a health check, if `path` is one; `others` are lines of the delegate's checks.
pub(super) fn health(
    shared: &Shared,
    method: &Method,
    path: &str,
    query: Option<&str>,
    others: &str,
) -> Option<Response<Body>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return None;
    }
    let mut answers = shared.health.iter().filter_map(|health| health.answer_with(path, query, others));
    answers.next().map(|response| response.map(Body::from))
}

/// Whether `path` is an OpenAPI document, which goes to the backend that owns it.
pub(super) fn is_openapi(path: &str) -> bool {
    path.starts_with("/openapi/v3/")
}

/// The route that owns an OpenAPI document.
pub(super) fn openapi_owner<'t>(shared: &Shared, table: &'t Table, path: &str) -> Option<&'t Arc<Route>> {
    if !is_openapi(path) {
        return None;
    }
    table.by_name(shared.openapi.load().owner(path)?)
}

/// The route of the delegate, if there is one and `info`, which no APIService claims, is not ours to answer.
///
/// # Errors
/// 503 while not all that is registered is known: an APIService of which we have not heard may claim it, and what is
/// its own must neither go to somebody else nor be said not to exist. In upstream's words and with its delay
/// (`k8s.io/apiserver/pkg/server/routes`, `pkg/endpoints/handlers/not_found_handler.go`).
pub(super) fn delegate<'t>(
    shared: &Shared,
    table: &'t Table,
    info: &RequestInfo<'_>,
) -> Result<Option<&'t Arc<Route>>, Refusal> {
    if table.delegate().is_none() && table.complete {
        return Ok(None);
    }
    let ours = matches!(info.path, "/" | "/openapi/v3" | "/openapi/v3/")
        || (info.path == "/metrics" && !shared.delegates_metrics)
        || (matches!(info.path, "/version" | "/version/") && !shared.delegates_all)
        || openapi::Version2::is(info.path)
        || shared.documents.load().answer_for(info.path)
        || shared.openapi.load().answer_for(info.path)
        || (Reports::claims(info) && !shared.registrations_elsewhere);
    if !ours && !table.complete {
        return Err(Refusal::new(Blame::Gateway, Status::paths_not_installed()));
    }
    // What is registered in a cluster is read and changed there, also where nothing else of it is to be seen here.
    let theirs = !ours && (shared.delegates_all || Reports::claims(info));
    Ok(table.delegate().filter(|_| theirs))
}

/// Marks a relayed document as immutable if it is the one the client's hash means.
pub(super) fn seal_openapi(response: &mut Response<Body>, query: Option<&str>) {
    let hash = openapi::split_hash(query).1;
    openapi::seal(response.headers_mut(), hash, std::time::SystemTime::now());
}

/// The answer of ours to what no backend is asked.
///
/// # Errors
/// 404 for what nobody has, 405 for what can only be read.
pub(super) fn answer(
    connection: &Connection,
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
    if Reports::claims(info) {
        return shared.reports.answer(info, query, headers);
    }
    let text = match decoded {
        "/" => index(shared),
        "/version" | "/version/" => version(),
        "/metrics" => {
            let accept = headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
            let format = Format::accepted(accept);
            return read_only(method, Response::new(shared.metrics.render(format).into()), format.content_type());
        }
        _ => return Err(Refusal::new(Blame::Client, nobody_has(permit))),
    };
    read_only(method, Response::new(text.into()), "application/json")
}

/// The answer to a question about oneself, which no backend is asked.
///
/// # Errors
/// 405 for what is no question, 413, 415, 400 and 422 for one that cannot be read.
pub(super) async fn self_review(
    connection: &Connection,
    review: SelfReview,
    permit: &Permit<'_>,
    request: Request<Received>,
    receipt: &Receipt,
) -> Result<Response<Body>, Refusal> {
    let body = review_body(permit, review.body(), request, receipt).await?;
    let answer = review.answer(&connection.worker.shared.authorizer, permit.user(), &body).await;
    answer.map(|answer| created(&answer)).map_err(|status| Refusal::new(Blame::Client, status))
}

/// The answer to what a backend asks (`--serve-delegation`).
///
/// # Errors
/// As [`self_review`], and what is wrong with a request for the ConfigMap.
pub(super) async fn backend_s_question(
    connection: &Connection,
    reviewer: &Reviewer,
    question: Question,
    permit: &Permit<'_>,
    query: &Query<'_>,
    request: Request<Received>,
    receipt: &Receipt,
) -> Result<Response<Body>, Refusal> {
    let shared = &*connection.worker.shared;
    let Some(form) = question.body() else {
        return reviewer::answer_config_map(reviewer, permit.request(), query, request.headers());
    };
    let body = review_body(permit, form, request, receipt).await?;
    let answer = match question {
        Question::Token => reviewer::token_review(&shared.authenticator, &body).await,
        Question::Access | Question::Trust => {
            authorize::subject_access_review(&shared.authorizer, shared.authenticator.groups(), &body).await
        }
    };
    answer.map(|answer| created(&answer)).map_err(|status| Refusal::new(Blame::Client, status))
}

/// The body of a question, as JSON.
async fn review_body(
    permit: &Permit<'_>,
    form: ReviewBody,
    request: Request<Received>,
    receipt: &Receipt,
) -> Result<Vec<u8>, Refusal> {
    let refuse = |status| Refusal::new(Blame::Client, status);
    if permit.request().verb != "create" {
        let message = "the server does not allow this method on the requested resource";
        return Err(refuse(Status::method_not_allowed(message)));
    }
    let (head, body) = request.into_parts();
    let most = form.max_bytes();
    let read = tokio::time::timeout(REVIEW_PATIENCE, Limited::new(body, most).collect()).await;
    let read = read.map_err(|_| refuse(Status::request_timeout("the body did not arrive in time")))?;
    let body = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            refuse(Status::request_entity_too_large(format_args!("limit is {most}")))
        } else {
            refuse(Status::bad_request("the body broke off")).because(error)
        }
    })?;
    let kind = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = body.to_bytes();
    receipt.passes(&body);
    if !ReviewBody::is_slow(kind, body.len()) {
        return form.read(kind, &body).map_err(refuse);
    }
    // Other requests of this worker do not wait for it.
    let turn = SLOW_READS.wait(&permit.user().name);
    let Ok(Some(_turn)) = tokio::time::timeout(REVIEW_PATIENCE, turn).await else {
        return Err(refuse(Status::too_many_requests("too many large reviews at once, please try again later", 1)));
    };
    let kind = kind.to_owned();
    let read = tokio::task::spawn_blocking(move || form.read(&kind, &body)).await;
    read.map_err(|error| refuse(Status::internal_error("the body could not be read")).because(error))?.map_err(refuse)
}

fn created(answer: &serde_json::Value) -> Response<Body> {
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

/// 404 for what no server here owns, except for a Namespace.
///
/// kubectl asks for an object's namespace when the object is not there, and believes a 404: it would say "the server
/// could not find the requested resource", as if there were no such kind (`Info.Get` in `cli-runtime/pkg/resource`).
/// Whether the namespace exists, nobody behind us can say, so nobody may read it; then kubectl names the object.
fn nobody_has(permit: &Permit<'_>) -> Status {
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

/// The group and version that a path names, if any: those of a resource, or of a document of discovery.
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

/// The paths there are, as kube-apiserver lists them at `/`.
fn index(shared: &Shared) -> String {
    let own = ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2", "/openapi/v3", "/readyz", "/version"];
    let mut paths = own.map(String::from).to_vec();
    paths.extend(shared.documents.load().group_paths());
    paths.sort();
    paths.dedup();
    serde_json::json!({ "paths": paths }).to_string()
}

/// The Kubernetes release that we behave as: what clients compare with their own version, and Helm with a chart's
/// `kubeVersion`.
const KUBERNETES: [u32; 2] = [1, 36];

/// `version.Info` of `k8s.io/apimachinery/pkg/version`: the Kubernetes release, and this program's in what semantic
/// versioning leaves out of comparisons.
fn version() -> String {
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

/// A stream of ours that keeps its request's record open.
pub(super) fn recorded(body: Body, record: AccessRecord) -> Body {
    Body::stream(Recorded { body, record })
}

struct Recorded {
    body: Body,
    record: AccessRecord,
}

impl http_body::Body for Recorded {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.record.sends(frame.data_ref().map_or(&[], |data| data));
            }
            Poll::Ready(None) => self.record.ended(End::Complete),
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
