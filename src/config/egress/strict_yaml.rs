//! YAML decoding as `sigs.k8s.io/yaml` in strict mode: reports duplicate keys with the line of their second value.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// The first YAML document of a text, with its duplicate keys.
pub(super) struct StrictYaml {
    pub(super) value: Value,
    /// In the order of Go's decoder.
    pub(super) duplicates: Vec<DuplicateKey>,
}

/// A key that occurs again in the same mapping.
pub(super) struct DuplicateKey {
    key: String,
    /// Line of its value, counted from 1.
    line: u64,
}

impl StrictYaml {
    /// Parses `text`.
    ///
    /// # Errors
    /// The line and the reason if it is not YAML.
    pub(super) fn read(text: &str) -> Result<StrictYaml, String> {
        let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        let nodes: Vec<Spanned<YamlNode>> =
            serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
                let why = error.without_snippet().to_string();
                let why = why.lines().next().unwrap_or_default();
                match error.location() {
                    Some(at) => format!("yaml: line {}: {why}", at.line()),
                    None => format!("yaml: {why}"),
                }
            })?;
        let mut duplicates = Vec::new();
        let value = nodes.into_iter().next().map_or(Value::Null, |node| node.value.into_value(&mut duplicates));
        Ok(StrictYaml { value, duplicates })
    }

    /// The message of `UnmarshalStrict` about duplicate keys.
    pub(super) fn duplicate_keys_error(&self) -> Option<String> {
        if self.duplicates.is_empty() {
            return None;
        }
        let each = |it: &DuplicateKey| format!("\n  line {}: key {:?} already set in map", it.line, it.key);
        Some(format!("yaml: unmarshal errors:{}", self.duplicates.iter().map(each).collect::<String>()))
    }
}

enum YamlNode {
    Scalar(Value),
    List(Vec<Spanned<YamlNode>>),
    Mapping(Vec<(String, Spanned<YamlNode>)>),
}

impl YamlNode {
    fn into_value(self, duplicates: &mut Vec<DuplicateKey>) -> Value {
        match self {
            YamlNode::Scalar(value) => value,
            YamlNode::List(nodes) => nodes.into_iter().map(|node| node.value.into_value(duplicates)).collect(),
            YamlNode::Mapping(entries) => {
                let mut map = Map::new();
                for (key, node) in entries {
                    let line = node.referenced.line();
                    let value = node.value.into_value(duplicates);
                    if map.insert(key.clone(), value).is_some() {
                        duplicates.push(DuplicateKey { key, line });
                    }
                }
                Value::Object(map)
            }
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<YamlNode, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = YamlNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<YamlNode, E> {
        Ok(YamlNode::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlNode, D::Error> {
        YamlNode::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlNode, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = items.next_element()? {
            nodes.push(node);
        }
        Ok(YamlNode::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<YamlNode, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = items.next_entry()? {
            entries.push(entry);
        }
        Ok(YamlNode::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strict_yaml_reports_duplicate_keys() {
        let text = "a: 1\nb:\n  c: x\n  c: z\nd:\n- e: {f: 1, f: 2}\na:\n  g: 3\n";
        let tree = StrictYaml::read(text).unwrap();
        assert_eq!(tree.value, json!({"a": {"g": 3}, "b": {"c": "z"}, "d": [{"e": {"f": 2}}]}));
        let expected = "yaml: unmarshal errors:\n  line 4: key \"c\" already set in map\n  \
                        line 6: key \"f\" already set in map\n  line 8: key \"a\" already set in map";
        assert_eq!(tree.duplicate_keys_error().unwrap(), expected);
    }

    #[test]
    fn strict_yaml_empty_multiple_and_invalid_documents() {
        assert_eq!(StrictYaml::read("").unwrap().value, Value::Null);
        assert_eq!(StrictYaml::read("# nothing\n").unwrap().value, Value::Null);
        assert_eq!(StrictYaml::read("---\na: 1\n---\nb: 2\n").unwrap().value, json!({"a": 1}));
        assert!(StrictYaml::read("a: 1\nb: [\n").err().unwrap().starts_with("yaml: line "));
        assert!(StrictYaml::read("a: 1").unwrap().duplicate_keys_error().is_none());
    }

    #[test]
    fn strict_yaml_parse_never_panics() {
        bolero::check!().with_type::<String>().with_iterations(2000).for_each(|text| {
            let _ = StrictYaml::read(text);
        });
    }
}
