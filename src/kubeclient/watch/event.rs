//! Parses pages of a list and events of a watch.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// One page of a list.
#[derive(Deserialize)]
pub(super) struct ListPage<'p> {
    #[serde(default)]
    pub(super) metadata: ListMetadata,
    #[serde(borrow, default)]
    pub(super) items: Option<Vec<&'p RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMetadata {
    pub(super) resource_version: String,
    pub(super) r#continue: String,
}

/// One line of a watch.
#[derive(Deserialize)]
pub(super) struct RawWatchEvent<'e> {
    pub(super) r#type: WatchEventType,
    #[serde(borrow)]
    pub(super) object: &'e RawValue,
}

/// Type of an event.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum WatchEventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    /// A type unknown to this version.
    #[serde(other)]
    Other,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct VersionedObject {
    metadata: Version,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Version {
    resource_version: String,
}

/// The `resourceVersion` of an object; empty if it has none.
pub(super) fn resource_version(object: &RawValue) -> String {
    serde_json::from_str::<VersionedObject>(object.get()).unwrap_or_default().metadata.resource_version
}

/// A `metav1.Status` of a failed list or watch.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct WatchErrorStatus {
    pub(super) code: u16,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) details: Option<WatchErrorDetails>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct WatchErrorDetails {
    pub(super) retry_after_seconds: u64,
}

impl WatchErrorStatus {
    /// Whether a resource version or `continue` token has expired.
    pub(super) fn is_expired(&self) -> bool {
        self.code == 410 || self.reason == "Expired" || self.reason == "Gone"
    }
}

/// Splits a byte stream into lines.
#[derive(Default)]
pub(super) struct LineBuffer {
    /// Beginning of an incomplete line.
    partial: Vec<u8>,
}

/// A line exceeds the maximum length.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LineTooLong;

impl LineBuffer {
    /// Adds `data` and calls `take` with each completed line. Stops at the first error of `take`.
    pub(super) fn add<E>(
        &mut self,
        data: &Bytes,
        longest: usize,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Result<(), E>, LineTooLong> {
        let mut rest: &[u8] = data;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = &after[1..];
            let taken = if self.partial.is_empty() {
                take(line)
            } else {
                self.partial.extend_from_slice(line);
                let taken = take(&self.partial);
                self.partial.clear();
                taken
            };
            if taken.is_err() {
                return Ok(taken);
            }
        }
        if self.partial.len() + rest.len() > longest {
            return Err(LineTooLong);
        }
        self.partial.extend_from_slice(rest);
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_lines(of: &[&str], longest: usize) -> Result<Vec<String>, LineTooLong> {
        let (mut lines, mut found) = (LineBuffer::default(), Vec::new());
        for data in of {
            let _ = lines.add(&Bytes::from((*data).to_owned()), longest, |line| {
                found.push(String::from_utf8_lossy(line).into_owned());
                Ok::<(), ()>(())
            })?;
        }
        Ok(found)
    }

    #[test]
    fn line_buffer_joins_split_lines() {
        assert_eq!(split_lines(&["a\nb\n"], 9).unwrap(), ["a", "b"]);
        assert_eq!(split_lines(&["a", "", "b\nc", "\n", "\nd"], 9).unwrap(), ["ab", "c", ""]);
        assert_eq!(split_lines(&["abc", "def"], 5), Err(LineTooLong));
        assert_eq!(split_lines(&["abc\n", "def\n"], 5).unwrap(), ["abc", "def"]);
    }

    #[test]
    fn watch_events_and_list_pages_parsed() {
        let event: RawWatchEvent<'_> =
            serde_json::from_str(r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"7","name":"a"}}}"#)
                .unwrap();
        assert_eq!((event.r#type, resource_version(event.object)), (WatchEventType::Added, "7".to_owned()));
        let event: RawWatchEvent<'_> = serde_json::from_str(r#"{"type":"NEW","object":{}}"#).unwrap();
        assert_eq!((event.r#type, resource_version(event.object)), (WatchEventType::Other, String::new()));
        let page: ListPage<'_> =
            serde_json::from_str(r#"{"metadata":{"resourceVersion":"3","continue":"x"},"items":[{}, {}]}"#).unwrap();
        assert_eq!((page.metadata.r#continue.as_str(), page.items.unwrap().len()), ("x", 2));
        let empty: ListPage<'_> = serde_json::from_str(r#"{"metadata":{"resourceVersion":"3"},"items":null}"#).unwrap();
        assert!(empty.items.is_none());
    }

    #[test]
    fn watch_expired_status_recognized() {
        for text in [r#"{"code":410}"#, r#"{"reason":"Expired"}"#, r#"{"reason":"Gone","code":410}"#] {
            assert!(serde_json::from_str::<WatchErrorStatus>(text).unwrap().is_expired(), "{text}");
        }
        assert!(
            !serde_json::from_str::<WatchErrorStatus>(r#"{"code":500,"reason":"InternalError"}"#).unwrap().is_expired()
        );
    }
}
