//! Lists and Tables of many objects, in frames: bytes of the store are copied as the client takes them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use kubeapi::Status;
use kubeapi::continue_token::ContinueToken;
use kubeapi::json::quote_json_into;
use kubeapi::protobuf::encode::encode_message;
use kubeapi::protobuf::table::MessageId;
use kubeapi::protobuf::{UnknownFrame, varint_length, write_bytes};
use kubeapi::yaml::write_yaml_into;
use serde_json::{Value, json};
use store::watch_cache::{Stored, StoredList};

use super::body::{FRAME_BYTES, FrameSource, IndentedFrames};
use super::document::{parse_json, write_item};
use super::negotiate::{ObjectTransform, OutputEncoding, OutputMediaType};
use super::reply_object::ReplyObject;
use super::table::table_head;
use crate::compute::run_sized;
use crate::conversion::schema_work;
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;

/// Work for a cell of a Table, in bytes.
const CELL_WORK: usize = 64;

/// Bytes of items in protobuf that a list keeps until they are sent.
const MAX_ENCODED_BYTES: usize = 4 << 20;

/// A list in frames.
///
/// # Errors
/// 500 for an object that cannot be read or encoded. Nothing of the list has been sent then.
pub(super) async fn list_frames(
    kind: &ServedKind,
    list: StoredList,
    media_type: OutputMediaType,
) -> Result<Box<dyn FrameSource>, Status> {
    if let Some((key, defect)) = list.objects.iter().find_map(|object| Some((object.key(), object.defect()?))) {
        return Err(Status::internal_error(format_args!("{key} cannot be read: {defect}")));
    }
    let document = ListDocument::new(kind, &list, media_type.transform);
    if media_type.encoding == OutputEncoding::Protobuf {
        return protobuf_frames(kind, list, media_type.transform, &document).await;
    }
    let (head, tail) = match media_type.encoding {
        OutputEncoding::Yaml => document.yaml_parts(list.objects.is_empty())?,
        _ => (document.head.into_bytes(), [document.tail.as_bytes(), b"\n"].concat()),
    };
    let frames = ItemFrames {
        kind: kind.clone(),
        media_type,
        now: SystemTime::now(),
        head,
        objects: list.objects.into_iter(),
        is_first: true,
        tail: Some(tail),
    };
    Ok(match media_type.encoding {
        OutputEncoding::PrettyJson => Box::new(IndentedFrames::new(Box::new(frames))),
        _ => Box::new(frames),
    })
}

/// What is around the items of a list.
struct ListDocument {
    /// JSON up to the first item.
    head: String,
    /// JSON after the last item.
    tail: String,
    /// Name of the field of the items.
    items: &'static str,
    /// Metadata as JSON.
    metadata: String,
    api_version: String,
    kind: String,
}

impl ListDocument {
    fn new(kind: &ServedKind, list: &StoredList, transform: ObjectTransform) -> ListDocument {
        let is_unstructured = kind.resource.custom.is_some() && transform == ObjectTransform::Unchanged;
        let metadata = if is_unstructured { unstructured_metadata(list) } else { list_metadata(list) };
        let (api_version, list_kind) = match transform {
            ObjectTransform::Unchanged => (kind.api_version(), kind.resource.list_kind.as_deref().unwrap_or_default()),
            ObjectTransform::PartialMetadata(version) => (version.to_owned(), "PartialObjectMetadataList"),
            ObjectTransform::Table(version, _) => (version.to_owned(), "Table"),
        };
        let mut tail = "]}".to_owned();
        let (head, items) = match transform {
            ObjectTransform::Table(version, _) => (table_head(kind, version, &metadata, true), "rows"),
            // A kube-apiserver writes the keys of lists of custom objects sorted (`unstructured.UnstructuredList`).
            ObjectTransform::Unchanged if is_unstructured => {
                let mut head = String::from("{\"apiVersion\":");
                quote_json_into(&mut head, &api_version);
                head.push_str(",\"items\":[");
                tail = String::from("],\"kind\":");
                quote_json_into(&mut tail, list_kind);
                tail.push_str(&format!(",\"metadata\":{metadata}}}"));
                (head, "items")
            }
            _ => {
                let mut head = String::from("{\"kind\":");
                quote_json_into(&mut head, list_kind);
                head.push_str(",\"apiVersion\":");
                quote_json_into(&mut head, &api_version);
                head.push_str(&format!(",\"metadata\":{metadata},\"items\":["));
                (head, "items")
            }
        };
        ListDocument { head, tail, items, metadata, api_version, kind: list_kind.to_owned() }
    }

    /// YAML before and after the items, with sorted keys.
    fn yaml_parts(&self, is_empty: bool) -> Result<(Vec<u8>, Vec<u8>), Status> {
        let mut document = parse_json(format!("{}{}", self.head, self.tail).as_bytes())?;
        let mut before = json!({});
        if let (Value::Object(all), Value::Object(before)) = (&mut document, &mut before) {
            all.remove(self.items);
            let keys: Vec<String> = all.keys().filter(|key| &***key < self.items).cloned().collect();
            keys.into_iter().for_each(|key| drop(all.remove(&key).map(|value| before.insert(key, value))));
        }
        let (mut head, mut tail) = (String::new(), String::new());
        write_yaml_into(&mut head, &before, 0);
        head.push_str(self.items);
        head.push_str(if is_empty { ": []\n" } else { ":\n" });
        if document.as_object().is_some_and(|rest| !rest.is_empty()) {
            write_yaml_into(&mut tail, &document, 0);
        }
        Ok((head.into_bytes(), tail.into_bytes()))
    }
}

/// `metav1.ListMeta` as JSON.
fn list_metadata(list: &StoredList) -> String {
    let mut metadata = format!("{{\"resourceVersion\":\"{}\"", list.revision);
    if let Some(next) = &list.next {
        metadata.push_str(",\"continue\":");
        quote_json_into(&mut metadata, &ContinueToken { revision: next.revision, start: next.start.clone() }.encode());
    }
    if let Some(remaining) = list.remaining.filter(|remaining| *remaining > 0) {
        metadata.push_str(&format!(",\"remainingItemCount\":{remaining}"));
    }
    metadata.push('}');
    metadata
}

/// The metadata of an `unstructured.UnstructuredList` as JSON: sorted, and `continue` is always there.
fn unstructured_metadata(list: &StoredList) -> String {
    let next = list.next.as_ref();
    let token = next.map(|next| ContinueToken { revision: next.revision, start: next.start.clone() }.encode());
    let mut metadata = String::from("{\"continue\":");
    quote_json_into(&mut metadata, &token.unwrap_or_default());
    if let Some(remaining) = list.remaining.filter(|remaining| *remaining > 0) {
        metadata.push_str(&format!(",\"remainingItemCount\":{remaining}"));
    }
    metadata.push_str(&format!(",\"resourceVersion\":\"{}\"}}", list.revision));
    metadata
}

/// Items in JSON or YAML.
struct ItemFrames {
    kind: ServedKind,
    media_type: OutputMediaType,
    now: SystemTime,
    /// Taken by the first frame.
    head: Vec<u8>,
    objects: std::vec::IntoIter<Arc<Stored>>,
    is_first: bool,
    /// Taken by the last frame.
    tail: Option<Vec<u8>>,
}

impl ItemFrames {
    /// Appends an object. Returns what [`write_item`] does.
    fn write(&mut self, object: Arc<Stored>, out: &mut Vec<u8>) -> usize {
        let object = ReplyObject::stored(object);
        let is_first = std::mem::replace(&mut self.is_first, false);
        if self.media_type.encoding != OutputEncoding::Yaml {
            if !is_first {
                out.push(b',');
            }
            return write_item(out, &self.kind, &object, self.media_type.transform, self.now);
        }
        let mut item = Vec::new();
        let converted_size = write_item(&mut item, &self.kind, &object, self.media_type.transform, self.now);
        let mut text = String::with_capacity(item.len());
        // An object without a defect is JSON.
        write_yaml_into(&mut text, &Value::Array(vec![parse_json(&item).unwrap_or_default()]), 0);
        out.extend_from_slice(text.as_bytes());
        converted_size
    }
}

impl FrameSource for ItemFrames {
    fn next_frame(&mut self) -> Option<Bytes> {
        self.tail.as_ref()?;
        let first = self.objects.as_slice().first();
        let first_size = first.map_or(0, |object| object.bytes().len());
        let begins_as_stored = first.is_some_and(|object| schema_work::is_sent_as_stored(&self.kind, object));
        let mut frame = Vec::with_capacity(first_size.max(FRAME_BYTES.min(self.objects.len() * first_size)) + 4096);
        frame.append(&mut self.head);
        // Work is bounded by what is read, too: the row of a Table is small, also if its object has large defaults.
        let mut read = 0;
        while let Some(next) = self.objects.as_slice().first() {
            let size = next.bytes().len();
            // A frame on a worker thread has no objects that need their schemas.
            let is_other_work = begins_as_stored && !schema_work::is_sent_as_stored(&self.kind, next);
            if read > 0 && (is_other_work || read.max(frame.len()) + size > FRAME_BYTES) {
                return Some(frame.into());
            }
            if let Some(object) = self.objects.next() {
                read += size.max(self.write(object, &mut frame));
            }
        }
        frame.append(&mut self.tail.take()?);
        Some(frame.into())
    }

    fn next_size(&self) -> usize {
        let first = self.objects.as_slice().first();
        let object = first.map_or(0, |object| schema_work::stored_work(&self.kind, object));
        match self.media_type.transform {
            ObjectTransform::Table(..) => object + CELL_WORK * self.kind.version.columns.len(),
            _ => object,
        }
    }
}

/// Encodes the items of a list in protobuf.
#[derive(Clone)]
struct ProtobufItems {
    kind: ServedKind,
    transform: ObjectTransform,
    message: MessageId,
}

/// Items in protobuf.
struct ProtobufFrames {
    head: Vec<u8>,
    items: ProtobufItems,
    objects: std::vec::IntoIter<Arc<Stored>>,
    /// The first items, which are encoded already.
    encoded: VecDeque<Vec<u8>>,
    tail: Option<Vec<u8>>,
}

impl FrameSource for ProtobufFrames {
    fn next_frame(&mut self) -> Option<Bytes> {
        self.tail.as_ref()?;
        let mut frame = std::mem::take(&mut self.head);
        let mut read = 0;
        while read.max(frame.len()) < FRAME_BYTES {
            let Some(object) = self.objects.next() else {
                frame.append(&mut self.tail.take()?);
                break;
            };
            if let Some(item) = self.encoded.pop_front() {
                frame.extend_from_slice(&item);
                // Others are work, which may be that of a compute thread.
                if self.encoded.is_empty() {
                    break;
                }
                continue;
            }
            // It was encoded before, to know its length.
            read += schema_work::stored_work(&self.items.kind, &object);
            frame.extend_from_slice(&self.items.encode(object).unwrap_or_default());
        }
        Some(frame.into())
    }

    fn next_size(&self) -> usize {
        let first = self.objects.as_slice().first().filter(|_| self.encoded.is_empty());
        first.map_or(0, |object| schema_work::stored_work(&self.items.kind, object))
    }
}

/// A list in protobuf. Its length precedes it, so that all objects are encoded first. Those of a large list are encoded
/// again when they are sent, so that they do not all take memory.
async fn protobuf_frames(
    kind: &ServedKind,
    list: StoredList,
    transform: ObjectTransform,
    document: &ListDocument,
) -> Result<Box<dyn FrameSource>, Status> {
    let kinds = builtin_kinds();
    let unknown = |name| Status::internal_error(format_args!("{name} has no message type"));
    let (message, metadata) = (
        match transform {
            ObjectTransform::Unchanged => kind.version.message().ok_or_else(|| unknown("the kind"))?,
            _ => kinds.meta_message("PartialObjectMetadata").ok_or_else(|| unknown("PartialObjectMetadata"))?,
        },
        kinds.meta_message("ListMeta").ok_or_else(|| unknown("ListMeta"))?,
    );
    let metadata = encode_message(&kinds.messages, metadata, &parse_json(document.metadata.as_bytes())?);
    let metadata = metadata.map_err(Status::internal_error)?;
    let items = ProtobufItems { kind: kind.clone(), transform, message };
    let (mut encoded, mut encoded_bytes) = (VecDeque::new(), 0);
    let (mut length, mut work) = (1 + varint_length(metadata.len() as u64) + metadata.len(), 0);
    for object in &list.objects {
        let size = schema_work::stored_work(kind, object);
        work += size;
        if work > FRAME_BYTES {
            work = 0;
            tokio::task::yield_now().await;
        }
        let (items, object) = (items.clone(), object.clone());
        let item = run_sized(size, move || items.encode(object)).await??;
        length += item.len();
        encoded_bytes += item.len();
        if encoded_bytes <= MAX_ENCODED_BYTES {
            encoded.push_back(item);
        }
    }
    let frame = UnknownFrame::new(&document.api_version, &document.kind, length);
    let mut head = frame.head;
    write_bytes(&mut head, 1, &metadata);
    let objects = list.objects.into_iter();
    Ok(Box::new(ProtobufFrames { head, items, objects, encoded, tail: Some(frame.tail) }))
}

impl ProtobufItems {
    /// An item of a list: field 2 of the list's message.
    fn encode(&self, object: Arc<Stored>) -> Result<Vec<u8>, Status> {
        let mut json = Vec::with_capacity(object.bytes().len() + 64);
        write_item(&mut json, &self.kind, &ReplyObject::stored(object), self.transform, SystemTime::UNIX_EPOCH);
        let encoded = encode_message(&builtin_kinds().messages, self.message, &parse_json(&json)?);
        let encoded = encoded.map_err(Status::internal_error)?;
        let mut item = Vec::with_capacity(encoded.len() + 8);
        write_bytes(&mut item, 2, &encoded);
        Ok(item)
    }
}
