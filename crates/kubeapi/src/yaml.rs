//! YAML bodies as `sigs.k8s.io/yaml` reads them: the first document, scalars by YAML 1.1, merge keys, and duplicate
//! keys with their lines. What aliases and merge keys add is bounded.

mod quoted_lines;
mod resolve;
mod write;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::{Map, Value};

use super::GoQuoted;
use super::json::MAX_JSON_DEPTH;
use quoted_lines::QuotedLineIndenter;
use resolve::{key_text, resolve_scalar};
pub use write::write_yaml_into;

/// Size of all that anchors, aliases and merge keys may copy, in bytes; a value counts as at least 32.
const MAX_COPIED: usize = 4 * 1024 * 1024;
/// Maximum number of mappings. Each may take several hundred bytes of memory, and of as many no object can be stored.
const MAX_MAPPINGS: usize = 1 << 18;
/// Maximum number of reported duplicate keys.
const MAX_DUPLICATES: usize = 100;

/// A YAML document that has been read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YamlDocument {
    /// The document as JSON: of duplicate keys, the last.
    pub value: Value,
    /// Texts of duplicate keys, such as `line 6: key "name" already set in map`; at most 100.
    pub duplicates: Vec<String>,
}

impl YamlDocument {
    /// The text of strict decoding for all duplicate keys, if there are any: `yaml: unmarshal errors:` and a line each.
    pub fn strict_error(&self) -> Option<String> {
        let lines = self.duplicates.join("\n  ");
        (!self.duplicates.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {lines}"))
    }
}

/// Error of reading YAML. It begins with `yaml: `, or with `json: ` for what JSON does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlReadError(String);

impl fmt::Display for YamlReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for YamlReadError {}

fn fail<T>(why: impl fmt::Display) -> Result<T, YamlReadError> {
    Err(YamlReadError(format!("yaml: {why}")))
}

/// Reads the first document of a text; null if there is none.
///
/// # Errors
/// For what is no YAML or has no form in JSON, for more than 128 levels, and for aliases that expand too far. Texts of
/// syntax differ from Kubernetes'.
pub fn read_yaml(text: &str) -> Result<YamlDocument, YamlReadError> {
    let mut text = Cow::Borrowed(text);
    let mut indenter = QuotedLineIndenter::default();
    loop {
        let error = match read_document(&text)? {
            Ok(document) => return Ok(document),
            Err(error) => error,
        };
        match indenter.indent(&text, &error) {
            Some(indented) => text = Cow::Owned(indented),
            None => return fail(format_args!("line {}: {error}", error.marker().line())),
        }
    }
}

/// Reads the first document of a text, or finds out where it is no YAML.
fn read_document(text: &str) -> Result<Result<YamlDocument, ScanError>, YamlReadError> {
    let mut builder = YamlBuilder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => return Ok(Err(error)),
        };
        if builder.take(event, span)? {
            break;
        }
    }
    Ok(Ok(builder.document))
}

/// A mapping or sequence that is not complete yet.
struct OpenNode {
    content: OpenContent,
    anchor: usize,
    line: usize,
}

enum OpenContent {
    Sequence(Vec<Value>),
    Mapping { map: Map<String, Value>, key: Option<MappingKey> },
}

enum MappingKey {
    Text {
        key: String,
        /// The key as Go's `%#v` shows it.
        shown: String,
        line: usize,
    },
    /// `<<`: the value's entries go into this mapping.
    Merge,
}

#[derive(Default)]
struct YamlBuilder {
    open: Vec<OpenNode>,
    /// Complete nodes with an anchor, and their sizes.
    anchors: HashMap<usize, (Value, usize)>,
    copied: usize,
    mappings: usize,
    document: YamlDocument,
}

impl YamlBuilder {
    /// Takes an event; true at the end of the document.
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<bool, YamlReadError> {
        let line = span.start.line();
        match event {
            Event::DocumentEnd | Event::StreamEnd => return Ok(true),
            Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag.as_deref(), line)?,
            Event::SequenceStart(_, anchor, _) => {
                self.enter(OpenNode { content: OpenContent::Sequence(Vec::new()), anchor, line })?;
            }
            Event::MappingStart(_, anchor, _) => {
                self.mappings += 1;
                if self.mappings > MAX_MAPPINGS {
                    return fail("document contains too many mappings");
                }
                let content = OpenContent::Mapping { map: Map::new(), key: None };
                self.enter(OpenNode { content, anchor, line })?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(node) = self.open.pop() {
                    let value = match node.content {
                        OpenContent::Sequence(items) => Value::Array(items),
                        OpenContent::Mapping { map, .. } => Value::Object(map),
                    };
                    self.finish(value, node.anchor, node.line)?;
                }
            }
            Event::Alias(anchor) => {
                let Some((value, size)) = self.anchors.get(&anchor) else {
                    return fail("anchor value contains itself");
                };
                let (value, size) = (value.clone(), *size);
                self.spend(size)?;
                if self.open.len() + depth_of(&value) > MAX_JSON_DEPTH {
                    return fail("exceeded max depth");
                }
                if self.expects_key() {
                    let Value::String(key) = value else { return fail("invalid map key") };
                    let shown = GoQuoted(&key).to_string();
                    self.set_key(MappingKey::Text { key, shown, line });
                } else {
                    self.attach(value, line)?;
                }
            }
            _ => {}
        }
        Ok(false)
    }

    fn spend(&mut self, size: usize) -> Result<(), YamlReadError> {
        self.copied = self.copied.saturating_add(size);
        if self.copied > MAX_COPIED { fail("document contains excessive aliasing") } else { Ok(()) }
    }

    fn enter(&mut self, node: OpenNode) -> Result<(), YamlReadError> {
        if self.expects_key() {
            return fail("invalid map key");
        }
        if self.open.len() >= MAX_JSON_DEPTH {
            return fail("exceeded max depth");
        }
        self.open.push(node);
        Ok(())
    }

    fn expects_key(&self) -> bool {
        let top = self.open.last().map(|node| &node.content);
        matches!(top, Some(OpenContent::Mapping { key: None, .. }))
    }

    /// Line of the key of the next value. The parser places a block scalar where its content begins.
    fn key_line(&self) -> Option<usize> {
        match self.open.last().map(|node| &node.content) {
            Some(OpenContent::Mapping { key: Some(MappingKey::Text { line, .. }), .. }) => Some(*line),
            _ => None,
        }
    }

    fn set_key(&mut self, new: MappingKey) {
        if let Some(OpenNode { content: OpenContent::Mapping { key, .. }, .. }) = self.open.last_mut() {
            *key = Some(new);
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&Tag>,
        line: usize,
    ) -> Result<(), YamlReadError> {
        let is_plain = style == ScalarStyle::Plain;
        let core_tag = tag.and_then(Tag::core_suffix);
        let tag_name = tag.map(|_| core_tag.unwrap_or(""));
        if !self.expects_key() {
            let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
            let line = if is_block { self.key_line().unwrap_or(line) } else { line };
            return self.finish(resolve_scalar(text, is_plain, tag_name)?, anchor, line);
        }
        let is_merge = text == "<<" && ((is_plain && tag.is_none()) || core_tag == Some("merge"));
        let key = if is_merge {
            MappingKey::Merge
        } else {
            let value = resolve_scalar(text, is_plain, tag_name)?;
            let key = key_text(&value)?;
            if anchor != 0 {
                self.spend(32 + key.len())?;
                self.anchors.insert(anchor, (Value::String(key.clone()), 32 + key.len()));
            }
            let shown = if value.is_string() { GoQuoted(&key).to_string() } else { key.clone() };
            MappingKey::Text { key, shown, line }
        };
        self.set_key(key);
        Ok(())
    }

    /// Keeps a complete node under its anchor, and puts it where it belongs.
    fn finish(&mut self, value: Value, anchor: usize, line: usize) -> Result<(), YamlReadError> {
        if anchor != 0 {
            let size = size_of(&value);
            self.spend(size)?;
            self.anchors.insert(anchor, (value.clone(), size));
        }
        self.attach(value, line)
    }

    fn attach(&mut self, value: Value, line: usize) -> Result<(), YamlReadError> {
        let mut duplicates = Vec::new();
        match self.open.last_mut().map(|node| &mut node.content) {
            None => self.document.value = value,
            Some(OpenContent::Sequence(items)) => items.push(value),
            Some(OpenContent::Mapping { map, key }) => match key.take() {
                Some(MappingKey::Text { key, shown, .. }) => {
                    if map.insert(key, value).is_some() {
                        duplicates.push(format!("line {line}: key {shown} already set in map"));
                    }
                }
                Some(MappingKey::Merge) => merge_entries(map, value, line, &mut duplicates)?,
                None => return fail("invalid map key"),
            },
        }
        let free = MAX_DUPLICATES.saturating_sub(self.document.duplicates.len());
        self.document.duplicates.extend(duplicates.into_iter().take(free));
        Ok(())
    }
}

/// Sets the entries of a `<<`. As in Kubernetes, they replace earlier keys of the mapping; of a list of mappings, the
/// first wins.
fn merge_entries(
    map: &mut Map<String, Value>,
    value: Value,
    line: usize,
    duplicates: &mut Vec<String>,
) -> Result<(), YamlReadError> {
    let wrong = || fail("map merge requires map or sequence of maps as the value");
    let sources = match value {
        Value::Array(items) => items,
        single => vec![single],
    };
    for source in sources.into_iter().rev() {
        let Value::Object(entries) = source else { return wrong() };
        for (key, value) in entries {
            if duplicates.len() < MAX_DUPLICATES && map.contains_key(&key) {
                duplicates.push(format!("line {line}: key {} already set in map", GoQuoted(&key)));
            }
            map.insert(key, value);
        }
    }
    Ok(())
}

/// Estimated size in memory. Values nest at most [`MAX_JSON_DEPTH`] levels.
fn size_of(value: &Value) -> usize {
    32 + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size_of).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| 32 + key.len() + size_of(value)).sum(),
        _ => 0,
    }
}

fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Value {
        read_yaml(text).unwrap().value
    }

    #[test]
    fn yaml_documents_read() {
        for (text, expected) in [
            ("", json!(null)),
            ("a: 1\nb:\n- x\n- {c: d}\n", json!({"a": 1, "b": ["x", {"c": "d"}]})),
            ("a: 1\n---\nb: 2\n", json!({"a": 1})),
            ("--- \n# none\na: |\n  x\n  y\n", json!({"a": "x\ny\n"})),
            ("a: &x {b: c}\nd: *x\n", json!({"a": {"b": "c"}, "d": {"b": "c"}})),
            (
                "a: &x {b: 1, c: 1}\nd:\n  b: 2\n  <<: *x\n  c: 3\n",
                json!({"a": {"b": 1, "c": 1}, "d": {"b": 1, "c": 3}}),
            ),
            ("a: {<<: [{x: 1}, {x: 2, z: 2}]}", json!({"a": {"x": 1, "z": 2}})),
            ("1: a\ntrue: b\n1.5: c\n'2': d\n", json!({"1": "a", "true": "b", "1.5": "c", "2": "d"})),
            ("{\"a\": [1, 2.5, \"yes\"]}", json!({"a": [1, 2.5, "yes"]})),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn yaml_duplicates_reported_with_line_of_value() {
        let text = "a: 1\nb:\n  c: 1\n  c:\n    x: 2\na: 3\n";
        let document = read_yaml(text).unwrap();
        assert_eq!(document.value, json!({"a": 3, "b": {"c": {"x": 2}}}));
        assert_eq!(
            document.strict_error().unwrap(),
            "yaml: unmarshal errors:\n  line 5: key \"c\" already set in map\n  line 6: key \"a\" already set in map"
        );
        assert_eq!(read_yaml("a: 1").unwrap().strict_error(), None);
        let document = read_yaml("yes: 1\n1: x\non: 2\n1: |\nb: 1\n").unwrap();
        let expected = ["line 3: key true already set in map", "line 4: key 1 already set in map"];
        assert_eq!(document.duplicates, expected);
    }

    #[test]
    fn yaml_refusals() {
        for text in [
            "a: [",
            "a: b: c",
            "? [a]\n: b\n",
            "a: &x [*x]\n",
            "a: *x\n",
            "a: .nan\n",
            "<<: 1\n",
            "~: a\n",
            "a: !!int x\n",
        ] {
            assert!(read_yaml(text).is_err(), "{text}");
        }
        assert!(read_yaml(&"[".repeat(100_000)).is_err());
        assert!(read_yaml(&"- ".repeat(100_000)).is_err());
    }

    #[test]
    fn yaml_alias_bombs_refused() {
        let nested = |item: &dyn Fn(&str) -> String| {
            let mut text = "a0: &a0 {k: v}\n".to_owned();
            for level in 1..20 {
                let names = vec![format!("*a{}", level - 1); 6].join(",");
                text += &format!("a{level}: &a{level} {}\n", item(&names));
            }
            text
        };
        let listed = nested(&|names| format!("[{names}]"));
        let merged = nested(&|names| format!("{{x: [{names}]}}"));
        let long = format!("- &a {}\n{}", "x".repeat(100_000), "- *a\n".repeat(1000));
        let chain = (0..100).map(|n| format!("&a{n} [")).collect::<String>() + &"x,".repeat(10_000) + &"]".repeat(100);
        for text in [listed, merged, long, chain] {
            let error = read_yaml(&text).unwrap_err();
            assert_eq!(error.to_string(), "yaml: document contains excessive aliasing");
        }
        let many = format!("[{}]", "{a},".repeat(MAX_MAPPINGS + 1));
        assert_eq!(read_yaml(&many).unwrap_err().to_string(), "yaml: document contains too many mappings");
        let deep =
            format!("a: &a {}{}\nb: {}*a{}\n", "[".repeat(100), "]".repeat(100), "[".repeat(100), "]".repeat(100));
        assert_eq!(read_yaml(&deep).unwrap_err().to_string(), "yaml: exceeded max depth");
    }

    proptest! {
        #[test]
        fn yaml_never_panics(text in "[-a:&*\\[\\]{}, \n<?!|>'\"#1.]{0,40}") {
            let _ = read_yaml(&text);
        }

        #[test]
        fn yaml_reads_json_as_it_is(
            entries in proptest::collection::btree_map("[a-z]{1,5}", "[ -~]{0,10}", 0..5), number in any::<i64>(),
        ) {
            let value = json!({"texts": entries, "number": number, "list": [true, null, 0.5]});
            prop_assert_eq!(read(&value.to_string()), value);
        }
    }
}
