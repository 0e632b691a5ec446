//! Writes events of a watch (`metav1.WatchEvent`), for servers.

use bytes::Bytes;
use serde_json::{Value, json};

/// One event of `kind` (`ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, `ERROR`): JSON and a newline.
pub fn watch_event(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

/// The metadata of a bookmark at `version`. With `initial_end` it marks the end of the initial objects (KEP-3157).
pub fn bookmark_metadata(version: u64, initial_end: bool) -> Value {
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if initial_end {
        metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    metadata
}
