//! List and watch of a collection (a reflector).
//!
//! kube-rs' reflector is not used: it needs a `Send` client with `Send` futures, while ours belongs to one thread, and
//! the generated types of Kubernetes, while only a few fields are read here. The state machine is in
//! [`reflector_state`]; the I/O is here.

mod event;
mod reflector_state;

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::StatusCode;
use http_body_util::BodyExt as _;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};

use super::Client;
use crate::egress::EndpointResponse;
use crate::message::read_document;
use event::{LineBuffer, ListPage, RawWatchEvent, WatchErrorStatus, WatchEventType, resource_version};
use reflector_state::{ReflectorState, ReflectorStep};

/// Maximum bytes of a page of a list.
const MAX_PAGE_BYTES: usize = 256 << 20;
/// Maximum bytes of an event. Objects are limited by etcd's request size, 1.5 MiB by default.
const MAX_EVENT_BYTES: usize = 16 << 20;
/// Timeout of a response head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a page of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle timeout of a watch. Bookmarks arrive every minute, so the watch is stalled, or the server sends none. Either
/// way the next watch resumes from the last version.
const IDLE_TIMEOUT: Duration = Duration::from_secs(150);

/// Handler of the events of a list and watch.
pub trait ReflectorHandler {
    /// A list begins. Known objects stay until it is complete.
    fn on_list_start(&self);
    /// The list contains this object.
    fn on_item(&self, object: &RawValue);
    /// The list is complete: objects that it did not contain are deleted.
    fn on_synced(&self);
    /// Called when an object was added or modified.
    fn on_apply(&self, object: &RawValue);
    /// Called when an object was deleted.
    fn on_delete(&self, object: &RawValue);
    /// The server answered within `duration`: known objects are current.
    fn on_healthy(&self, duration: Duration);
    /// A list or watch failed: known objects may be stale.
    fn on_error(&self, why: &WatchFailure);
}

/// Failure of a list or watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchFailure {
    /// The HTTP status, if there was a response.
    pub status: Option<u16>,
    /// Message for the log. It may contain addresses.
    pub why: String,
    retry_after: Option<Duration>,
}

impl WatchFailure {
    /// A failure without a response.
    pub fn without_response(why: String) -> WatchFailure {
        WatchFailure { status: None, why, retry_after: None }
    }
}

enum WatchEnd {
    /// The resource version or `continue` token has expired.
    Expired,
    Failed(WatchFailure),
}

/// Lists and watches the collection at `path`, which may have a query, until the future is dropped. The `client`'s
/// thread must have a `LocalSet`.
pub async fn list_and_watch(client: Rc<Client>, path: &str, handler: &impl ReflectorHandler) {
    let following = Reflector { client, path, query_separator: if path.contains('?') { '&' } else { '?' }, handler };
    let mut state = ReflectorState::new();
    loop {
        match state.next_step() {
            // Jitter, so that reflectors that failed together do not retry together.
            ReflectorStep::Pause(pause) => sleep(pause.mul_f64(0.5 + fastrand::f64())).await,
            ReflectorStep::List { limit, next } => following.list(&mut state, limit, &next).await,
            ReflectorStep::Watch { version, seconds } => {
                following.watch(&mut state, &version, fastrand::u32(seconds)).await;
            }
        }
    }
}

struct Reflector<'f, K> {
    client: Rc<Client>,
    path: &'f str,
    /// Separator between the path and further query parameters.
    query_separator: char,
    handler: &'f K,
}

impl<K: ReflectorHandler> Reflector<'_, K> {
    async fn list(&self, state: &mut ReflectorState, limit: Option<u32>, next: &str) {
        let mut path = self.path.to_owned();
        if let Some(limit) = limit {
            path += &format!("{}limit={limit}", self.query_separator);
        }
        if !next.is_empty() {
            path += "&continue=";
            path.extend(percent_encoding::utf8_percent_encode(next, percent_encoding::NON_ALPHANUMERIC));
        }
        let began = Instant::now();
        let answer = timeout(LIST_TIMEOUT, self.fetch_body(&path)).await;
        let duration = began.elapsed();
        let answer = answer
            .unwrap_or_else(|_| Err(WatchEnd::Failed(WatchFailure::new(format!("no list within {LIST_TIMEOUT:?}")))));
        let page = answer.as_ref().map_err(|end| match end {
            WatchEnd::Expired => None,
            WatchEnd::Failed(why) => Some(why.clone()),
        });
        let page = page.and_then(|bytes| {
            serde_json::from_slice::<ListPage<'_>>(bytes).map_err(|error| Some(invalid_response(&error)))
        });
        match page {
            Ok(page) => {
                if state.is_list_start() {
                    self.handler.on_list_start();
                }
                page.items.unwrap_or_default().into_iter().for_each(|object| self.handler.on_item(object));
                if state.on_page(page.metadata.resource_version, page.metadata.r#continue) {
                    self.handler.on_synced();
                    self.handler.on_healthy(duration);
                }
            }
            Err(None) => state.on_page_expired(),
            Err(Some(failure)) => self.record_failure(state, &failure),
        }
    }

    async fn watch(&self, state: &mut ReflectorState, version: &str, seconds: u32) {
        let path = format!(
            "{}{}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}",
            self.path, self.query_separator
        );
        let began = Instant::now();
        match self.read_events(state, &path).await {
            Ok(()) => state.on_watch_end(began.elapsed()),
            Err(WatchEnd::Expired) => {
                tracing::debug!(path = self.path, "the resource version of the watch has expired; listing again");
                state.on_expired();
            }
            Err(WatchEnd::Failed(failure)) => self.record_failure(state, &failure),
        }
    }

    /// Handles events until the watch ends.
    async fn read_events(&self, state: &mut ReflectorState, path: &str) -> Result<(), WatchEnd> {
        let began = Instant::now();
        let sent = self.send_get(path).await?;
        // Kept until the body has ended: dropping the lease ends the stream.
        let EndpointResponse { response, guard: _lease, .. } = sent;
        self.handler.on_healthy(began.elapsed());
        let mut body = response.into_body().into_data_stream();
        let mut lines = LineBuffer::default();
        loop {
            let Ok(data) = timeout(IDLE_TIMEOUT, body.next()).await else { return Ok(()) };
            let Some(data) = data else { return Ok(()) };
            let data = data.map_err(|error| failed(format!("the watch broke: {error}")))?;
            lines
                .add(&data, MAX_EVENT_BYTES, |line| self.handle_event(state, line))
                .map_err(|_| failed(format!("an event is longer than {MAX_EVENT_BYTES} bytes")))??;
        }
    }

    fn handle_event(&self, state: &mut ReflectorState, line: &[u8]) -> Result<(), WatchEnd> {
        let event: RawWatchEvent<'_> =
            serde_json::from_slice(line).map_err(|error| WatchEnd::Failed(invalid_response(&error)))?;
        match event.r#type {
            WatchEventType::Added | WatchEventType::Modified => self.handler.on_apply(event.object),
            WatchEventType::Deleted => self.handler.on_delete(event.object),
            WatchEventType::Bookmark => {}
            WatchEventType::Error => return Err(end_from_status(event.object.get().as_bytes(), None)),
            WatchEventType::Other => return Ok(()),
        }
        let version = resource_version(event.object);
        if !version.is_empty() {
            state.on_version(version);
        }
        Ok(())
    }

    async fn send_get(&self, path: &str) -> Result<EndpointResponse, WatchEnd> {
        let sent = self.client.open(path, HEAD_TIMEOUT).await.map_err(|error| failed(error.to_string()))?;
        if sent.response.status() == StatusCode::OK {
            return Ok(sent);
        }
        let EndpointResponse { response, guard: mut lease, .. } = sent;
        let (head, body) = response.into_parts();
        let seconds = head.headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let document = timeout(HEAD_TIMEOUT, read_document(&head.headers, body, MAX_EVENT_BYTES)).await;
        let body = document.ok().and_then(Result::ok).unwrap_or_default();
        lease.finish();
        Err(match end_from_status(&body, seconds.map(Duration::from_secs)) {
            // The status line takes precedence over the body.
            WatchEnd::Failed(failure) if head.status == StatusCode::GONE => {
                tracing::debug!(failure.why, "410");
                WatchEnd::Expired
            }
            WatchEnd::Failed(failure) => {
                let status = head.status.as_u16();
                WatchEnd::Failed(WatchFailure {
                    status: Some(status),
                    why: format!("the API server answered {status}: {}", failure.why),
                    ..failure
                })
            }
            WatchEnd::Expired => WatchEnd::Expired,
        })
    }

    async fn fetch_body(&self, path: &str) -> Result<Bytes, WatchEnd> {
        let EndpointResponse { response, guard: mut lease, .. } = self.send_get(path).await?;
        let (head, body) = response.into_parts();
        let body = read_document(&head.headers, body, MAX_PAGE_BYTES).await;
        let body = body.map_err(|error| failed(format!("the list cannot be read: {error}")))?;
        lease.finish();
        Ok(body)
    }

    fn record_failure(&self, state: &mut ReflectorState, failure: &WatchFailure) {
        self.handler.on_error(failure);
        state.on_failure(failure.retry_after);
    }
}

impl WatchFailure {
    fn new(why: String) -> WatchFailure {
        WatchFailure { status: None, why, retry_after: None }
    }
}

fn failed(why: String) -> WatchEnd {
    WatchEnd::Failed(WatchFailure::new(why))
}

fn invalid_response(error: &serde_json::Error) -> WatchFailure {
    WatchFailure::new(format!("invalid response of the API server: {error}"))
}

/// Interprets a `Status`, or another error body.
fn end_from_status(text: &[u8], retry_after: Option<Duration>) -> WatchEnd {
    let error_status: WatchErrorStatus = serde_json::from_slice(text).unwrap_or_default();
    if error_status.is_expired() {
        return WatchEnd::Expired;
    }
    let seconds = error_status.details.map_or(0, |details| details.retry_after_seconds);
    let requested_delay = Some(Duration::from_secs(seconds)).filter(|requested_delay| !requested_delay.is_zero());
    let words: String = error_status.message.chars().filter(|letter| !letter.is_control()).take(300).collect();
    let status = Some(error_status.code).filter(|code| *code != 0);
    WatchEnd::Failed(WatchFailure {
        status,
        why: if words.is_empty() { error_status.reason } else { words },
        retry_after: retry_after.max(requested_delay),
    })
}
