//! A stored object: its bytes, the place of its resourceVersion, and the metadata that reads and controllers need.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::declared_field::DeclaredField;
use super::schema_checks::SchemaChecks;
use crate::{Key, KeyValue, Prefix, Revision};

/// An object as it is stored. Immutable and shared.
pub struct Stored {
    record: Arc<KeyValue>,
    /// Length of the resource's prefix in the key.
    prefix: usize,
    /// Place of the resourceVersion: this range of the bytes is replaced.
    splice: Splice,
    /// Range of the value of `metadata` in the bytes.
    metadata_range: Range<usize>,
    /// Where `apiVersion` and `kind` are, each with the comma after it, if that is before `metadata`.
    type_ranges: Option<[Range<u32>; 2]>,
    metadata: ObjectMetadata,
    /// Values of the declared fields, in the order of their declaration.
    fields: Box<[Box<str>]>,
    /// Reason why the value could not be read.
    defect: Option<Box<str>>,
    views: Views,
    schema_checks: SchemaChecks,
}

/// The beginning of an object whose keys are sorted.
const LEADING_API_VERSION: &[u8] = b"{\"apiVersion\":\"";

/// Keys and values, sorted by key.
pub type SortedPairs = Box<[(Box<str>, Box<str>)]>;

/// Metadata of a stored object that is used without decoding it. Name and namespace are in the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectMetadata {
    /// The field `metadata.uid`.
    pub uid: Box<str>,
    /// The field `metadata.generation`.
    pub generation: i64,
    /// `metadata.creationTimestamp`, in RFC 3339.
    pub creation_timestamp: Option<Box<str>>,
    /// `metadata.deletionTimestamp`, in RFC 3339.
    pub deletion_timestamp: Option<Box<str>>,
    /// `metadata.labels`, by key.
    #[serde(deserialize_with = "sorted_pairs")]
    pub labels: SortedPairs,
    /// The field `metadata.finalizers`.
    #[serde(deserialize_with = "null_as_default")]
    pub finalizers: Box<[Box<str>]>,
    /// The field `metadata.ownerReferences`.
    #[serde(deserialize_with = "null_as_default")]
    pub owner_references: Box<[OwnerReference]>,
}

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    /// API version of the owner.
    pub api_version: Box<str>,
    /// Kind of the owner.
    pub kind: Box<str>,
    /// Name of the owner.
    pub name: Box<str>,
    /// UID of the owner.
    pub uid: Box<str>,
    /// Whether the owner is the managing controller.
    pub controller: Option<bool>,
    /// Whether foreground deletion of the owner waits for the object.
    pub block_owner_deletion: Option<bool>,
}

/// Range of the bytes that a resourceVersion replaces, and the commas around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Splice {
    range: Range<usize>,
    before: &'static str,
    after: &'static str,
}

impl Stored {
    /// Reads a record below `prefix`. A value that is not an object of the API is kept, with its [`defect`].
    ///
    /// [`defect`]: Stored::defect
    pub fn new(record: Arc<KeyValue>, prefix: &Prefix, fields: &[DeclaredField]) -> Stored {
        let read = read_object(&record.value, fields);
        let (read, defect) = match read {
            Ok(read) => (read, None),
            Err(error) => {
                let fields = fields.iter().map(|_| Box::default()).collect();
                (ParsedRecord { fields, ..ParsedRecord::default() }, Some(error.to_string().into()))
            }
        };
        let ParsedRecord { splice, metadata_range, type_ranges, metadata, fields } = read;
        let (prefix, views, schema_checks) = (prefix.as_str().len(), Views::default(), SchemaChecks::default());
        Stored { record, prefix, splice, metadata_range, type_ranges, metadata, fields, defect, views, schema_checks }
    }

    /// The key in the store.
    pub fn key(&self) -> &Key {
        &self.record.key
    }

    /// The namespace; empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.path().split_once('/').map_or("", |path| path.0)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.path().split_once('/').map_or(self.path(), |path| path.1)
    }

    fn path(&self) -> &str {
        self.key().as_str().get(self.prefix..).unwrap_or_default()
    }

    /// Revision of the last change: `metadata.resourceVersion`.
    pub fn revision(&self) -> Revision {
        self.record.revision
    }

    /// Revision at which the object was created.
    pub fn created(&self) -> Revision {
        self.record.created
    }

    /// Memory that the object takes without its encodings, in bytes. Its metadata and fields are beside its value.
    pub fn memory_bytes(&self) -> usize {
        let text = |text: &str| size_of::<Box<str>>() + text.len();
        let ObjectMetadata { labels, finalizers, owner_references, .. } = &self.metadata;
        let of_labels: usize = labels.iter().map(|(key, value)| text(key) + text(value)).sum();
        let of_finalizers: usize = finalizers.iter().map(|finalizer| text(finalizer)).sum();
        let of_owners: usize = owner_references
            .iter()
            .map(|owner| {
                let OwnerReference { api_version, kind, name, uid, .. } = owner;
                size_of::<OwnerReference>()
                    + [api_version, kind, name, uid].map(|part| part.len()).iter().sum::<usize>()
            })
            .sum();
        let of_fields: usize = self.fields.iter().map(|field| text(field)).sum();
        size_of::<Stored>() + self.bytes().len() + of_labels + of_finalizers + of_owners + of_fields
    }

    /// The bytes in the store: JSON of the storage version without resourceVersion.
    pub fn bytes(&self) -> &Bytes {
        &self.record.value
    }

    /// The metadata.
    pub fn metadata(&self) -> &ObjectMetadata {
        &self.metadata
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let labels = &self.metadata.labels;
        labels.binary_search_by(|(label, _)| (**label).cmp(key)).ok().map(|at| &*labels[at].1)
    }

    /// Value of a declared field by its place in the declaration; empty if it is missing.
    pub fn field(&self, index: usize) -> &str {
        self.fields.get(index).map_or("", |value| value)
    }

    /// Reason why the value cannot be served: it is no JSON object with metadata.
    pub fn defect(&self) -> Option<&str> {
        self.defect.as_deref()
    }

    /// The encodings of the object that were made on demand.
    pub fn views(&self) -> &Views {
        &self.views
    }

    /// Versions of a custom resource in which the object can be sent as it is stored.
    pub fn schema_checks(&self) -> &SchemaChecks {
        &self.schema_checks
    }

    /// The value of `apiVersion`, if the object begins with it, as this server and a kube-apiserver write it.
    pub fn leading_api_version(&self) -> Option<&str> {
        let rest = self.bytes().strip_prefix(LEADING_API_VERSION)?;
        let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        std::str::from_utf8(&rest[..end]).ok().filter(|_| rest[end] == b'"')
    }

    /// The object as JSON with its resourceVersion: bytes before, the version, bytes after. Nothing is copied but the
    /// version.
    pub fn versioned(&self) -> [Bytes; 3] {
        self.versioned_as(self.revision())
    }

    /// As [`versioned`](Stored::versioned), with the revision of its deletion.
    pub fn versioned_as(&self, revision: Revision) -> [Bytes; 3] {
        if self.defect.is_some() {
            return [self.bytes().clone(), Bytes::new(), Bytes::new()];
        }
        self.versioned_range(0..self.bytes().len(), revision)
    }

    /// As [`versioned`](Stored::versioned) without `apiVersion` and `kind`. None if they are not where this server writes
    /// them.
    pub fn versioned_without_type(&self) -> Option<[Bytes; 5]> {
        let [api_version, kind] = self.type_ranges.as_ref()?;
        let offset = |at: u32| usize::try_from(at).unwrap_or(usize::MAX);
        let [before, version, after] = self.versioned();
        // Both are before `metadata`, and so in the first part.
        Some([
            before.slice(..offset(api_version.start)),
            before.slice(offset(api_version.end)..offset(kind.start)),
            before.slice(offset(kind.end)..),
            version,
            after,
        ])
    }

    /// The value of `metadata`, in parts as [`versioned_as`](Stored::versioned_as).
    pub fn versioned_metadata_as(&self, revision: Revision) -> [Bytes; 3] {
        if self.defect.is_some() {
            return [Bytes::from_static(b"{}"), Bytes::new(), Bytes::new()];
        }
        self.versioned_range(self.metadata_range.clone(), revision)
    }

    fn versioned_range(&self, part: Range<usize>, revision: Revision) -> [Bytes; 3] {
        let Splice { range, before, after } = &self.splice;
        let version = format!("{before}\"resourceVersion\":\"{revision}\"{after}");
        [self.bytes().slice(part.start..range.start), version.into(), self.bytes().slice(range.end..part.end)]
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("key", self.key()).field("revision", &self.revision()).finish_non_exhaustive()
    }
}

/// Encodings of one object or event, each made once and shared. A form is a number that the caller assigns.
#[derive(Default)]
pub struct Views(Mutex<Vec<(u64, Bytes)>>);

impl Views {
    /// The encoding of a form; made by `encode` on the first call.
    pub fn get_or_encode(&self, form: u64, encode: impl FnOnce() -> Bytes) -> Bytes {
        // Held while encoding: other callers of the same form would encode it, too.
        let mut views = self.0.lock();
        if let Some((_, bytes)) = views.iter().find(|view| view.0 == form) {
            return bytes.clone();
        }
        let bytes = encode();
        views.push((form, bytes.clone()));
        bytes
    }

    /// Drops all encodings, unless one is being made; they are made again on demand.
    pub fn clear(&self) {
        if let Some(mut views) = self.0.try_lock() {
            *views = Vec::new();
        }
    }
}

/// What is read of a stored value.
#[derive(Default)]
struct ParsedRecord {
    splice: Splice,
    metadata_range: Range<usize>,
    type_ranges: Option<[Range<u32>; 2]>,
    metadata: ObjectMetadata,
    fields: Box<[Box<str>]>,
}

fn read_object(bytes: &[u8], fields: &[DeclaredField]) -> Result<ParsedRecord, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ObjectRoot<'b> {
        #[serde(borrow)]
        metadata: &'b RawValue,
        #[serde(borrow)]
        api_version: Option<&'b RawValue>,
        #[serde(borrow)]
        kind: Option<&'b RawValue>,
    }
    let root: ObjectRoot<'_> = serde_json::from_slice(bytes)?;
    let metadata: ObjectMetadata = serde_json::from_str(root.metadata.get())?;
    let places: MetadataKeys<'_> = serde_json::from_str(root.metadata.get())?;
    let splice = places.splice(bytes, root.metadata.get());
    let start = root.metadata.get().as_ptr().addr() - bytes.as_ptr().addr();
    let metadata_range = start..start + root.metadata.get().len();
    let member = |name: &str, value: Option<&RawValue>| member_range(&bytes[..start], name, value?.get());
    let type_ranges = match (member("apiVersion", root.api_version), member("kind", root.kind)) {
        (Some(api_version), Some(kind)) if api_version.end <= kind.start => Some([api_version, kind]),
        _ => None,
    };
    let fields = fields.iter().map(|field| field.value(bytes).into()).collect();
    Ok(ParsedRecord { splice, metadata_range, type_ranges, metadata, fields })
}

/// Where a member of the object is that begins with `bytes`, with the comma after it. None if it is not followed by one, or
/// there are spaces.
fn member_range(bytes: &[u8], name: &str, value: &str) -> Option<Range<u32>> {
    let value_start = value.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?;
    let end = value_start + value.len();
    let start = value_start.checked_sub(name.len() + 3)?;
    let key = bytes.get(start..value_start)?;
    let is_member = key.strip_prefix(b"\"")?.strip_suffix(b"\":")? == name.as_bytes() && bytes.get(end) == Some(&b',');
    if is_member { Some(u32::try_from(start).ok()?..u32::try_from(end + 1).ok()?) } else { None }
}

/// Keys and values of the metadata as they stand in the bytes.
struct MetadataKeys<'b>(Vec<(&'b RawValue, &'b RawValue)>);

impl<'de> Deserialize<'de> for MetadataKeys<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = MetadataKeys<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("metadata")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<&RawValue, &RawValue>()? {
                    entries.push(entry);
                }
                Ok(MetadataKeys(entries))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

impl MetadataKeys<'_> {
    /// Where the resourceVersion belongs in the order of keys; where it stands, if it does.
    fn splice(&self, bytes: &[u8], metadata: &str) -> Splice {
        let offset = |part: &str| part.as_ptr().addr() - bytes.as_ptr().addr();
        let version = "\"resourceVersion\"";
        if let Some((key, value)) = self.0.iter().find(|entry| entry.0.get() == version) {
            let range = offset(key.get())..offset(value.get()) + value.get().len();
            return Splice { range, before: "", after: "" };
        }
        if let Some((key, _)) = self.0.iter().find(|entry| entry.0.get() > version) {
            let at = offset(key.get());
            return Splice { range: at..at, before: "", after: "," };
        }
        match self.0.last() {
            Some((_, value)) => {
                let at = offset(value.get()) + value.get().len();
                Splice { range: at..at, before: ",", after: "" }
            }
            None => {
                let at = offset(metadata) + 1;
                Splice { range: at..at, before: "", after: "" }
            }
        }
    }
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn sorted_pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SortedPairs, D::Error> {
    let pairs: Option<std::collections::BTreeMap<Box<str>, Box<str>>> = Option::deserialize(deserializer)?;
    Ok(pairs.unwrap_or_default().into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(value: &str, fields: &[DeclaredField]) -> Stored {
        let prefix = Prefix::parse("/registry/things/").unwrap();
        let key = prefix.key("ns", "a").unwrap();
        let value = Bytes::from(value.to_owned());
        Stored::new(Arc::new(KeyValue { key, value, created: 3, revision: 7, expires: None }), &prefix, fields)
    }

    fn versioned(value: &str) -> String {
        String::from_utf8(stored(value, &[]).versioned().concat()).unwrap()
    }

    #[test]
    fn stored_version_is_spliced_in_order() {
        for (value, expected) in [
            (r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"7"}}"#),
            (r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"name":"a","resourceVersion":"7"}}"#),
            (r#"{"metadata":{"uid":"u"},"z":1}"#, r#"{"metadata":{"resourceVersion":"7","uid":"u"},"z":1}"#),
            (
                r#"{"kind":"T","metadata":{"labels":{"uid":"}\""},"name":"a","selfLink":"","uid":"u"}}"#,
                r#"{"kind":"T","metadata":{"labels":{"uid":"}\""},"name":"a","resourceVersion":"7","selfLink":"","uid":"u"}}"#,
            ),
            (r#"{"metadata":{"resourceVersion":"1","uid":"u"}}"#, r#"{"metadata":{"resourceVersion":"7","uid":"u"}}"#),
            (
                "{ \"metadata\" : { \"name\" : \"a\" } }\n",
                "{ \"metadata\" : { \"name\" : \"a\",\"resourceVersion\":\"7\" } }\n",
            ),
        ] {
            assert_eq!(versioned(value), expected);
        }
        let deleted = stored(r#"{"metadata":{}}"#, &[]).versioned_as(9).concat();
        assert_eq!(deleted, br#"{"metadata":{"resourceVersion":"9"}}"#);
        let metadata = stored(r#"{"kind":"T","metadata": {"name":"a","uid":"u"},"z":1}"#, &[]).versioned_metadata_as(9);
        assert_eq!(metadata.concat(), br#"{"name":"a","resourceVersion":"9","uid":"u"}"#);
    }

    #[test]
    fn stored_type_is_left_out_where_it_is_before_metadata() {
        for (value, expected) in [
            (
                r#"{"allow":1,"apiVersion":"v1","data":{"kind":"x"},"kind":"T","last":[],"metadata":{"name":"a"},"z":1}"#,
                Some(
                    r#"{"allow":1,"data":{"kind":"x"},"last":[],"metadata":{"name":"a","resourceVersion":"7"},"z":1}"#,
                ),
            ),
            (r#"{"apiVersion":"v1","kind":"T","metadata":{}}"#, Some(r#"{"metadata":{"resourceVersion":"7"}}"#)),
            (r#"{"apiVersion":"v1","kind": "T","metadata":{}}"#, None),
            (r#"{"kind":"T","apiVersion":"v1","metadata":{}}"#, None),
            (r#"{"apiVersion":"v1","metadata":{},"kind":"T"}"#, None),
            (r#"{"kind":"T","metadata":{}}"#, None),
        ] {
            let parts = stored(value, &[]).versioned_without_type();
            let text = parts.map(|parts| String::from_utf8(parts.concat()).unwrap());
            assert_eq!(text.as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn stored_api_version_found_at_the_beginning() {
        for (value, expected) in [
            (r#"{"apiVersion":"a/v1","metadata":{}}"#, Some("a/v1")),
            (r#"{"apiVersion":"a\/v1","metadata":{}}"#, None),
            (r#"{"kind":"K","apiVersion":"a/v1","metadata":{}}"#, None),
            (r#"{"apiVersion":"a/v"#, None),
        ] {
            assert_eq!(stored(value, &[]).leading_api_version(), expected, "{value}");
        }
    }

    #[test]
    fn stored_metadata_is_parsed() {
        let object = stored(
            r#"{"metadata":{"labels":{"b":"2","a":"1"},"finalizers":["f"],"uid":"u","generation":4,"deletionTimestamp":
            "2026-01-01T00:00:00Z","creationTimestamp":null,"ownerReferences":[{"apiVersion":"v1","kind":"K","name":"n",
            "uid":"o","controller":true}],"managedFields":[{}]}}"#,
            &[],
        );
        assert_eq!((object.namespace(), object.name(), object.created()), ("ns", "a", 3));
        assert_eq!((object.label("a"), object.label("b"), object.label("c")), (Some("1"), Some("2"), None));
        let metadata = object.metadata();
        assert_eq!((&*metadata.uid, metadata.generation, metadata.finalizers.len()), ("u", 4, 1));
        assert!(metadata.deletion_timestamp.is_some() && metadata.creation_timestamp.is_none());
        let owner = &metadata.owner_references[0];
        assert_eq!((&*owner.uid, owner.controller, owner.block_owner_deletion), ("o", Some(true), None));
        let empty = stored(r#"{"metadata":{"labels":null,"finalizers":null,"ownerReferences":null}}"#, &[]);
        assert_eq!((empty.defect(), empty.metadata()), (None, &ObjectMetadata::default()));
    }

    #[test]
    fn stored_value_of_other_encoding_is_kept_with_defect() {
        let deep = format!("{{\"metadata\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        for value in
            ["", "k8s\0", "[]", "{}", "null", r#"{"metadata":[]}"#, r#"{"metadata":{"labels":{"a":1}}}"#, &deep]
        {
            let object = stored(value, &[DeclaredField::new("type", &["type"])]);
            assert!(object.defect().is_some(), "{value:.20}");
            assert_eq!(
                (object.versioned().concat(), object.field(0), object.name()),
                (value.as_bytes().to_vec(), "", "a")
            );
        }
    }

    #[test]
    fn stored_declared_fields_are_text() {
        let fields = [
            DeclaredField::new("type", &["type"]),
            DeclaredField::new("a.b", &["a.b"]),
            DeclaredField::new("count", &["spec.count"]),
            DeclaredField::new("source", &["source.component", "reportingComponent"]),
            DeclaredField::new("object", &["spec"]),
        ];
        let object = stored(
            r#"{"metadata":{},"type":"x\"y","a":{"b":true},"spec":{"count":1.50},"source":null,"reportingComponent":"r"}"#,
            &fields,
        );
        let values: Vec<_> = (0..6).map(|index| object.field(index)).collect();
        assert_eq!(values, ["x\"y", "true", "1.50", "r", "", ""]);
    }

    #[test]
    fn views_are_encoded_once_a_form() {
        let views = Views::default();
        let form = |form, bytes: &'static str| views.get_or_encode(form, || bytes.into());
        assert_eq!((form(1, "a"), form(2, "b"), form(1, "c")), ("a".into(), "b".into(), "a".into()));
        views.clear();
        assert_eq!(form(1, "c"), "c");
    }
}
