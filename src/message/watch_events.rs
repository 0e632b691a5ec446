//! Encoding of watch events, and their boundaries.

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

/// The events in a part of a watch that begins and ends between events: lines of JSON, or with protobuf each after its
/// length in four bytes, big-endian.
pub fn split_watch_events(mut events: &[u8], is_protobuf: bool) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = if is_protobuf {
            events.first_chunk().map(|length| (u32::from_be_bytes(*length) as usize).saturating_add(4))
        } else {
            events.iter().position(|byte| *byte == b'\n').map(|newline| newline + 1)
        };
        let (event, rest) = events.split_at(end.unwrap_or(usize::MAX).min(events.len()));
        events = rest;
        (!event.is_empty()).then_some(event)
    })
}

/// The metadata of a bookmark at `version`. With `initial_end` it marks the end of the existing objects (KEP-3157).
pub fn bookmark_metadata(version: u64, initial_end: bool) -> Value {
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if initial_end {
        metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_events_split_at_lines_and_protobuf_lengths() {
        let split = |events: &'static [u8], is_protobuf| split_watch_events(events, is_protobuf).collect::<Vec<_>>();
        assert_eq!(split(b"{}\n{\"a\":1}\n", false), [&b"{}\n"[..], b"{\"a\":1}\n"]);
        assert_eq!(split(b"\0\0\0\x03a\nc\0\0\0\x01\n", true), [&b"\0\0\0\x03a\nc"[..], b"\0\0\0\x01\n"]);
        // Incomplete events, which no server here sends, are one.
        assert_eq!(split(b"{}", false), [b"{}"]);
        assert_eq!(split(b"\xff\xff\xff\xffab", true), [b"\xff\xff\xff\xffab"]);
        assert_eq!(split(b"\0\0", true), [b"\0\0"]);
        assert!(split(b"", true).is_empty() && split(b"", false).is_empty());
    }
}
