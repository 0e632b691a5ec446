//! Responses of the proxy itself: plain text in the words of Go's net/http, as scripts know it from `kubectl proxy`.

use http::header::{CONNECTION, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Response, StatusCode};

use super::filter::FilterDenial;
use crate::message::Body;

/// The cause of an error response of the proxy: an extension of the response, for the access log.
#[derive(Clone, Debug)]
pub(super) struct LoggedCause(pub(super) String);

/// An error response with a text line (`http.Error`).
pub(super) fn error_response(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{text}\n")));
    response.extensions_mut().insert(LoggedCause(text.to_owned()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The 404 response (`http.NotFound`).
pub(super) fn not_found() -> Response<Body> {
    error_response(StatusCode::NOT_FOUND, "404 page not found")
}

/// The 403 response to a request that a filter rejected. The body is kubectl's if kubectl has that filter.
pub(super) fn forbidden(denial: &FilterDenial) -> Response<Body> {
    let text = match denial {
        FilterDenial::CrossOrigin => format!("Forbidden: {denial}"),
        _ => "Forbidden".to_owned(),
    };
    let mut response = error_response(StatusCode::FORBIDDEN, &text);
    response.extensions_mut().insert(LoggedCause(denial.to_string()));
    response
}

/// The 400 response to a malformed request (net/http itself, below its handlers).
pub(super) fn bad_request(why: &str) -> Response<Body> {
    let colon = if why.is_empty() { "" } else { ": " };
    let mut response = Response::new(Body::from(format!("400 Bad Request{colon}{why}")));
    response.extensions_mut().insert(LoggedCause(format!("400 Bad Request{colon}{why}")));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A redirect (`http.Redirect`).
pub(super) fn redirect(method: &Method, path: &str, query: Option<&str>) -> Response<Body> {
    let location = match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let Ok(value) = HeaderValue::try_from(&location) else { return bad_request("") };
    let link = match *method {
        Method::GET | Method::HEAD => format!("<a href=\"{}\">Moved Permanently</a>.\n\n", escape_html(&location)),
        _ => String::new(),
    };
    let html = !link.is_empty();
    let mut response = Response::new(Body::from(link));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    response.headers_mut().insert(LOCATION, value);
    if html {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    }
    response
}

/// Escapes text for HTML.
pub(super) fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;").replace('\'', "&#39;")
}
