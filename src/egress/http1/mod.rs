//! HTTP/1.1 client connections: one request at a time, reused when its response has ended.
//!
//! Implemented on httparse. hyper's client has a task per connection, two channels between that and the request, and an
//! 8 KiB read buffer per connection, also while idle: a request cost a third more, and a watch, which mostly waits,
//! held ten times the memory it needs.

mod answer;
mod chunks;
mod fault;
mod head;
mod open;
mod sending;
mod wire;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::Cursor;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use self::answer::Answer;
pub use self::chunks::{Chunks, Step};
pub use self::fault::Fault;
use self::head::EmptyLines;
pub use self::head::{Framing, Head};
pub(super) use self::open::Open;
use self::wire::Wire;
use super::channel::Channel;
use super::pushed::Pushed;
use crate::message::{Body, Received};

/// Idle connections are closed after this time. net/http servers close them after 90 s or more; closing well before
/// makes it unlikely that a request meets a connection that is being closed.
const IDLE: Duration = Duration::from_secs(55);
/// Limit of idle connections of one worker to one endpoint. It exceeds the usual number in flight: a smaller one means
/// new TLS handshakes for every burst, which is what makes Go proxies slow (their default is 2).
const KEPT: usize = 1024;

/// A connection that carries one request after another. Dropping it closes the connection at once.
pub struct Line {
    wire: Rc<Wire>,
    sending: Pushed,
}

impl Line {
    /// Starts HTTP/1.1 on a new connection, which is added to `open`.
    pub(super) fn new(stream: Channel, open: &Open) -> Line {
        Line { wire: open.enter(stream), sending: Pushed::default() }
    }

    /// Number of reads that returned bytes; 0 before the first response.
    pub(super) fn came(&self) -> u64 {
        self.wire.came()
    }

    /// Sends `request` (with its URI in origin form) and waits for the response head.
    ///
    /// Sending begins before the future is first polled, so the future need not hold the request.
    ///
    /// # Errors
    /// [`Fault`]; the request may have been processed.
    pub fn ask(&mut self, request: Request<Body>) -> impl Future<Output = Result<Response<Received>, Fault>> {
        let method = request.method().clone();
        let may_switch = request.headers().contains_key(UPGRADE);
        self.sending = sending::send(&self.wire, request);
        self.answer(method, may_switch)
    }

    async fn answer(&self, method: Method, may_switch: bool) -> Result<Response<Received>, Fault> {
        // An incomplete head of earlier reads; nearly always the head arrives in one read.
        let mut begun = Vec::new();
        let mut empty_lines = EmptyLines::default();
        loop {
            let mut piece = poll_fn(|cx| self.wire.poll_read(cx)).await?;
            if piece.is_empty() {
                return Err(Fault::Ended);
            }
            if begun.is_empty() && empty_lines.skip(&mut piece)? {
                continue;
            }
            let before = begun.len();
            if before > 0 {
                begun.extend_from_slice(&piece);
                if !head::may_be_whole(&begun, before) {
                    continue;
                }
            }
            let Some((head, end)) = Head::read(if before > 0 { &begun } else { &piece }, &method)? else {
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
                self.wire.put_back(rest);
                continue;
            }
            if status.is_informational() && !may_switch {
                return Err(Fault::Nonsense("it switches protocols without a request to upgrade"));
            }
            let keeps = head.keeps && !status.is_informational();
            return Ok(Response::from_parts(head.parts, self.body(head.framing, keeps, rest)));
        }
    }

    fn body(&self, framing: Framing, keeps: bool, mut rest: Bytes) -> Received {
        match framing {
            Framing::Length(length) if length <= rest.len() as u64 => {
                self.wire.put_back(rest.split_off(length as usize));
                self.wire.ended(keeps);
                Body::from(rest).into()
            }
            framing => {
                self.wire.put_back(rest);
                Body::stream(Answer::new(self.wire.clone(), framing, keeps)).into()
            }
        }
    }

    /// The raw connection after a 101 response; `None` while the response's body is still being read.
    pub fn switch(self) -> Option<impl AsyncRead + AsyncWrite + Send + Unpin + use<>> {
        let (stream, first) = Rc::try_unwrap(self.wire).ok()?.into_parts();
        let (from, to) = tokio::io::split(stream);
        Some(tokio::io::join(Cursor::new(first).chain(from), to))
    }
}

/// Idle connections to one endpoint, the most recently used last.
#[derive(Default)]
pub(super) struct Idle(RefCell<Vec<(Line, Instant)>>);

impl Idle {
    /// Keeps `line` if it can be reused.
    pub(super) fn put(&self, line: Line) {
        let mut idle = self.0.borrow_mut();
        if line.wire.is_over() && idle.len() < KEPT {
            idle.push((line, Instant::now()));
        }
    }

    /// A connection that can take a request, the most recently used first.
    pub(super) fn take(&self) -> Option<Line> {
        let mut idle = self.0.borrow_mut();
        loop {
            let (line, _) = idle.pop()?;
            if line.wire.is_silent() {
                return Some(line);
            }
        }
    }

    pub(super) fn sweep(&self, now: Instant) {
        self.0.borrow_mut().retain(|(line, since)| {
            if now - *since >= IDLE {
                line.wire.part();
                return false;
            }
            line.wire.is_silent()
        });
    }

    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests;
