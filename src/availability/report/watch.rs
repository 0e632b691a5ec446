//! A watch: the changes since a version, then new ones, until its end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::object::{API_VERSION, Extent, Object};
use super::serve::{Filter, Shape};
use super::table::table;
use super::view::View;
use crate::kubeapi::{WatchOptions, bookmark_metadata, watch_event};
use crate::message::BodyError;
use crate::process::{Drain, Phase, Published};

/// A watch request.
pub(super) struct Wish {
    pub(super) filter: Filter,
    pub(super) shape: Shape,
    pub(super) options: WatchOptions,
}

/// The response body of a watch: one JSON event per line.
pub(super) struct Watch {
    wish: Wish,
    /// Resolves with the next version of the view; replaced each time.
    waiting: Pin<Box<dyn Future<Output = Published<View>>>>,
    view: Published<View>,
    drain: Pin<Box<dyn Future<Output = ()>>>,
    end: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    /// Version up to which all events are sent or queued.
    at: u64,
    lines: VecDeque<Bytes>,
    columns_sent: bool,
    ended: bool,
}

/// Interval of bookmarks, as in upstream's watch cache.
const BOOKMARK: Duration = Duration::from_secs(60);

impl Watch {
    pub(super) fn new(view: Published<View>, mut drain: Drain, wish: Wish) -> Watch {
        let mut watch = Watch {
            waiting: next(view.clone()),
            // The watch is always between two events, so it need not wait for the end of the grace period.
            drain: Box::pin(async move { drain.reached(Phase::Draining).await }),
            end: Box::pin(tokio::time::sleep(wish.options.lasts)),
            bookmark: Box::pin(tokio::time::sleep(BOOKMARK)),
            at: wish.options.since,
            lines: VecDeque::new(),
            columns_sent: false,
            ended: false,
            wish,
            view,
        };
        watch.begin();
        watch
    }

    fn begin(&mut self) {
        if self.wish.options.initial {
            let view = self.view.get();
            for object in view.objects() {
                if self.wish.filter.takes(object) {
                    self.event("ADDED", object);
                }
            }
            self.at = view.version;
            if self.wish.options.mark_initial {
                self.bookmark(true);
            }
        }
        self.catch_up();
    }

    /// Queues all changes since the last one queued.
    fn catch_up(&mut self) {
        let view = self.view.get();
        if self.at < view.forgotten {
            let message = format!("too old resource version: {} ({})", self.at, view.forgotten + 1);
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "Expired", "code": 410,
            });
            self.line("ERROR", &status);
            self.ended = true;
            return;
        }
        let at = self.at;
        for change in view.changes_since(at) {
            let before = change.before.as_ref().filter(|object| self.wish.filter.takes(object));
            let after = change.after.as_ref().filter(|object| self.wish.filter.takes(object));
            match (before, after) {
                (None, Some(object)) => self.event("ADDED", object),
                (Some(_), Some(object)) => self.event("MODIFIED", object),
                // A deleted object carries the version of its deletion, so that a client can resume from there.
                (Some(object), None) => {
                    let gone = Object {
                        api_service: object.api_service.clone(),
                        condition: object.condition.clone(),
                        version: change.version,
                    };
                    self.event("DELETED", &gone);
                }
                (None, None) => {}
            }
        }
        self.at = view.version;
    }

    fn event(&mut self, kind: &str, object: &Object) {
        let value = match self.wish.shape {
            Shape::Plain(extent) => object.value(extent),
            Shape::Table(include) => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                table(&[object], object.version, include, columns, SystemTime::now())
            }
        };
        self.line(kind, &value);
    }

    fn bookmark(&mut self, initial_end: bool) {
        let metadata = bookmark_metadata(self.at, initial_end);
        let value = match self.wish.shape {
            Shape::Plain(Extent::Whole) => {
                json!({ "kind": "APIService", "apiVersion": API_VERSION, "metadata": metadata, "spec": {
                    "groupPriorityMinimum": 0, "versionPriority": 0 }, "status": {} })
            }
            Shape::Plain(Extent::Metadata) => {
                json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
            }
            Shape::Table(include) => {
                let mut value = table(&[], self.at, include, false, SystemTime::now());
                let object =
                    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata });
                value["rows"] = json!([{ "cells": ["", "", "", ""], "object": object }]);
                value
            }
        };
        self.line("BOOKMARK", &value);
    }

    fn line(&mut self, kind: &str, object: &Value) {
        self.lines.push_back(watch_event(kind, object));
    }
}

fn next(mut view: Published<View>) -> Pin<Box<dyn Future<Output = Published<View>>>> {
    Box::pin(async move {
        view.changed().await;
        view
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
            if let Poll::Ready(view) = this.waiting.as_mut().poll(cx) {
                this.waiting = next(view);
                this.catch_up();
                continue;
            }
            if this.bookmark.as_mut().poll(cx).is_ready() {
                this.bookmark.as_mut().reset(Instant::now() + BOOKMARK);
                if this.wish.options.bookmarks {
                    this.bookmark(false);
                }
                continue;
            }
            return Poll::Pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::UNIX_EPOCH;

    use http_body_util::BodyExt as _;

    use super::*;
    use crate::availability::ConditionStatus;
    use crate::availability::report::view::tests::{known, registry_of};
    use crate::process::{Drainer, Publisher};
    use crate::registry::Registry;

    fn start(names: &[&str]) -> (Publisher<View>, Published<View>, Drainer, Drain) {
        let view = View::empty(UNIX_EPOCH).next(&registry_of(names), known(ConditionStatus::True)).unwrap();
        let (publisher, published) = Published::new(view);
        let (drainer, drain) = Drain::new();
        (publisher, published, drainer, drain)
    }

    fn wish() -> Wish {
        Wish { filter: Filter::default(), shape: Shape::Plain(Extent::Whole), options: options() }
    }

    fn options() -> WatchOptions {
        WatchOptions {
            initial: false,
            mark_initial: false,
            since: 0,
            bookmarks: false,
            lasts: Duration::from_secs(600),
        }
    }

    async fn line(watch: &mut Watch) -> Option<(String, Value)> {
        let frame = watch.frame().await?.unwrap();
        let value: Value = serde_json::from_slice(&frame.into_data().unwrap()).unwrap();
        Some((value["type"].as_str().unwrap().to_owned(), value["object"].clone()))
    }

    async fn short(watch: &mut Watch) -> String {
        let (kind, object) = line(watch).await.unwrap();
        let metadata = &object["metadata"];
        format!(
            "{kind} {} {}",
            metadata["name"].as_str().unwrap_or("-"),
            metadata["resourceVersion"].as_str().unwrap_or("-")
        )
    }

    #[tokio::test(start_paused = true)]
    async fn initial_objects_then_what_changes() {
        let (publisher, view, drainer, drain) = start(&["v1.a.io", "v1.b.io"]);
        let initial = Wish { options: WatchOptions { initial: true, mark_initial: true, ..options() }, ..wish() };
        let mut watch = Watch::new(view.clone(), drain, initial);
        assert_eq!(short(&mut watch).await, "ADDED v1.a.io 1");
        assert_eq!(short(&mut watch).await, "ADDED v1.b.io 2");
        let (kind, object) = line(&mut watch).await.unwrap();
        assert_eq!(kind, "BOOKMARK");
        assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        let next = view.get().next(&registry_of(&["v1.a.io"]), known(ConditionStatus::False)).unwrap();
        publisher.publish(Arc::new(next));
        assert_eq!(short(&mut watch).await, "MODIFIED v1.a.io 3");
        assert_eq!(short(&mut watch).await, "DELETED v1.b.io 4");
        drainer.advance(Phase::Ending);
        assert!(line(&mut watch).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn since_a_version_and_bookmarks() {
        let (_publisher, view, _drainer, drain) = start(&["v1.a.io", "v1.b.io"]);
        let mut watch = Watch::new(
            view,
            drain,
            Wish { options: WatchOptions { since: 1, bookmarks: true, ..options() }, ..wish() },
        );
        assert_eq!(short(&mut watch).await, "ADDED v1.b.io 2");
        for _ in 0..9 {
            assert_eq!(short(&mut watch).await, "BOOKMARK - 2");
        }
        while let Some((kind, _)) = line(&mut watch).await {
            assert_eq!(kind, "BOOKMARK");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn too_far_behind_is_told_to_list_again() {
        let (publisher, view, _drainer, drain) = start(&["v1.a.io"]);
        publisher.publish(Arc::new(View { forgotten: 9, version: 10, ..View::clone(&view.get()) }));
        let mut watch = Watch::new(view, drain, Wish { options: WatchOptions { since: 5, ..options() }, ..wish() });
        let (kind, object) = line(&mut watch).await.unwrap();
        assert_eq!((kind.as_str(), &object["code"], &object["reason"]), ("ERROR", &json!(410), &json!("Expired")));
        assert!(line(&mut watch).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_leaves_the_selection_is_deleted_from_it() {
        let (publisher, view, _drainer, drain) = start(&["v1.a.io"]);
        let filter = Filter::labels("team=blue").unwrap();
        let table = Shape::Table(Default::default());
        let mut watch = Watch::new(
            view.clone(),
            drain,
            Wish { filter, shape: table, options: WatchOptions { since: 1, ..options() } },
        );
        let other: Registry = crate::registry::snapshot::tests::registry(
            &crate::registry::snapshot::tests::api_service("v1.a.io", "groupPriorityMinimum: 9, versionPriority: 1"),
        );
        publisher.publish(Arc::new(view.get().next(&other, known(ConditionStatus::True)).unwrap()));
        let (kind, object) = line(&mut watch).await.unwrap();
        assert_eq!((kind.as_str(), &object["kind"]), ("DELETED", &json!("Table")));
        assert_eq!(object["rows"][0]["cells"][0], "v1.a.io");
    }
}
