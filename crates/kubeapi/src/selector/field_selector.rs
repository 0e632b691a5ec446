//! Field selectors: `metadata.name=x,status.phase!=Running` (`k8s.io/apimachinery/pkg/fields`).

use std::fmt;

/// A field selector. An object must satisfy all terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    /// Sorted by their text, as in Kubernetes.
    pub terms: Vec<FieldTerm>,
}

/// One comparison of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// Path of the field, for example `metadata.name`.
    pub field: String,
    /// True for `=` and `==`, false for `!=`.
    pub equal: bool,
    /// Value to compare with, unescaped.
    pub value: String,
}

/// Error of parsing a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError(pub(crate) String);

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SelectorError {}

impl FieldSelector {
    /// Parses a selector. The empty text selects everything.
    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::with_capacity(parts.len());
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (field, equal, value) = split_term(part)
                .ok_or_else(|| SelectorError(format!("invalid selector: '{text}'; can't understand '{part}'")))?;
            let value = unescape(value)?;
            // As in Kubernetes, a term that consists of an operator only is dropped.
            if !(field.is_empty() && value.is_empty()) {
                terms.push(FieldTerm { field: field.to_owned(), equal, value });
            }
        }
        Ok(FieldSelector { terms })
    }

    /// Selects the object of this name.
    pub fn for_name(name: &str) -> FieldSelector {
        let term = FieldTerm { field: "metadata.name".to_owned(), equal: true, value: name.to_owned() };
        FieldSelector { terms: vec![term] }
    }

    /// The only value allowed for `field`, by the first term that requires equality.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| &*term.value)
    }

    /// Whether an object matches. `field` returns the value of a field, empty if it is missing.
    pub fn matches<'v>(&self, field: impl Fn(&str) -> &'v str) -> bool {
        self.terms.iter().all(|term| (field(&term.field) == term.value) == term.equal)
    }
}

/// Splits at unescaped commas.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c: char| match c {
        _ if escaped => {
            escaped = false;
            false
        }
        '\\' => {
            escaped = true;
            false
        }
        _ => c == ',',
    })
    .collect()
}

/// Splits at the first operator: `!=`, `==` or `=`.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.char_indices().find(|(at, c)| *c == '=' || term[*at..].starts_with("!="))?.0;
    let (field, rest) = term.split_at(at);
    match rest.strip_prefix("!=") {
        Some(value) => Some((field, false, value)),
        None => rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')).map(|value| (field, true, value)),
    }
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => plain.push(next),
                next => {
                    let sequence: String = Some('\\').into_iter().chain(next).collect();
                    return Err(SelectorError(format!("invalid field selector: invalid escape sequence: {sequence}")));
                }
            },
            ',' | '=' => {
                let code = u32::from(c);
                return Err(SelectorError(format!("invalid field selector: unescaped character in value: {code}")));
            }
            _ => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn terms(text: &str) -> Vec<(String, bool, String)> {
        FieldSelector::parse(text).unwrap().terms.into_iter().map(|t| (t.field, t.equal, t.value)).collect()
    }

    #[test]
    fn field_selector_terms_and_operators() {
        for (text, expected) in [
            ("", vec![]),
            ("=", vec![]),
            (",,", vec![]),
            ("x=a", vec![("x", true, "a")]),
            ("x==a", vec![("x", true, "a")]),
            ("x!=a", vec![("x", false, "a")]),
            ("x=", vec![("x", true, "")]),
            ("=a", vec![("", true, "a")]),
            ("x=a,y!=b", vec![("x", true, "a"), ("y", false, "b")]),
            ("y!=b,x=a", vec![("x", true, "a"), ("y", false, "b")]),
            (r"x=a\,b\=c\\d", vec![("x", true, r"a,b=c\d")]),
            ("a!b=c", vec![("a!b", true, "c")]),
            ("x=a!b", vec![("x", true, "a!b")]),
        ] {
            let expected: Vec<_> =
                expected.into_iter().map(|(field, equal, value)| (field.to_owned(), equal, value.to_owned())).collect();
            assert_eq!(terms(text), expected, "{text}");
        }
    }

    #[test]
    fn field_selector_invalid_text_rejected() {
        for text in ["x", "x=a,y", "x=a=b", "x===a", r"x=\a", r"x=a\", "x=a,b\\,c"] {
            assert!(FieldSelector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn field_selector_exact_and_matching() {
        let selector = FieldSelector::parse("metadata.name=b,metadata.name=a,status.phase!=x").unwrap();
        assert_eq!(selector.exact("metadata.name"), Some("a"));
        assert_eq!(selector.exact("status.phase"), None);
        let selector = FieldSelector::parse("metadata.name=a,status.phase!=x").unwrap();
        assert!(selector.matches(|field| if field == "metadata.name" { "a" } else { "" }));
        assert!(!selector.matches(|field| if field == "metadata.name" { "a" } else { "x" }));
        assert!(!selector.matches(|_| "b"));
    }

    proptest! {
        #[test]
        fn an_escaped_value_comes_back(value in ".*") {
            let escaped: String = value
                .chars()
                .flat_map(|c| matches!(c, '\\' | ',' | '=').then_some('\\').into_iter().chain([c]))
                .collect();
            prop_assert_eq!(terms(&format!("f={escaped}")), vec![("f".to_owned(), true, value)]);
        }
    }
}
