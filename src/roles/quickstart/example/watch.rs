//! Watches: initial objects, then changes, with periodic bookmarks.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, interval_at, sleep_until};

use super::failure;
use super::object;
use super::options::{ListOptions, Version};
use super::resource::Resource;
use super::store::{Change, OutOfReach, Store};
use super::view::View;
use crate::kubeapi::{Encoding, Status, encode};
use crate::process::{Drain, Phase};

/// The annotation on the bookmark that ends the initial events (KEP-3157).
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A watch: its options and its position in the history.
pub(super) struct Watch {
    store: Arc<Store>,
    resource: &'static Resource,
    namespace: Option<String>,
    options: ListOptions,
    view: View,
    latest: tokio::sync::watch::Receiver<u64>,
    /// The revision up to which changes were sent.
    position: u64,
    /// Encoded events not yet returned.
    pending: Vec<u8>,
    /// Whether the columns of the Table were sent.
    columns_told: bool,
    bookmarks: Interval,
    deadline: Instant,
    drain: Drain,
    ended: bool,
}

impl Watch {
    /// Starts a watch with the current objects or after a revision, depending on `options`. As in upstream's watch
    /// cache, a revision outside the history is reported in the stream, as an ERROR event.
    pub(super) fn begin(
        store: Arc<Store>,
        resource: &'static Resource,
        namespace: Option<String>,
        options: ListOptions,
        view: View,
        bookmark_every: Duration,
        drain: Drain,
    ) -> Watch {
        let timeout = match options.timeout {
            // As kube-apiserver's --min-request-timeout: random, so that watches do not reconnect all at once.
            Duration::ZERO => Duration::from_secs(fastrand::u64(1800..3600)),
            given => given.min(Duration::from_secs(24 * 3600)),
        };
        let now = Instant::now();
        let latest = store.latest();
        let mut watch = Watch {
            store,
            resource,
            namespace,
            options,
            view,
            latest,
            position: 0,
            pending: Vec::new(),
            columns_told: false,
            bookmarks: interval_at(now + bookmark_every, bookmark_every),
            deadline: now + timeout,
            drain,
            ended: false,
        };
        watch.open();
        watch
    }

    /// The next events, one per line; `None` when the watch has ended.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.catch_up();
            if !self.pending.is_empty() {
                return Some(std::mem::take(&mut self.pending).into());
            }
            if self.ended {
                return None;
            }
            tokio::select! {
                changed = self.latest.changed() => self.ended |= changed.is_err(),
                () = self.drain.reached(Phase::Ending) => self.ended = true,
                () = sleep_until(self.deadline) => {
                    self.bookmark(false);
                    self.ended = true;
                }
                _ = self.bookmarks.tick() => self.bookmark(false),
            }
        }
    }

    fn open(&mut self) {
        let with_state = self.options.initial_events.unwrap_or(false);
        match self.options.version {
            Version::NotOlderThan(revision) | Version::Exact(revision) => {
                let current = *self.latest.borrow();
                if revision > current {
                    return self.fail(&failure::from_the_future(revision, current));
                }
                if with_state { self.tell_state() } else { self.position = revision }
            }
            Version::Latest | Version::Any if self.options.initial_events == Some(false) => {
                self.position = *self.latest.borrow()
            }
            Version::Latest | Version::Any => self.tell_state(),
        }
        if with_state {
            self.bookmark(true);
        }
    }

    fn tell_state(&mut self) {
        match self.store.list(self.resource.plural, self.namespace.as_deref(), None) {
            Ok(snapshot) => {
                self.position = snapshot.revision;
                for object in &snapshot.objects {
                    if self.options.selector.matches(object) {
                        self.write("ADDED", object);
                    }
                }
            }
            Err(out_of_reach) => self.fail(&refusal(&out_of_reach, self.position)),
        }
    }

    fn catch_up(&mut self) {
        if self.ended {
            return;
        }
        match self.store.changes_since(self.position) {
            Ok((changes, revision)) => {
                for change in changes {
                    self.tell(&change);
                }
                self.position = revision;
            }
            Err(out_of_reach) => self.fail(&refusal(&out_of_reach, self.position)),
        }
    }

    /// Sends a change. With a selector, an object that no longer matches is sent as DELETED, one that newly matches as
    /// ADDED.
    fn tell(&mut self, change: &Change) {
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
                self.write(kind, &object);
            }
            _ => self.write(kind, &change.object),
        }
    }

    fn bookmark(&mut self, initial_events_end: bool) {
        if !self.options.bookmarks {
            return;
        }
        let mut metadata = json!({"resourceVersion": self.position.to_string(), "creationTimestamp": null});
        if initial_events_end {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let object = json!({"apiVersion": self.resource.group_version(), "kind": self.resource.kind,
            "metadata": metadata});
        self.write("BOOKMARK", &object);
    }

    fn fail(&mut self, status: &Status) {
        let status = encode(status, Encoding::Json);
        self.pending.extend_from_slice(b"{\"type\":\"ERROR\",\"object\":");
        self.pending.extend_from_slice(status.trim_ascii_end());
        self.pending.extend_from_slice(b"}\n");
        self.ended = true;
    }

    fn write(&mut self, kind: &str, object: &Value) {
        line(&mut self.pending, kind, &self.view.event(self.resource, object, !self.columns_told));
        self.columns_told = true;
    }
}

fn refusal(out_of_reach: &OutOfReach, asked: u64) -> Status {
    match out_of_reach {
        OutOfReach::TooOld { oldest } => Status::expired(format!("too old resource version: {asked} ({oldest})")),
        OutOfReach::Future { current } => failure::from_the_future(asked, *current),
    }
}

fn line(pending: &mut Vec<u8>, kind: &str, object: &Value) {
    pending.extend_from_slice(json!({"type": kind, "object": object}).to_string().as_bytes());
    pending.push(b'\n');
}
