//! Records of the store from etcd's messages, and back.

use std::sync::Arc;

use bytes::Bytes;
use store::{Key, KeyValue, Prefix, RecordChange, Revision};

use crate::LOG_TARGET;
use crate::messages::{self, RangeRequest, ResponseHeader};

/// A revision; etcd's are never negative.
pub(crate) fn revision(etcd_revision: i64) -> Revision {
    etcd_revision.max(0).cast_unsigned()
}

/// A revision in a request. One that etcd cannot have is the newest that it can.
pub(crate) fn etcd_revision(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// The revision of an answer.
pub(crate) fn header_revision(header: Option<&ResponseHeader>) -> Revision {
    header.map_or(0, |header| revision(header.revision))
}

/// A record; none if the key is not one of an object, which is logged. The value is copied: a part of a message would keep
/// the whole message in memory.
pub(crate) fn record(kv: &messages::EtcdKeyValue) -> Option<Arc<KeyValue>> {
    let key = std::str::from_utf8(&kv.key).ok().and_then(|text| Key::parse(text).ok());
    let Some(key) = key else {
        let key = kv.key.escape_ascii();
        tracing::warn!(target: LOG_TARGET, %key, "etcd key ignored: it is not the key of an object");
        return None;
    };
    Some(Arc::new(KeyValue {
        key,
        value: Bytes::copy_from_slice(&kv.value),
        created: revision(kv.create_revision),
        revision: revision(kv.mod_revision),
        expires: None,
    }))
}

/// Whether an event lacks the value before it: the history before it was discarded while it was sent.
pub(crate) fn lacks_previous(event: &messages::Event) -> bool {
    let is_create = event.kv.as_ref().is_some_and(|kv| event.kind == 0 && kv.create_revision == kv.mod_revision);
    !is_create && event.prev_kv.is_none()
}

/// The change of an event.
pub(crate) fn change(event: &messages::Event) -> Option<Arc<RecordChange>> {
    let kv = record(event.kv.as_ref()?)?;
    let old = event.prev_kv.as_ref().and_then(record);
    let is_put = event.kind == 0;
    Some(Arc::new(RecordChange { revision: kv.revision, key: kv.key.clone(), old, new: is_put.then_some(kv) }))
}

/// A read of one key.
pub(crate) fn range_of_key(key: &Key) -> RangeRequest {
    RangeRequest { key: bytes(key.as_str()), ..RangeRequest::default() }
}

/// A read of the keys below a prefix.
pub(crate) fn range_of_prefix(prefix: &Prefix) -> RangeRequest {
    RangeRequest { key: bytes(prefix.as_str()), range_end: prefix.end().into(), ..RangeRequest::default() }
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
