//! `metadata` of an object as a view of its value, generated names, and what Kubernetes validates
//! (`apimachinery/pkg/api/validation/objectmeta.go`).

mod validate;

use serde_json::{Map, Value};

pub use validate::{
    check_field_manager, validate_annotations, validate_labels, validate_object_meta, validate_object_meta_update,
};

/// Finalizer of an object that is deleted after its dependents are orphaned.
pub const ORPHAN_FINALIZER: &str = "orphan";
/// Finalizer of an object that is deleted after its dependents.
pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";

/// The fields of `metav1.ObjectMeta`.
pub const OBJECT_META_FIELDS: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// `metadata` of an object (`metav1.ObjectMeta`). A field of the wrong type counts as absent.
#[derive(Clone, Copy, Debug)]
pub struct ObjectMetaView<'v> {
    fields: Option<&'v Map<String, Value>>,
}

/// An owner of an object (`metav1.OwnerReference`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerReferenceView<'v> {
    /// Group and version of the owner, such as `apps/v1`.
    pub api_version: &'v str,
    /// Kind of the owner.
    pub kind: &'v str,
    /// Name of the owner.
    pub name: &'v str,
    /// UID of the owner.
    pub uid: &'v str,
    /// Whether the owner manages the object.
    pub controller: Option<bool>,
    /// Whether the owner may be deleted in the foreground only after the object.
    pub block_owner_deletion: Option<bool>,
}

impl<'v> ObjectMetaView<'v> {
    /// The metadata of an object; empty if it has none.
    pub fn of(object: &'v Value) -> ObjectMetaView<'v> {
        ObjectMetaView { fields: object.get("metadata").and_then(Value::as_object) }
    }

    /// The metadata of an object; empty if it has none.
    pub fn of_map(object: &'v Map<String, Value>) -> ObjectMetaView<'v> {
        ObjectMetaView { fields: object.get("metadata").and_then(Value::as_object) }
    }

    /// Metadata themselves.
    pub fn of_metadata(metadata: &'v Map<String, Value>) -> ObjectMetaView<'v> {
        ObjectMetaView { fields: Some(metadata) }
    }

    fn field(&self, name: &str) -> Option<&'v Value> {
        self.fields?.get(name)
    }

    fn text(&self, name: &str) -> &'v str {
        self.field(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Name, or empty.
    pub fn name(&self) -> &'v str {
        self.text("name")
    }

    /// `generateName`, or empty.
    pub fn generate_name(&self) -> &'v str {
        self.text("generateName")
    }

    /// Namespace, or empty.
    pub fn namespace(&self) -> &'v str {
        self.text("namespace")
    }

    /// UID, or empty.
    pub fn uid(&self) -> &'v str {
        self.text("uid")
    }

    /// Resource version as text, or empty.
    pub fn resource_version(&self) -> &'v str {
        self.text("resourceVersion")
    }

    /// Generation, or 0.
    pub fn generation(&self) -> i64 {
        self.field("generation").and_then(Value::as_i64).unwrap_or(0)
    }

    /// Time of creation in RFC 3339, or empty.
    pub fn creation_timestamp(&self) -> &'v str {
        self.text("creationTimestamp")
    }

    /// Time from which the object is being deleted, in RFC 3339.
    pub fn deletion_timestamp(&self) -> Option<&'v str> {
        Some(self.text("deletionTimestamp")).filter(|time| !time.is_empty())
    }

    /// Seconds that the object was given to end.
    pub fn deletion_grace_period_seconds(&self) -> Option<i64> {
        self.field("deletionGracePeriodSeconds").and_then(Value::as_i64)
    }

    fn text_map(&self, name: &str) -> impl Iterator<Item = (&'v str, &'v str)> + use<'v> {
        let map = self.field(name).and_then(Value::as_object);
        map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
    }

    /// Labels, sorted by key.
    pub fn labels(&self) -> impl Iterator<Item = (&'v str, &'v str)> + use<'v> {
        self.text_map("labels")
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&'v str> {
        self.field("labels")?.get(key)?.as_str()
    }

    /// Annotations, sorted by key.
    pub fn annotations(&self) -> impl Iterator<Item = (&'v str, &'v str)> + use<'v> {
        self.text_map("annotations")
    }

    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&'v str> {
        self.field("annotations")?.get(key)?.as_str()
    }

    /// Finalizers, in order.
    pub fn finalizers(&self) -> impl Iterator<Item = &'v str> + use<'v> {
        self.items("finalizers").iter().filter_map(Value::as_str)
    }

    /// Whether there is any finalizer.
    pub fn has_finalizers(&self) -> bool {
        self.finalizers().next().is_some()
    }

    /// Owners, in order.
    pub fn owners(&self) -> impl Iterator<Item = OwnerReferenceView<'v>> + use<'v> {
        self.items("ownerReferences").iter().filter(|owner| owner.is_object()).map(|owner| {
            let text = |key: &str| owner.get(key).and_then(Value::as_str).unwrap_or_default();
            OwnerReferenceView {
                api_version: text("apiVersion"),
                kind: text("kind"),
                name: text("name"),
                uid: text("uid"),
                controller: owner.get("controller").and_then(Value::as_bool),
                block_owner_deletion: owner.get("blockOwnerDeletion").and_then(Value::as_bool),
            }
        })
    }

    /// `managedFields`, as they are.
    pub fn managed_fields(&self) -> &'v [Value] {
        self.items("managedFields")
    }

    fn items(&self, name: &str) -> &'v [Value] {
        self.field(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

/// Changes the metadata of an object, created if the object has none.
pub fn change_metadata<R>(object: &mut Map<String, Value>, change: impl FnOnce(&mut Map<String, Value>) -> R) -> R {
    let mut fields = match object.remove("metadata") {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let result = change(&mut fields);
    object.insert("metadata".to_owned(), Value::Object(fields));
    result
}

/// Maximum length of the base of a generated name in bytes: 63 less the suffix, for every resource
/// (`k8s.io/apiserver/pkg/storage/names/generate.go`).
pub const MAX_GENERATED_NAME_BASE: usize = 58;
/// Number of random characters after the base.
const SUFFIX_LENGTH: usize = 5;
/// Without vowels and what resembles them, so that no words come out (`apimachinery/pkg/util/rand`).
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A name for `generateName`: at most 58 bytes of it, and five random characters. `random_below` returns a number below
/// its argument.
pub fn generate_object_name(base: &str, mut random_below: impl FnMut(usize) -> usize) -> String {
    let mut end = base.len().min(MAX_GENERATED_NAME_BASE);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = base[..end].to_owned();
    for _ in 0..SUFFIX_LENGTH {
        let at = random_below(SUFFIX_ALPHABET.len()) % SUFFIX_ALPHABET.len();
        name.push(char::from(SUFFIX_ALPHABET[at]));
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn object_meta_view_reads_fields_and_ignores_wrong_types() {
        let object = json!({"metadata": {
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 3,
            "labels": {"b": "2", "a": "1"}, "finalizers": ["x", 1, "y"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "p", "controller": true}, null],
            "deletionTimestamp": "2030-01-01T00:00:00Z", "annotations": 5,
        }});
        let meta = ObjectMetaView::of(&object);
        assert_eq!((meta.name(), meta.namespace(), meta.uid(), meta.resource_version()), ("a", "n", "u", "7"));
        assert_eq!((meta.generation(), meta.deletion_timestamp()), (3, Some("2030-01-01T00:00:00Z")));
        assert_eq!(meta.labels().collect::<Vec<_>>(), [("a", "1"), ("b", "2")]);
        assert_eq!(meta.finalizers().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(meta.owners().map(|owner| (owner.uid, owner.controller)).collect::<Vec<_>>(), [("p", Some(true))]);
        assert_eq!(meta.annotations().count(), 0);
        assert_eq!(ObjectMetaView::of(&json!(null)).name(), "");
    }

    #[test]
    fn object_meta_created_when_missing_or_of_wrong_type() {
        for object in [json!({}), json!({"metadata": 1}), json!({"metadata": {"b": 1}})] {
            let mut object = object.as_object().unwrap().clone();
            change_metadata(&mut object, |metadata| metadata.insert("name".into(), json!("a")));
            assert_eq!(ObjectMetaView::of_map(&object).name(), "a");
        }
    }

    #[test]
    fn generated_name_cut_to_58_bytes_with_five_random_characters() {
        assert_eq!(generate_object_name("web-", |_| 0), "web-bbbbb");
        assert_eq!(generate_object_name("web-", |below| below - 1), "web-99999");
        assert_eq!(generate_object_name(&"a".repeat(100), |_| 1), format!("{}ccccc", "a".repeat(58)));
        assert_eq!(generate_object_name(&"é".repeat(29), |_| 0).len(), 63);
        assert_eq!(generate_object_name(&format!("a{}", "é".repeat(29)), |_| 0).len(), 62);
    }
}
