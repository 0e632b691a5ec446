//! Answers requests: parse, dispatch to the verb, respond.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RETRY_AFTER, VARY, WARNING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use super::discovery::{self, CachedDocument};
use super::options::{ExampleListOptions, Parameters};
use super::representation::{self, Representation};
use super::request::{ExampleRequest, ExampleTarget};
use super::resource::{GROUP, RESOURCES};
use super::watch::ObjectWatch;
use super::write::WriteResult;
use super::{ExampleState, api_errors, delete, read, write};
use crate::kubeapi::{self, Status, StatusEncoding};
use crate::message::negotiate::MediaRange;
use crate::message::{Accept, BodyError};
use crate::process::Drain;

/// kube-apiserver's limit of a request body.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A response that can be sent to another thread.
pub(super) type ExampleResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Answers `request` from the front proxy.
pub(super) async fn respond<B>(api: &ExampleState, drain: &Drain, request: Request<B>) -> ExampleResponse
where
    B: http_body::Body<Data = Bytes, Error: Into<BodyError>>,
{
    let (head, body) = request.into_parts();
    let path: Vec<String> = head
        .uri
        .path()
        .trim_matches('/')
        .split('/')
        .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
        .collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let query = Parameters::parse(head.uri.query().unwrap_or_default());
    let (["apis", GROUP, version, objects @ ..], false) = (&path[..], path.len() < 4) else {
        return document(api, &head.method, &path, &head.headers);
    };
    let Some(target) = ExampleTarget::parse(version, objects) else {
        return error_response(&Status::not_found(), &head.headers);
    };
    let Some(user) = user(&head.headers) else { return error_response(&Status::unauthorized(), &head.headers) };
    let body = match read_bytes(body).await {
        Ok(body) => body,
        Err(status) => return error_response(&status, &head.headers),
    };
    let call = ExampleRequest { api, drain, headers: &head.headers, query, body, user };
    dispatch_verb(&call, &target, &head.method).unwrap_or_else(|status| error_response(&status, &head.headers))
}

/// Dispatches to the verb.
fn dispatch_verb(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    method: &Method,
) -> Result<ExampleResponse, Status> {
    let everywhere = target.resource.namespaced && target.namespace.is_none();
    match (method, &target.name) {
        (&Method::GET | &Method::HEAD, Some(name)) => {
            Ok(json_response(StatusCode::OK, &read::get(call, target, name)?, call.headers))
        }
        (&Method::GET | &Method::HEAD, None) => {
            let options = ExampleListOptions::read(&call.query)?;
            if options.watch && method == Method::GET {
                return Ok(watch_response(read::watch(call, target, options)?));
            }
            Ok(json_response(StatusCode::OK, &read::list(call, target, &options)?, call.headers))
        }
        (&Method::POST, None) if !everywhere => write_response(call, target, &write::create(call, target)?),
        (&Method::PUT, Some(name)) => write_response(call, target, &write::update(call, target, name)?),
        (&Method::PATCH, Some(name)) => write_response(call, target, &write::patch(call, target, name)?),
        (&Method::DELETE, Some(name)) => {
            Ok(json_response(StatusCode::OK, &delete::delete(call, target, name)?, call.headers))
        }
        (&Method::DELETE, None) if !everywhere => {
            let options = ExampleListOptions::read(&call.query)?;
            Ok(json_response(StatusCode::OK, &delete::delete_collection(call, target, &options)?, call.headers))
        }
        _ => Err(api_errors::method_not_allowed()),
    }
}

/// Answers requests for other than objects: health, version, discovery, OpenAPI.
fn document(api: &ExampleState, method: &Method, path: &[&str], headers: &HeaderMap) -> ExampleResponse {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return error_response(&api_errors::method_not_allowed(), headers);
    }
    let of_version = |version: &str| RESOURCES.iter().position(|resource| resource.version == version);
    match path {
        ["healthz" | "livez" | "readyz"] => {
            let mut answer = Response::new(full_body(Bytes::from_static(b"ok")));
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            answer
        }
        ["version"] => json_response(StatusCode::OK, &discovery::version(), headers),
        ["apis"] => {
            let aggregated = |wish: &MediaRange<'_>| {
                wish.parameter("g") == Some("apidiscovery.k8s.io")
                    && wish.parameter("v") == Some("v2")
                    && wish.parameter("as") == Some("APIGroupDiscoveryList")
            };
            // As in Kubernetes: the first supported entry decides, and anything but aggregated discovery means legacy.
            let accept = representation::accept_header(headers);
            let granted = |wish: &&MediaRange<'_>| aggregated(wish) || wish.parameter("as").is_none();
            match representation::json_clauses(&accept).iter().find(granted) {
                Some(wish) if aggregated(wish) => document_response(&api.discovery, discovery::AGGREGATED, headers),
                _ => json_response(StatusCode::OK, &discovery::groups(), headers),
            }
        }
        ["apis", GROUP] => json_response(StatusCode::OK, &discovery::group(), headers),
        ["apis", GROUP, version] => match of_version(version) {
            Some(at) => json_response(StatusCode::OK, &discovery::resources(&RESOURCES[at]), headers),
            None => error_response(&Status::not_found(), headers),
        },
        ["openapi", "v3"] => document_response(&api.openapi_index, "application/json", headers),
        // Unlike kube-apiserver, a stale `hash` is not redirected to the current one: behind an aggregator that rejects
        // redirects the client would get 502.
        ["openapi", "v3", "apis", GROUP, version] => match of_version(version) {
            Some(at) => document_response(&api.openapi[at], "application/json", headers),
            None => error_response(&Status::not_found(), headers),
        },
        _ => error_response(&Status::not_found(), headers),
    }
}

/// The user from the front proxy's header; none if the header is missing, repeated or empty.
fn user(headers: &HeaderMap) -> Option<String> {
    let mut names = headers.get_all("x-remote-user").iter();
    let (Some(name), None) = (names.next(), names.next()) else { return None };
    let name = std::str::from_utf8(name.as_bytes()).ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}

async fn read_bytes<B>(body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes, Error: Into<BodyError>>,
{
    let limited = std::pin::pin!(Limited::new(body, MAX_BODY_BYTES));
    match tokio::time::timeout(BODY_TIMEOUT, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Status::request_entity_too_large(format!("limit is {MAX_BODY_BYTES}")))
        }
        Ok(Err(_)) => Err(Status::bad_request("the request body is incomplete")),
        Err(_) => Err(Status::bad_request("the request body did not arrive in time")),
    }
}

fn write_response(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    written: &WriteResult,
) -> Result<ExampleResponse, Status> {
    let view = Representation::negotiate(call.headers, &call.query, false)?;
    let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    let mut answer = json_response(code, &view.render(target.resource, &written.object), call.headers);
    // Limited: of a thousand unknown fields only the first ones get a warning.
    for warning in written.warnings.iter().filter(|warning| warning.len() <= 256).take(16) {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&text) {
            answer.headers_mut().append(WARNING, value);
        }
    }
    Ok(answer)
}

fn watch_response(watch: ObjectWatch) -> ExampleResponse {
    let lines = futures_util::stream::unfold(watch, |mut watch| async move {
        let lines = watch.next().await?;
        Some((Ok(Frame::data(lines)), watch))
    });
    let mut answer = Response::new(StreamBody::new(lines).boxed_unsync());
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

fn document_response(document: &CachedDocument, content_type: &'static str, headers: &HeaderMap) -> ExampleResponse {
    let known = headers.get(IF_NONE_MATCH).is_some_and(|tag| tag.as_bytes() == document.tag.as_bytes());
    let mut answer = Response::new(full_body(if known { Bytes::new() } else { document.bytes.clone() }));
    if known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(VARY, HeaderValue::from_name(ACCEPT));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(tag) = HeaderValue::from_str(&document.tag) {
        headers.insert(ETAG, tag);
    }
    answer
}

/// An error response, in the encoding that the client accepts.
pub(super) fn error_response(status: &Status, headers: &HeaderMap) -> ExampleResponse {
    let encoding = Accept::from_headers(headers).encoding();
    let mut answer = Response::new(full_body(kubeapi::encode(status, encoding)));
    *answer.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, encoding.content_type());
    if let Some(seconds) = status.retry_after_header() {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    answer
}

/// A JSON response, indented if the client prefers it.
fn json_response(code: StatusCode, value: &Value, headers: &HeaderMap) -> ExampleResponse {
    let pretty = Accept::from_headers(headers).encoding() == StatusEncoding::PrettyJson;
    let text = if pretty { format!("{value:#}\n") } else { format!("{value}\n") };
    let mut answer = Response::new(full_body(text.into()));
    *answer.status_mut() = code;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

fn full_body(bytes: Bytes) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(bytes).boxed_unsync()
}
