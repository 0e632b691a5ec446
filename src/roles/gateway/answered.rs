//! The last of a request: what becomes of its answer, and of the record.

use http::Response;
use http::header::CONTENT_LENGTH;
use http_body::Body as _;

use super::local;
use crate::message::Body;
use crate::observe::access::{AccessRecord, End};

/// The header of an answer to HEAD. hyper takes the body off over HTTP/1.1, but sends it over HTTP/2, where
/// it breaks the client's stream.
pub(super) fn without_body(mut response: Response<Body>) -> Response<Body> {
    match std::mem::take(response.body_mut()) {
        Body::Empty => {}
        Body::Full(bytes) => {
            response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| bytes.len().into());
        }
        // Of a backend, which knows that there is none: it must see its end.
        Body::Stream(stream) if stream.is_end_stream() => *response.body_mut() = Body::Stream(stream),
        Body::Stream(_) => {}
    }
    response
}

/// With what its sender should know besides.
pub(super) fn warned(mut response: Response<Body>, warning: Option<&'static str>) -> Response<Body> {
    if let Some(value) = warning.and_then(crate::message::warning) {
        response.headers_mut().append(http::header::WARNING, value);
    }
    response
}

/// A record of an answer that is all at hand.
pub(super) fn done(mut record: AccessRecord, response: Response<Body>) -> Response<Body> {
    if let Body::Stream(_) = response.body() {
        // A watch of our own objects: the record lives as long as it does.
        record.answers(response.status().as_u16(), response.headers(), None);
        return response.map(|body| local::recorded(body, record));
    }
    finish(record, &response);
    response
}

/// The record of an answer whose body is at hand as a whole.
pub(super) fn finish(mut record: AccessRecord, response: &Response<Body>) {
    record.answers(response.status().as_u16(), response.headers(), None);
    if let Body::Full(bytes) = response.body() {
        record.sends(bytes);
    }
    record.ended(End::Complete);
}
