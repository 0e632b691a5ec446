//! A watch of the ConfigMap: what it says now if that is news, then every change, until it is time to end.

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

/// As often as upstream's watch cache.
const BOOKMARK: Duration = Duration::from_secs(60);

/// The body of a watch's answer: one JSON event a line.
pub(super) struct Watch {
    options: WatchOptions,
    /// Whether the one object there is is among those that the client wants to see.
    selected: bool,
    /// The next version is waited for by one future that is made once and again.
    waiting: Pin<Box<dyn Future<Output = Published<ConfigMap>>>>,
    drain: Pin<Box<dyn Future<Output = ()>>>,
    end: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    /// The version up to which everything is sent or waits to be.
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
            // It always stands between two events, so it need not wait for the end of the grace.
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
            // It never goes, so who has any version of it has only missed changes.
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
                // A handle that was made before the watch may be told of what the watch began with.
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
