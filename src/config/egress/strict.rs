//! YAML decoding as `sigs.k8s.io/yaml` in strict mode: reports duplicate keys with the line of their second value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// The first YAML document of a text, with its duplicate keys.
pub(super) struct Tree {
    pub(super) value: Value,
    /// In the order of Go's decoder.
    pub(super) duplicates: Vec<Duplicate>,
}

/// A key that occurs again in the same mapping.
pub(super) struct Duplicate {
    key: String,
    /// Line of its value, counted from 1.
    line: u64,
}

impl Tree {
    /// Parses `text`.
    ///
    /// # Errors
    /// The line and the reason if it is not YAML.
    pub(super) fn read(text: &str) -> Result<Tree, String> {
        let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        let nodes: Vec<Spanned<Node>> = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let why = error.without_snippet().to_string();
            let why = why.lines().next().unwrap_or_default();
            match error.location() {
                Some(at) => format!("yaml: line {}: {why}", at.line()),
                None => format!("yaml: {why}"),
            }
        })?;
        let mut duplicates = Vec::new();
        let value = nodes.into_iter().next().map_or(Value::Null, |node| node.value.plain(&mut duplicates));
        Ok(Tree { value, duplicates })
    }

    /// The message of `UnmarshalStrict` about duplicate keys.
    pub(super) fn complaint(&self) -> Option<String> {
        if self.duplicates.is_empty() {
            return None;
        }
        let each = |it: &Duplicate| format!("\n  line {}: key {:?} already set in map", it.line, it.key);
        Some(format!("yaml: unmarshal errors:{}", self.duplicates.iter().map(each).collect::<String>()))
    }
}

enum Node {
    Scalar(Value),
    List(Vec<Spanned<Node>>),
    Mapping(Vec<(String, Spanned<Node>)>),
}

impl Node {
    fn plain(self, duplicates: &mut Vec<Duplicate>) -> Value {
        match self {
            Node::Scalar(value) => value,
            Node::List(nodes) => nodes.into_iter().map(|node| node.value.plain(duplicates)).collect(),
            Node::Mapping(entries) => {
                let mut map = Map::new();
                for (key, node) in entries {
                    let line = node.referenced.line();
                    let value = node.value.plain(duplicates);
                    if map.insert(key.clone(), value).is_some() {
                        duplicates.push(Duplicate { key, line });
                    }
                }
                Value::Object(map)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = items.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_that_stand_twice_are_found_wherever_they_are() {
        let text = "a: 1\nb:\n  c: x\n  c: z\nd:\n- e: {f: 1, f: 2}\na:\n  g: 3\n";
        let tree = Tree::read(text).unwrap();
        assert_eq!(tree.value, json!({"a": {"g": 3}, "b": {"c": "z"}, "d": [{"e": {"f": 2}}]}));
        let expected = "yaml: unmarshal errors:\n  line 4: key \"c\" already set in map\n  \
                        line 6: key \"f\" already set in map\n  line 8: key \"a\" already set in map";
        assert_eq!(tree.complaint().unwrap(), expected);
    }

    #[test]
    fn what_is_empty_or_more_than_one_document_or_no_yaml() {
        assert_eq!(Tree::read("").unwrap().value, Value::Null);
        assert_eq!(Tree::read("# nothing\n").unwrap().value, Value::Null);
        assert_eq!(Tree::read("---\na: 1\n---\nb: 2\n").unwrap().value, json!({"a": 1}));
        assert!(Tree::read("a: 1\nb: [\n").err().unwrap().starts_with("yaml: line "));
        assert!(Tree::read("a: 1").unwrap().complaint().is_none());
    }

    #[test]
    fn no_text_is_too_odd() {
        bolero::check!().with_type::<String>().with_iterations(2000).for_each(|text| {
            let _ = Tree::read(text);
        });
    }
}
