//! Responses of an admin listener.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{Either, Full};

use super::events::{EventBody, StreamRefusal};
use super::page::PAGE_SECURITY_POLICY;

/// Body of a response: complete, or an event stream.
pub type AdminBody = Either<Full<Bytes>, EventBody>;

pub(super) fn plain_text(status: StatusCode, text: impl Into<String>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

pub(super) fn json(value: &impl serde::Serialize) -> Response<Bytes> {
    match serde_json::to_vec_pretty(value) {
        Ok(mut text) => {
            text.push(b'\n');
            let mut response = Response::new(Bytes::from(text));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// A status page, with its security policy.
pub(super) fn html(page: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(page));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    if let Ok(policy) = HeaderValue::from_str(&PAGE_SECURITY_POLICY) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

pub(super) fn event_stream(events: EventBody) -> Response<AdminBody> {
    let mut response = Response::new(Either::Right(events));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    add_common_headers(response.headers_mut());
    response
}

pub(super) fn refused_stream(refusal: StreamRefusal) -> Response<Bytes> {
    plain_text(
        StatusCode::SERVICE_UNAVAILABLE,
        match refusal {
            StreamRefusal::TooMany => "too many event streams are open; close other status pages\n",
            StreamRefusal::Draining => "the process is shutting down\n",
        },
    )
}

pub(super) fn cross_origin_refusal() -> Response<Bytes> {
    plain_text(StatusCode::FORBIDDEN, "forbidden: events are not for web pages of another origin\n")
}

/// A response whose body is complete.
pub fn complete(response: Response<Bytes>) -> Response<AdminBody> {
    response.map(|body| Either::Left(Full::new(body)))
}

pub(super) fn finish(response: Response<Bytes>) -> Response<AdminBody> {
    let mut response = complete(response);
    add_common_headers(response.headers_mut());
    response
}

/// Adds the headers that every response carries.
fn add_common_headers(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}
