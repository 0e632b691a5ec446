//! HTTP/1.1 connections: one request at a time, kept for the next when its answer has ended.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

use super::dial::{DialError, DialPhase, Dialled};
use super::refusal;
use super::silence::{Patience, Silence, Verdict};
use crate::message::Body;
use crate::tls::Failure;

/// net/http servers close an idle connection after 90 s or more; we let go well before, so that a
/// request seldom meets a connection that is just being closed.
const IDLE: Duration = Duration::from_secs(55);
/// How many idle connections one worker keeps to one endpoint. Above what is in flight at once: a smaller
/// number means a new TLS handshake for every burst, which is what makes Go proxies slow (their default is 2).
const KEPT: usize = 1024;
/// How long a returned connection may take to be ready again.
const SETTLE: Duration = Duration::from_millis(100);

/// While a request waits for its answer.
const AWAITED: Patience =
    Patience { ask: Duration::from_secs(2), doubt: Duration::from_secs(3), end: Duration::from_secs(6) };

/// Header lines of an answer; a backend that sends more is broken or hostile.
const MAX_HEADERS: usize = 200;
/// Bytes of an answer's header block.
const MAX_HEADER_BYTES: usize = 256 << 10;

/// A connection, for one request after another.
pub(super) struct Line {
    pub(super) sender: SendRequest<Body>,
    /// How often bytes came on it. Written by this thread alone; an upgrade wants what it holds to be `Send`.
    came: Arc<AtomicU64>,
}

impl Line {
    /// How often bytes came on it: not at all before its first answer.
    pub(super) fn came(&self) -> u64 {
        self.came.load(Relaxed)
    }
}

/// The idle connections to one endpoint, the latest last.
#[derive(Default)]
pub(super) struct Idle(RefCell<Vec<(Line, Instant)>>);

impl Idle {
    pub(super) fn put(&self, line: Line) {
        let mut idle = self.0.borrow_mut();
        if !line.sender.is_closed() && idle.len() < KEPT {
            idle.push((line, Instant::now()));
        }
    }

    /// A connection that can take a request, the most recently used first.
    pub(super) async fn take(&self) -> Option<Line> {
        let (line, _) = self.0.borrow_mut().pop()?;
        if line.sender.is_ready() {
            return Some(line);
        }
        // Boxed: rare, and every other request would pay for its size.
        Box::pin(self.settle(line)).await
    }

    /// `line` once it is ready, or another one.
    async fn settle(&self, mut line: Line) -> Option<Line> {
        loop {
            let sender = &mut line.sender;
            if sender.is_ready() {
                return Some(line);
            }
            // The connection's task has yet to see that its answer ended. Should it still be sending
            // the body of a request that was answered early, it is not worth waiting for.
            if !sender.is_closed() && matches!(tokio::time::timeout(SETTLE, sender.ready()).await, Ok(Ok(()))) {
                return Some(line);
            }
            (line, _) = self.0.borrow_mut().pop()?;
        }
    }

    pub(super) fn sweep(&self, now: Instant) {
        self.0.borrow_mut().retain(|(line, since)| !line.sender.is_closed() && now - *since < IDLE);
    }

    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

/// All HTTP/1.1 connections to one endpoint, as long as they last.
#[derive(Default)]
pub(super) struct Open {
    /// How often bytes came on any of them. Written by this thread alone; an upgrade wants what it holds to be `Send`.
    heard: Arc<AtomicU64>,
    /// What TLS said when one ended of which no request was waiting for an answer.
    pub(super) last_words: Rc<Cell<Option<Failure>>>,
    tasks: RefCell<Vec<AbortHandle>>,
    /// Requests that wait for the head of their answer.
    waiting: Cell<u32>,
    silence: Cell<Option<Silence>>,
    /// Signs of life that came some other way since bytes were last heard, and how often they had been by then.
    signs: Cell<u32>,
    before: Cell<u64>,
}

/// A request that waits for the head of its answer, until dropped.
pub(super) struct Awaiting<'o>(&'o Open);

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Open {
    /// A request begins to wait.
    pub(super) fn awaits(&self) -> Awaiting<'_> {
        self.waiting.set(self.waiting.get() + 1);
        Awaiting(self)
    }

    /// What to do when nothing comes on any connection although a request waits.
    pub(super) fn judge(&self, now: Instant) -> Verdict {
        if self.waiting.get() == 0 {
            self.silence.set(None);
            return Verdict::Fine;
        }
        let heard = self.heard.load(Relaxed);
        if self.before.replace(heard) != heard {
            self.signs.set(0);
        }
        // One that says again and again that it lives, and is only slow, is asked less and less often: it costs a
        // handshake each time.
        let patience = Patience { ask: AWAITED.ask * (1 << self.signs.get().min(4)), ..AWAITED };
        let mut silence = self.silence.get().unwrap_or_else(|| Silence::new(now));
        // Of both together, so that it is another whenever either is.
        let both = heard << 32 | u64::from(self.signs.get());
        let verdict = silence.judge(both, patience, now);
        self.silence.set(Some(silence));
        verdict
    }

    /// A sign of life that came some other way.
    pub(super) fn hear(&self) {
        self.signs.set(self.signs.get().saturating_add(1));
    }

    /// Whether there are `most` or more.
    pub(super) fn has(&self, most: usize) -> bool {
        let mut tasks = self.tasks.borrow_mut();
        if tasks.len() < most {
            return false;
        }
        tasks.retain(|task| !task.is_finished());
        tasks.len() >= most
    }

    /// Ends them all; whoever waits for an answer on one of them waits no longer.
    pub(super) fn cut(&self) {
        for task in self.tasks.borrow_mut().drain(..) {
            task.abort();
        }
    }
}

/// Begins HTTP/1.1 on a fresh connection, one more of `open`; a 101 hands the stream over.
pub(super) async fn greet(dialled: Dialled, open: &Open) -> Result<Line, DialError> {
    let (last_words, heard, came) = (open.last_words.clone(), open.heard.clone(), Arc::<AtomicU64>::default());
    let stream = ReadsOn { stream: dialled.channel, gone: false, heard, came: came.clone() };
    let (sender, connection) = Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| DialError { phase: DialPhase::Http, reason: "ProtocolError", cause: error.to_string() })?;
    // Not an async block, which would hold the connection twice: each watch has one of its own.
    let task = tokio::task::spawn_local(connection.with_upgrades().map(move |ended| {
        if let Err(error) = ended {
            last_words.set(refusal::of_tls(&error));
            tracing::debug!(%error, "a backend connection ended");
        }
    }));
    let mut tasks = open.tasks.borrow_mut();
    // Those that ended go before there is no more room for others.
    if tasks.len() == tasks.capacity() {
        tasks.retain(|task| !task.is_finished());
    }
    tasks.push(task.abort_handle());
    Ok(Line { sender, came })
}

fn hear(count: &AtomicU64) {
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}

/// A stream that reads on when the backend reads no more.
///
/// A backend may answer (413, 401) and close before it has read the whole request. hyper gives up at the first
/// write that fails, and the answer that is there would be lost. So a failed write passes for done, and reading
/// says how it ends: with the answer, or with the error that reading finds on a closed socket.
struct ReadsOn<T> {
    stream: T,
    gone: bool,
    /// Of all connections of the endpoint, an end among what is heard.
    heard: Arc<AtomicU64>,
    /// As [`Line::came`].
    came: Arc<AtomicU64>,
}

impl<T> ReadsOn<T> {
    fn or_gone<R>(&mut self, written: Poll<io::Result<R>>, done: R) -> Poll<io::Result<R>> {
        match written {
            Poll::Ready(Err(_)) => {
                self.gone = true;
                Poll::Ready(Ok(done))
            }
            written => written,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ReadsOn<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            hear(&self.heard);
        }
        if buffer.filled().len() > before {
            hear(&self.came);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ReadsOn<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.gone {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.or_gone(written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = slices.iter().map(|slice| slice.len()).sum();
        if self.gone {
            return Poll::Ready(Ok(all));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.or_gone(written, all)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.gone {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.or_gone(flushed, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_is_only_slow_is_asked_less_and_less_often() {
        let (open, start) = (Open::default(), Instant::now());
        let judge = |second: u64| open.judge(start + Duration::from_secs(second));
        assert_eq!(judge(100), Verdict::Fine, "nobody waits");
        let _awaiting = open.awaits();
        let mut asked = Vec::new();
        for second in 0..100 {
            if judge(second) == Verdict::Ask {
                asked.push(second);
                open.hear();
            }
        }
        // The sign is seen a second later.
        assert_eq!(asked, [2, 7, 16, 33, 66, 99]);
        // Bytes that come just as a sign did are life, too.
        hear(&open.heard);
        assert_eq!((100..110).find(|second| judge(*second) == Verdict::Ask), Some(102));
        assert_eq!((102..120).find(|second| judge(*second) == Verdict::End), Some(108), "one who does not say so");
    }
}
