//! The end of a request: its response and its access record.

use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::Body as _;

use super::local;
use crate::message::Body;
use crate::observe::access::{AccessRecord, EndReason};

/// Removes the body of a response to HEAD. hyper drops it over HTTP/1.1, but sends it over HTTP/2, where it breaks
/// the client's stream.
pub(super) fn strip_body(mut response: Response<Body>) -> Response<Body> {
    match std::mem::take(response.body_mut()) {
        Body::Empty => {}
        Body::Full(bytes) => {
            response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| bytes.len().into());
        }
        // From a backend, already without data: it must be polled to its end.
        Body::Stream(stream) if stream.is_end_stream() => *response.body_mut() = Body::Stream(stream),
        Body::Stream(_) => {}
    }
    response
}

/// Adds a `Warning` header to the response.
pub(super) fn add_warning(mut response: Response<Body>, warning: Option<&'static str>) -> Response<Body> {
    if let Some(value) = warning.and_then(crate::message::warning) {
        response.headers_mut().append(http::header::WARNING, value);
    }
    response
}

/// Completes the record of a locally produced response and returns the response.
pub(super) fn finish_with_record(mut record: AccessRecord, response: Response<Body>) -> Response<Body> {
    if let Body::Stream(_) = response.body() {
        // A watch of APIServices: the record ends with the stream.
        record.record_response_head(response.status().as_u16(), response.headers(), None);
        return response.map(|body| local::record_stream(body, record));
    }
    record_response(record, &response);
    response
}

/// Completes the record of a response with its whole body in memory.
pub(super) fn record_response(mut record: AccessRecord, response: &Response<Body>) {
    record.record_response_head(response.status().as_u16(), response.headers(), None);
    if let Body::Full(bytes) = response.body() {
        record.record_response_body(bytes);
    }
    record.set_end(EndReason::Complete);
}
