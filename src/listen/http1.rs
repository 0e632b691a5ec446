//! HTTP/1.1 connections, by hyper.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::ServerLimits;
use super::connections::{ActiveRequest, CloseMode, ConnectionTracker, deadline_with_grace};
use super::http1_request_review::{HTTP1_MAX_HEADERS, RefusedRequestSlot, review_http1};
use super::request_service::{RequestService, ResponseFuture, call_when_ready};
use super::tracked_stream::TrackedStream;
use crate::message::{Body, BodyError, IncomingBody};
use crate::process::Deadline;

/// Serves an HTTP/1.1 client on `stream` until the connection ends or is upgraded.
///
/// Not an async function: its future would hold the arguments beside the connection, which costs memory for each idle
/// watch.
pub(super) fn serve_http1<S: RequestService, T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: TrackedStream<T>,
    service: S,
    limits: &ServerLimits,
    lifetime: &Arc<ConnectionTracker>,
) -> impl Future<Output = ()> + use<S, T> {
    let lifetime = lifetime.clone();
    // As net/http, which tolerates that much beyond the limit.
    let max_head_bytes = limits.max_request_header_bytes as usize + 4096;
    let (stream, refused) = review_http1(stream, max_head_bytes);
    let remote = lifetime.remote;
    let service =
        Http1Service { service, connection: lifetime.clone(), response_timeout: limits.idle_timeout, refused };
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size((limits.max_request_header_bytes as usize).max(8192) + 4096)
        .max_header_size(max_head_bytes)
        .max_headers(HTTP1_MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = Box::pin(connection);
    let mut finishing = false;
    // The request with a response deadline, and the deadline.
    let mut bound: Option<(Option<u64>, Deadline)> = None;
    poll_fn(move |cx| {
        lifetime.register_waker(cx.waker());
        loop {
            if lifetime.close_mode() == CloseMode::Immediate {
                return Poll::Ready(());
            }
            if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                if let Err(error) = result
                    && error.is_parse()
                {
                    // Answered by hyper: 400 or 431 with an empty body.
                    tracing::info!(%error, client = %remote, "connection closed: the client sent invalid HTTP/1.1");
                }
                return Poll::Ready(());
            }
            if let Some(at) = lifetime.take_response_deadline() {
                bound = Some((lifetime.running_request(), deadline_with_grace(at)));
            }
            if let Some((request, deadline)) = &bound {
                if request.is_none() || *request != lifetime.running_request() {
                    bound = None;
                } else if deadline.has_elapsed(cx.waker()) {
                    return Poll::Ready(());
                }
            }
            // Not before the first request: hyper closes a connection that looks idle to it at once, even when a
            // request waits to be read or has arrived in part. The sweep closes clients that send none.
            if finishing || lifetime.close_mode() == CloseMode::None || lifetime.is_awaiting_request() {
                return Poll::Pending;
            }
            finishing = true;
            connection.as_mut().graceful_shutdown();
        }
    })
}

/// hyper's service of one connection. Each request is counted until the end of its response.
struct Http1Service<S> {
    service: S,
    connection: Arc<ConnectionTracker>,
    /// Timeout for the client to read a response that is fully buffered.
    response_timeout: Duration,
    refused: RefusedRequestSlot,
}

impl<S: RequestService> hyper::service::Service<Request<Incoming>> for Http1Service<S> {
    type Response = Response<CountedBody>;
    type Error = Infallible;
    type Future = Http1ResponseFuture;

    fn call(&self, mut request: Request<Incoming>) -> Http1ResponseFuture {
        if let Some(malformed) = self.refused.next() {
            request.extensions_mut().insert(malformed);
        }
        let response = match has_unsupported_transfer_coding(request.headers()) {
            false => call_when_ready(&self.service, request.map(IncomingBody::from)),
            true => Box::pin(std::future::ready(Ok(unsupported_transfer_coding()))),
        };
        Http1ResponseFuture {
            response,
            active: Some(self.connection.begin_request()),
            response_timeout: self.response_timeout,
        }
    }
}

/// Whether a request's body has a transfer coding other than `chunked` alone. hyper decodes `chunked` only, and would
/// pass on the still encoded rest without a header that names the coding.
fn has_unsupported_transfer_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    codings.next().is_some_and(|coding| {
        !coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") || codings.next().is_some()
    })
}

/// 501 (RFC 9112, section 6.1), with the text of Go's net/http.
fn unsupported_transfer_coding() -> Response<Body> {
    let mut response = Response::new(Body::Full(Bytes::from_static(b"Unsupported transfer encoding")));
    *response.status_mut() = StatusCode::NOT_IMPLEMENTED;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The future of a response.
struct Http1ResponseFuture {
    response: ResponseFuture,
    active: Option<ActiveRequest>,
    response_timeout: Duration,
}

impl Future for Http1ResponseFuture {
    type Output = Result<Response<CountedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(self.response.as_mut().poll(cx));
        let active = self.active.take();
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(ActiveRequest(lifetime)) = &active
        {
            lifetime.set_upgraded();
        }
        if let (Body::Full(_), Some(ActiveRequest(lifetime))) = (response.body(), &active) {
            lifetime.set_response_deadline(Instant::now() + self.response_timeout);
        }
        Poll::Ready(Ok(response.map(|body| CountedBody { body, active })))
    }
}

/// A response body that keeps its request counted until it is dropped. It yields no more data while the client does not
/// read: hyper alone would buffer up to [`ServerLimits::max_request_header_bytes`] of it.
struct CountedBody {
    body: Body,
    active: Option<ActiveRequest>,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(ActiveRequest(lifetime)) = &this.active else { return Pin::new(&mut this.body).poll_frame(cx) };
        if lifetime.is_write_buffer_full() {
            // The queued data is part of a chunk, so there is no clean end.
            return this
                .body
                .poll_unread(cx, usize::MAX)
                .map(|_| Some(Err("the client does not read the response".into())));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            lifetime.add_unflushed(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
