//! Splits files into documents: YAML streams, JSON, and the items of `v1 List`s.

use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::process::{Problem, Problems};

/// One Kubernetes object as parsed from a file, not validated yet.
#[derive(Clone, Debug)]
pub struct ManifestDocument {
    /// File, document number and, inside a List, item number: the location that problems name.
    pub location: String,
    /// `apiVersion`; empty if missing.
    pub api_version: String,
    /// `kind`; empty if missing.
    pub kind: String,
    /// `metadata.name`; empty if missing.
    pub name: String,
    /// The whole object.
    pub value: Value,
}

/// Maximum nesting depth of lists inside lists.
const MAX_LIST_DEPTH: usize = 4;

/// Reads a text file of at most `largest` bytes.
///
/// # Errors
/// The file cannot be read, is larger, or is not UTF-8.
pub fn read_text_file(path: &Path, largest: u64) -> Result<String, Problem> {
    let found = fs::metadata(path).map_err(|error| read_problem(path, &error))?;
    read_text_with_metadata(path, &found, largest)
}

/// Like [`read_text_file`], for a file with the metadata `found`.
///
/// # Errors
/// See [`read_text_file`].
pub fn read_text_with_metadata(path: &Path, found: &Metadata, largest: u64) -> Result<String, Problem> {
    if found.len() > largest {
        return Err(Problem::new(path.display(), format_args!("larger than {} MiB", largest >> 20)));
    }
    let bytes = fs::read(path).map_err(|error| read_problem(path, &error))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        Problem::new(path.display(), format_args!("not UTF-8 after byte {}", error.utf8_error().valid_up_to()))
    })?;
    // A byte order mark is not part of the text.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn read_problem(path: &Path, error: &io::Error) -> Problem {
    Problem::new(path.display(), format_args!("cannot be read: {error}"))
}

/// Whether the file name ends in `.json`.
pub fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == "json")
}

/// Parses all documents of `text`; returns the valid ones and the problems of the others.
///
/// `location` names the file. With `json` the text is parsed as JSON, otherwise as YAML.
/// A syntax error in one document of a YAML stream does not hide the other documents.
pub fn parse_documents(location: &str, text: &str, json: bool) -> (Vec<ManifestDocument>, Problems) {
    let mut found = Vec::new();
    let mut problems = Problems::default();
    let mut number = 0;
    let mut take = |value: Value| {
        number += 1;
        collect_documents(format!("{location}, document {number}"), value, 0, &mut found)
    };
    if json {
        for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            let problem = match value {
                Ok(value) => take(value),
                Err(error) => Err(Problem::new(location, format_args!("not JSON: {error}"))),
            };
            problems.collect(problem);
        }
        return (found, problems);
    }
    for chunk in split_documents(text) {
        let parsed = serde_saphyr::from_str::<Value>(&chunk);
        let problem = match parsed {
            Ok(Value::Null) => Ok(()),
            Ok(value) => take(value),
            Err(error) => {
                // A chunk with only comments or empty lines holds no document.
                if chunk.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
                    Ok(())
                } else {
                    let mut message = String::from("not YAML");
                    if let Some(location) = error.location() {
                        let _ = write!(message, " at line {}, column {}", location.line(), location.column());
                    }
                    let _ = write!(message, ": {}", first_line(&error.without_snippet().to_string()));
                    Err(Problem::new(location, message))
                }
            }
        };
        problems.collect(problem);
    }
    (found, problems)
}

/// Splits `text` at its `---` lines. Each chunk is preceded by as many empty lines as the file has lines before it,
/// so that the parser's line numbers are the file's.
fn split_documents(text: &str) -> Vec<String> {
    let mut chunks = Vec::new();
    let mut chunk = String::new();
    for (number, line) in text.lines().enumerate() {
        let rest = line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if let Some(rest) = rest {
            chunks.push(std::mem::replace(&mut chunk, "\n".repeat(number)));
            chunk.push_str("   ");
            chunk.push_str(rest);
        } else if line.starts_with('%') || line.trim_end() == "..." {
            // Directives and document end marks are ignored.
        } else {
            chunk.push_str(line);
        }
        chunk.push('\n');
    }
    chunks.push(chunk);
    chunks.retain(|chunk| !chunk.trim().is_empty());
    chunks
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn collect_documents(
    location: String,
    mut value: Value,
    depth: usize,
    found: &mut Vec<ManifestDocument>,
) -> Result<(), Problem> {
    let Value::Object(fields) = &mut value else {
        return Err(Problem::new(location, "not a Kubernetes object: expected a mapping with apiVersion and kind"));
    };
    let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if kind.ends_with("List") && fields.get("items").is_some_and(Value::is_array) {
        if depth == MAX_LIST_DEPTH {
            return Err(Problem::at_field(location, "items", "lists are nested too deep"));
        }
        let Some(Value::Array(items)) = fields.remove("items") else { return Ok(()) };
        let item_kind = kind.strip_suffix("List").unwrap_or_default();
        for (number, mut item) in items.into_iter().enumerate() {
            // Items of a typed list (`APIServiceList`) may omit `apiVersion` and `kind`; they inherit the list's.
            if let (Value::Object(item), false) = (&mut item, item_kind.is_empty()) {
                for (field, inherited) in [("apiVersion", api_version.as_str()), ("kind", item_kind)] {
                    item.entry(field).or_insert_with(|| inherited.into());
                }
            }
            collect_documents(format!("{location}, item {}", number + 1), item, depth + 1, found)?;
        }
        return Ok(());
    }
    let name = fields
        .get("metadata")
        .and_then(|metadata| metadata.get("name"))
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let location = match (kind.is_empty(), name.is_empty()) {
        (true, _) => location,
        (false, true) => format!("{location}, {kind}"),
        (false, false) => format!("{location}, {kind} {name:?}"),
    };
    found.push(ManifestDocument { location, api_version, kind, name, value });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let (documents, problems) = parse_documents("f.yaml", text, false);
        assert_eq!(problems.0, []);
        documents.into_iter().map(|document| document.location).collect()
    }

    #[test]
    fn yaml_stream_skips_comments_and_empty_documents() {
        let text = "# license\n---\n# nothing\n---\nkind: A\nmetadata: {name: a}\n--- # why\nkind: B\n...\n---\n";
        assert_eq!(names(text), ["f.yaml, document 1, A \"a\"", "f.yaml, document 2, B"]);
    }

    #[test]
    fn yaml_separator_inside_block_scalar_does_not_split() {
        assert_eq!(names("kind: A\nnote: |\n  ---\n  x\nb: a---b\n").len(), 1);
    }

    #[test]
    fn list_items_inherit_api_version_and_kind() {
        let text = "apiVersion: v1\nkind: List\nitems:\n- {kind: A, metadata: {name: a}}\n- apiVersion: v1\n  kind: ServiceList\n  items:\n  - metadata: {name: b}\n";
        let (documents, problems) = parse_documents("f", text, false);
        assert!(problems.0.is_empty());
        assert_eq!(documents[1].kind, "Service");
        assert_eq!(documents[1].api_version, "v1");
        assert_eq!(documents[1].location, "f, document 1, item 2, item 1, Service \"b\"");
    }

    #[test]
    fn yaml_syntax_error_names_line_and_keeps_other_documents() {
        let text = "kind: A\n---\nkind: [\n---\nkind: C\n---\nx: 1\nx: 2\n";
        let (found, problems) = parse_documents("f", text, false);
        assert_eq!(found.iter().map(|d| d.kind.as_str()).collect::<Vec<_>>(), ["A", "C"]);
        assert_eq!(problems.0.len(), 2, "{problems}");
        assert!(problems.0[0].message.starts_with("not YAML at line "), "{problems}");
        assert!(problems.0[1].message.contains("line 8") && problems.0[1].message.contains("duplicate"), "{problems}");
    }

    #[test]
    fn json_documents_and_non_objects() {
        let (found, problems) = parse_documents("f.json", "{\"kind\":\"A\"} {\"kind\":\"B\"}", true);
        assert_eq!((found.len(), problems.0.len()), (2, 0));
        let (_, problems) = parse_documents("f.json", "{\"kind\":", true);
        assert!(problems.0[0].message.starts_with("not JSON"), "{problems}");
        let (_, problems) = parse_documents("f", "just words", false);
        assert!(problems.0[0].message.starts_with("not a Kubernetes object"), "{problems}");
    }

    #[test]
    fn yaml_alias_bomb_is_refused() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for n in 1..12 {
            let last = n - 1;
            let _ = writeln!(text, "a{n}: &a{n} [{}]", vec![format!("*a{last}"); 10].join(","));
        }
        let (_, problems) = parse_documents("f", &text, false);
        assert_eq!(problems.0.len(), 1);
    }
}
