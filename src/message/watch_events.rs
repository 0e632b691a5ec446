//! Encoding of watch events.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::kubeapi::{Status, StatusEncoding, encode};

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
