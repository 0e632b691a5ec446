//! The OpenAPI v2 document of the resources that the gateway serves itself, in parts: the built-in ones, each version of a
//! custom resource, and what names all versions. A change of a definition changes its own parts.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::custom::{META_DEFINITIONS, SCALE, custom_definitions};
use super::custom_schema::OpenApiVersion;
use super::definitions::{Definitions, DefinitionsText, V2_PREFIX, collect_references, schema_to_v2};
use super::{COMMON_KINDS, content_line, info, paths, security_scheme, with_common_kinds};
use crate::openapi::v2::LocalPart;
use crate::resources::catalog::{CatalogEntry, ResourceCatalog};

/// Begin of the names of definitions of the package `meta/v1`.
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// The parts of the OpenAPI v2 document of a catalog, without the content of those whose key `is_known`. A later part
/// replaces definitions of an earlier one.
pub fn build_v2(catalog: &ResourceCatalog, is_known: &dyn Fn(&str) -> bool) -> Vec<LocalPart> {
    let text = LazyCell::new(DefinitionsText::read);
    let definitions = LazyCell::new(|| text.parse());
    let part = |key: String, build: &dyn Fn() -> Value| {
        let json = (!is_known(&key)).then(|| build().to_string());
        LocalPart { key, json }
    };
    let (custom, builtin): (Vec<&CatalogEntry>, Vec<&CatalogEntry>) =
        catalog.entries().iter().partition(|entry| entry.kind.resource.custom.is_some());
    let lines: String =
        builtin.iter().map(|entry| format!("{} {}", entry.group_version(), content_line(entry))).collect();
    let mut parts = vec![part(lines, &|| builtin_document(&builtin, &definitions))];
    for entry in custom {
        let key = format!("{} {}", entry.group_version(), content_line(entry));
        parts.push(part(key, &|| custom_document(entry, &definitions)));
    }
    let versions: BTreeSet<(&str, &str)> =
        catalog.entries().iter().map(|entry| (&*entry.kind.resource.group, &*entry.kind.version.version)).collect();
    parts.push(part(format!("{versions:?}"), &|| common_document(&versions, &definitions)));
    parts
}

fn builtin_document(entries: &[&CatalogEntry], definitions: &Definitions<'_>) -> Value {
    let paths = paths(entries.iter().copied(), definitions);
    // Custom resources come and go, and refer to these.
    let mut names: Vec<String> = META_DEFINITIONS.into_iter().chain([SCALE]).map(str::to_owned).collect();
    names.extend(COMMON_KINDS.map(|kind| format!("{META}{kind}")));
    collect_references(&paths, V2_PREFIX, &mut names);
    for parameter in definitions.parameters.values() {
        collect_references(parameter, V2_PREFIX, &mut names);
    }
    let schemas = definitions.reachable(names).into_iter().map(|(name, schema)| (name, schema_to_v2(schema)));
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths,
        "definitions": schemas.collect::<Map<_, _>>(),
        "parameters": definitions.parameters.iter().filter(|(name, parameter)| parameter["name"] != **name)
            .map(|(name, parameter)| (name.clone(), parameter.clone())).collect::<Map<_, _>>(),
        "securityDefinitions": {"BearerToken": security_scheme()},
        "security": [{"BearerToken": []}],
    })
}

fn custom_document(entry: &CatalogEntry, definitions: &Definitions<'_>) -> Value {
    let entries = || std::iter::once(entry);
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths(entries(), definitions),
        "definitions": custom_definitions(entries(), OpenApiVersion::V2),
    })
}

/// The definitions that name each group and version.
fn common_document(versions: &BTreeSet<(&str, &str)>, definitions: &Definitions<'_>) -> Value {
    let names = COMMON_KINDS.map(|kind| format!("{META}{kind}"));
    let mut found = definitions.reachable(names.clone());
    found.retain(|name, _| names.contains(name));
    let schemas = found.into_iter().map(|(name, schema)| {
        let schema = with_common_kinds(&name, schema, versions);
        (name, schema_to_v2(schema))
    });
    json!({"swagger": "2.0", "info": info(), "paths": {}, "definitions": schemas.collect::<Map<_, _>>()})
}
