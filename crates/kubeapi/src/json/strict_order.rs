//! Order of strict findings: duplicate and unknown fields as they occur in the document, as `sigs.k8s.io/json` finds
//! them in one pass.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::JsonFindings;
use crate::GoQuoted;

/// Texts about the duplicate fields of a document and its unknown fields, in the order of the document. Unknown fields
/// are not looked into. A document that cannot be read again has duplicate fields first.
pub fn strict_messages(document: &[u8], findings: &JsonFindings, unknown: &[String]) -> Vec<String> {
    let message = |what: &str, path: &String| format!("{what} field {}", GoQuoted(path));
    let all = || {
        let duplicates = findings.duplicates.iter().map(|path| message("duplicate", path));
        duplicates.chain(unknown.iter().map(|path| message("unknown", path))).collect::<Vec<_>>()
    };
    if unknown.is_empty() || findings.duplicates.len() + unknown.len() < 2 {
        return all();
    }
    let by_hash = |paths: &[String]| paths.iter().map(|path| (PathHash::of(path), path.clone())).collect();
    let mut walk =
        FindingsWalk { duplicates: by_hash(&findings.duplicates), unknown: by_hash(unknown), messages: Vec::new() };
    let mut deserializer = serde_json::Deserializer::from_slice(document);
    let walked = PlaceSeed { path: PathHash::default(), walk: &mut walk }.deserialize(&mut deserializer);
    if walked.is_ok() && walk.unknown.is_empty() { walk.messages } else { all() }
}

/// Hash of the text of a path (FNV-1a), which grows with the path: a path may be as long as the document.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PathHash(u64);

impl Default for PathHash {
    fn default() -> PathHash {
        PathHash(0xcbf2_9ce4_8422_2325)
    }
}

impl PathHash {
    fn of(path: &str) -> PathHash {
        PathHash::default().append(path)
    }

    fn append(self, text: &str) -> PathHash {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        PathHash(text.bytes().fold(self.0, step))
    }

    fn field(self, name: &str) -> PathHash {
        if self == PathHash::default() { self.append(name) } else { self.append(".").append(name) }
    }
}

/// Findings that are still to come, and the texts of those that came.
struct FindingsWalk {
    duplicates: HashMap<PathHash, String>,
    unknown: HashMap<PathHash, String>,
    messages: Vec<String>,
}

/// Walks the value at a place.
struct PlaceSeed<'w> {
    path: PathHash,
    walk: &'w mut FindingsWalk,
}

impl<'de> DeserializeSeed<'de> for PlaceSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PlaceSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            let key_path = self.path.field(&key);
            if let Some(path) = self.walk.unknown.remove(&key_path) {
                self.walk.messages.push(format!("unknown field {}", GoQuoted(&path)));
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if !keys.insert(key_path)
                && let Some(path) = self.walk.duplicates.remove(&key_path)
            {
                self.walk.messages.push(format!("duplicate field {}", GoQuoted(&path)));
            }
            map.next_value_seed(PlaceSeed { path: key_path, walk: &mut *self.walk })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut index = 0_usize;
        loop {
            let item_path = self.path.append(&format!("[{index}]"));
            if items.next_element_seed(PlaceSeed { path: item_path, walk: &mut *self.walk })?.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_json;
    use super::*;

    fn messages(document: &str, unknown: &[&str]) -> Vec<String> {
        let (_, findings) = read_json(document.as_bytes()).unwrap();
        let unknown: Vec<String> = unknown.iter().map(|path| (*path).to_owned()).collect();
        strict_messages(document.as_bytes(), &findings, &unknown)
    }

    #[test]
    fn strict_findings_are_in_the_order_of_the_document() {
        let document = r#"{"z":1,"list":[{"a":1,"u":2,"a":3}],"b":1,"b":{"x":1,"x":2},"a":{"c":1,"c":1}}"#;
        assert_eq!(
            messages(document, &["a", "list[0].u", "z"]),
            [
                r#"unknown field "z""#,
                r#"unknown field "list[0].u""#,
                r#"duplicate field "list[0].a""#,
                r#"duplicate field "b""#,
                r#"duplicate field "b.x""#,
                r#"unknown field "a""#,
            ]
        );
    }

    #[test]
    fn strict_findings_of_one_sort_stay_as_they_are() {
        assert_eq!(messages(r#"{"b":1,"b":2}"#, &[]), [r#"duplicate field "b""#]);
        assert_eq!(messages("{\"b\":1}", &["b"]), [r#"unknown field "b""#]);
        // A path that is not found, and a text that serde_json does not read.
        let lone = r#"{"b":1,"known":"\ud800","a":1}"#;
        assert_eq!(messages(lone, &["a", "b"]), [r#"unknown field "a""#, r#"unknown field "b""#]);
    }
}
