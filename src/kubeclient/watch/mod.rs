//! List and watch of a collection (a reflector).
//!
//! kube-rs' reflector is not used: it needs a `Send` client with `Send` futures, while ours belongs to one thread, and
//! the generated types of Kubernetes, while only a few fields are read here. The state machine is in [`course`]; the
//! I/O is here.

mod course;
mod event;

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};

use super::Client;
use crate::egress::Sent;
use course::{Course, Step};
use event::{Event, Kind, Lines, Page, Said, version_of};

/// Maximum bytes of a page of a list.
const LONGEST_PAGE: usize = 256 << 20;
/// Maximum bytes of an event. Objects are limited by etcd's request size, 1.5 MiB by default.
const LONGEST_EVENT: usize = 16 << 20;
/// Timeout of a response head.
const PATIENCE: Duration = Duration::from_secs(15);
/// Timeout of a page of a list.
const LONG_PATIENCE: Duration = Duration::from_secs(60);
/// Idle timeout of a watch. Bookmarks arrive every minute, so the watch is stalled, or the server sends none. Either
/// way the next watch resumes from the last version.
const SILENCE: Duration = Duration::from_secs(150);

/// Handler of the events of a list and watch.
pub trait Keeper {
    /// A list begins. Known objects stay until it is complete.
    fn begins(&self);
    /// The list contains this object.
    fn lists(&self, object: &RawValue);
    /// The list is complete: objects that it did not contain are deleted.
    fn is_whole(&self);
    /// This object was added or modified.
    fn has(&self, object: &RawValue);
    /// This object was deleted.
    fn lacks(&self, object: &RawValue);
    /// The server answers: known objects are current.
    fn is_well(&self);
    /// A list or watch failed: known objects may be stale.
    fn fails(&self, why: &WatchFailure);
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

enum End {
    /// The resource version or `continue` token has expired.
    Expired,
    Failed(WatchFailure),
}

/// Lists and watches the collection at `path`, which may have a query, until the future is dropped. The `client`'s
/// thread must have a `LocalSet`.
pub async fn keep(client: Rc<Client>, path: &str, keeper: &impl Keeper) {
    let following = Following { client, path, joint: if path.contains('?') { '&' } else { '?' }, keeper };
    let mut course = Course::new();
    loop {
        match course.step() {
            // Jitter, so that reflectors that failed together do not retry together.
            Step::Pause(pause) => sleep(pause.mul_f64(0.5 + fastrand::f64())).await,
            Step::List { limit, next } => following.list(&mut course, limit, &next).await,
            Step::Watch { version, seconds } => {
                following.watch(&mut course, &version, fastrand::u32(seconds)).await;
            }
        }
    }
}

struct Following<'f, K> {
    client: Rc<Client>,
    path: &'f str,
    /// Separator between the path and further query parameters.
    joint: char,
    keeper: &'f K,
}

impl<K: Keeper> Following<'_, K> {
    async fn list(&self, course: &mut Course, limit: Option<u32>, next: &str) {
        let mut path = self.path.to_owned();
        if let Some(limit) = limit {
            path += &format!("{}limit={limit}", self.joint);
        }
        if !next.is_empty() {
            path += "&continue=";
            path.extend(percent_encoding::utf8_percent_encode(next, percent_encoding::NON_ALPHANUMERIC));
        }
        let answer = timeout(LONG_PATIENCE, self.whole(&path)).await;
        let answer =
            answer.unwrap_or_else(|_| Err(End::Failed(WatchFailure::new(format!("no list within {LONG_PATIENCE:?}")))));
        let page = answer.as_ref().map_err(|end| match end {
            End::Expired => None,
            End::Failed(why) => Some(why.clone()),
        });
        let page =
            page.and_then(|bytes| serde_json::from_slice::<Page<'_>>(bytes).map_err(|error| Some(nonsense(&error))));
        match page {
            Ok(page) => {
                if course.begins_list() {
                    self.keeper.begins();
                }
                page.items.unwrap_or_default().into_iter().for_each(|object| self.keeper.lists(object));
                if course.page(page.metadata.resource_version, page.metadata.r#continue) {
                    self.keeper.is_whole();
                    self.keeper.is_well();
                }
            }
            Err(None) => course.page_expired(),
            Err(Some(failure)) => self.failed(course, &failure),
        }
    }

    async fn watch(&self, course: &mut Course, version: &str, seconds: u32) {
        let path = format!(
            "{}{}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}",
            self.path, self.joint
        );
        let began = Instant::now();
        match self.events(course, &path).await {
            Ok(()) => course.watch_ended(began.elapsed()),
            Err(End::Expired) => {
                tracing::debug!(path = self.path, "the resource version of the watch has expired; listing again");
                course.expired();
            }
            Err(End::Failed(failure)) => self.failed(course, &failure),
        }
    }

    /// Handles events until the watch ends.
    async fn events(&self, course: &mut Course, path: &str) -> Result<(), End> {
        let sent = self.open(path).await?;
        // Kept until the body has ended: dropping the lease ends the stream.
        let Sent { response, lease: _lease, .. } = sent;
        self.keeper.is_well();
        let mut body = response.into_body().into_data_stream();
        let mut lines = Lines::default();
        loop {
            let Ok(data) = timeout(SILENCE, body.next()).await else { return Ok(()) };
            let Some(data) = data else { return Ok(()) };
            let data = data.map_err(|error| failed(format!("the watch broke: {error}")))?;
            lines
                .add(&data, LONGEST_EVENT, |line| self.happened(course, line))
                .map_err(|_| failed(format!("an event is longer than {LONGEST_EVENT} bytes")))??;
        }
    }

    fn happened(&self, course: &mut Course, line: &[u8]) -> Result<(), End> {
        let event: Event<'_> = serde_json::from_slice(line).map_err(|error| End::Failed(nonsense(&error)))?;
        match event.r#type {
            Kind::Added | Kind::Modified => self.keeper.has(event.object),
            Kind::Deleted => self.keeper.lacks(event.object),
            Kind::Bookmark => {}
            Kind::Error => return Err(refusal(event.object.get().as_bytes(), None)),
            Kind::Other => return Ok(()),
        }
        let version = version_of(event.object);
        if !version.is_empty() {
            course.moved(version);
        }
        Ok(())
    }

    async fn open(&self, path: &str) -> Result<Sent, End> {
        let sent = self.client.open(path, PATIENCE).await.map_err(|error| failed(error.to_string()))?;
        if sent.response.status() == StatusCode::OK {
            return Ok(sent);
        }
        let Sent { response, mut lease, .. } = sent;
        let (head, body) = response.into_parts();
        let seconds = head.headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let said = timeout(PATIENCE, Limited::new(body, LONGEST_EVENT).collect()).await;
        let said = said.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
        lease.finished();
        Err(match refusal(&said, seconds.map(Duration::from_secs)) {
            // The status line takes precedence over the body.
            End::Failed(failure) if head.status == StatusCode::GONE => {
                tracing::debug!(failure.why, "410");
                End::Expired
            }
            End::Failed(failure) => {
                let status = head.status.as_u16();
                End::Failed(WatchFailure {
                    status: Some(status),
                    why: format!("the API server answered {status}: {}", failure.why),
                    ..failure
                })
            }
            End::Expired => End::Expired,
        })
    }

    async fn whole(&self, path: &str) -> Result<Bytes, End> {
        let Sent { response, mut lease, .. } = self.open(path).await?;
        let body = Limited::new(response.into_body(), LONGEST_PAGE).collect().await;
        let body = body.map_err(|error| failed(format!("the list broke off: {error}")))?.to_bytes();
        lease.finished();
        Ok(body)
    }

    fn failed(&self, course: &mut Course, failure: &WatchFailure) {
        self.keeper.fails(failure);
        course.failed(failure.retry_after);
    }
}

impl WatchFailure {
    fn new(why: String) -> WatchFailure {
        WatchFailure { status: None, why, retry_after: None }
    }
}

fn failed(why: String) -> End {
    End::Failed(WatchFailure::new(why))
}

fn nonsense(error: &serde_json::Error) -> WatchFailure {
    WatchFailure::new(format!("invalid response of the API server: {error}"))
}

/// Interprets a `Status`, or another error body.
fn refusal(text: &[u8], retry_after: Option<Duration>) -> End {
    let said: Said = serde_json::from_slice(text).unwrap_or_default();
    if said.is_expired() {
        return End::Expired;
    }
    let seconds = said.details.map_or(0, |details| details.retry_after_seconds);
    let asked = Some(Duration::from_secs(seconds)).filter(|asked| !asked.is_zero());
    let words: String = said.message.chars().filter(|letter| !letter.is_control()).take(300).collect();
    let status = Some(said.code).filter(|code| *code != 0);
    End::Failed(WatchFailure {
        status,
        why: if words.is_empty() { said.reason } else { words },
        retry_after: retry_after.max(asked),
    })
}
