//! A watch of the ConfigMap: its current version if it is new to the client, then every change, until the timeout.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::AuthConfigMap;
use crate::kubeapi::{WatchOptions, bookmark_metadata, watch_event};
use crate::message::BodyError;
use crate::process::{Drain, Published, ShutdownPhase};

/// The bookmark interval of upstream's watch cache.
const BOOKMARK: Duration = Duration::from_secs(60);

/// The response body of a watch: one JSON event per line.
pub(super) struct ConfigMapWatch {
    options: WatchOptions,
    /// Whether the object matches the client's selectors.
    is_selected: bool,
    /// Waits for the next version; replaced after each one.
    next_change: Pin<Box<dyn Future<Output = Published<AuthConfigMap>>>>,
    drain: Pin<Box<dyn Future<Output = ()>>>,
    end: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    /// The version up to which all events are sent or queued.
    sent_version: u64,
    lines: VecDeque<Bytes>,
    is_ended: bool,
}

impl ConfigMapWatch {
    pub(super) fn new(
        config_map: Published<AuthConfigMap>,
        mut drain: Drain,
        options: WatchOptions,
        selected: bool,
    ) -> ConfigMapWatch {
        let now = config_map.get();
        let mut watch = ConfigMapWatch {
            next_change: next_change(config_map),
            // It is always between two events, so it can end as soon as draining begins.
            drain: Box::pin(async move { drain.wait_for(ShutdownPhase::Draining).await }),
            end: Box::pin(tokio::time::sleep(options.timeout)),
            bookmark: Box::pin(tokio::time::sleep(BOOKMARK)),
            sent_version: options.since_version,
            lines: VecDeque::new(),
            is_ended: false,
            options,
            is_selected: selected,
        };
        if options.sends_initial_events {
            watch.event("ADDED", &now);
            if options.marks_initial_end {
                watch.bookmark(true);
            }
        } else if now.resource_version > options.since_version {
            // It is never deleted, so a client with an older version has only missed modifications.
            watch.event("MODIFIED", &now);
        }
        watch
    }

    fn event(&mut self, kind: &str, object: &AuthConfigMap) {
        self.sent_version = object.resource_version;
        if self.is_selected {
            self.line(kind, &object.to_json());
        }
    }

    fn bookmark(&mut self, initial_end: bool) {
        let metadata = bookmark_metadata(self.sent_version, initial_end);
        self.line("BOOKMARK", &json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata }));
    }

    fn line(&mut self, kind: &str, object: &Value) {
        self.lines.push_back(watch_event(kind, object));
    }
}

fn next_change(mut config_map: Published<AuthConfigMap>) -> Pin<Box<dyn Future<Output = Published<AuthConfigMap>>>> {
    Box::pin(async move {
        config_map.changed().await;
        config_map
    })
}

impl Body for ConfigMapWatch {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(line) = this.lines.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(line))));
            }
            if this.is_ended || this.end.as_mut().poll(cx).is_ready() || this.drain.as_mut().poll(cx).is_ready() {
                this.is_ended = true;
                return Poll::Ready(None);
            }
            if let Poll::Ready(config_map) = this.next_change.as_mut().poll(cx) {
                let now = config_map.get();
                this.next_change = next_change(config_map);
                // A handle created before the watch may be notified of the version that the watch began with.
                if now.resource_version > this.sent_version {
                    this.event("MODIFIED", &now);
                }
                continue;
            }
            if this.bookmark.as_mut().poll(cx).is_ready() {
                this.bookmark.as_mut().reset(Instant::now() + BOOKMARK);
                if this.options.sends_bookmarks {
                    this.bookmark(false);
                }
                continue;
            }
            return Poll::Pending;
        }
    }
}
