//! The OpenAPI v2 document of one source: validated, reduced to its own paths, and normalized.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::schema_table::{DEFINITION, DOCUMENT, FieldSchema, PARAMETER, PATH, ValueKind};
use super::validate::{SchemaError, is_extension, validate, yaml_safe_json};
use crate::discovery::FetchError;

/// Extension with the groups, versions and kinds that a definition describes.
const KINDS: &str = "x-kubernetes-group-version-kind";
/// Maximum entries of one section. A thousand CustomResourceDefinitions make about ten thousand paths.
const MAX_ENTRIES: usize = 50_000;
/// Maximum values in one entry: in a tree each takes up to half a KiB.
const MAX_VALUES: usize = 200_000;
/// Sections that are merged entry by entry.
const SECTIONS: [&str; 3] = ["paths", "definitions", "parameters"];

/// The document of one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SourceDocument {
    /// All other fields (`info`, `securityDefinitions`, …); each value as JSON.
    pub(super) head: BTreeMap<String, Box<str>>,
    pub(super) paths: Entries,
    pub(super) definitions: Entries,
    pub(super) parameters: Entries,
}

/// Entries by name.
pub(super) type Entries = BTreeMap<String, Arc<DocumentEntry>>;

/// A path, a definition or a parameter.
#[derive(Debug, PartialEq)]
pub(super) struct DocumentEntry {
    /// Compact JSON with sorted keys; a definition without its kinds.
    pub(super) text: Box<str>,
    /// References to other parts, `#/definitions/…`.
    pub(super) references: BTreeSet<String>,
    /// Kinds that a definition describes; `None` if it names none.
    pub(super) kinds: Option<BTreeSet<GroupVersionKind>>,
}

/// A group, version and kind. Ordered as by kube-openapi.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupVersionKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

impl SourceDocument {
    /// Parses a document, and keeps the paths that begin with `prefix`; all of them for `None`.
    ///
    /// # Errors
    ///
    /// If it is not JSON, has too many entries, or an entry to keep is invalid.
    pub(super) fn parse(body: &[u8], prefix: Option<&str>) -> Result<SourceDocument, FetchError> {
        let Section(document) = serde_json::from_slice(body).map_err(|error| FetchError::unreadable(&error))?;
        let version = document.get("swagger").map_or("", |version| version.get());
        if version != "\"2.0\"" {
            return Err(FetchError::new("the response is not an OpenAPI v2 document"));
        }
        let sections = |name| match document.get(name) {
            None => Ok(Section::default()),
            Some(text) => serde_json::from_str(text.get()).map_err(|error| FetchError::unreadable(&error)),
        };
        let [paths, definitions, parameters]: [Section<'_>; 3] =
            [sections("paths")?, sections("definitions")?, sections("parameters")?];
        let is_own = |path: &str| prefix.is_none_or(|prefix| path.starts_with(prefix));
        let (own, others): (Vec<_>, Vec<_>) = paths.0.into_iter().partition(|(path, _)| is_own(path));

        let whole = RawDocument { definitions: &definitions.0, parameters: &parameters.0 };
        let mut part = SourceDocument { head: head(&document)?, ..SourceDocument::default() };
        for (name, text) in own {
            if !is_extension(&name) {
                let entry =
                    DocumentEntry::parse(PATH, text).map_err(|wrong| invalid_document("paths", &name, &wrong))?;
                part.paths.insert(name, Arc::new(entry));
            }
        }
        let reachable =
            whole.reachable(part.paths.values().flat_map(|entry| entry.references.iter().cloned()).collect());
        let dropped = whole.reachable(others.iter().flat_map(|(_, text)| references(text)).collect());
        // A definition that no path references stays, as in Kubernetes.
        let stays = |name: String| reachable.contains(&name) || !dropped.contains(&name);
        for (name, text) in &definitions.0 {
            if stays(format!("#/definitions/{name}")) {
                let entry = DocumentEntry::parse_definition(text)
                    .map_err(|wrong| invalid_document("definitions", name, &wrong))?;
                part.definitions.insert(name.clone(), Arc::new(entry));
            }
        }
        for (name, text) in &parameters.0 {
            if stays(format!("#/parameters/{name}")) {
                let entry = DocumentEntry::parse(PARAMETER, text)
                    .map_err(|wrong| invalid_document("parameters", name, &wrong))?;
                part.parameters.insert(name.clone(), Arc::new(entry));
            }
        }
        Ok(part)
    }

    /// Adds the entries of another document, which replace those of the same name, and its head if there is none.
    pub(super) fn extend(&mut self, other: &SourceDocument) {
        if self.head.is_empty() {
            self.head = other.head.clone();
        }
        for (own, others) in [
            (&mut self.paths, &other.paths),
            (&mut self.definitions, &other.definitions),
            (&mut self.parameters, &other.parameters),
        ] {
            own.extend(others.iter().map(|(name, entry)| (name.clone(), entry.clone())));
        }
    }

    /// A copy without the paths that `keep` rejects, and without what only those referenced.
    pub(super) fn retain_paths(&self, keep: impl Fn(&str) -> bool) -> SourceDocument {
        let named = |entries: &Entries| -> BTreeSet<String> {
            let first = entries.values().flat_map(|entry| entry.references.iter().cloned()).collect();
            reachable(first, |reference| {
                let entry = match reference.strip_prefix("#/definitions/") {
                    Some(name) => self.definitions.get(name),
                    None => self.parameters.get(reference.strip_prefix("#/parameters/")?),
                };
                Some(entry?.references.iter().cloned().collect())
            })
        };
        let (paths, others): (Entries, Entries) =
            self.paths.iter().map(|(path, entry)| (path.clone(), entry.clone())).partition(|(path, _)| keep(path));
        if others.is_empty() {
            return self.clone();
        }
        let (kept_names, dropped) = (named(&paths), named(&others));
        let staying = |entries: &Entries, prefix: &str| {
            let stays = |name: &str| {
                let name = format!("{prefix}{name}");
                kept_names.contains(&name) || !dropped.contains(&name)
            };
            entries.iter().filter(|(name, _)| stays(name)).map(|(name, entry)| (name.clone(), entry.clone())).collect()
        };
        SourceDocument {
            head: self.head.clone(),
            definitions: staying(&self.definitions, "#/definitions/"),
            parameters: staying(&self.parameters, "#/parameters/"),
            paths,
        }
    }

    /// The document as JSON, with `head` for all other fields.
    pub(super) fn to_json(&self, head: &BTreeMap<String, Box<str>>) -> String {
        let mut out = String::with_capacity(self.size() + (64 << 10));
        out.push('{');
        for (key, value) in head {
            push_comma(&mut out);
            out.push_str(&format!("\"{key}\":{value}"));
        }
        write_section(&mut out, "paths", &self.paths);
        for (section, entries) in [("definitions", &self.definitions), ("parameters", &self.parameters)] {
            if !entries.is_empty() {
                write_section(&mut out, section, entries);
            }
        }
        out.push_str("}\n");
        out
    }

    /// Approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        let entries = [&self.paths, &self.definitions, &self.parameters].into_iter().flatten();
        entries.map(|(name, entry)| name.len() + entry.text.len()).sum()
    }
}

impl DocumentEntry {
    fn parse(kind: ValueKind, text: &RawValue) -> Result<DocumentEntry, SchemaError> {
        DocumentEntry::from_value(kind, parse(text)?)
    }

    fn parse_definition(text: &RawValue) -> Result<DocumentEntry, SchemaError> {
        let mut value = parse(text)?;
        let kinds = value.as_object_mut().and_then(|fields| fields.remove(KINDS));
        let kinds = match kinds {
            None => None,
            Some(kinds) => {
                Some(GroupVersionKind::parse_all(kinds).ok_or(SchemaError::new("has an invalid list of kinds"))?)
            }
        };
        Ok(DocumentEntry { kinds, ..DocumentEntry::from_value(DEFINITION, value)? })
    }

    fn from_value(kind: ValueKind, mut value: Value) -> Result<DocumentEntry, SchemaError> {
        let mut references = BTreeSet::new();
        validate(kind, &mut value, &mut |name| {
            references.insert(name.clone());
        })?;
        Ok(DocumentEntry { text: yaml_safe_json(&value).into(), references, kinds: None })
    }

    /// A copy with renamed references.
    pub(super) fn with_renamed_references(
        &self,
        kind: ValueKind,
        new: impl Fn(&str) -> Option<String>,
    ) -> DocumentEntry {
        let Ok(mut value) = serde_json::from_str::<Value>(&self.text) else {
            return DocumentEntry {
                text: self.text.clone(),
                references: self.references.clone(),
                kinds: self.kinds.clone(),
            };
        };
        let mut references = BTreeSet::new();
        let renamed = validate(kind, &mut value, &mut |name| {
            if let Some(new) = new(name) {
                *name = new;
            }
            references.insert(name.clone());
        });
        debug_assert!(renamed.is_ok(), "it was validated before");
        DocumentEntry { text: yaml_safe_json(&value).into(), references, kinds: self.kinds.clone() }
    }

    /// A copy with other kinds.
    pub(super) fn with_kinds(&self, kinds: Option<BTreeSet<GroupVersionKind>>) -> DocumentEntry {
        DocumentEntry { text: self.text.clone(), references: self.references.clone(), kinds }
    }

    /// Writes the entry with its kinds.
    pub(super) fn write_to(&self, out: &mut String) {
        let Some(kinds) = &self.kinds else { return out.push_str(&self.text) };
        let kinds: Vec<Value> =
            kinds.iter().map(|kind| json!({"group": kind.group, "kind": kind.kind, "version": kind.version})).collect();
        let fields = self.text.strip_suffix('}').unwrap_or(&self.text);
        out.push_str(fields);
        out.push_str(if fields == "{" { "\"" } else { ",\"" });
        out.push_str(KINDS);
        out.push_str("\":");
        out.push_str(&yaml_safe_json(&Value::Array(kinds)));
        out.push('}');
    }
}

impl GroupVersionKind {
    fn parse_all(kinds: Value) -> Option<BTreeSet<GroupVersionKind>> {
        let text = |of: &Map<String, Value>, key: &str| of.get(key).and_then(Value::as_str).map(str::to_owned);
        let Value::Array(kinds) = kinds else { return None };
        kinds
            .iter()
            .map(|kind| {
                let of = kind.as_object()?;
                let (group, version, kind) = (text(of, "group")?, text(of, "version")?, text(of, "kind")?);
                Some(GroupVersionKind { group, version, kind })
            })
            .collect()
    }
}

fn write_section(out: &mut String, section: &str, entries: &Entries) {
    push_comma(out);
    out.push_str(&format!("\"{section}\":{{"));
    for (name, entry) in entries {
        push_comma(out);
        out.push_str(&yaml_safe_json(&json!(name)));
        out.push(':');
        entry.write_to(out);
    }
    out.push('}');
}

fn push_comma(out: &mut String) {
    if !out.ends_with('{') {
        out.push(',');
    }
}

/// A document before validation, to follow its references.
struct RawDocument<'d> {
    definitions: &'d BTreeMap<String, &'d RawValue>,
    parameters: &'d BTreeMap<String, &'d RawValue>,
}

impl RawDocument<'_> {
    /// All references reachable from `first`.
    fn reachable(&self, first: Vec<String>) -> BTreeSet<String> {
        reachable(first, |reference| {
            let text = match reference.strip_prefix("#/definitions/") {
                Some(name) => self.definitions.get(name),
                None => self.parameters.get(reference.strip_prefix("#/parameters/")?),
            };
            Some(references(text?))
        })
    }
}

/// All references reachable from `first`, each once; there may be cycles.
fn reachable(first: Vec<String>, of: impl Fn(&str) -> Option<Vec<String>>) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), first);
    while let Some(reference) = next.pop() {
        if !found.contains(&reference) {
            next.extend(of(&reference).unwrap_or_default());
            found.insert(reference);
        }
    }
    found
}

/// References of an entry before validation; none if it cannot be parsed.
fn references(text: &RawValue) -> Vec<String> {
    fn find(value: Value, found: &mut Vec<String>) {
        match value {
            Value::Array(entries) => entries.into_iter().for_each(|entry| find(entry, found)),
            Value::Object(fields) => fields.into_iter().for_each(|(key, value)| match value {
                Value::String(name) if key == "$ref" => found.push(name),
                value => find(value, found),
            }),
            _ => {}
        }
    }
    let mut found = Vec::new();
    if let Ok(value) = parse(text) {
        find(value, &mut found);
    }
    found
}

fn parse(text: &RawValue) -> Result<Value, SchemaError> {
    let text = text.get();
    if text.bytes().filter(|byte| matches!(byte, b',' | b'{' | b'[')).count() > MAX_VALUES {
        return Err(SchemaError::new("has too many values"));
    }
    serde_json::from_str(text).map_err(|_| SchemaError::new("cannot be read: nested too deeply, perhaps"))
}

/// The validated fields other than paths, definitions and parameters.
fn head(document: &BTreeMap<String, &RawValue>) -> Result<BTreeMap<String, Box<str>>, FetchError> {
    let mut head = BTreeMap::new();
    for FieldSchema { key, kind, .. } in DOCUMENT.fields.iter().filter(|field| !SECTIONS.contains(&field.key)) {
        let Some(text) = document.get(*key).filter(|text| text.get() != "null") else { continue };
        let validated = parse(text).and_then(|mut value| validate(*kind, &mut value, &mut |_| {}).map(|()| value));
        head.insert(
            (*key).to_owned(),
            yaml_safe_json(&validated.map_err(|wrong| invalid_document(key, "", &wrong))?).into(),
        );
    }
    Ok(head)
}

fn invalid_document(section: &str, name: &str, wrong: &SchemaError) -> FetchError {
    let name: String = name.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    FetchError::new(format!("invalid OpenAPI document: {section}: {name}: {wrong}"))
}

/// A section of a document with unparsed entries. The first of a name wins.
#[derive(Default)]
struct Section<'d>(BTreeMap<String, &'d RawValue>);

impl<'de: 'd, 'd> Deserialize<'de> for Section<'d> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Section<'d>, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Section<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {MAX_ENTRIES} entries")
            }

            fn visit_unit<E>(self) -> Result<Section<'de>, E> {
                Ok(Section::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Section<'de>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((name, text)) = map.next_entry::<String, &RawValue>()? {
                    if entries.len() == MAX_ENTRIES {
                        return Err(A::Error::custom(format_args!("more than {MAX_ENTRIES} entries")));
                    }
                    entries.entry(name).or_insert(text);
                }
                Ok(Section(entries))
            }
        }
        from.deserialize_any(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "/apis/a.io/v1/";

    fn read(document: &str) -> Result<SourceDocument, String> {
        SourceDocument::parse(document.as_bytes(), Some(OWN)).map_err(|error| error.text)
    }

    fn with(section: &str) -> String {
        format!(r#"{{"swagger":"2.0","info":{{"title":"a","version":"1"}},{section}}}"#)
    }

    fn names(entries: &Entries) -> Vec<&str> {
        entries.keys().map(String::as_str).collect()
    }

    #[test]
    fn openapi_v2_source_keeps_own_paths_and_needed_definitions() {
        let answers = |name: &str| {
            format!(
                r##"{{"get":{{"responses":{{"200":{{"description":"","schema":{{"$ref":"#/definitions/{name}"}}}}}}}}}}"##
            )
        };
        let document = with(&format!(
            r##""paths":{{"/apis/a.io/v1/things":{},"/apis/a.io/":{},"/apis/a.io/v1beta1/things":{},"/apis/b.io/v1/x":7}},
            "definitions":{{"Thing":{{"properties":{{"in":{{"$ref":"#/definitions/Inner"}}}}}},
                "Inner":{{"properties":{{"out":{{"$ref":"#/definitions/Thing"}}}}}},
                "Group":{{"items":{{"$ref":"#/definitions/Shared"}}}},"Old":{{}},"Shared":{{}},"Nobody's":{{}}}}"##,
            answers("Thing"),
            answers("Group"),
            answers("Old"),
        ));
        let part = read(&document).unwrap();
        assert_eq!(names(&part.paths), ["/apis/a.io/v1/things"]);
        assert_eq!(names(&part.definitions), ["Inner", "Nobody's", "Thing"], "as upstream: the unreferenced stays");
        let nothing = part.retain_paths(|_| false);
        assert_eq!((names(&nothing.paths), names(&nothing.definitions)), (vec![], vec!["Nobody's"]));
        assert_eq!(part.retain_paths(|_| true), part);
    }

    #[test]
    fn openapi_v2_source_written_as_read() {
        let document = with(
            r#""paths":{},"definitions":{"A":{"x-kubernetes-group-version-kind":[{"group":"b","kind":"K","version":"v"},
            {"group":"a","kind":"K","version":"v"}]},"B":{"type":"object"}}"#,
        );
        let part = read(&document).unwrap();
        let written = |name: &str| {
            let mut out = String::new();
            part.definitions[name].write_to(&mut out);
            out
        };
        assert_eq!(
            written("A"),
            r#"{"x-kubernetes-group-version-kind":[{"group":"a","kind":"K","version":"v"},{"group":"b","kind":"K","version":"v"}]}"#
        );
        assert_eq!(written("B"), r#"{"type":"object"}"#);
        assert_eq!(&*part.head["info"], r#"{"title":"a","version":"1"}"#);
    }

    #[test]
    fn openapi_v2_source_invalid_documents_refused() {
        let deep = format!("{}{{}}{}", r#"{"items":"#.repeat(200), "}".repeat(200));
        let many = format!("[{}]", vec!["1"; MAX_VALUES + 1].join(","));
        let crowd: Vec<String> = (0..=MAX_ENTRIES).map(|number| format!("\"{number}\":{{}}")).collect();
        for (document, expected) in [
            (String::new(), "cannot be read"),
            ("<html>".into(), "cannot be read"),
            ("[]".into(), "cannot be read"),
            ("{}".into(), "not an OpenAPI v2 document"),
            (r#"{"openapi":"3.0.0"}"#.into(), "not an OpenAPI v2 document"),
            (r#"{"kind":"Status","code":200}"#.into(), "not an OpenAPI v2 document"),
            (with(r#""paths":7"#), "cannot be read"),
            (with(r#""definitions":{"A":7}"#), "definitions: A: is of the wrong type"),
            (with(r#""definitions":{"\u001b[2J":{"type":7}}"#), "definitions: \u{fffd}[2J: type: is of the wrong type"),
            (with(&format!(r#""definitions":{{"A":{deep}}}"#)), "A: cannot be read: nested too deeply"),
            (with(&format!(r#""definitions":{{"A":{{"enum":{many}}}}}"#)), "definitions: A: has too many values"),
            (with(&format!(r#""definitions":{{{}}}"#, crowd.join(","))), "more than 50000 entries"),
            (with(r#""definitions":{"A":{"x-kubernetes-group-version-kind":{}}}"#), "A: has an invalid list of kinds"),
            (with(r#""securityDefinitions":{"A":{"type":"magic"}}"#), "securityDefinitions: : A: is of unknown kind"),
            (with(&format!(r#""paths":{{"{OWN}x":{{"get":[]}}}}"#)), "x: get: is of the wrong type"),
        ] {
            let error = read(&document).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(error.len() < 500 && !error.contains('\u{1b}'), "{error}");
        }
        assert!(read(&"{\"swagger\":".repeat(1_000_000)).is_err());
    }

    #[test]
    fn openapi_v2_source_null_and_unknown_removed() {
        let document = with(&format!(
            r#""paths":{{"{OWN}x":{{"get":null,"trace":7}},"x-note":1}},"definitions":null,"parameters":{{}},"security":null,"unknown":[[]]"#
        ));
        let part = read(&document).unwrap();
        assert_eq!(&*part.paths[&format!("{OWN}x")].text, "{}");
        assert_eq!((part.paths.len(), part.head.len()), (1, 2));
    }
}
