//! The events of a watch of APIServices: the changes since a version, then new ones.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::object::{API_VERSION, ApiServiceObject, Projection};
use super::object_filter::ObjectFilter;
use super::table::{ResponseFormat, table};
use super::view::ApiServiceView;
use crate::kubeapi::{Status, WatchOptions};
use crate::message::{WatchEvents, WatchSource, WatchStream};
use crate::process::{Drain, Published};

/// A watch request.
pub(super) struct WatchRequest {
    pub(super) filter: ObjectFilter,
    pub(super) shape: ResponseFormat,
    pub(super) options: WatchOptions,
}

/// Starts a watch of `view`.
pub(super) fn watch_api_services(
    view: Published<ApiServiceView>,
    drain: Drain,
    request: WatchRequest,
) -> WatchStream<ApiServiceEvents> {
    let WatchRequest { filter, shape, options } = request;
    WatchStream::new(ApiServiceEvents { filter, shape, columns_sent: false }, view, drain, options)
}

/// The events of one watch.
pub(super) struct ApiServiceEvents {
    filter: ObjectFilter,
    shape: ResponseFormat,
    columns_sent: bool,
}

impl ApiServiceEvents {
    fn push(&mut self, kind: &str, object: &ApiServiceObject, events: &mut WatchEvents) {
        let value = match self.shape {
            ResponseFormat::Plain(extent) => object.value(extent),
            ResponseFormat::Table(include) => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                table(&[object], object.version, include, columns, SystemTime::now())
            }
        };
        events.push(kind, &value);
    }
}

impl WatchSource for ApiServiceEvents {
    type Snapshot = ApiServiceView;

    fn initial_events(&mut self, view: &ApiServiceView, events: &mut WatchEvents) -> u64 {
        for object in view.objects() {
            if self.filter.matches(object) {
                self.push("ADDED", object, events);
            }
        }
        view.version
    }

    fn changes(&mut self, view: &ApiServiceView, since: u64, events: &mut WatchEvents) -> Result<u64, Status> {
        if since < view.compacted_version {
            let oldest = view.compacted_version + 1;
            return Err(Status::expired(format!("too old resource version: {since} ({oldest})")));
        }
        for change in view.changes_since(since) {
            let before = change.before.as_ref().filter(|object| self.filter.matches(object));
            let after = change.after.as_ref().filter(|object| self.filter.matches(object));
            match (before, after) {
                (None, Some(object)) => self.push("ADDED", object, events),
                (Some(_), Some(object)) => self.push("MODIFIED", object, events),
                // A deleted object carries the version of its deletion, so that a client can resume from there.
                (Some(object), None) => {
                    let gone = ApiServiceObject {
                        api_service: object.api_service.clone(),
                        condition: object.condition.clone(),
                        version: change.version,
                    };
                    self.push("DELETED", &gone, events);
                }
                (None, None) => {}
            }
        }
        Ok(view.version)
    }

    fn bookmark(&self, version: u64, metadata: Value) -> Value {
        match self.shape {
            ResponseFormat::Plain(Projection::Full) => {
                json!({ "kind": "APIService", "apiVersion": API_VERSION, "metadata": metadata, "spec": {
                    "groupPriorityMinimum": 0, "versionPriority": 0 }, "status": {} })
            }
            ResponseFormat::Plain(Projection::Metadata) => {
                json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
            }
            ResponseFormat::Table(include) => {
                let mut value = table(&[], version, include, false, SystemTime::now());
                let object =
                    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata });
                value["rows"] = json!([{ "cells": ["", "", "", ""], "object": object }]);
                value
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    use http_body_util::BodyExt as _;

    use super::*;
    use crate::availability::ConditionStatus;
    use crate::availability::apiservice_api::view::tests::{condition_of, registry_of};
    use crate::process::{Drainer, Publisher, ShutdownPhase};
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

    async fn line(watch: &mut WatchStream<ApiServiceEvents>) -> Option<(String, Value)> {
        let frame = watch.frame().await?.unwrap();
        let value: Value = serde_json::from_slice(&frame.into_data().unwrap()).unwrap();
        Some((value["type"].as_str().unwrap().to_owned(), value["object"].clone()))
    }

    async fn short(watch: &mut WatchStream<ApiServiceEvents>) -> String {
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
        let mut watch = watch_api_services(view.clone(), drain, initial);
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
        let mut watch = watch_api_services(
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
        let mut watch = watch_api_services(
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
        let mut watch = watch_api_services(
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
