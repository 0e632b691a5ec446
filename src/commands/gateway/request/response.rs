//! The end of a request: its response and its access record.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body::{Body as _, Frame, SizeHint};

use crate::forward::ForwardedBody;
use crate::message::{Body, BodyError, split_watch_events};
use crate::observe::access::{AccessRecord, EndReason};

/// The body of a response that has no access record yet.
pub(super) enum ResponseBody {
    Local(Body),
    Forwarded(ForwardedBody),
    /// An upgraded connection that is served locally, and what starts to serve it.
    Tunnel(Box<dyn FnOnce(AccessRecord)>),
}

/// Removes the body of a response to HEAD. hyper drops it over HTTP/1.1, but sends it over HTTP/2, where it breaks
/// the client's stream.
pub(in crate::commands::gateway) fn strip_body(mut response: Response<Body>) -> Response<Body> {
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
pub(super) fn add_warning<B>(mut response: Response<B>, warning: Option<&'static str>) -> Response<B> {
    if let Some(value) = warning.and_then(crate::message::warning) {
        response.headers_mut().append(http::header::WARNING, value);
    }
    response
}

/// Gives the response its access record, which ends with it.
pub(super) fn finish_response(response: Response<ResponseBody>, mut record: AccessRecord) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let body = match body {
        ResponseBody::Forwarded(body) => body.start(record),
        ResponseBody::Tunnel(start) => {
            record.set_status(parts.status.as_u16());
            start(record);
            Body::Empty
        }
        // A watch of what is served locally.
        ResponseBody::Local(body @ Body::Stream(_)) => {
            record.record_response_head(parts.status.as_u16(), &parts.headers, None);
            let content_type = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
            let is_protobuf = content_type.starts_with(b"application/vnd.kubernetes.protobuf");
            Body::stream(RecordedBody { body, record, is_protobuf })
        }
        ResponseBody::Local(body) => {
            let response = Response::from_parts(parts, body);
            record_response(record, &response);
            return response;
        }
    };
    Response::from_parts(parts, body)
}

/// Completes the record of a response with its whole body in memory.
pub(super) fn record_response(mut record: AccessRecord, response: &Response<Body>) {
    record.record_response_head(response.status().as_u16(), response.headers(), None);
    if let Body::Full(bytes) = response.body() {
        record.record_response_body(bytes);
    }
    record.set_end(EndReason::Complete);
}

/// A watch that is answered locally, whose access record ends with it. Its frames hold whole events.
struct RecordedBody {
    body: Body,
    record: AccessRecord,
    is_protobuf: bool,
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                let events = frame.data_ref().map_or(&[][..], |data| data);
                let is_protobuf = self.is_protobuf;
                split_watch_events(events, is_protobuf).for_each(|event| self.record.record_watch_event(event));
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
