//! A version of a custom resource.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

use super::cells::column_paths;
use super::definition::{DefinitionSpec, DefinitionVersion, ScalePaths};
use crate::kubeapi::json_path::JsonPath;
use crate::schema::Schema;
use crate::watch_cache::Stored;

/// The next [`CustomVersion::id`].
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A schema that is compiled when it is used.
#[derive(Debug, Default)]
struct CompiledSchema {
    schema: Option<Arc<Schema>>,
    /// How often it was found idle since its last use.
    idle: u32,
}

/// A version of a custom resource. Its schema is read from the stored definition when it is used.
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
    definition: Arc<Stored>,
    /// Place of the version in the definition.
    place: usize,
    schema: Mutex<CompiledSchema>,
    number: u16,
    id: u64,
}

impl CustomVersion {
    pub(super) fn new(
        spec: &DefinitionSpec,
        version: &DefinitionVersion,
        place: usize,
        definition: &Arc<Stored>,
    ) -> CustomVersion {
        let subresources = version.subresources.as_ref();
        CustomVersion {
            name: version.name.clone(),
            api_version: format!("{}/{}", spec.group, version.name),
            has_status: subresources.is_some_and(|subresources| subresources.status.is_some()),
            scale: subresources.and_then(|subresources| subresources.scale.clone()),
            deprecation_warning: version.deprecated.then(|| deprecation_warning(spec, version)),
            selectable_fields: version
                .selectable_fields
                .iter()
                .flatten()
                .map(|field| field.json_path.trim_start_matches('.').to_owned())
                .collect(),
            column_paths: column_paths(version),
            preserves_unknown_fields: spec.preserve_unknown_fields,
            definition: definition.clone(),
            place,
            schema: Mutex::default(),
            number: next_number(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// A number that few versions share: another one after each change of the definition. Never 0 or 1.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// A number above 0 that no other version has: another one after each change of the definition.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The schema of an object.
    pub fn schema(&self) -> Arc<Schema> {
        // Held while it is compiled: other callers would compile it, too.
        let mut compiled = self.schema.lock();
        compiled.idle = 0;
        let schema = compiled.schema.get_or_insert_with(|| {
            let json = self.schema_json().unwrap_or_default();
            // A definition is validated before it is stored.
            Arc::new(Schema::read(&json).unwrap_or_default())
        });
        schema.clone()
    }

    /// How much work the next call of [`schema`](CustomVersion::schema) is, in bytes.
    pub fn schema_work(&self) -> usize {
        if self.schema.lock().schema.is_some() { 0 } else { self.definition.bytes().len() }
    }

    /// Drops the schema if it was not used since as many calls of this function as `limit` says.
    pub fn drop_idle_schema(&self, limit: u32) {
        let mut compiled = self.schema.lock();
        compiled.idle += 1;
        if compiled.idle > limit {
            *compiled = CompiledSchema::default();
        }
    }

    /// `openAPIV3Schema` as it stands in the definition.
    pub fn schema_json(&self) -> Option<Value> {
        #[derive(Deserialize)]
        struct DefinitionRoot {
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Spec {
            versions: Vec<Version>,
        }
        #[derive(Deserialize)]
        struct Version {
            schema: Option<Validation>,
        }
        #[derive(Deserialize)]
        struct Validation {
            #[serde(rename = "openAPIV3Schema")]
            schema: Option<Value>,
        }
        let root: DefinitionRoot = serde_json::from_slice(self.definition.bytes()).ok()?;
        root.spec.versions.into_iter().nth(self.place)?.schema?.schema
    }
}

fn next_number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(2);
    let next = |number: u16| Some(if number == u16::MAX { 2 } else { number + 1 });
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(2)
}

/// The warning about a deprecated version, with upstream's text
/// (`pkg/apiserver/customresource_handler.go`).
fn deprecation_warning(spec: &DefinitionSpec, version: &DefinitionVersion) -> String {
    if let Some(warning) = &version.deprecation_warning {
        return warning.clone();
    }
    let (group, kind) = (&spec.group, &spec.names.kind);
    let newer = spec
        .versions
        .iter()
        .filter(|other| other.served && !other.deprecated && super::by_priority(&other.name, &version.name).is_lt());
    let text = format!("{group}/{} {kind} is deprecated", version.name);
    match newer.min_by(|a, b| super::by_priority(&a.name, &b.name)) {
        Some(newer) => format!("{text}; use {group}/{} {kind}", newer.name),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::super::{Definition, custom_entries};
    use super::*;
    use crate::storage::{KeyValue, Prefix};

    #[test]
    fn schema_is_compiled_on_use_and_dropped_when_idle() {
        let names = json!({"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"});
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"b": {"type": "string"}}}});
        let definition = json!({
            "metadata": {"name": "as.b.io"},
            "spec": {"group": "b.io", "names": names, "scope": "Cluster", "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema},
            ]},
            "status": {"acceptedNames": names},
        });
        let prefix = Prefix::parse("/registry/definitions/").unwrap();
        let (key, value) = (prefix.key("", "as.b.io").unwrap(), Bytes::from(definition.to_string()));
        let record = KeyValue { key, value, created: 2, revision: 2, expires: None };
        let stored = Arc::new(Stored::new(Arc::new(record), &prefix, &[]));
        let definition: Definition = serde_json::from_value(definition).unwrap();
        let entries = custom_entries(&definition, &stored, None);
        let version = entries[0].kind.version.custom().unwrap();
        assert_eq!(version.schema_work(), stored.bytes().len());
        let first = version.schema();
        assert!(first.properties.contains_key("b") && version.schema_work() == 0);
        for _ in 0..3 {
            version.drop_idle_schema(2);
            version.drop_idle_schema(2);
            assert!(Arc::ptr_eq(&version.schema(), &first), "used in between");
        }
        (0..3).for_each(|_| version.drop_idle_schema(2));
        assert_eq!(version.schema_work(), stored.bytes().len());
        assert_eq!(version.schema(), first);
    }
}
