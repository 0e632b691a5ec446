//! HTTP/1.1 client connections: one request at a time, reused when its response has ended.
//!
//! Implemented on httparse. hyper's client has a task per connection, two channels between that and the request, and an
//! 8 KiB read buffer per connection, also while idle: a request cost a third more, and a watch, which mostly waits,
//! held ten times the memory it needs.

mod chunked;
mod connection_set;
mod error;
mod head;
mod request_writer;
mod response_body;
mod stream;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::Cursor;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

pub use self::chunked::{ChunkedDecoder, ChunkedStep};
pub(in crate::egress) use self::connection_set::Http1ConnectionSet;
pub use self::error::Http1Error;
use self::head::EmptyLines;
pub use self::head::{BodyFraming, Http1ResponseHead};
use self::response_body::Http1ResponseBody;
use self::stream::Http1Stream;
use crate::egress::dial::maybe_tls_stream::MaybeTlsStream;
use crate::egress::http::upload_task::UploadTask;
use crate::message::{Body, IncomingBody};

/// Idle connections are closed after this time. net/http servers close them after 90 s or more; closing well before
/// makes it unlikely that a request meets a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(55);
/// Limit of idle connections of one worker to one endpoint. It exceeds the usual number in flight: a smaller one means
/// new TLS handshakes for every burst, which is what makes Go proxies slow (their default is 2).
const MAX_IDLE_CONNECTIONS: usize = 1024;

/// A connection that carries one request after another. Dropping it closes the connection at once.
pub struct Http1Connection {
    stream: Rc<Http1Stream>,
    request_writer: UploadTask,
}

impl Http1Connection {
    /// Starts HTTP/1.1 on a new connection, which is added to `open`.
    pub(in crate::egress) fn new(stream: MaybeTlsStream, open: &Http1ConnectionSet) -> Http1Connection {
        Http1Connection { stream: open.add(stream), request_writer: UploadTask::default() }
    }

    /// Number of reads that returned bytes; 0 before the first response.
    pub(in crate::egress) fn read_count(&self) -> u64 {
        self.stream.read_count()
    }

    /// Sends `request` (with its URI in origin form) and waits for the response head.
    ///
    /// Sending begins before the future is first polled, so the future need not hold the request.
    ///
    /// # Errors
    /// [`Http1Error`]; the request may have been processed.
    pub fn send(&mut self, request: Request<Body>) -> impl Future<Output = Result<Response<IncomingBody>, Http1Error>> {
        let method = request.method().clone();
        let may_switch = request.headers().contains_key(UPGRADE);
        self.request_writer = request_writer::write_request(&self.stream, request);
        self.read_response(method, may_switch)
    }

    async fn read_response(&self, method: Method, may_switch: bool) -> Result<Response<IncomingBody>, Http1Error> {
        // An incomplete head of earlier reads; nearly always the head arrives in one read.
        let mut begun = Vec::new();
        let mut empty_lines = EmptyLines::default();
        loop {
            let mut piece = poll_fn(|cx| self.stream.poll_read(cx)).await?;
            if piece.is_empty() {
                return Err(Http1Error::ConnectionClosed);
            }
            if begun.is_empty() && empty_lines.skip(&mut piece)? {
                continue;
            }
            let before = begun.len();
            if before > 0 {
                begun.extend_from_slice(&piece);
                if !head::may_be_complete(&begun, before) {
                    continue;
                }
            }
            let Some((head, end)) = Http1ResponseHead::parse(if before > 0 { &begun } else { &piece }, &method)? else {
                if before == 0 {
                    begun.extend_from_slice(&piece);
                }
                continue;
            };
            let rest = piece.split_off(end - before);
            let status = head.parts.status;
            // Informational responses are for the next hop only. 101 is final although of that class.
            if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                begun.clear();
                empty_lines = EmptyLines::default();
                self.stream.put_back(rest);
                continue;
            }
            if status.is_informational() && !may_switch {
                return Err(Http1Error::InvalidResponse("it switches protocols without a request to upgrade"));
            }
            let keeps = head.keep_alive && !status.is_informational();
            return Ok(Response::from_parts(head.parts, self.body(head.framing, keeps, rest)));
        }
    }

    fn body(&self, framing: BodyFraming, keeps: bool, mut rest: Bytes) -> IncomingBody {
        match framing {
            BodyFraming::Length(length) if length <= rest.len() as u64 => {
                self.stream.put_back(rest.split_off(length as usize));
                self.stream.end_response(keeps);
                Body::from(rest).into()
            }
            framing => {
                self.stream.put_back(rest);
                Body::stream(Http1ResponseBody::new(self.stream.clone(), framing, keeps)).into()
            }
        }
    }

    /// The raw connection after a 101 response; `None` while the response's body is still being read.
    pub fn into_upgraded(self) -> Option<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
        let (stream, first) = Rc::try_unwrap(self.stream).ok()?.into_parts();
        let (from, to) = tokio::io::split(stream);
        Some(tokio::io::join(Cursor::new(first).chain(from), to))
    }
}

/// Idle connections to one endpoint, the most recently used last.
#[derive(Default)]
pub(in crate::egress) struct IdleConnections(RefCell<Vec<(Http1Connection, Instant)>>);

impl IdleConnections {
    /// Keeps `connection` if it can be reused.
    pub(in crate::egress) fn put(&self, connection: Http1Connection) {
        let mut idle = self.0.borrow_mut();
        if connection.stream.is_reusable() && idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push((connection, Instant::now()));
        }
    }

    /// A connection that can take a request, the most recently used first.
    pub(in crate::egress) fn take(&self) -> Option<Http1Connection> {
        let mut idle = self.0.borrow_mut();
        loop {
            let (connection, _) = idle.pop()?;
            if connection.stream.is_open_and_idle() {
                return Some(connection);
            }
        }
    }

    pub(in crate::egress) fn sweep(&self, now: Instant) {
        self.0.borrow_mut().retain(|(connection, since)| {
            if now - *since >= IDLE_TIMEOUT {
                connection.stream.shutdown();
                return false;
            }
            connection.stream.is_open_and_idle()
        });
    }

    pub(in crate::egress) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(in crate::egress) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests;
