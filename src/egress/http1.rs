//! HTTP/1.1 connections: one request at a time, kept for the next when its answer has ended.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;

use super::dial::{DialError, DialPhase, Dialled};
use super::refusal;
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

/// Header lines of an answer; a backend that sends more is broken or hostile.
const MAX_HEADERS: usize = 200;
/// Bytes of an answer's header block.
const MAX_HEADER_BYTES: usize = 256 << 10;

/// The idle connections to one endpoint, the latest last.
#[derive(Default)]
pub(super) struct Idle(RefCell<Vec<(SendRequest<Body>, Instant)>>);

impl Idle {
    pub(super) fn put(&self, sender: SendRequest<Body>) {
        let mut idle = self.0.borrow_mut();
        if !sender.is_closed() && idle.len() < KEPT {
            idle.push((sender, Instant::now()));
        }
    }

    /// A connection that can take a request, the most recently used first.
    pub(super) async fn take(&self) -> Option<SendRequest<Body>> {
        loop {
            let (mut sender, _) = self.0.borrow_mut().pop()?;
            if sender.is_ready() {
                return Some(sender);
            }
            if sender.is_closed() {
                continue;
            }
            // The connection's task has yet to see that its answer ended. Should it still be sending
            // the body of a request that was answered early, it is not worth waiting for.
            if let Ok(Ok(())) = tokio::time::timeout(SETTLE, sender.ready()).await {
                return Some(sender);
            }
        }
    }

    pub(super) fn sweep(&self, now: Instant) {
        self.0.borrow_mut().retain(|(sender, since)| !sender.is_closed() && now - *since < IDLE);
    }

    pub(super) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

/// Begins HTTP/1.1 on a fresh connection; a 101 hands the stream over. What TLS says at its end goes to
/// `last_words`.
pub(super) async fn greet(
    dialled: Dialled,
    last_words: &Rc<Cell<Option<Failure>>>,
) -> Result<SendRequest<Body>, DialError> {
    let last_words = last_words.clone();
    let (sender, connection) = Builder::new()
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .handshake(TokioIo::new(dialled.stream))
        .await
        .map_err(|error| DialError { phase: DialPhase::Http, reason: "ProtocolError", cause: error.to_string() })?;
    tokio::task::spawn_local(async move {
        if let Err(error) = connection.with_upgrades().await {
            last_words.set(refusal::of_tls(&error));
            tracing::debug!(%error, "a backend connection ended");
        }
    });
    Ok(sender)
}
