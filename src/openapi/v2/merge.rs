//! Merges documents into one, by the rules of kube-openapi's `pkg/aggregator`. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::json;

use super::schema_table::{DEFINITION, PARAMETER, PATH, ValueKind};
use super::source_document::{DocumentEntry, Entries, GroupVersionKind, SourceDocument};

/// A document being merged.
#[derive(Debug, Default)]
pub(super) struct DocumentMerger {
    part: SourceDocument,
    /// Name of the definition that describes a kind: the first one.
    definition_by_kind: BTreeMap<GroupVersionKind, String>,
}

impl DocumentMerger {
    /// Adds `part`, except for paths that exist already. `may_describe` says which kinds its source may describe.
    ///
    /// Equal definitions are shared, whatever kinds they name. A different one of the same name is renamed:
    /// `<name>_v2`, `_v3`, …. Kubernetes lets two definitions describe the same kind, and which of them `kubectl
    /// explain` shows is left to chance; here it is the first.
    pub(super) fn add(&mut self, part: &SourceDocument, may_describe: impl Fn(&GroupVersionKind) -> bool) {
        let part = part.retain_paths(|path| !self.part.paths.contains_key(path));
        let definitions = find_renames(&self.part.definitions, &part.definitions);
        let parameters = find_renames(&self.part.parameters, &part.parameters);
        let renamed = |entry: &Arc<DocumentEntry>, kind: ValueKind| {
            let new = |reference: &str| match reference.strip_prefix("#/definitions/") {
                Some(name) => definitions.get(name).map(|new| format!("#/definitions/{new}")),
                None => {
                    let new = parameters.get(reference.strip_prefix("#/parameters/")?)?;
                    Some(format!("#/parameters/{new}"))
                }
            };
            match entry.references.iter().any(|reference| new(reference).is_some()) {
                true => Arc::new(entry.with_renamed_references(kind, new)),
                false => entry.clone(),
            }
        };
        for (name, entry) in &part.definitions {
            let name = definitions.get(name).unwrap_or(name);
            self.add_definition(name, renamed(entry, DEFINITION), &may_describe);
        }
        for (name, entry) in &part.parameters {
            let name = parameters.get(name).unwrap_or(name).clone();
            self.part.parameters.entry(name).or_insert_with(|| renamed(entry, PARAMETER));
        }
        for (path, entry) in &part.paths {
            self.part.paths.insert(path.clone(), renamed(entry, PATH));
        }
    }

    /// Uses the head of `part` (all but paths, definitions and parameters) for the merged document.
    pub(super) fn set_head(&mut self, part: &SourceDocument) {
        self.part.head = part.head.clone();
    }

    fn add_definition(
        &mut self,
        name: &str,
        entry: Arc<DocumentEntry>,
        may_describe: impl Fn(&GroupVersionKind) -> bool,
    ) {
        let there = self.part.definitions.get(name);
        let mut kinds = entry.kinds.clone();
        if let Some(kinds) = &mut kinds {
            let described = &mut self.definition_by_kind;
            kinds.retain(|kind| {
                may_describe(kind) && described.entry(kind.clone()).or_insert_with(|| name.to_owned()) == name
            });
        }
        let mut kinds = kinds.filter(|kinds| !kinds.is_empty());
        if let Some(before) = there.and_then(|there| there.kinds.as_ref()) {
            kinds.get_or_insert_default().extend(before.iter().cloned());
        }
        let entry = match there {
            Some(there) if there.kinds == kinds => return,
            None if entry.kinds == kinds => entry,
            _ => Arc::new(entry.with_kinds(kinds)),
        };
        self.part.definitions.insert(name.to_owned(), entry);
    }

    /// The document as JSON.
    pub(super) fn to_json(&self) -> String {
        let mut head = self.part.head.clone();
        head.entry("swagger".into()).or_insert_with(|| "\"2.0\"".into());
        head.entry("info".into())
            .or_insert_with(|| json!({"title": "narthex", "version": env!("CARGO_PKG_VERSION")}).to_string().into());
        self.part.to_json(&head)
    }
}

/// New names for entries of `source` that differ from those of the same name in `there`.
fn find_renames(there: &Entries, source: &Entries) -> BTreeMap<String, String> {
    let mut renames = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (name, entry) in source {
        let same = |of: &str| there.get(of).map(|there| there.text == entry.text);
        if same(name).is_none_or(|same| same) {
            continue;
        }
        let mut number = 2;
        let mut new = format!("{name}_v{number}");
        // An equal entry that was renamed before is reused.
        while same(&new) == Some(false) || same(&new).is_none() && (taken.contains(&new) || source.contains_key(&new)) {
            number += 1;
            new = format!("{name}_v{number}");
        }
        taken.insert(new.clone());
        renames.insert(name.clone(), new);
    }
    renames
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn part(document: &Value) -> SourceDocument {
        SourceDocument::parse(document.to_string().as_bytes(), None).unwrap()
    }

    /// A document with a path `path` that returns `Thing`, defined as `thing`.
    fn document(path: &str, thing: &Value, more: &Value) -> Value {
        let mut definitions = json!({"Thing": thing});
        definitions.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({
            "swagger": "2.0", "info": {"title": path, "version": "1"}, "definitions": definitions,
            "parameters": {"pretty": {"name": "pretty", "in": "query", "type": "string", "description": path}},
            "paths": {path: {
                "parameters": [{"$ref": "#/parameters/pretty"}],
                "get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Thing"}}}},
            }},
        })
    }

    fn merged(documents: &[Value]) -> Value {
        let mut merged = DocumentMerger::default();
        documents.iter().for_each(|document| merged.add(&part(document), |_| true));
        serde_json::from_str(&merged.to_json()).unwrap()
    }

    fn names(of: &Value) -> Vec<&str> {
        of.as_object().map(|of| of.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    fn kinds(names: &[&str]) -> Value {
        names.iter().map(|name| json!({"group": name, "kind": "Thing", "version": "v1"})).collect()
    }

    #[test]
    fn openapi_v2_equal_definitions_shared() {
        let thing = |group| json!({"type": "object", "x-kubernetes-group-version-kind": kinds(&[group])});
        let whole = merged(&[
            document("/b", &thing("b"), &json!({})),
            document("/a", &thing("a"), &json!({})),
            document("/c", &json!({"type": "object"}), &json!({})),
        ]);
        assert_eq!(names(&whole["definitions"]), ["Thing"]);
        assert_eq!(whole["definitions"]["Thing"]["x-kubernetes-group-version-kind"], kinds(&["a", "b"]));
        assert_eq!(names(&whole["paths"]), ["/a", "/b", "/c"]);
        assert_eq!(whole["info"]["title"], "narthex");
    }

    #[test]
    fn openapi_v2_conflicting_definitions_renamed() {
        let list = json!({"List": {"items": {"$ref": "#/definitions/Thing"}, "title": "of its own"}});
        let thing = |title: &str| json!({"title": title});
        let whole = merged(&[
            document("/a", &thing("a"), &json!({"Thing_v3": {"title": "there already"}})),
            document("/b", &thing("b"), &list),
            document("/c", &thing("c"), &json!({})),
            document("/d", &thing("b"), &json!({})),
            document("/e", &thing("e"), &json!({"Thing_v5": {"title": "its own"}})),
        ]);
        let schema = |path: &str| whole["paths"][path]["get"]["responses"]["200"]["schema"]["$ref"].clone();
        let of = |path: &str| {
            let name = schema(path);
            let name = name.as_str().unwrap().trim_start_matches("#/definitions/");
            (name.to_owned(), whole["definitions"][name]["title"].as_str().unwrap().to_owned())
        };
        let pair = |name: &str, title: &str| (name.to_owned(), title.to_owned());
        assert_eq!(of("/a"), pair("Thing", "a"));
        assert_eq!(of("/b"), pair("Thing_v2", "b"));
        assert_eq!(of("/c"), pair("Thing_v4", "c"), "v3 is something else");
        assert_eq!(of("/d"), pair("Thing_v2", "b"), "as renamed before");
        assert_eq!(of("/e"), pair("Thing_v6", "e"), "v5 is its own");
        assert_eq!(whole["definitions"]["List"]["items"]["$ref"], "#/definitions/Thing_v2");
        let parameters: Vec<&str> = names(&whole["parameters"]);
        assert_eq!(parameters, ["pretty", "pretty_v2", "pretty_v3", "pretty_v4", "pretty_v5"]);
        assert_eq!(whole["paths"]["/c"]["parameters"][0]["$ref"], "#/parameters/pretty_v3");
    }

    #[test]
    fn openapi_v2_first_source_of_path_wins() {
        let first = document("/a", &json!({"title": "a"}), &json!({}));
        let mut second = document("/b", &json!({"title": "b"}), &json!({"Other": {}, "Unnamed": {}}));
        second["paths"]["/a"] = json!({"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/Other"}}}}});
        let whole = merged(&[first, second]);
        assert_eq!(names(&whole["definitions"]), ["Thing", "Thing_v2", "Unnamed"], "what nothing references stays");
        assert!(whole["paths"]["/a"]["get"]["responses"]["200"]["schema"]["$ref"] == "#/definitions/Thing");
    }

    #[test]
    fn openapi_v2_kind_described_once_by_allowed_source() {
        let thing = |title: &str| json!({"title": title, "x-kubernetes-group-version-kind": kinds(&["a", "b"])});
        let mut merged = DocumentMerger::default();
        merged.add(&part(&document("/b", &thing("b"), &json!({}))), |kind| kind.group != "a");
        merged.add(&part(&document("/a", &thing("a"), &json!({}))), |_| true);
        let whole: Value = serde_json::from_str(&merged.to_json()).unwrap();
        assert_eq!(whole["definitions"]["Thing"]["x-kubernetes-group-version-kind"], kinds(&["b"]));
        assert_eq!(whole["definitions"]["Thing_v2"]["x-kubernetes-group-version-kind"], kinds(&["a"]));
    }

    #[test]
    fn openapi_v2_circular_references_merged() {
        let whole = merged(&[
            document("/a", &json!({"$ref": "#/definitions/Thing"}), &json!({})),
            document(
                "/b",
                &json!({"properties": {"a": {"$ref": "#/definitions/Other"}}}),
                &json!({"Other": {"$ref": "#/definitions/Thing"}}),
            ),
        ]);
        assert_eq!(whole["definitions"]["Thing_v2"]["properties"]["a"]["$ref"], "#/definitions/Other");
        assert_eq!(whole["definitions"]["Other"]["$ref"], "#/definitions/Thing_v2");
    }
}
