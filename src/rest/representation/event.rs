//! Events of a watch. An event of a change is encoded once for all watches that send it in one representation.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use http::HeaderValue;
use kubeapi::protobuf::{varint_length, write_bytes, write_tag, write_text, write_varint};
use kubeapi::{Status, encode};
use parking_lot::Mutex;
use serde_json::json;
use store::watch_cache::{StoredChange, WatchEvent, WatchEventKind};

use super::document::{object_document, write_document_json};
use super::negotiate::{ObjectTransform, OutputEncoding, OutputMediaType, RowObject};
use super::reply_object::ReplyObject;
use crate::compute::run_sized;
use crate::conversion::schema_work;
use crate::resources::ServedKind;
use crate::resources::builtin::stored_version::is_stored_as_other;

/// Bytes of encoded events that changes keep at most, of all collections.
const MAX_VIEW_BYTES: usize = 8 << 20;

/// Bounds the encoded events that changes keep for other watches: the oldest are dropped. Cheap to clone.
#[derive(Clone, Default)]
pub(in crate::rest) struct EventViewCache(Arc<Mutex<RecentViews>>);

#[derive(Default)]
struct RecentViews {
    changes: VecDeque<(Weak<StoredChange>, usize)>,
    bytes: usize,
}

impl EventViewCache {
    /// Notes that a change keeps an encoding of this size.
    fn record(&self, change: &Arc<StoredChange>, bytes: usize) {
        let mut dropped = Vec::new();
        {
            let mut recent = self.0.lock();
            recent.bytes += bytes;
            recent.changes.push_back((Arc::downgrade(change), bytes));
            while recent.bytes > MAX_VIEW_BYTES {
                let Some((oldest, bytes)) = recent.changes.pop_front() else { break };
                recent.bytes -= bytes;
                dropped.extend(oldest.upgrade());
            }
        }
        // Without the lock: a change is locked while an event is encoded.
        dropped.iter().for_each(|change| change.views().clear());
    }
}

/// Encodes the events of one watch.
pub(in crate::rest) struct EventEncoder {
    kind: ServedKind,
    media_type: OutputMediaType,
    /// A Table has its columns in the first event only.
    has_sent_columns: bool,
    cache: EventViewCache,
}

impl EventEncoder {
    pub(in crate::rest) fn new(kind: ServedKind, media_type: OutputMediaType, cache: EventViewCache) -> EventEncoder {
        EventEncoder { kind, media_type, has_sent_columns: false, cache }
    }

    /// The value of `Content-Type`.
    pub(in crate::rest) fn content_type(&self) -> HeaderValue {
        match self.media_type.encoding {
            OutputEncoding::Protobuf => HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch"),
            encoding => encoding.for_status().content_type(),
        }
    }

    /// The bytes of an event.
    ///
    /// # Errors
    /// 500 for an object that cannot be read or encoded.
    pub(in crate::rest) async fn encode(&mut self, event: WatchEvent) -> Result<Bytes, Status> {
        let with_columns = !std::mem::replace(&mut self.has_sent_columns, true);
        let (kind, media_type) = (self.kind.clone(), self.media_type);
        let Some(change) = event.change.clone() else {
            let size = event.object.as_ref().map_or(0, |object| schema_work::stored_work(&kind, object));
            return run_sized(size, move || event_frame(&kind, media_type, &event, with_columns)).await?;
        };
        let conversion = match kind.version.custom() {
            Some(version) => version.number(),
            None => u16::from(is_stored_as_other(&kind)),
        };
        let form = view_form(media_type, event.kind, with_columns, SystemTime::now()) | u64::from(conversion) << 48;
        let size = event.object.as_ref().map_or(0, |object| schema_work::stored_work(&kind, object));
        let shared = change.clone();
        let encode = move || {
            let mut result = Ok(0);
            let frame = shared.views().get_or_encode(form, || {
                let frame = event_frame(&kind, media_type, &event, with_columns);
                result = frame.as_ref().map(Bytes::len).map_err(Status::clone);
                frame.unwrap_or_default()
            });
            result.map(|size| (frame, size))
        };
        let (frame, new_bytes) = run_sized(size, encode).await??;
        if new_bytes > 0 {
            self.cache.record(&change, new_bytes);
        }
        if frame.is_empty() { Err(Status::internal_error("object cannot be encoded")) } else { Ok(frame) }
    }

    /// The bytes of an event of type ERROR. A Status is not transformed.
    pub(in crate::rest) fn encode_error(&self, status: &Status) -> Bytes {
        let document = encode(status, self.media_type.encoding.for_status());
        match self.media_type.encoding {
            OutputEncoding::Protobuf => protobuf_frame("ERROR", &document),
            _ => json_frame("ERROR", |out| out.extend_from_slice(document.trim_ascii_end())),
        }
    }
}

/// The number of a representation of an event, for [`Views`](store::watch_cache::Views), without the upper 16 bits, which
/// say how objects are converted. Tables have ages, so that one is shared within a second only.
fn view_form(media_type: OutputMediaType, kind: WatchEventKind, with_columns: bool, now: SystemTime) -> u64 {
    let is_beta = |api_version: &str| u64::from(api_version.ends_with("beta1"));
    let transform = match media_type.transform {
        ObjectTransform::Unchanged => 0,
        ObjectTransform::PartialMetadata(version) => 1 + is_beta(version),
        ObjectTransform::Table(version, row_object) => {
            4 + is_beta(version) + 2 * row_object as u64 + 8 * u64::from(with_columns)
        }
    };
    let second = match media_type.transform {
        ObjectTransform::Table(..) => now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        _ => 0,
    };
    let is_protobuf = u64::from(media_type.encoding == OutputEncoding::Protobuf);
    kind as u64 | is_protobuf << 3 | transform << 4 | second << 16
}

fn event_frame(
    kind: &ServedKind,
    mut media_type: OutputMediaType,
    event: &WatchEvent,
    with_columns: bool,
) -> Result<Bytes, Status> {
    let event_type = match event.kind {
        WatchEventKind::Added => "ADDED",
        WatchEventKind::Modified => "MODIFIED",
        WatchEventKind::Deleted => "DELETED",
        WatchEventKind::Bookmark | WatchEventKind::InitialEventsEnd => "BOOKMARK",
    };
    let object = match &event.object {
        Some(stored) => ReplyObject::Stored(stored.clone(), event.revision),
        None => bookmark_object(kind, event),
    };
    // The annotation is in the object, which must not be left out.
    if event.kind == WatchEventKind::InitialEventsEnd
        && let ObjectTransform::Table(version, RowObject::Absent) = media_type.transform
    {
        media_type.transform = ObjectTransform::Table(version, RowObject::Metadata);
    }
    if media_type.encoding == OutputEncoding::Protobuf {
        return Ok(protobuf_frame(event_type, &object_document(kind, &object, media_type, with_columns)?));
    }
    object.check_readable(kind)?;
    Ok(json_frame(event_type, |out| write_document_json(out, kind, &object, media_type.transform, with_columns)))
}

/// The object of a bookmark: its type and metadata.
fn bookmark_object(kind: &ServedKind, event: &WatchEvent) -> ReplyObject {
    let mut metadata = json!({"resourceVersion": event.revision.to_string()});
    if event.kind == WatchEventKind::InitialEventsEnd {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    ReplyObject::Unstored(json!({"apiVersion": kind.api_version(), "kind": kind.resource.kind, "metadata": metadata}))
}

/// A line of JSON.
fn json_frame(event_type: &str, write_object: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::with_capacity(4096);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(event_type.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    write_object(&mut out);
    out.extend_from_slice(b"}\n");
    out.into()
}

/// A `metav1.WatchEvent` with its length before it, in four bytes
/// (`k8s.io/apimachinery/pkg/util/framer`, `NewLengthDelimitedFrameWriter`).
fn protobuf_frame(event_type: &str, document: &[u8]) -> Bytes {
    let mut out = vec![0; 4];
    write_text(&mut out, 1, event_type);
    // `runtime.RawExtension` with the document.
    write_tag(&mut out, 2, 2);
    write_varint(&mut out, (1 + varint_length(document.len() as u64) + document.len()) as u64);
    write_bytes(&mut out, 1, document);
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
    out.into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn watch_event_form_is_its_own_for_each_representation() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let versions = ["meta.k8s.io/v1", "meta.k8s.io/v1beta1"];
        let rows = [RowObject::Absent, RowObject::Metadata, RowObject::Complete];
        let tables = versions.iter().flat_map(|version| rows.map(|row| ObjectTransform::Table(version, row)));
        let partial = versions.iter().map(|version| ObjectTransform::PartialMetadata(version));
        let transforms: Vec<_> = tables.chain(partial).chain([ObjectTransform::Unchanged]).collect();
        let (mut forms, mut count) = (HashSet::new(), 0);
        for transform in transforms {
            for encoding in [OutputEncoding::Json, OutputEncoding::Protobuf] {
                for kind in [WatchEventKind::Added, WatchEventKind::Modified, WatchEventKind::Deleted] {
                    let media_type = OutputMediaType { encoding, transform, accepts_gzip: false };
                    let form = |with_columns, now| view_form(media_type, kind, with_columns, now);
                    let is_table = matches!(transform, ObjectTransform::Table(..));
                    assert_eq!(form(true, now) != form(false, now), is_table, "columns of {transform:?}");
                    assert_eq!(form(true, now), form(true, now + Duration::from_millis(999)));
                    assert_eq!(form(true, now) != form(true, now + Duration::from_secs(1)), is_table, "{transform:?}");
                    forms.extend([form(true, now), form(false, now)]);
                    count += if is_table { 2 } else { 1 };
                }
            }
        }
        assert_eq!(forms.len(), count);
    }
}
