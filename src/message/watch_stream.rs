//! Serves a watch: the existing objects of a published snapshot if they are asked for, then every change, with
//! bookmarks, until its timeout or the shutdown.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep, sleep};

use super::BodyError;
use crate::kubeapi::{Status, StatusEncoding, WatchOptions, encode};
use crate::process::{Drain, Published, ShutdownPhase};

/// Interval of bookmarks, as in Kubernetes' watch cache.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// Source of the events that a watch sends.
pub trait WatchSource: Unpin + 'static {
    /// The published state that contains the objects.
    type Snapshot: 'static;

    /// Appends the existing objects; returns their resource version.
    fn initial_events(&mut self, snapshot: &Self::Snapshot, events: &mut WatchEvents) -> u64;

    /// Appends the changes after version `since`; returns the resource version after them.
    ///
    /// # Errors
    /// The Status that ends the watch if the changes are not known any more.
    fn changes(&mut self, snapshot: &Self::Snapshot, since: u64, events: &mut WatchEvents) -> Result<u64, Status>;

    /// The object of a bookmark at `version` with this metadata.
    fn bookmark(&self, version: u64, metadata: Value) -> Value;
}

/// Encoded events of a watch (`metav1.WatchEvent`) that are not sent yet.
#[derive(Default)]
pub struct WatchEvents(VecDeque<Bytes>);

impl WatchEvents {
    /// Appends an event of `kind`: `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`.
    pub fn push(&mut self, kind: &str, object: &Value) {
        self.0.push_back(Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")));
    }

    /// Appends the event `ERROR`, after which the watch ends.
    pub fn push_error(&mut self, status: &Status) {
        let status = encode(status, StatusEncoding::Json);
        self.0.push_back([&b"{\"type\":\"ERROR\",\"object\":"[..], status.trim_ascii_end(), b"}\n"].concat().into());
    }

    /// Takes the first event: JSON and a newline.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.0.pop_front()
    }
}

/// The metadata of a bookmark at `version`. With `initial_end` it marks the end of the existing objects (KEP-3157).
pub fn bookmark_metadata(version: u64, initial_end: bool) -> Value {
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if initial_end {
        metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    metadata
}

/// The response body of a watch: one JSON event per line.
pub struct WatchStream<S: WatchSource> {
    source: S,
    options: WatchOptions,
    /// Resolves with the next snapshot; replaced each time.
    next_snapshot: Pin<Box<dyn Future<Output = Published<S::Snapshot>>>>,
    drain: Pin<Box<dyn Future<Output = ()>>>,
    end: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    /// Version up to which all events are sent or queued.
    sent_version: u64,
    events: WatchEvents,
    is_ended: bool,
}

impl<S: WatchSource> WatchStream<S> {
    /// Starts a watch of `snapshots`.
    pub fn new(
        source: S,
        snapshots: Published<S::Snapshot>,
        mut drain: Drain,
        options: WatchOptions,
    ) -> WatchStream<S> {
        let snapshot = snapshots.get();
        let mut watch = WatchStream {
            source,
            options,
            next_snapshot: next_snapshot(snapshots),
            // The watch is always between two events, so it need not wait for the end of the grace period.
            drain: Box::pin(async move { drain.wait_for(ShutdownPhase::Draining).await }),
            end: Box::pin(sleep(options.timeout)),
            bookmark: Box::pin(sleep(BOOKMARK_INTERVAL)),
            sent_version: options.since_version,
            events: WatchEvents::default(),
            is_ended: false,
        };
        if options.sends_initial_events {
            watch.sent_version = watch.source.initial_events(&snapshot, &mut watch.events);
            if options.marks_initial_end {
                watch.push_bookmark(true);
            }
        }
        watch.push_changes(&snapshot);
        watch
    }

    fn push_changes(&mut self, snapshot: &S::Snapshot) {
        match self.source.changes(snapshot, self.sent_version, &mut self.events) {
            Ok(version) => self.sent_version = version,
            Err(status) => {
                self.events.push_error(&status);
                self.is_ended = true;
            }
        }
    }

    fn push_bookmark(&mut self, initial_end: bool) {
        let metadata = bookmark_metadata(self.sent_version, initial_end);
        self.events.push("BOOKMARK", &self.source.bookmark(self.sent_version, metadata));
    }
}

fn next_snapshot<T: 'static>(mut snapshots: Published<T>) -> Pin<Box<dyn Future<Output = Published<T>>>> {
    Box::pin(async move {
        snapshots.changed().await;
        snapshots
    })
}

impl<S: WatchSource> http_body::Body for WatchStream<S> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(event) = this.events.pop() {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            if this.is_ended || this.end.as_mut().poll(cx).is_ready() || this.drain.as_mut().poll(cx).is_ready() {
                this.is_ended = true;
                return Poll::Ready(None);
            }
            if let Poll::Ready(snapshots) = this.next_snapshot.as_mut().poll(cx) {
                let snapshot = snapshots.get();
                this.next_snapshot = next_snapshot(snapshots);
                this.push_changes(&snapshot);
                continue;
            }
            if this.bookmark.as_mut().poll(cx).is_ready() {
                this.bookmark.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
                if this.options.sends_bookmarks {
                    this.push_bookmark(false);
                }
                continue;
            }
            return Poll::Pending;
        }
    }
}
