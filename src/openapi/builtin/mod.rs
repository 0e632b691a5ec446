//! OpenAPI documents of the resources that the gateway serves itself: built from the catalog when they are requested.

mod custom;
mod custom_schema;
mod definitions;
mod document_v2;
mod operations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, OnceLock};

use aws_lc_rs::digest;
use serde_json::{Map, Value, json};
use tokio::task::spawn_blocking;

use self::custom::custom_definitions;
use self::custom_schema::OpenApiVersion;
use self::definitions::{Definitions, DefinitionsText, collect_references};
pub use self::document_v2::build_v2;
use self::operations::ResourceOperations;
use super::v2::path_to_v3;
use crate::discovery::EncodedDocument;
use crate::resources::catalog::{CatalogEntry, ResourceCatalog};

/// Key of the document of APIServices.
pub(super) const REGISTRATIONS: &str = "apis/apiregistration.k8s.io/v1";
/// Changed whenever documents are built in another way.
const FORMAT: u8 = 3;
/// Definitions that describe a kind of every group and version.
const COMMON_KINDS: [&str; 2] = ["DeleteOptions", "WatchEvent"];

/// The OpenAPI v3 document of a group and version that is served locally. It is named by the hash of what it is made of,
/// and built on the first request.
#[derive(Debug)]
pub(super) struct LocalDocument {
    /// Hash in the index and in the entity tag.
    pub(super) hash: String,
    /// What it describes, as text: that of another document differs.
    resources: String,
    /// The resources; none for those of APIServices alone, which are made when the document is built.
    entries: Option<Vec<CatalogEntry>>,
    built: OnceLock<EncodedDocument>,
}

impl LocalDocument {
    /// The documents of all groups and versions of a catalog, by key (`apis/<group>/<version>`). Those of `before` that
    /// are the same are taken over, so that they stay built.
    pub(super) fn of_catalog(
        catalog: &ResourceCatalog,
        before: &BTreeMap<String, Arc<LocalDocument>>,
    ) -> BTreeMap<String, Arc<LocalDocument>> {
        let mut served: BTreeMap<String, (String, Vec<CatalogEntry>)> = BTreeMap::new();
        for entry in catalog.entries() {
            let (lines, entries) = served.entry(key(entry)).or_default();
            lines.push_str(&content_line(entry));
            entries.push(entry.clone());
        }
        let document = |(key, (resources, entries)): (String, (String, Vec<CatalogEntry>))| {
            let same = before.get(&key).filter(|before| before.resources == resources && before.entries.is_some());
            let document = match same {
                Some(same) => same.clone(),
                None => Arc::new(LocalDocument::new(&key, resources, Some(entries))),
            };
            (key, document)
        };
        served.into_iter().map(document).collect()
    }

    /// The document of APIServices that are read-only.
    pub(super) fn of_registrations() -> Arc<LocalDocument> {
        Arc::new(LocalDocument::new(REGISTRATIONS, String::new(), None))
    }

    /// A document named by the hash of what it is made of.
    fn new(key: &str, resources: String, entries: Option<Vec<CatalogEntry>>) -> LocalDocument {
        static FILE_DIGEST: LazyLock<digest::Digest> =
            LazyLock::new(|| digest::digest(&digest::SHA512, definitions::FILE));
        let mut context = digest::Context::new(&digest::SHA512);
        for part in [FILE_DIGEST.as_ref(), &[FORMAT], key.as_bytes(), b"\n", resources.as_bytes()] {
            context.update(part);
        }
        let hash = context.finish().as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        LocalDocument { hash, resources, entries, built: OnceLock::new() }
    }

    /// The document, once [`LocalDocument::build`] has built it.
    pub(super) fn built(&self) -> Option<&EncodedDocument> {
        self.built.get()
    }

    /// Builds the document on a blocking thread, unless it is built.
    pub(super) async fn build(self: &Arc<Self>) {
        if self.built.get().is_none() {
            let document = self.clone();
            // It is answered as unavailable if the thread ended early.
            let _ = spawn_blocking(move || document.build_now()).await;
        }
    }

    fn build_now(&self) {
        self.built.get_or_init(|| {
            let text = DefinitionsText::read();
            let document = match &self.entries {
                Some(entries) => build_v3(entries, &text.parse()),
                None => build_v3(ResourceCatalog::of_generated(true, false).entries(), &text.parse()),
            };
            let document = EncodedDocument::with_hash(&document, &self.hash);
            // Compressed here, because responses are made on worker threads.
            document.gzipped();
            document
        });
    }
}

/// The OpenAPI v3 document of the resources of a group and version.
fn build_v3(entries: &[CatalogEntry], definitions: &Definitions<'_>) -> Value {
    let entries = || entries.iter();
    let Value::Object(paths) = inline_parameters(paths(entries(), definitions), definitions) else {
        return Value::Null;
    };
    let paths: Value = paths.into_iter().map(|(path, item)| (path, path_to_v3(item))).collect::<Map<_, _>>().into();
    let custom = custom_definitions(entries(), OpenApiVersion::V3);
    let mut names = Vec::new();
    collect_references(&paths, "#/components/schemas/", &mut names);
    custom.values().for_each(|schema| collect_references(schema, "#/components/schemas/", &mut names));
    let mut versions = BTreeSet::from([("", "v1")]);
    versions.extend(entries().map(|entry| (&*entry.kind.resource.group, &*entry.kind.version.version)));
    let schemas = definitions.reachable(names).into_iter().map(|(name, schema)| {
        let schema = with_common_kinds(&name, schema, &versions);
        (name, schema)
    });
    let schemas = schemas.chain(custom).collect::<Map<_, _>>();
    let (info, components) = match entries().all(|entry| entry.kind.resource.custom.is_some()) {
        true => (json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}), json!({"schemas": schemas})),
        false => (info(), json!({"schemas": schemas, "securitySchemes": {"BearerToken": security_scheme()}})),
    };
    json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": components})
}

fn paths<'e>(entries: impl Iterator<Item = &'e CatalogEntry>, definitions: &Definitions<'_>) -> Value {
    entries.flat_map(|entry| ResourceOperations::new(entry, definitions).paths()).collect::<Map<_, _>>().into()
}

/// Replaces references to shared parameters: OpenAPI v3 documents of Kubernetes have none.
fn inline_parameters(value: Value, definitions: &Definitions<'_>) -> Value {
    match value {
        Value::Array(all) => all.into_iter().map(|one| inline_parameters(one, definitions)).collect(),
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix("#/parameters/"));
            if let Some(parameter) = name.and_then(|name| definitions.parameters.get(name)) {
                return parameter.clone();
            }
            let inlined = fields.into_iter().map(|(key, value)| (key, inline_parameters(value, definitions)));
            inlined.collect::<Map<_, _>>().into()
        }
        other => other,
    }
}

/// Adds the kinds of a definition that each group and version has.
fn with_common_kinds(name: &str, mut schema: Value, versions: &BTreeSet<(&str, &str)>) -> Value {
    let kind = name.strip_prefix("io.k8s.apimachinery.pkg.apis.meta.v1.").unwrap_or_default();
    if COMMON_KINDS.contains(&kind) {
        let kinds = versions.iter().map(|(group, version)| json!({"group": group, "kind": kind, "version": version}));
        schema["x-kubernetes-group-version-kind"] = kinds.collect();
    }
    schema
}

/// What a resource is described from, as text: another description has another one.
fn content_line(entry: &CatalogEntry) -> String {
    let resource = &entry.kind.resource;
    match &resource.custom {
        Some(custom) => {
            let definition = (&custom.uid, custom.generation, custom.is_terminating);
            format!("{} {definition:?} {:?}\n", resource.plural, (&resource.kind, &resource.list_kind))
        }
        None => format!("{} {}\n", resource.plural, entry.is_stored()),
    }
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "1.36"})
}

fn security_scheme() -> Value {
    json!({"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"})
}

/// The key of the document that describes a resource.
fn key(entry: &CatalogEntry) -> String {
    match &*entry.kind.resource.group {
        "" => format!("api/{}", entry.kind.version.version),
        _ => format!("apis/{}", entry.group_version()),
    }
}

#[cfg(test)]
mod tests;
