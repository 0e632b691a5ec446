//! A watch: the changes since a version, then new ones, until its end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body::{Body, Frame};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::object::{API_VERSION, ApiServiceObject, Projection};
use super::serve::{ObjectFilter, ResponseFormat};
use super::table::table;
use super::view::ApiServiceView;
use crate::kubeapi::{WatchOptions, bookmark_metadata, watch_event};
use crate::message::BodyError;
use crate::process::{Drain, Published, ShutdownPhase};

/// A watch request.
pub(super) struct WatchRequest {
    pub(super) filter: ObjectFilter,
    pub(super) shape: ResponseFormat,
    pub(super) options: WatchOptions,
}

/// The response body of a watch: one JSON event per line.
pub(super) struct ApiServiceWatch {
    request: WatchRequest,
    /// Resolves with the next version of the view; replaced each time.
    next_view: Pin<Box<dyn Future<Output = Published<ApiServiceView>>>>,
    view: Published<ApiServiceView>,
    drain: Pin<Box<dyn Future<Output = ()>>>,
    end: Pin<Box<Sleep>>,
    bookmark: Pin<Box<Sleep>>,
    /// Version up to which all events are sent or queued.
    sent_version: u64,
    lines: VecDeque<Bytes>,
    columns_sent: bool,
    ended: bool,
}

/// Interval of bookmarks, as in upstream's watch cache.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

impl ApiServiceWatch {
    pub(super) fn new(view: Published<ApiServiceView>, mut drain: Drain, wish: WatchRequest) -> ApiServiceWatch {
        let mut watch = ApiServiceWatch {
            next_view: next_view(view.clone()),
            // The watch is always between two events, so it need not wait for the end of the grace period.
            drain: Box::pin(async move { drain.wait_for(ShutdownPhase::Draining).await }),
            end: Box::pin(tokio::time::sleep(wish.options.timeout)),
            bookmark: Box::pin(tokio::time::sleep(BOOKMARK_INTERVAL)),
            sent_version: wish.options.since_version,
            lines: VecDeque::new(),
            columns_sent: false,
            ended: false,
            request: wish,
            view,
        };
        watch.start();
        watch
    }

    fn start(&mut self) {
        if self.request.options.sends_initial_events {
            let view = self.view.get();
            for object in view.objects() {
                if self.request.filter.matches(object) {
                    self.event("ADDED", object);
                }
            }
            self.sent_version = view.version;
            if self.request.options.marks_initial_end {
                self.bookmark(true);
            }
        }
        self.catch_up();
    }

    /// Queues all changes since the last one queued.
    fn catch_up(&mut self) {
        let view = self.view.get();
        if self.sent_version < view.compacted_version {
            let message = format!("too old resource version: {} ({})", self.sent_version, view.compacted_version + 1);
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "Expired", "code": 410,
            });
            self.line("ERROR", &status);
            self.ended = true;
            return;
        }
        let at = self.sent_version;
        for change in view.changes_since(at) {
            let before = change.before.as_ref().filter(|object| self.request.filter.matches(object));
            let after = change.after.as_ref().filter(|object| self.request.filter.matches(object));
            match (before, after) {
                (None, Some(object)) => self.event("ADDED", object),
                (Some(_), Some(object)) => self.event("MODIFIED", object),
                // A deleted object carries the version of its deletion, so that a client can resume from there.
                (Some(object), None) => {
                    let gone = ApiServiceObject {
                        api_service: object.api_service.clone(),
                        condition: object.condition.clone(),
                        version: change.version,
                    };
                    self.event("DELETED", &gone);
                }
                (None, None) => {}
            }
        }
        self.sent_version = view.version;
    }

    fn event(&mut self, kind: &str, object: &ApiServiceObject) {
        let value = match self.request.shape {
            ResponseFormat::Plain(extent) => object.value(extent),
            ResponseFormat::Table(include) => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                table(&[object], object.version, include, columns, SystemTime::now())
            }
        };
        self.line(kind, &value);
    }

    fn bookmark(&mut self, initial_end: bool) {
        let metadata = bookmark_metadata(self.sent_version, initial_end);
        let value = match self.request.shape {
            ResponseFormat::Plain(Projection::Full) => {
                json!({ "kind": "APIService", "apiVersion": API_VERSION, "metadata": metadata, "spec": {
                    "groupPriorityMinimum": 0, "versionPriority": 0 }, "status": {} })
            }
            ResponseFormat::Plain(Projection::Metadata) => {
                json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
            }
            ResponseFormat::Table(include) => {
                let mut value = table(&[], self.sent_version, include, false, SystemTime::now());
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

fn next_view(mut view: Published<ApiServiceView>) -> Pin<Box<dyn Future<Output = Published<ApiServiceView>>>> {
    Box::pin(async move {
        view.changed().await;
        view
    })
}

impl Body for ApiServiceWatch {
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
            if let Poll::Ready(view) = this.next_view.as_mut().poll(cx) {
                this.next_view = next_view(view);
                this.catch_up();
                continue;
            }
            if this.bookmark.as_mut().poll(cx).is_ready() {
                this.bookmark.as_mut().reset(Instant::now() + BOOKMARK_INTERVAL);
                if this.request.options.sends_bookmarks {
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
    use crate::availability::apiservice_api::view::tests::{condition_of, registry_of};
    use crate::process::{Drainer, Publisher};
    use crate::registry::Registry;

    fn start(names: &[&str]) -> (Publisher<ApiServiceView>, Published<ApiServiceView>, Drainer, Drain) {
        let view = ApiServiceView::empty(UNIX_EPOCH)
            .updated(&registry_of(names), condition_of(ConditionStatus::True))
            .unwrap();
        let (publisher, published) = Published::new(view);
        let (drainer, drain) = Drain::new();
        (publisher, published, drainer, drain)
    }

    fn request() -> WatchRequest {
        WatchRequest {
            filter: ObjectFilter::default(),
            shape: ResponseFormat::Plain(Projection::Full),
            options: options(),
        }
    }

    fn options() -> WatchOptions {
        WatchOptions {
            sends_initial_events: false,
            marks_initial_end: false,
            since_version: 0,
            sends_bookmarks: false,
            timeout: Duration::from_secs(600),
        }
    }

    async fn line(watch: &mut ApiServiceWatch) -> Option<(String, Value)> {
        let frame = watch.frame().await?.unwrap();
        let value: Value = serde_json::from_slice(&frame.into_data().unwrap()).unwrap();
        Some((value["type"].as_str().unwrap().to_owned(), value["object"].clone()))
    }

    async fn short(watch: &mut ApiServiceWatch) -> String {
        let (kind, object) = line(watch).await.unwrap();
        let metadata = &object["metadata"];
        format!(
            "{kind} {} {}",
            metadata["name"].as_str().unwrap_or("-"),
            metadata["resourceVersion"].as_str().unwrap_or("-")
        )
    }

    #[tokio::test(start_paused = true)]
    async fn apiservices_watch_sends_initial_objects_then_changes() {
        let (publisher, view, drainer, drain) = start(&["v1.a.io", "v1.b.io"]);
        let initial = WatchRequest {
            options: WatchOptions { sends_initial_events: true, marks_initial_end: true, ..options() },
            ..request()
        };
        let mut watch = ApiServiceWatch::new(view.clone(), drain, initial);
        assert_eq!(short(&mut watch).await, "ADDED v1.a.io 1");
        assert_eq!(short(&mut watch).await, "ADDED v1.b.io 2");
        let (kind, object) = line(&mut watch).await.unwrap();
        assert_eq!(kind, "BOOKMARK");
        assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
        let next = view.get().updated(&registry_of(&["v1.a.io"]), condition_of(ConditionStatus::False)).unwrap();
        publisher.publish(Arc::new(next));
        assert_eq!(short(&mut watch).await, "MODIFIED v1.a.io 3");
        assert_eq!(short(&mut watch).await, "DELETED v1.b.io 4");
        drainer.advance(ShutdownPhase::Ending);
        assert!(line(&mut watch).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn apiservices_watch_since_version_with_bookmarks() {
        let (_publisher, view, _drainer, drain) = start(&["v1.a.io", "v1.b.io"]);
        let mut watch = ApiServiceWatch::new(
            view,
            drain,
            WatchRequest {
                options: WatchOptions { since_version: 1, sends_bookmarks: true, ..options() },
                ..request()
            },
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
    async fn apiservices_watch_expired_version_ends_with_410() {
        let (publisher, view, _drainer, drain) = start(&["v1.a.io"]);
        publisher.publish(Arc::new(ApiServiceView {
            compacted_version: 9,
            version: 10,
            ..ApiServiceView::clone(&view.get())
        }));
        let mut watch = ApiServiceWatch::new(
            view,
            drain,
            WatchRequest { options: WatchOptions { since_version: 5, ..options() }, ..request() },
        );
        let (kind, object) = line(&mut watch).await.unwrap();
        assert_eq!((kind.as_str(), &object["code"], &object["reason"]), ("ERROR", &json!(410), &json!("Expired")));
        assert!(line(&mut watch).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn apiservices_watch_sends_deleted_when_selector_no_longer_matches() {
        let (publisher, view, _drainer, drain) = start(&["v1.a.io"]);
        let filter = ObjectFilter::labels("team=blue").unwrap();
        let table = ResponseFormat::Table(Default::default());
        let mut watch = ApiServiceWatch::new(
            view.clone(),
            drain,
            WatchRequest { filter, shape: table, options: WatchOptions { since_version: 1, ..options() } },
        );
        let other: Registry = crate::registry::snapshot::tests::registry(
            &crate::registry::snapshot::tests::api_service("v1.a.io", "groupPriorityMinimum: 9, versionPriority: 1"),
        );
        publisher.publish(Arc::new(view.get().updated(&other, condition_of(ConditionStatus::True)).unwrap()));
        let (kind, object) = line(&mut watch).await.unwrap();
        assert_eq!((kind.as_str(), &object["kind"]), ("DELETED", &json!("Table")));
        assert_eq!(object["rows"][0]["cells"][0], "v1.a.io");
    }
}
