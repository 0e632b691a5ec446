//! A watch of the ConfigMap: its current version if it is new to the client, then every change, until the timeout.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::ConfigMap;
use crate::kubeapi::{WatchOptions, bookmark_metadata, watch_event};
use crate::message::BodyError;
use crate::process::{Drain, Phase, Published};

/// The bookmark interval of upstream's watch cache.
const BOOKMARK: Duration = Duration::from_secs(60);

/// The response body of a watch: one JSON event per line.
pub(super) struct Watch {
    options: WatchOptions,
    /// Whether the object matches the client's selectors.
    selected: bool,
    /// Waits for the next version; replaced after each one.
    waiting: Pin<Box<dyn Future<Output = Published<ConfigMap>>>>,
    drain: Pin<Box<dyn Future<Output = ()>>>,
    end: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    /// The version up to which all events are sent or queued.
    at: u64,
    lines: VecDeque<Bytes>,
    ended: bool,
}

impl Watch {
    pub(super) fn new(
        config_map: Published<ConfigMap>,
        mut drain: Drain,
        options: WatchOptions,
        selected: bool,
    ) -> Watch {
        let now = config_map.get();
        let mut watch = Watch {
            waiting: next(config_map),
            // It is always between two events, so it can end as soon as draining begins.
            drain: Box::pin(async move { drain.reached(Phase::Draining).await }),
            end: Box::pin(tokio::time::sleep(options.lasts)),
            bookmark: Box::pin(tokio::time::sleep(BOOKMARK)),
            at: options.since,
            lines: VecDeque::new(),
            ended: false,
            options,
            selected,
        };
        if options.initial {
            watch.event("ADDED", &now);
            if options.mark_initial {
                watch.bookmark(true);
            }
        } else if now.version > options.since {
            // It is never deleted, so a client with an older version has only missed modifications.
            watch.event("MODIFIED", &now);
        }
        watch
    }

    fn event(&mut self, kind: &str, object: &ConfigMap) {
        self.at = object.version;
        if self.selected {
            self.line(kind, &object.value());
        }
    }

    fn bookmark(&mut self, initial_end: bool) {
        let metadata = bookmark_metadata(self.at, initial_end);
        self.line("BOOKMARK", &json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata }));
    }

    fn line(&mut self, kind: &str, object: &Value) {
        self.lines.push_back(watch_event(kind, object));
    }
}

fn next(mut config_map: Published<ConfigMap>) -> Pin<Box<dyn Future<Output = Published<ConfigMap>>>> {
    Box::pin(async move {
        config_map.changed().await;
        config_map
    })
}

impl Body for Watch {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            if let Some(line) = this.lines.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(line))));
            }
            if this.ended || this.end.as_mut().poll(cx).is_ready() || this.drain.as_mut().poll(cx).is_ready() {
                this.ended = true;
                return Poll::Ready(None);
            }
            if let Poll::Ready(config_map) = this.waiting.as_mut().poll(cx) {
                let now = config_map.get();
                this.waiting = next(config_map);
                // A handle created before the watch may be notified of the version that the watch began with.
                if now.version > this.at {
                    this.event("MODIFIED", &now);
                }
                continue;
            }
            if this.bookmark.as_mut().poll(cx).is_ready() {
                this.bookmark.as_mut().reset(Instant::now() + BOOKMARK);
                if this.options.bookmarks {
                    this.bookmark(false);
                }
                continue;
            }
            return Poll::Pending;
        }
    }
}
