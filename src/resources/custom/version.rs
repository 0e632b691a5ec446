//! A version of a custom resource.

use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use kubeapi::json_path::JsonPath;
use kubeapi::schema::Schema;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use store::watch_cache::Stored;

use super::cells::column_paths;
use super::compiled_schema::SchemaSlot;
use super::crd::{CrdSpec, CrdVersion, ScalePaths};

/// The next [`CustomVersion::id`].
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A version of a custom resource. Its schema is read from the stored CRD when it is used.
#[derive(Debug)]
pub struct CustomVersion {
    /// Name of the version.
    pub name: String,
    /// `group/version`.
    pub api_version: String,
    /// Whether there is a subresource `status`.
    pub has_status: bool,
    /// The subresource `scale`, if there is one.
    pub scale: Option<ScalePaths>,
    /// Text of the warning about a deprecated version.
    pub deprecation_warning: Option<String>,
    /// Fields that field selectors may name, without the dot at the beginning.
    pub selectable_fields: Vec<String>,
    /// JSON paths of the columns of a Table after the name, with their types.
    pub column_paths: Vec<(JsonPath, String)>,
    /// Whether unknown fields are kept everywhere.
    pub preserves_unknown_fields: bool,
    crd: Arc<Stored>,
    /// Place of the version in the CRD.
    index: usize,
    schema_ranges: Arc<SchemaRanges>,
    schema: Arc<SchemaSlot>,
    number: u16,
    id: u64,
}

impl CustomVersion {
    /// `newest` is the preferred version among those that are served and not deprecated.
    pub(super) fn new(
        spec: &CrdSpec,
        version: &CrdVersion,
        index: usize,
        newest: Option<&str>,
        (crd, schema_ranges): (&Arc<Stored>, &Arc<SchemaRanges>),
    ) -> CustomVersion {
        let subresources = version.subresources.as_ref();
        CustomVersion {
            name: version.name.clone(),
            api_version: format!("{}/{}", spec.group, version.name),
            has_status: subresources.is_some_and(|subresources| subresources.status.is_some()),
            scale: subresources.and_then(|subresources| subresources.scale.clone()),
            deprecation_warning: version.deprecated.then(|| deprecation_warning(spec, version, newest)),
            selectable_fields: version
                .selectable_fields
                .iter()
                .flatten()
                .map(|field| field.json_path.trim_start_matches('.').to_owned())
                .collect(),
            column_paths: column_paths(version),
            preserves_unknown_fields: spec.preserve_unknown_fields,
            crd: crd.clone(),
            index,
            schema_ranges: schema_ranges.clone(),
            schema: Arc::default(),
            number: next_number(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// A number that few versions share: another one after each change of the CRD. Never 0 or 1.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// A number above 0 that no other version has: another one after each change of the CRD.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The schema of an object.
    pub fn schema(&self) -> Arc<Schema> {
        self.schema.get_or_compile(self.crd.bytes().len(), || {
            let json = self.schema_json().unwrap_or_default();
            // A CRD is validated before it is stored.
            let schema = Schema::read(&json).unwrap_or_default();
            schema.compile_large_patterns();
            schema
        })
    }

    /// The schema if it is compiled. Compiling may take seconds.
    pub fn compiled_schema(&self) -> Option<Arc<Schema>> {
        self.schema.get()
    }

    /// Drops the schema if it was not used since as many calls of this function as `limit` says.
    pub fn drop_idle_schema(&self, limit: u32) {
        self.schema.drop_idle(limit);
    }

    /// `openAPIV3Schema` as it stands in the CRD.
    pub fn schema_json(&self) -> Option<Value> {
        let crd = self.crd.bytes();
        let range = self.schema_ranges.of(crd).get(self.index)?.clone()?;
        serde_json::from_slice(crd.get(range)?).ok()
    }
}

/// Where the schemas of all versions stand in a CRD, found when the first is needed. A CRD may have
/// thousands of versions.
#[derive(Debug, Default)]
pub(super) struct SchemaRanges(OnceLock<Vec<Option<Range<usize>>>>);

impl SchemaRanges {
    fn of(&self, crd: &[u8]) -> &[Option<Range<usize>>] {
        self.0.get_or_init(|| find_schemas(crd).unwrap_or_default())
    }
}

fn find_schemas(crd: &[u8]) -> Result<Vec<Option<Range<usize>>>, serde_json::Error> {
    #[derive(Deserialize)]
    struct CrdRoot<'d> {
        #[serde(borrow)]
        spec: Spec<'d>,
    }
    #[derive(Deserialize)]
    struct Spec<'d> {
        #[serde(borrow)]
        versions: Vec<Version<'d>>,
    }
    #[derive(Deserialize)]
    struct Version<'d> {
        #[serde(borrow)]
        schema: Option<Validation<'d>>,
    }
    #[derive(Deserialize)]
    struct Validation<'d> {
        #[serde(borrow, rename = "openAPIV3Schema")]
        schema: Option<&'d RawValue>,
    }
    let root: CrdRoot<'_> = serde_json::from_slice(crd)?;
    let range = |version: Version<'_>| {
        let text = version.schema?.schema?.get();
        let start = text.as_ptr().addr() - crd.as_ptr().addr();
        Some(start..start + text.len())
    };
    Ok(root.spec.versions.into_iter().map(range).collect())
}

fn next_number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(2);
    let next = |number: u16| Some(if number == u16::MAX { 2 } else { number + 1 });
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(2)
}

/// The warning about a deprecated version, with upstream's text
/// (`pkg/apiserver/customresource_handler.go`).
fn deprecation_warning(spec: &CrdSpec, version: &CrdVersion, newest: Option<&str>) -> String {
    if let Some(warning) = &version.deprecation_warning {
        return warning.clone();
    }
    let (group, kind) = (&spec.group, &spec.names.kind);
    let text = format!("{group}/{} {kind} is deprecated", version.name);
    match newest.filter(|newest| super::by_priority(newest, &version.name).is_lt()) {
        Some(newer) => format!("{text}; use {group}/{newer} {kind}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;
    use store::{KeyValue, Prefix};

    use super::super::{Crd, custom_entries};
    use super::*;

    #[test]
    fn schema_is_compiled_on_use_and_dropped_when_idle() {
        let names = json!({"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"b": {"type": "string"}}}});
        let crd = json!({
            "metadata": {"name": "as.b.io"},
            "spec": {"group": "b.io", "names": names, "scope": "Cluster", "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema},
            ]},
            "status": {"acceptedNames": names},
        });
        let prefix = Prefix::parse("/registry/definitions/").unwrap();
        let (key, value) = (prefix.key("", "as.b.io").unwrap(), Bytes::from(crd.to_string()));
        let record = KeyValue { key, value, created: 2, revision: 2, expires: None };
        let stored = Arc::new(Stored::new(Arc::new(record), &prefix, &[]));
        let crd: Crd = serde_json::from_value(crd).unwrap();
        let entries = custom_entries(&crd, &stored, None);
        let version = entries[0].kind.version.custom().unwrap();
        assert!(version.compiled_schema().is_none());
        let first = version.schema();
        assert!(first.properties.contains_key("b") && version.compiled_schema().is_some());
        for _ in 0..3 {
            version.drop_idle_schema(2);
            version.drop_idle_schema(2);
            assert!(Arc::ptr_eq(&version.schema(), &first), "used in between");
        }
        (0..3).for_each(|_| version.drop_idle_schema(2));
        assert!(version.compiled_schema().is_some(), "a request uses it");
        let copy = Schema::clone(&first);
        drop(first);
        assert!(version.compiled_schema().is_none());
        assert_eq!(*version.schema(), copy);
    }
}
