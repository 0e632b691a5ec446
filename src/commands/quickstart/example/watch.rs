//! Watches: initial objects, then changes, with periodic bookmarks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, interval_at, sleep_until};

use super::api_errors;
use super::object;
use super::options::{ExampleListOptions, ExampleListVersion};
use super::representation::Representation;
use super::resource::ExampleResource;
use super::store::{ObjectChange, ObjectStore, RevisionError};
use crate::kubeapi::Status;
use crate::message::{WatchEvents, bookmark_metadata};
use crate::process::{Drain, ShutdownPhase};

/// A watch: its options and its position in the history.
pub(super) struct ObjectWatch {
    store: Arc<ObjectStore>,
    resource: &'static ExampleResource,
    namespace: Option<String>,
    options: ExampleListOptions,
    view: Representation,
    latest: tokio::sync::watch::Receiver<u64>,
    /// The revision up to which changes were sent.
    position: u64,
    /// Events not yet returned.
    pending: WatchEvents,
    /// Whether the columns of the Table were sent.
    columns_sent: bool,
    bookmarks: Interval,
    deadline: Instant,
    drain: Drain,
    ended: bool,
}

impl ObjectWatch {
    /// Starts a watch with the current objects or after a revision, depending on `options`. As in Kubernetes' watch
    /// cache, a revision outside the history is reported in the stream, as an ERROR event.
    pub(super) fn start(
        store: Arc<ObjectStore>,
        resource: &'static ExampleResource,
        namespace: Option<String>,
        options: ExampleListOptions,
        view: Representation,
        bookmark_every: Duration,
        drain: Drain,
    ) -> ObjectWatch {
        let timeout = match options.timeout {
            // As kube-apiserver's --min-request-timeout: random, so that watches do not reconnect all at once.
            Duration::ZERO => Duration::from_secs(fastrand::u64(1800..3600)),
            given => given.min(Duration::from_secs(24 * 3600)),
        };
        let now = Instant::now();
        let latest = store.latest();
        let mut watch = ObjectWatch {
            store,
            resource,
            namespace,
            options,
            view,
            latest,
            position: 0,
            pending: WatchEvents::default(),
            columns_sent: false,
            bookmarks: interval_at(now + bookmark_every, bookmark_every),
            deadline: now + timeout,
            drain,
            ended: false,
        };
        watch.set_start_position();
        watch
    }

    /// The next event, a line; `None` when the watch has ended.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.send_changes();
            if let Some(event) = self.pending.pop() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            tokio::select! {
                changed = self.latest.changed() => self.ended |= changed.is_err(),
                () = self.drain.wait_for(ShutdownPhase::Ending) => self.ended = true,
                () = sleep_until(self.deadline) => {
                    self.send_bookmark(false);
                    self.ended = true;
                }
                _ = self.bookmarks.tick() => self.send_bookmark(false),
            }
        }
    }

    fn set_start_position(&mut self) {
        let with_state = self.options.initial_events.unwrap_or(false);
        match self.options.version {
            ExampleListVersion::NotOlderThan(revision) | ExampleListVersion::Exact(revision) => {
                let current = *self.latest.borrow();
                if revision > current {
                    return self.send_error(&api_errors::resource_version_too_large(revision, current));
                }
                if with_state { self.send_initial_events() } else { self.position = revision }
            }
            ExampleListVersion::Latest | ExampleListVersion::Any if self.options.initial_events == Some(false) => {
                self.position = *self.latest.borrow()
            }
            ExampleListVersion::Latest | ExampleListVersion::Any => self.send_initial_events(),
        }
        if with_state {
            self.send_bookmark(true);
        }
    }

    fn send_initial_events(&mut self) {
        match self.store.list(self.resource.plural, self.namespace.as_deref(), None) {
            Ok(snapshot) => {
                self.position = snapshot.revision;
                for object in &snapshot.objects {
                    if self.options.selector.matches(object) {
                        self.send_event("ADDED", object);
                    }
                }
            }
            Err(out_of_reach) => self.send_error(&revision_error_status(&out_of_reach, self.position)),
        }
    }

    fn send_changes(&mut self) {
        if self.ended {
            return;
        }
        match self.store.changes_since(self.position) {
            Ok((changes, revision)) => {
                for change in changes {
                    self.send_change(&change);
                }
                self.position = revision;
            }
            Err(out_of_reach) => self.send_error(&revision_error_status(&out_of_reach, self.position)),
        }
    }

    /// Sends a change. With a selector, an object that no longer matches is sent as DELETED, one that newly matches as
    /// ADDED.
    fn send_change(&mut self, change: &ObjectChange) {
        let (plural, namespace, _) = &change.key;
        if *plural != self.resource.plural || self.namespace.as_ref().is_some_and(|wanted| wanted != namespace) {
            return;
        }
        let selector = &self.options.selector;
        let before = change.before.as_ref().is_some_and(|before| selector.matches(before));
        let after = !change.deleted && selector.matches(&change.object);
        let kind = match (before, after) {
            (false, false) => return,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        match &change.before {
            Some(last_seen) if kind == "DELETED" && !change.deleted => {
                let mut object = Value::clone(last_seen);
                object::set_metadata(&mut object, "resourceVersion", Some(json!(change.revision.to_string())));
                self.send_event(kind, &object);
            }
            _ => self.send_event(kind, &change.object),
        }
    }

    fn send_bookmark(&mut self, initial_events_end: bool) {
        if !self.options.bookmarks {
            return;
        }
        let mut metadata = bookmark_metadata(self.position, initial_events_end);
        metadata["creationTimestamp"] = Value::Null;
        let object = json!({"apiVersion": self.resource.group_version(), "kind": self.resource.kind,
            "metadata": metadata});
        self.send_event("BOOKMARK", &object);
    }

    fn send_error(&mut self, status: &Status) {
        self.pending.push_error(status);
        self.ended = true;
    }

    fn send_event(&mut self, kind: &str, object: &Value) {
        self.pending.push(kind, &self.view.render_event(self.resource, object, !self.columns_sent));
        self.columns_sent = true;
    }
}

fn revision_error_status(out_of_reach: &RevisionError, asked: u64) -> Status {
    match out_of_reach {
        RevisionError::TooOld { oldest } => Status::expired(format!("too old resource version: {asked} ({oldest})")),
        RevisionError::Future { current } => api_errors::resource_version_too_large(asked, *current),
    }
}
