//! Regular expressions of schemas.

use kubeapi::schema::Pattern;

use crate::fuzz_text;

/// Mostly parts of good expressions, or half the inputs would fail at their first character.
const PATTERN: &[&str] = &[
    "a",
    "b",
    "k",
    "é",
    "ß",
    "日",
    "\n",
    "1",
    "-",
    "^",
    "$",
    ".",
    "(",
    "(",
    "(?:",
    "(?i:",
    "(?i)",
    "(?-s)",
    "(?m",
    "(?P<n>",
    "(?<",
    ")",
    ")",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2}",
    "{2,}",
    "{0,3}",
    "{1001}",
    "{",
    "}",
    ",",
    "[",
    "[",
    "[^",
    "]",
    "]",
    "]",
    "a-z",
    "α-ω",
    "[:alpha:]",
    "[:^word:]",
    "[:",
    "&&",
    "--",
    "~~",
    "\\",
    r"\d",
    r"\W",
    r"\S",
    r"\b",
    r"\B",
    r"\A",
    r"\z",
    r"\pL",
    r"\PN",
    r"\p{Greek}",
    r"\p{^Lu}",
    r"\p{",
    r"\x41",
    r"\x{D800}",
    r"\x{",
    r"\101",
    r"\0",
    r"\Q",
    r"\E",
    r"\]",
    r"\-",
    r"\n",
    "{1000}",
];

#[test]
fn schema_patterns() {
    fuzz_text(PATTERN, |text| {
        let pattern = Pattern::new(text);
        match pattern.error() {
            None => {
                for subject in ["", text, "a", "éa\n", "K日1"] {
                    let _ = pattern.matches(subject);
                }
            }
            Some(error) => assert!(
                error.starts_with("error parsing regexp: ") || error.ends_with(" too much memory"),
                "{text:?}: {error}"
            ),
        }
    });
}
