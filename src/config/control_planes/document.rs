//! The YAML of the file: a mapping with `controlPlanes`, or kcp's list of path mappings.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use crate::config::file::{ConfigDocument, Entry, first_line};
use crate::process::Problem;

/// The file, not validated yet.
pub(super) enum ControlPlanesDocument {
    ControlPlanes {
        /// The fields beside `controlPlanes`.
        header: Vec<Entry>,
        entries: Vec<ControlPlaneFields>,
    },
    PathMappings(Vec<ControlPlaneFields>),
}

/// The fields of one entry.
pub(super) struct ControlPlaneFields {
    /// Its number in the list, from 0.
    pub(super) position: usize,
    pub(super) line: u64,
    pub(super) entries: Vec<Entry>,
}

/// Parses the text of the file at `path`.
pub(super) fn parse(path: &Path, text: &str) -> Result<ControlPlanesDocument, Problem> {
    serde_saphyr::from_str(text).map_err(|error| {
        let location = match error.location() {
            Some(location) => format!("{} line {}", path.display(), location.line()),
            None => path.display().to_string(),
        };
        Problem::new(location, format_args!("not a file of kind ControlPlanes: {}", first_line(&error)))
    })
}

fn entries(list: Vec<ConfigDocument>) -> Vec<ControlPlaneFields> {
    let fields = |(position, ConfigDocument(entries)): (usize, ConfigDocument)| ControlPlaneFields {
        position,
        line: entries.first().map_or(1, |first| first.line),
        entries,
    };
    list.into_iter().enumerate().map(fields).collect()
}

impl<'de> Deserialize<'de> for ControlPlanesDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ControlPlanesDocument, D::Error> {
        struct DocumentVisitor;
        impl<'de> Visitor<'de> for DocumentVisitor {
            type Value = ControlPlanesDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping with controlPlanes, or a list of path mappings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ControlPlanesDocument, A::Error> {
                let (mut header, mut list) = (Vec::new(), Vec::new());
                while let Some(name) = map.next_key::<Spanned<String>>()? {
                    if name.value == "controlPlanes" {
                        list = map.next_value::<Option<Vec<ConfigDocument>>>()?.unwrap_or_default();
                        continue;
                    }
                    let line = name.referenced.line();
                    header.push(Entry { name: name.value, line, value: map.next_value()? });
                }
                Ok(ControlPlanesDocument::ControlPlanes { header, entries: entries(list) })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ControlPlanesDocument, A::Error> {
                let mut mappings = Vec::new();
                while let Some(mapping) = list.next_element()? {
                    mappings.push(mapping);
                }
                Ok(ControlPlanesDocument::PathMappings(entries(mappings)))
            }
        }
        deserializer.deserialize_any(DocumentVisitor)
    }
}
