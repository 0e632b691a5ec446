//! Fields of objects that field selectors may name.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A field that field selectors of a resource may name, besides `metadata.name` and `metadata.namespace`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredField {
    pub(super) name: Box<str>,
    /// Paths in the object; the first with a value counts.
    paths: Box<[Box<[Box<str>]>]>,
    /// Value of a field that is absent.
    zero_value: &'static str,
}

impl DeclaredField {
    /// A field, with the dotted paths at which its value is looked for. A number is a place in a list.
    pub fn new(name: &str, paths: &[&str]) -> DeclaredField {
        let path = |path: &&str| path.split('.').map(Box::from).collect();
        DeclaredField { name: name.into(), paths: paths.iter().map(path).collect(), zero_value: "" }
    }

    /// The field with another value than the empty text where it is absent.
    #[must_use]
    pub fn with_zero_value(self, zero_value: &'static str) -> DeclaredField {
        DeclaredField { zero_value, ..self }
    }

    /// The name by which selectors find the field.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value in the bytes of an object.
    pub fn value(&self, bytes: &[u8]) -> String {
        let found = self.paths.iter().find_map(|path| value_at(bytes, path).filter(|value| !value.is_empty()));
        found.unwrap_or_else(|| self.zero_value.to_owned())
    }
}

/// The value at a path of JSON bytes as text: texts without quotes, numbers and booleans as written, none for others.
fn value_at(bytes: &[u8], path: &[Box<str>]) -> Option<String> {
    let mut at: &RawValue = serde_json::from_slice(bytes).ok()?;
    for name in path {
        let mut deserializer = serde_json::Deserializer::from_str(at.get());
        at = deserializer.deserialize_any(Member(name)).ok()??;
    }
    let text = at.get();
    match text.as_bytes().first()? {
        b'"' => serde_json::from_str(text).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(text.to_owned()),
    }
}

/// Takes one member of an object, or one item of a list.
struct Member<'n>(&'n str);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let index: Option<usize> = self.0.parse().ok();
        let (mut found, mut at) = (None, 0);
        while let Some(item) = list.next_element::<&RawValue>()? {
            if Some(at) == index {
                found = Some(item);
            }
            at += 1;
        }
        Ok(found)
    }
}
